"""Tuned sweeps: what is tried, chosen and trained with it; and sweeps that end by themselves."""

import dataclasses
from pathlib import Path

import order
import pytest

from posexp.encodings import ENCODINGS, alternative_of, encoding
from posexp.errors import UserError
from posexp.reporting import trials, under_way
from posexp.runs import RunWriter, folder, read_runs
from posexp.runs.plans import plans
from posexp.runs.trials import tunings
from posexp.sweeps.until import Budget

RATES = "tune.train.learning_rate=1e-3,3e-3,1e-2"
SWEEP = ["-m", "encoding=none,rpr", RATES, "tune.option=true", "seeds=2"]
SMALL = ["-m", "encoding=none,rpr", "tune.train.learning_rate=1e-3,1e-2", "tune.seeds=[9]"]
BEST = {"none": (0.003, None), "rpr": (0.01, 4)}
ENDED = ["-m", "encoding=none,rope,alibi", "until=told", "margin=1"]
TWO = ["-m", "encoding=none,rope", "until=told", "margin=1"]
FAR = {"none": 0.5, "rope": 0.9, "alibi": 0.9}  # the mean of each encoding


@pytest.fixture
def trained(tmp_path, monkeypatch):
  """Stands in for training, whose scores are best with BEST; the configs that were trained."""
  monkeypatch.chdir(tmp_path)
  found = []

  def train(config):
    name, rate = config["encoding"], config["train"]["learning_rate"]
    at = rate, (config["rpr"]["k"] if name == "rpr" else None)
    found.append((bool(config.get("trial")), name, *at, config["seed"]))
    if train.fails and train.fails == found[-1][: len(train.fails)]:
      raise train.error
    accuracy = train.accuracy(name, *at, seed=config["seed"])
    summary = {"headline": ["validation/accuracy"]}
    summary |= {"diverged": "why"} if at == train.diverges else {"validation/accuracy": accuracy}
    with RunWriter(folder(config), config) as run:
      run.log(1, {"validation/accuracy": accuracy, "validation/loss": 1.0})
      run.finish(summary if config.get("trial") else {"test/accuracy": accuracy} | train.more)

  def accuracy(name, rate, k, seed):
    return 0.5 + 0.1 * (rate == BEST[name][0]) + 0.1 * (k == BEST[name][1])

  train.found, train.accuracy, train.more = found, accuracy, {}
  train.fails, train.error, train.diverges = None, KeyboardInterrupt(), None
  monkeypatch.setattr("posexp.train.train", train)
  return train


def tree():
  return {path: path.read_bytes() for path in Path("runs").rglob("*.*") if path.is_file()}


def test_trials_come_first_choose_what_is_trained_then_and_are_no_results(trained):
  typed = order.command(*SWEEP)
  assert (typed.status, typed.err) == (0, "")
  assert "tuning    2 groups: 24 trials, 4 runs with fixed options, and up to 4 with" in typed.out
  assert "note" not in typed.out  # none has no alternative, and as many trials, at more seeds
  assert "job 31/32: tuned encoding=rpr seed=0: rpr.k=4 train.learning_rate=0.01" in typed.out
  assert [each[0] for each in trained.found] == 24 * [True] + 8 * [False]
  assert trained.found[-4:] == [(False, n, *BEST[n], seed) for n in BEST for seed in (0, 1)]
  every = read_runs([Path("runs")], trials=True)[0]
  found = tunings(every)
  assert {(run.task, run.seed) for run in trials.tracks(every, found)} == {
    (f"mr ({kind})", seed) for kind in (trials.FIXED, trials.TUNED) for seed in (0, 1)
  }
  assert (len(every), len(read_runs([Path("runs")])[0])) == (32, 8)
  assert [each.edges for each in found] == [[], ["train.learning_rate=0.01"]]
  both = [dataclasses.replace(found[1], label=label) for label in ("rpr", "mine")]
  assert next(trials.notes(both)).startswith("rpr, mine: the best trial lies at the edge of what")
  alike = [point._replace(mean=0.5, loss=abs(n - 1)) for n, point in enumerate(found[1].points)]
  alike = dataclasses.replace(found[1], points=alike)
  assert (alike.best, alike.edges) == (alike.points[1], [])
  assert [each.points for each in tunings([*every, *every])] == [each.points for each in found]
  assert not Path("runs/.sweep").exists()
  # An option that an older trial lacks, but would have had at its default, was not tuned.
  one, *rest = sorted(every, key=lambda run: run.trial is None)
  model = {key: value for key, value in one.config["model"].items() if key != "qk"}
  one = dataclasses.replace(one, config=one.config | {"model": model})
  assert {*tunings([one, *rest])[0].points[0].values} == {*found[0].points[0].values}


