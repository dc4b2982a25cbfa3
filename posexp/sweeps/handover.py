"""Sweeps that plugins of Hydra train: launchers such as joblib's, and sweepers such as Optuna's."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from hydra._internal.callbacks import Callbacks
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.types import Override
from hydra.core.plugins import Plugins
from hydra.errors import HydraException
from hydra.types import HydraContext, RunMode
from omegaconf import DictConfig, OmegaConf, open_dict, read_write

from posexp.config import plugins, resolve, show_options
from posexp.config.command_line import check_heeded, compose, explained, hydra_with_configs
from posexp.config.overrides import read
from posexp.errors import UserError
from posexp.runs.metrics import Metric
from posexp.sweeps.jobs import values
from posexp.sweeps.sweep import FAILED, RUNNING, Member, Report, Train, attempt

log = logging.getLogger("posexp")


class Jobs:
  """The function that a launcher calls in its processes: it trains the run of the job's number."""

  def __init__(self, train: Train, members: Sequence[Member]):
    self.train, self.members, self.plugins = train, members, plugins.files()

  def __call__(self, cfg: DictConfig) -> tuple[str, str]:
    plugins.load(self.plugins)
    return attempt(self.train, self.members[HydraConfig.get().job.num])


def metric_of(task: Any) -> Metric:
  """Return the metric of the validation score that chooses a task's checkpoints."""
  from posexp.tasks.contract import score_of

  return score_of(task, task.score).metric


class Trials:
  """The function that is called for each trial of a sweeper: it trains, and returns the score.

  The score is that of the validation split, since options that are chosen by test scores make these
  worthless. Where the task's own does not apply to the data, it is that of the results' first one.
  """

  def __init__(self, train: Train):
    self.train, self.plugins, self.begun = train, plugins.files(), False

  def __call__(self, cfg: DictConfig) -> float:
    self.begun = True
    plugins.load(self.plugins)
    from posexp.tasks import make_task

    typed = HydraConfig.get().overrides
    config = resolve(compose([*typed.hydra, *typed.task]))  # not `cfg`: texts as they were typed
    task, summary = make_task(config), self.train(config)
    others = [f"validation/{key.partition('/')[2]}" for key in task.headline]
    return next(summary[key] for key in (task.score, *others) if key in summary)


def _multirun(fixed: Sequence[str], swept: Sequence[str] = ()) -> dict[str, Any]:
  """Return what Hydra makes a launcher or a sweeper of, beside the function that it calls.

  Each job has the `fixed` overrides.
  """
  with hydra_with_configs() as main:
    lines = [*fixed, *swept, "hydra.output_subdir=null"]
    config = main.compose_config("train", lines, RunMode.MULTIRUN)
  with read_write(config.hydra), open_dict(config.hydra):
    config.hydra.hydra_logging = config.hydra.job_logging  # which a launcher puts in place of it
    config.hydra.overrides.hydra += [line for line in fixed if not line.startswith("hydra")]
  return {"config": config, "hydra_context": HydraContext(main.config_loader, Callbacks())}


def _made(make: Callable[..., Any], **asked: Any) -> Any:
  """Return a launcher or a sweeper; raise UserError if it cannot be made."""
  try:
    return make(**asked)
  except (HydraException, ImportError, RuntimeError) as error:
    raise UserError(f"Hydra: {' '.join(str(error).split())}") from error


def train_by_launcher(
  members: Sequence[Member], train: Train, fixed: Sequence[str]
) -> Iterator[Report]:
  """Train the runs as jobs of the launcher of Hydra's that the `fixed` overrides choose."""
  if not members:
    return
  for member in members:
    yield member, RUNNING, ""
  make = Plugins.instance().instantiate_launcher
  launcher = _made(make, task_function=Jobs(train, members), **_multirun(fixed))
  try:
    outcomes = [job.return_value for job in launcher.launch([[] for _ in members], 0)]
  except Exception as error:  # of any class: a process that died, or what the launcher lacks
    said = (str(error).splitlines() or [""])[0]
    outcomes = [(FAILED, f"{type(error).__name__}: {said}")] * len(members)
  for member, (state, _) in zip(members, outcomes, strict=True):
    member.state = state  # they have ended at once: nothing is left when the first is said
  for member, outcome in zip(members, outcomes, strict=True):
    yield member, *outcome


def sweep(train: Train, overrides: Sequence[Override], folder: Path) -> None:
  """Have the sweeper of Hydra's that the overrides choose train its trials, and name the best.

  The best has the highest or lowest value of the task's `score` on validation. The first values of
  all options are tried before, in a model that is built in shape only.
  `folder` is where a sweeper writes what it has found.

  Raises:
    UserError: an option has no effect, or has no such value.
  """
  from posexp.training.setup import Setup

  for o in overrides:
    if o.key_or_group in ("seeds", "workers"):
      raise UserError(f"{o.input_line} has no effect with a sweeper of Hydra's: leave it out")
  swept = [o for o in overrides if o.is_sweep_override()]
  fixed = [o.input_line for o in overrides if o not in swept]
  columns = {
    o.key_or_group: [f"{o.get_key_element()}={o.value().start}"]
    if o.is_interval_sweep()
    else list(values(o))
    for o in swept
  }
  first = [*fixed, *(column[0] for column in columns.values())]
  with explained(read(first)):
    config = resolve(compose(first))
  setup = Setup.of(config)
  setup.least_parameters()
  encodings = [line.partition("=")[2] for line in columns.get("encoding", ())]
  check_heeded(overrides, encodings or [config["encoding"]])
  metric = metric_of(setup.task)
  (results := folder / "optimization_results.yaml").unlink(missing_ok=True)
  lines = [o.input_line for o in swept]
  asked = _multirun(fixed, lines)
  options = asked["config"].hydra.sweeper
  if "direction" in options and all(o.key_or_group != "hydra.sweeper.direction" for o in overrides):
    options.direction = "maximize" if metric.higher_is_better else "minimize"
  trials = Trials(train)
  sweeper = _made(Plugins.instance().instantiate_sweeper, task_function=trials, **asked)
  try:
    sweeper.sweep(lines)
  except Exception as error:  # of any class: the sweeper's own library refuses its options
    if trials.begun or isinstance(error, UserError):
      raise
    said = " ".join(str(error).split())
    raise UserError(f"hydra/sweeper: {type(error).__name__}: {said}") from error
  if results.exists():
    found = OmegaConf.to_container(OmegaConf.load(results))
    best = show_options(found.get("best_params"))
    value = format(found["best_value"], metric.format)
    log.info("best of the sweep: %s: %s %s", best, metric.title, value)
