"""Tuned sweeps: what is tried, what is chosen, and what is trained with it."""

from pathlib import Path

import order
import pytest

from posexp.encodings import ENCODINGS, alternative_of, encoding
from posexp.reporting import trials, under_way
from posexp.runs import RunWriter, folder, read_runs

RATES = "tune.train.learning_rate=1e-3,3e-3,1e-2"
SWEEP = ["-m", "encoding=none,rpr,rope", RATES, "tune.option=true", "seeds=2"]
BEST = {"none": (0.003, None), "rpr": (0.003, 4), "rope": (0.01, 10000.0)}


@pytest.fixture
def trained(tmp_path, monkeypatch):
  """Stands in for training, whose scores are best with BEST; the configs that were trained."""
  monkeypatch.chdir(tmp_path)
  found, main = [], {"rpr": "k", "rope": "base"}

  def train(config):
    name = config["encoding"]
    at = config["train"]["learning_rate"], config[name].get(main.get(name))
    found.append((bool(config.get("trial")), name, *at, config["seed"]))
    if train.fails == found[-1][:2]:
      raise train.error
    accuracy = 0.5 + 0.1 * (at[0] == BEST[name][0]) + 0.1 * (at[1] == BEST[name][1])
    summary = {"validation/accuracy": accuracy, "headline": ["validation/accuracy"]}
    if at == train.diverges:
      summary = {"diverged": "why", "headline": ["validation/accuracy"]}
    with RunWriter(folder(config), config) as run:
      run.log(1, {"validation/accuracy": accuracy, "validation/loss": 1.0})
      run.finish(summary if config.get("trial") else {"test/accuracy": accuracy})

  train.found, train.fails, train.error, train.diverges = found, None, KeyboardInterrupt(), None
  monkeypatch.setattr("posexp.train.train", train)
  return train


def tree():
  return {path: path.read_bytes() for path in Path().rglob("*.*") if ".sweep" not in path.parts}


def test_trials_come_first_and_choose_what_is_trained_then(trained):
  typed = order.command(*SWEEP)
  assert (typed.status, typed.err) == (0, "")
  assert (
    "tuning    3 groups: 30 trials, 6 runs with fixed options, and up to 6 with tuned" in typed.out
  )
  assert (
    "note      encoding=none: 6 trials and not 12, as its encoding declares no alternative"
    in typed.out
  )
  assert "job 40/42: tuned encoding=rpr seed=1: rpr.k=4 train.learning_rate=0.003" in typed.out
  assert [each[0] for each in trained.found] == 30 * [True] + 12 * [False]
  assert trained.found[-6:] == [(False, n, *BEST[n], seed) for n in BEST for seed in (0, 1)]
  before = tree()
  again = order.command(*SWEEP)
  assert again.status == 0
  assert again.out.partition("\n\n")[2] == typed.out.partition("\n\n")[2]  # the last tables
  assert (len(trained.found), tree()) == (42, before)
  assert not Path("runs/.sweep").exists()


@pytest.mark.parametrize("kind", [(True, "rpr"), (False, "rope")])
def test_a_stopped_sweep_that_is_typed_again_ends_as_one_that_never_was(trained, kind):
  assert order.command(*SWEEP).status == 0
  whole = tree()
  (Path("runs")).rename("whole")
  trained.fails = kind
  assert order.command(*SWEEP).status == 130
  (said,) = under_way.sentences([Path("runs")])
  left = 42 - len(list(Path("runs").rglob("summary.json")))
  assert f"{42 - left} done, 0 begun, {left} not begun; about " in said
  trained.fails = None
  assert order.command(*SWEEP).status == 0
  Path("whole").rename("runs/whole")
  assert {path: data for path, data in tree().items() if "whole" not in path.parts} == whole


def test_a_trial_that_diverged_is_not_chosen_and_one_that_failed_is_waited_for(trained):
  trained.diverges = (0.003, 4)
  trained.fails, trained.error = (True, "rope"), ValueError("oops")
  typed = order.command(*SWEEP)
  assert typed.status == 1
  assert "12 of 42 runs failed" in typed.err
  assert "tuned encoding=rpr seed=0: rpr.k=4 train.learning_rate=0.001" in typed.out
  assert not any(each[:2] == (False, "rope") and each[2] != 0.001 for each in trained.found)
  trained.fails = None
  assert "tuned encoding=rope seed=0: rope.base=10000 train" in order.command(*SWEEP).out


def test_trials_are_no_results(trained):
  order.command(*SWEEP)
  assert all(run.trial is None for run in read_runs([Path("runs")])[0])
  every = read_runs([Path("runs")], trials=True)[0]
  found = trials.tunings(every)
  tracks = trials.tracks(every, found)
  assert {(run.task, run.seed) for run in tracks} == {
    (f"mr ({kind})", seed) for kind in (trials.FIXED, trials.TUNED) for seed in (0, 1)
  }
  assert len(trials.trial_table(found)[1]) == 15
  assert [each.edges for each in found] == [[], ["train.learning_rate=0.01"], []]


@pytest.mark.parametrize(
  ("typed", "said"),
  [
    (["tune.train.learning_rate=1e-3"], "one value leaves nothing to choose"),
    (["tune.train.learning_rate=1e-3,1e-3"], "one value leaves nothing to choose"),
    (["tune.train.rate=1,2"], "there is no option train.rate"),
    ([RATES, "tune.seeds=1,2"], "seed=1 is one of tune.seeds"),
    ([RATES, "tune.seeds=[7,7]"], "tune.seeds must be different numbers"),
    ([RATES, "tune.options=true"], "one value leaves nothing to choose"),
    (["tune.task.max_length=5,6"], "and task.max_length is none"),
    (["tune.encoding=rpr,none"], "and encoding is none"),
    ([RATES, "train.learning_rate=1,2"], "compares values of train.learning_rate already"),
    (["tune.option=true", "rpr.k=4"], "rpr.k: tune.option=true tries rpr.k=4 beside"),
    (["tune.option=true", "rpr.k=2,8"], "rpr.k: tune.option=true tries rpr.k=4 beside"),
    (["tune.option=true", "encoding=none"], "none of these encodings declares an alternative"),
    (["tune.rope.base=5,50"], "rope.base is set, but encoding=rpr"),
  ],
)
def test_what_cannot_be_tuned_is_refused_before_any_work(trained, typed, said):
  found = order.command("-m", "encoding=rpr", "seeds=2", *typed)
  assert found.status == 2
  assert said in found.err
  assert found.err.count("\n") == 1
  assert not trained.found


@pytest.mark.parametrize("name", ENCODINGS)
def test_every_encoding_with_options_declares_an_alternative(name):
  found = alternative_of(name)
  assert (found is None) == (name == "none")
  if found:
    option = found[0].partition(".")[2]
    assert getattr(encoding(name, **{option: found[1]}), option) != getattr(encoding(name), option)


def test_a_trial_is_never_tested(home):
  argv = [*order.write(home), *order.BRIEF, "tune.train.learning_rate=1e-3,1e-2", "tune.seeds=[9]"]
  assert order.command("-m", *argv, "seed=0").status == 0
  found = order.summaries("runs")
  tested = {path: any(key.startswith("test") for key in each) for path, each in found.items()}
  assert sorted(tested.values()) == [False, False, *[True] * (len(tested) - 2)]
  for path, each in found.items():
    trial = path.parents[1].name == "trials"
    assert tested[path] is not trial
    assert (path / "predictions").exists() is not trial
    assert ("trial: " in (path / "config.yaml").read_text()) is trial
    assert {"cores", "ended"} <= each.keys()