def test_a_stopped_sweep_that_is_typed_again_ends_as_one_that_never_was(trained):
  assert order.command(*SMALL).status == 0
  whole = tree()
  Path("runs").rename("whole")
  trained.fails = (False, "rpr")
  assert order.command(*SMALL).status == 130
  (said,) = map(under_way.sentence, plans([Path("runs")]))
  assert "A sweep of 8 runs: 5 done, 0 begun, 3 not begun; about " in said
  trained.fails = None
  assert order.command(*SMALL).status == 0
  assert tree() == whole
  count = len(trained.found)
  assert order.command(*SMALL).status == 0
  assert (len(trained.found), tree()) == (count, whole)
  other = ["tune.train.learning_rate=1e-4,3e-4" if "rate" in word else word for word in SMALL]
  said = " ".join(order.command(*other).out.split())  # what was tried before counts, too
  assert "rpr 4 × 1 seed train.learning_rate=0.01 60.00 50.00 (n = 1) 60.00 (n = 1)" in said


def test_a_trial_that_diverged_is_not_chosen_and_one_that_failed_is_waited_for(trained):
  trained.diverges = (0.01, 4)
  trained.fails, trained.error = (True, "none"), ValueError("oops")
  typed = order.command(*SWEEP)
  assert (typed.status, "12 of 32 runs failed" in typed.err) == (1, True)
  assert "tuned encoding=rpr seed=0: rpr.k=4 train.learning_rate=0.001" in typed.out
  assert "tuned encoding=none seed=0: it waits for trials that failed" in typed.out
  trained.fails = None
  assert "tuned encoding=none seed=0: train.learning_rate=0.003" in order.command(*SWEEP).out


def test_runs_that_have_begun_have_curves_before_a_run_has_ended(trained):
  trained.fails = (False, "rpr")
  assert order.command(*SMALL).status == 130
  begun = next(Path("runs").glob("mr/none/*/seed=0/metrics.jsonl"))
  for name in ("summary.json", "run.sha256"):
    begun.with_name(name).unlink()
  with begun.open("a") as file:
    file.write('{"step": 2, "validation/accuracy": 0.75}\n')
  (section,) = under_way.sections([Path("runs")], read_runs([Path("runs")], trials=True)[0])
  assert section.table[1][0][1:] == ["begun", "2", "validation accuracy 60.00 75.00"]
  (figure,) = section.figures
  rows = figure.specs[0]["data"]["values"]
  assert [(row["x"], row["mean"]) for row in rows] == [(1, 60.0), (2, 75.0)]


@pytest.mark.parametrize(
  ("typed", "said"),
  [
    (["tune.train.learning_rate=1e-3,0.001"], "one value leaves nothing to choose"),
    (["tune.train.rate=1,2"], "there is no option train.rate"),
    ([RATES, "tune.seeds=1,2"], "seed=1 is a seed of trials (tune.seeds=[1,2])"),
    ([RATES, "tune.seeds=[7,7]"], "tune.seeds must be different numbers"),
    ([RATES, "tune.options=true"], "one value leaves nothing to choose"),
    (["tune.task.max_length=5,6"], "and task.max_length is none"),
    ([RATES, "train.learning_rate=1,2"], "compares values of train.learning_rate already"),
    (["tune.option=true", "rpr.k=4"], "rpr.k: tune.option=true tries rpr.k=4 beside"),
    (["tune.option=true", "encoding=none"], "none of these encodings declares an alternative"),
    (["tune.rope.base=5,50"], "rope.base is set, but encoding=rpr"),
  ],
)
def test_what_cannot_be_tuned_is_refused_before_any_work(trained, typed, said):
  assert said in order.command("-m", "encoding=rpr", "seeds=2", *typed).refusal
  assert not trained.found


def test_every_encoding_with_options_declares_an_alternative():
  assert [name for name in ENCODINGS if alternative_of(name) is None] == ["none"]
  for name in ENCODINGS.keys() - {"none"}:
    of, value = alternative_of(name)
    option = of.partition(".")[2]
    assert getattr(encoding(name, **{option: value}), option) != getattr(encoding(name), option)


def test_a_trial_is_never_tested(home):
  # Which other files have compiled.
  few = ["encoding=rpr", "rpr.k=2", *order.STEADY, "train.steps=1", "train.evaluate_every=1"]
  argv = [*order.write(home), *few, "tune.train.learning_rate=1e-3,1e-2", "tune.seeds=[9]"]
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


@pytest.fixture
def open_ended(trained):
  """The same, with scores that differ by FAR and a little by seed."""
  trained.accuracy = lambda name, *at, seed: FAR[name] + 0.001 * (seed * 7 % 5)
  trained.more = {"baseline/test/accuracy": 0.5}
  return trained


def seeds(trained, name):
  return [found[-1] for found in trained.found if found[1] == name]


def test_seeds_are_added_to_what_is_open_until_nothing_is(open_ended):
  typed = order.command(*ENDED)
  assert (typed.status, typed.err) == (0, "")
  assert "until     told: 9 runs first, 3 seeds of each group; at most 60 runs" in typed.out
  assert "until     told: nothing is open; seeds: encoding=none " in typed.out
  told, equal = len(seeds(open_ended, "rope")), len(seeds(open_ended, "alibi"))
  assert 3 < told == equal < 20  # both are told from none, of two, as soon as seeds can
  assert seeds(open_ended, "none") == [*range(told)]
  assert "Order matters for these data: 40.00 points between" in " ".join(typed.out.split())
  assert Path("runs/mr/told.svg").read_text().startswith("<svg")
  assert "p (corrected)" in typed.out
  before = len(open_ended.found)
  again = order.command(*ENDED)
  assert (len(open_ended.found), again.status) == (before, 0)
  assert again.out.partition("mr: test accuracy")[2] == typed.out.partition("mr: test accuracy")[2]


