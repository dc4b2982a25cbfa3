"""Sweeps that end by themselves."""

from pathlib import Path

import order
import pytest

from posexp.errors import UserError
from posexp.runs import RunWriter, folder
from posexp.sweeps.until import Budget

SWEEP = ["-m", "encoding=none,rope,alibi", "until=told", "margin=1"]
TWO = ["-m", "encoding=none,rope", "until=told", "margin=1"]
FAR = {"none": 0.5, "rope": 0.9, "alibi": 0.9}  # the mean of each encoding


@pytest.fixture
def trained(tmp_path, monkeypatch):
  """Stands in for training, whose scores differ by FAR and a little by seed; what was trained."""
  monkeypatch.chdir(tmp_path)
  found = []

  def train(config):
    found.append((config["encoding"], config["seed"]))
    if found[-1] == train.fails:
      raise UserError("planted")
    accuracy = FAR[config["encoding"]] + 0.001 * (config["seed"] * 7 % 5)
    with RunWriter(folder(config), config) as run:
      run.log(1, {"validation/accuracy": accuracy, "validation/loss": 1.0})
      summary = {"test/accuracy": accuracy, train.floor: 0.5}
      trial = {"headline": ["validation/accuracy"], "validation/accuracy": accuracy}
      run.finish(trial if config.get("trial") else summary)

  train.found, train.fails, train.floor = found, None, "baseline/test/accuracy"
  monkeypatch.setattr("posexp.train.train", train)
  return train


def seeds(trained, name):
  return [seed for encoding, seed in trained.found if encoding == name]


def test_seeds_are_added_to_what_is_open_until_nothing_is(trained):
  typed = order.command(*SWEEP)
  assert (typed.status, typed.err) == (0, "")
  assert "until     told: 9 runs first, 3 seeds of each group; at most 60 runs" in typed.out
  assert "until     told: nothing is open; seeds: encoding=none " in typed.out
  told, equal = len(seeds(trained, "rope")), len(seeds(trained, "alibi"))
  assert 3 < told == equal < 20  # both are told from none, of two, as soon as seeds can
  assert seeds(trained, "none") == [*range(told)]
  assert "Order matters for these data: 40.00 points between" in " ".join(typed.out.split())
  assert Path("runs/mr/told.svg").read_text().startswith("<svg")
  assert "p (corrected)" in typed.out
  before = len(trained.found)
  again = order.command(*SWEEP)
  assert (len(trained.found), again.status) == (before, 0)
  assert again.out.partition("mr: test accuracy")[2] == typed.out.partition("mr: test accuracy")[2]


def test_what_is_equal_within_the_margin_ends_and_without_a_margin_goes_on(trained):
  FARTHER = ["-m", "encoding=rope,alibi", "until=told", "seeds=12"]
  typed = order.command(*FARTHER, "margin=1")
  assert "equal for practical purposes" in " ".join(typed.out.split())
  assert len(seeds(trained, "rope")) == len(seeds(trained, "alibi")) < 12
  typed = order.command(*FARTHER)
  assert "the most seeds are trained" in typed.out
  assert {*seeds(trained, "rope")} == {*range(12)}


def test_what_is_said_of_order_has_the_margin_that_was_typed_last(trained, monkeypatch):
  monkeypatch.setitem(FAR, "none", FAR["rope"])
  typed = ["-m", "encoding=none,rope", "until=told", "seeds=8"]
  said = [" ".join(order.command(*typed, f"margin={each}").out.split()) for each in (0.1, 5)]
  assert "Whether order matters for these data cannot be told: 0.00 points between rope" in said[0]
  assert "Order does not matter for these data" in said[1]


def test_a_sweep_whose_first_runs_all_fail_names_them(trained, monkeypatch):
  def failing(config):
    raise UserError("planted")

  typed = order.command(*TWO, job=failing)
  assert typed.status == 1
  assert "until     told: no run has finished; " in typed.out
  assert "6 of 40 runs failed" in typed.err


def test_a_budget_ends_it_and_a_larger_one_goes_on(trained):
  trained.floor = "baseline/test/5-gram/bits_per_byte"  # a decoder's
  typed = order.command(*TWO, "budget=7 runs")
  assert "another round is over the budget of 7 runs" in typed.out
  assert "for these data" not in typed.out
  assert len(trained.found) == 6
  assert order.command(*TWO, "budget=1h").status == 0
  assert len(trained.found) > 6
  assert len({*trained.found}) == len(trained.found)


def test_a_failed_run_ends_its_group_alone(trained):
  trained.fails = ("alibi", 3)
  typed = order.command(*SWEEP)
  assert typed.status == 1
  assert seeds(trained, "alibi") == [0, 1, 2, 3]
  assert len(seeds(trained, "rope")) > 4


def test_trials_come_first_and_both_tracks_are_looked_at(trained):
  typed = order.command(*TWO, "tune.train.learning_rate=1e-3,3e-3")
  assert typed.status == 0, typed.err
  assert "nothing is open" in typed.out
  assert "mr: fixed and tuned options" in typed.out
  assert len([*Path("runs/mr").glob("told*.svg")]) == 2


def test_seeds_that_are_added_by_hand_are_said_to_spoil_intervals(trained):
  fixed = ["-m", "encoding=none,rope"]
  assert "note" not in order.command(*fixed, "seeds=3").out
  assert "encoding=none has 3 finished seeds, to which 2 are added" in (
    order.command(*fixed, "seeds=5").out
  )


def test_a_short_list_is_that_of_the_task(trained, monkeypatch):
  monkeypatch.setattr("posexp.sweeps.launch.members", lambda args, cfg: trained.found.append(args))
  for task, names in (
    ("mr", "encoding=none,sinusoidal,learned,rpr,rope,deberta"),
    ("copy", "encoding=none,rope,alibi,fire,rpr,fox"),
  ):
    order.command("-m", f"task={task}", "encoding=short_list", "until=told")
    assert names in [override.input_line for override in trained.found.pop().overrides]
  order.command("-m", "task=copy,tally", "encoding=short_list,none,kerple")
  assert f"{names},kerple" in [override.input_line for override in trained.found.pop().overrides]
  typed = order.command("-m", "task=copy,mr", "encoding=short_list")
  assert "stands for other encodings in parts of task=copy,mr: sweep each alone" in typed.err


@pytest.mark.parametrize("text", ["2", "h", "0h", "0 runs", "-1h", "2h 3m", "many runs"])
def test_a_budget_is_a_time_or_a_number_of_runs(text):
  assert Budget.of("40 runs") == Budget(runs=40)
  assert Budget.of("1.5h") == Budget(seconds=5400)
  with pytest.raises(UserError, match="budget="):
    Budget.of(text)
