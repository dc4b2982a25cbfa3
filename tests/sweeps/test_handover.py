"""Sweeps that launchers and sweepers of Hydra's train."""

import re
import sys
import types
from pathlib import Path

import order
import pytest
from hydra.core.plugins import Plugins
from hydra.plugins.sweeper import Sweeper
from omegaconf import OmegaConf
from seed import some

from posexp.errors import NotFinite
from posexp.runs import RunWriter, folder

MINE = "hydra.searchpath=[file://mine]"
TINY = ["task=copy", *order.MODEL, "wandb.mode=disabled"]


def scored(config):
  """Stands in for training: writes the folder of a run, with a score that its config decides."""
  path, score = folder(config), float(config["train"]["learning_rate"])
  if score > 1:
    raise NotFinite("the loss is not finite at step 3")
  summary = {"test/exact_match": score, "validation/exact_match": score}
  if not (path / "summary.json").exists():
    with RunWriter(path, config) as run:
      run.finish(summary)
  return summary


class Halving(Sweeper):
  """Tries the ends of each interval, and notes the better of them as Optuna does."""

  def __init__(self, direction, params):
    self.direction = direction

  def setup(self, *, hydra_context, task_function, config):
    self.config = config
    self.launcher = Plugins.instance().instantiate_launcher(
      hydra_context=hydra_context, task_function=task_function, config=config
    )

  def sweep(self, arguments):
    (key, *ends) = re.fullmatch(r"(.*)=interval\((.*),(.*)\)", *arguments).groups()
    jobs = self.launcher.launch([[f"{key}={end}"] for end in ends], 0)
    best = {"maximize": max, "minimize": min}[self.direction](job.return_value for job in jobs)
    found = {"best_params": {key: ends[0]}, "best_value": best}
    OmegaConf.save(found, f"{self.config.hydra.sweep.dir}/optimization_results.yaml")


Halving.__module__ = "hydra_plugins.halving"  # Hydra takes plugins from such modules alone


@pytest.fixture
def mine(home, monkeypatch):
  """A folder with configs of a launcher and a sweeper."""
  monkeypatch.chdir(home)
  monkeypatch.setattr("posexp.train.train", scored)
  Plugins.instance().register(Halving)
  here = sys.modules[__name__]
  monkeypatch.setitem(sys.modules, "hydra_plugins", types.SimpleNamespace(halving=here))
  monkeypatch.setitem(sys.modules, Halving.__module__, here)
  own = {
    "launcher/other": "_target_: hydra._internal.core_plugins.basic_launcher.BasicLauncher",
    "launcher/lost": "_target_: hydra_plugins.lost.Launcher",
    "sweeper/halving": "_target_: hydra_plugins.halving.Halving\ndirection: minimize\nparams: null",
  }
  for name, text in own.items():
    file = home / f"mine/hydra/{name}.yaml"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
  return MINE


def test_a_launcher_of_hydra_s_trains_what_is_left_of_a_sweep(mine):
  typed = ["-m", "encoding=none,rpr,none", *TINY, mine]
  done = order.command(*typed, "hydra/launcher=other", "train.batch_size=4")
  assert (done.status, done.err) == (0, "")
  assert "encoding=none: the same run as job 1" in done.out
  assert done.out.count(": done, test exact match") == 2
  again = order.command(*typed, "hydra/launcher=other", "train.batch_size=4")
  assert "2 runs: 2 done" in again.out
  lost = order.command(*typed, "hydra/launcher=lost", "seed=1")
  assert re.match(r"posexp: error: Hydra: Unknown plugin class : .*lost\.Launcher.*\n$", lost.err)
  assert lost.status == 2


def test_a_sweeper_of_hydra_s_gets_the_score_and_its_direction(mine):
  interval = "train.learning_rate=interval(1e-4,1e-2)"
  typed = ["encoding=rpr", interval, *TINY, mine, "hydra/sweeper=halving"]
  done = order.command(*typed)
  assert (done.err, done.status) == ("", 0)
  found = OmegaConf.load("runs/.sweep/optimization_results.yaml")
  said = f"best of the sweep: train.learning_rate=1e-4: exact match {found.best_value:.3f}"
  assert said in done.out
  files = Path("runs").glob("copy/rpr/*/seed=0/config.yaml")
  assert {float(OmegaConf.load(file).train.learning_rate) for file in files} >= {1e-4, 1e-2}
  assert found.best_value == 1e-2  # though the sweeper's file says to minimize


@pytest.mark.slow
def test_a_trial_that_diverges_ends_no_sweep_and_is_not_chosen(mine):
  typed = ["encoding=rpr", *TINY, mine, "hydra/sweeper=halving"]
  done = order.command(*typed, "train.learning_rate=interval(1e-4,5)")
  assert (done.err, done.status) == ("", 0)
  assert "not chosen: train.learning_rate=5: the loss is not finite at step 3" in done.out
  assert OmegaConf.load("runs/.sweep/optimization_results.yaml").best_value == 1e-4
  none = order.command(*typed, "train.learning_rate=interval(2,5)")
  assert none.status == 2
  assert none.err.startswith("posexp: error: no trial has a score: each has diverged")


MISTAKES = [
  ("rpr.k=choice(-2,4)", "rpr.k must be at least 0, not -2"),
  ("rpr.x=choice(2,3)", "rpr.x=2: there is no option rpr.x; "),
  ("rope.base=interval(2,9)", "rope.base is set, but encoding=rpr; "),
  ("seeds=2", "seeds=2 has no effect with a sweeper of Hydra's: leave it out"),
  ("rpr.k=choice(2,4)", "hydra/sweeper: AttributeError: 'NoneType' object has no attribute"),
]


@pytest.mark.parametrize(("typed", "message"), some(MISTAKES, 2))
def test_mistakes_are_one_sentence_before_the_first_trial(mine, typed, message):
  done = order.command("-m", "encoding=rpr", *TINY, mine, "hydra/sweeper=halving", typed)
  assert done.refusal.startswith(message)