def test_what_is_equal_within_the_margin_ends_and_without_a_margin_goes_on(open_ended):
  FARTHER = ["-m", "encoding=rope,alibi", "until=told", "seeds=12"]
  typed = order.command(*FARTHER, "margin=1")
  assert "equal for practical purposes" in " ".join(typed.out.split())
  assert len(seeds(open_ended, "rope")) == len(seeds(open_ended, "alibi")) < 12
  typed = order.command(*FARTHER)
  assert "the most seeds are trained" in typed.out
  assert {*seeds(open_ended, "rope")} == {*range(12)}


def test_what_is_said_of_order_has_the_margin_that_was_typed_last(open_ended, monkeypatch):
  monkeypatch.setitem(FAR, "none", FAR["rope"])
  typed = ["-m", "encoding=none,rope", "until=told", "seeds=8"]
  said = [" ".join(order.command(*typed, f"margin={each}").out.split()) for each in (0.1, 5)]
  assert "Whether order matters for these data cannot be told: 0.00 points between rope" in said[0]
  assert "Order does not matter for these data" in said[1]
  monkeypatch.setitem(FAR, "sinusoidal", FAR["rope"])
  monkeypatch.setitem(FAR, "alibi", 0.99)  # ahead of two that are alike
  typed = ["-m", "encoding=none,sinusoidal,alibi", "until=told", "margin=5"]
  assert "Order matters for these data: 9.00 points between alibi and no positions." in " ".join(
    order.command(*typed).out.split()
  )


def test_a_sweep_whose_first_runs_all_fail_names_them(open_ended, monkeypatch):
  def failing(config):
    raise UserError("planted")

  typed = order.command(*TWO, job=failing)
  assert typed.status == 1
  assert "until     told: no run has finished; " in typed.out
  assert "6 of 40 runs failed" in typed.err


def test_a_budget_ends_it_and_a_larger_one_goes_on(open_ended):
  open_ended.more = {"baseline/test/5-gram/bits_per_byte": 0.5}  # a decoder's
  typed = order.command(*TWO, "budget=7 runs")
  assert "another round is over the budget of 7 runs" in typed.out
  assert "for these data" not in typed.out
  assert len(open_ended.found) == 6
  assert order.command(*TWO, "budget=1h").status == 0
  assert len(open_ended.found) > 6
  assert len({*open_ended.found}) == len(open_ended.found)


def test_a_failed_run_ends_its_group_alone(open_ended):
  open_ended.fails, open_ended.error = (False, "alibi", 0.001, None, 3), UserError("planted")
  typed = order.command(*ENDED)
  assert typed.status == 1
  assert seeds(open_ended, "alibi") == [0, 1, 2, 3]
  assert len(seeds(open_ended, "rope")) > 4


def test_trials_come_first_and_both_tracks_are_looked_at(open_ended):
  typed = order.command(*TWO, "tune.train.learning_rate=1e-3,3e-3")
  assert typed.status == 0, typed.err
  assert "nothing is open" in typed.out
  assert "mr: fixed and tuned options" in typed.out
  assert len([*Path("runs/mr").glob("told*.svg")]) == 2


def test_seeds_that_are_added_by_hand_are_said_to_spoil_intervals(open_ended):
  fixed = ["-m", "encoding=none,rope"]
  assert "note" not in order.command(*fixed, "seeds=3").out
  assert "encoding=none has 3 finished seeds, to which 2 are added" in (
    order.command(*fixed, "seeds=5").out
  )


def test_a_short_list_is_that_of_the_task(trained, monkeypatch):
  found = []
  monkeypatch.setattr("posexp.sweeps.launch.members", lambda args, cfg: found.append(args))
  for task, names in (
    ("mr", "encoding=none,sinusoidal,learned,rpr,rope,deberta"),
    ("copy", "encoding=none,rope,alibi,fire,rpr,fox"),
  ):
    order.command("-m", f"task={task}", "encoding=short_list", "until=told")
    assert names in [override.input_line for override in found.pop().overrides]
  order.command("-m", "task=copy,tally", "encoding=short_list,none,kerple")
  assert f"{names},kerple" in [override.input_line for override in found.pop().overrides]
  typed = order.command("-m", "task=copy,mr", "encoding=short_list")
  assert "stands for other encodings in parts of task=copy,mr: sweep each alone" in typed.err


@pytest.mark.parametrize("text", ["2", "h", "0h", "0 runs", "-1h", "2h 3m", "many runs"])
def test_a_budget_is_a_time_or_a_number_of_runs(text):
  assert Budget.of("40 runs") == Budget(runs=40)
  assert Budget.of("1.5h") == Budget(seconds=5400)
  with pytest.raises(UserError, match="budget="):
    Budget.of(text)
