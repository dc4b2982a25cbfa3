"""Differences that hold however often one looks."""

import itertools
import math
from types import SimpleNamespace

import numpy as np
import pytest
from scipy import special

from posexp.reporting import anytime, sentences
from posexp.reporting.anytime import bounds, log_evidence, standing
from posexp.runs.metrics import score


def likelihood(order, ratio):
  """How likely an order of who leaves is, one after another, each at its rate (Plackett 1975)."""
  rates = [math.exp(ratio) if own else 1.0 for own in order]
  return math.prod(rate / sum(rates[at:]) for at, rate in enumerate(rates))


def test_evidence_is_a_ratio_of_likelihoods_of_orders():
  a, b = [0.3, 0.9, 0.5], [0.1, 0.4]
  scores = sorted([(each, True) for each in a] + [(each, False) for each in b])
  up = [own for _, own in scores]
  ratios = [
    likelihood([own == ahead for own in order], ratio) * math.factorial(5)
    for order in (up, up[::-1])
    for ahead in (True, False)
    for ratio in anytime.RATIOS
  ]
  assert np.exp(log_evidence(a, b)) == pytest.approx(np.mean(ratios))


@pytest.mark.parametrize("scores", [[0, 1, 2, 3, 4], [0, 0, 1, 1, 1]])
def test_its_mean_over_all_orders_is_at_most_1_where_groups_are_alike(scores):
  found = []
  for own in itertools.combinations(range(5), 3):
    others = [scores[each] for each in range(5) if each not in own]
    found.append(np.exp(log_evidence([scores[each] for each in own], others))[0])
  assert np.mean(found) <= 1 + 1e-12
  assert len({*scores}) < 5 or np.mean(found) == pytest.approx(1)


def test_it_never_exceeds_the_number_of_ways_to_choose_and_equal_scores_are_no_evidence():
  apart = float(np.exp(log_evidence(range(4, 8), range(4)))[0])
  assert 20 < apart < special.comb(8, 4)
  assert np.exp(log_evidence([1.0] * 9, [1.0] * 9)) < 0.01


def test_bounds_hold_the_shifts_that_are_not_refused_and_move_with_the_scores():
  a, b = [0.62, 0.71, 0.66, 0.69, 0.64, 0.7], [0.4, 0.52, 0.43, 0.48, 0.41, 0.46]
  low, high = bounds(a, b, 0.05)
  assert 0 < low < np.mean(a) - np.mean(b) < high
  moved = bounds(np.add(a, 0.25), b, 0.05)
  assert moved == pytest.approx((low + 0.25, high + 0.25))
  assert bounds(b, a, 0.05) == pytest.approx((-high, -low))
  assert bounds(a[:3], b[:3], 0.05) == (-math.inf, math.inf)  # three seeds tell nothing
  assert bounds([1.0] * 6, [1.0] * 6, 0.05) == (0, 0)


def test_what_was_told_once_stays_told():
  a, b = [5.0, 6, 7, 8], [1.0, 2, 3, 4]
  early = standing(a, b, 0.05)
  later = standing([*a, *b], [*b, *a], 0.05)  # of which all together say nothing
  assert early.p < 0.05
  assert early.low > 0
  assert later.p <= early.p
  assert later.low >= early.low


@pytest.mark.parametrize("most", [1.0, None])
def test_a_difference_stays_within_the_range_of_scores_and_is_corrected(most):
  a, b = {0: 0.9, 1: 0.95, 2: 0.93, 3: 0.91}, {0: 0.1, 1: 0.2, 2: 0.15, 3: 0.12}
  found = anytime.difference(a, b, most, 1)
  assert found.p == found.holm < 0.05
  assert 0 < found.estimate.low < found.estimate.mean < found.estimate.high <= 1
  twelve = anytime.difference(a, b, most, 11)
  assert (twelve.holm, twelve.estimate.low) == (pytest.approx(11 * found.p), None)


def test_no_group_is_ahead_of_another_by_most_of_its_seeds_and_behind_by_the_mean():
  own, base = (dict(enumerate(side)) for side in ([95] * 9 + [10], [90] * 10))
  failing = anytime.difference(own, base, 100, 1)
  assert failing.estimate.mean < 0 < failing.estimate.low
  assert failing.holm < 0.05
  results = SimpleNamespace(margin=10, score=score("test/accuracy"))
  assert sentences.outcome(SimpleNamespace(difference=failing), results) == "not told apart"
  sound = anytime.difference(own | {9: 94}, base, 100, 1)
  assert sentences.outcome(SimpleNamespace(difference=sound), results) == "better"
