"""`posexp.lengths`: which lengths are measured, and what is said of them."""

import types

import numpy as np
import pytest

from posexp.config.arguments import ranges
from posexp.diagnostics import command
from posexp.diagnostics.algorithmic import Addition, Copy
from posexp.diagnostics.diagnostic import Drawn
from posexp.errors import UserError
from posexp.models.positions import Positions
from posexp.training.evaluation import gathered


class Forgetful:
  """Right up to answers of 24 symbols; writes on at the end of longer ones."""

  batch_size = 7
  state = types.SimpleNamespace(step=3)

  def predict(self, batches, term_scale=None, split=""):
    def found():
      for batch in batches:
        right = batch["mask"].copy()
        for row in np.flatnonzero(right.sum(1) > 25):
          right[row, np.flatnonzero(right[row])[-1]] = False
        yield batch, {"right": right, "nll": np.zeros(right.shape)}

    return gathered(found())


@pytest.fixture
def typed(tmp_path, monkeypatch):
  """Types the command, for a run whose encoding has so many positions."""

  def typed(asked, limit=None, task=None):
    task = task or Copy(examples=20)
    trained = types.SimpleNamespace(
      setup=types.SimpleNamespace(task=task),
      run=types.SimpleNamespace(path=tmp_path, config={"encoding": "none"}),
      spec=types.SimpleNamespace(
        positions=Positions(), encoding=types.SimpleNamespace(limit=limit)
      ),
      snapshot=Forgetful(),
      data=task.prepare(tmp_path),
    )
    monkeypatch.setattr("posexp.training.restore.open_for", lambda *_: trained)
    return command.lengths(command.arguments(["RUN", asked]))

  return typed


def test_each_length_has_its_score_with_the_end_and_without(typed, capsys):
  found = typed("10:30:10,24")
  assert [*found["lengths"]] == [10, 20, 24, 30]
  assert [row["exact"]["mean"] for row in found["lengths"].values()] == [1.0, 1.0, 1.0, 0.0]
  assert [row["oracle"]["mean"] for row in found["lengths"].values()] == [1.0] * 4
  assert found["lengths"][30]["accuracy"] == pytest.approx(30 / 31)
  assert (found["learned"], found["reach"]) == (True, 24)
  text = capsys.readouterr().out
  assert "learned: 100.0 % exact match of validation, of lengths 1 to 20" in text


def test_lengths_that_need_more_positions_than_there_are_are_not_applicable(typed, capsys):
  found = typed("20,40", limit=60)
  assert [*found["lengths"]] == [20]
  assert "there are 60 positions" in found["not_applicable"][40]
  assert "not applicable" in capsys.readouterr().out
  with pytest.raises(UserError, match="there are 60 positions; choose shorter ones"):
    typed("40", limit=60)


def test_examples_of_a_length_are_those_of_training_whatever_others_are_asked_for(typed):
  task = Addition(longest=4, lengths=(2, 4, 10), examples=20)
  alone, beside = (typed(asked, task=task) for asked in ("4", "4,10,20"))
  assert alone["lengths"][4] == beside["lengths"][4]
  assert beside["not_applicable"] == {20: "takes 32 symbols, and the model has 22"}
  (first, _), *_ = Drawn(task, tested=(2,)).splits["test"][1]
  assert first[0] > 13  # the symbol of a place that lengths up to 2 do not have


def test_shares_have_wilson_intervals():
  n, p, z = 20, 0.15, 1.959963984540054
  middle, half = p + z**2 / (2 * n), z * np.sqrt(p * (1 - p) / n + z**2 / (4 * n**2))
  expected = [(middle + sign * half) / (1 + z**2 / n) for sign in (-1, 1)]
  found = command.share([True] * 3 + [False] * 17)
  assert [found["low"], found["high"]] == pytest.approx(expected)


def test_lengths_are_numbers_and_ranges_with_both_ends(typed):
  assert ranges("20:100:40,30,5:7") == [5, 6, 7, 20, 30, 60, 100]
  for wrong in ("0", "9:5", "a", "1:9:0", "", "1:2:3:4", "1:1000000000000"):
    with pytest.raises(UserError, match=f"^{wrong}: write LENGTHS as 30,60 or from:to:step"):
      typed(wrong)
