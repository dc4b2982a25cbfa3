"""How far runs were trained, and how far their models extrapolate."""

import math

import numpy as np
import pytest

from posexp.runs.lengths import extrapolation, reach
from posexp.runs.trained import Trained
from posexp.tasks.results import guessing, unsmoothed

GUESS = math.log(2)


def rows(*losses, every=10):
  """Rows of evaluations with these losses, of training as well."""
  return [
    {"step": every * number, "train/loss": loss, "validation/loss": loss}
    for number, loss in enumerate(losses, start=1)
  ]


@pytest.mark.parametrize(
  ("losses", "warmup", "lacking"),
  [
    ([0.69, 0.69, 0.69], 100, "30 steps, loss at chance, warmup not over; "),
    ([0.69, 0.5, 0.3], 3, "30 steps, still improving; "),
    ([0.6, 0.1, 0.01, 0.01], 3, ""),
    ([0.6, 0.3, 0.31, 0.4], 3, ""),  # it has begun to learn by heart
    ([0.69, 0.69, 0.69, 0.69], 3, "40 steps, loss at chance; "),
  ],
)
def test_what_was_cut_short_is_told_from_what_was_learned(losses, warmup, lacking):
  found = Trained.of(rows(*losses), 10, warmup, GUESS, None)
  more = "add train.steps=1000 train.warmup=100" if lacking else ""
  assert found.lacking() == lacking + more
  assert ("still falling" in found.said()) == ("still improving" in lacking)


def test_guessing_is_compared_with_the_loss_against_plain_labels():
  smoothed = [row | {"train/nll": row["train/loss"] - 0.3} for row in rows(0.69, 0.69, 0.69)]
  assert Trained.of(rows(0.69, 0.69, 0.69), 10, 3, GUESS, None).at_chance
  assert not Trained.of(smoothed, 10, 3, GUESS, None).at_chance
  counts = np.array([3, 1])
  for smoothed_to, plain in ((0.75, 0.0), (0.625, guessing(counts))):  # a share of 0.5 is spread
    least = -(smoothed_to * np.log(smoothed_to) + (1 - smoothed_to) * np.log(1 - smoothed_to))
    assert unsmoothed(least, counts, 0.5) == pytest.approx(plain)


def test_advice_is_of_the_option_that_was_given():
  found = Trained.of(rows(0.69, 0.5, 0.3, every=200), 600, 100, GUESS, 3)
  assert found.more() == "train.epochs=12 train.warmup=240"
  ended = Trained.of(rows(0.69, 0.69, 0.69), 10, 40, GUESS, None, 100)
  said = "30 steps of 100, by train.patience, loss at chance, warmup not over; add "
  assert ended.lacking() == f"{said}train.patience=null"


def test_rows_without_an_evaluation_say_nothing():
  assert Trained.of([{"step": 5, "train/loss": 1.0}], 0, 0, None, None) is None
  (only,) = rows(0.1)
  assert not Trained.of([only], 10, 0, None, None).cut_short
  # The training loss is a mean from the first step on.
  assert not Trained.of([only | {"train/loss": 0.69}], 10, 3, GUESS, None).at_chance


def test_reach_is_the_longest_length_without_a_gap():
  assert reach({5: 1.0, 10: 0.95, 20: 0.5, 30: 1.0}) == 10
  assert reach({5: 0.2}) == 0


def test_the_area_is_that_under_lines_over_the_logarithm_from_the_last_length_of_training():
  within = {"test/exact_match/5": 1.0, "test/exact_match/10": 1.0}
  beyond = {"beyond/exact_match/20": 0.95, "beyond/exact_match/40": 0.0}
  found = extrapolation(within | beyond)
  assert found == {"beyond/reach": 20, "beyond/area": pytest.approx((0.975 + 0.475) / 2)}
  more = {"beyond/exact_match/28": 0.4889, "beyond/exact_match/2": 0.0}  # shorter ones do not count
  finer = extrapolation(within | beyond | more)
  assert finer["beyond/area"] == pytest.approx(found["beyond/area"], abs=1e-3)
  assert extrapolation({"test/exact_match/dates": 1.0} | beyond) == {}
