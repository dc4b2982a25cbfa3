"""Sweeps that plugins of Hydra train: launchers such as joblib's, and sweepers such as Optuna's."""

from __future__ import annotations

import functools
import logging
import math
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.types import Override
from hydra.core.plugins import Plugins
from hydra.errors import HydraException
from hydra.types import HydraContext, RunMode
from omegaconf import DictConfig, OmegaConf, open_dict, read_write

from posexp.config import plugins, resolve, show_options
from posexp.config.command_line import TUNE, compose, hydra_with_configs
from posexp.config.overrides import read
from posexp.errors import NotFinite, Unsuited, UserError
from posexp.sweeps import workers
from posexp.sweeps.jobs import members, values
from posexp.sweeps.sweep import DONE, FAILED, RUNNING, Context, Member, Report, Train

log = logging.getLogger("posexp")


def _job(train: Train, runs: Sequence[Member], context: Context, _: Any) -> tuple[str, str]:
  """Train the run of the job's number; a launcher calls this in its processes."""
  workers.leave_with_parent()
  return workers.attempt(train, context, runs[HydraConfig.get().job.num])


class Trials:
  """The function that is called for each trial of a sweeper: it trains, and returns the score.

  The score is measured on the validation split, since choosing options by test scores would make
  these worthless. It is the task's `score` or, where that does not apply to the data, the first of
  its headline scores that does. A trial that diverges, or whose options do not suit each other,
  gets the worst possible score: it counts as ended, and is not chosen.
  """

  def __init__(self, train: Train, fixed: Sequence[str]):
    self.train, self.plugins, self.begun = train, plugins.files(), False
    self.fixed = fixed  # overrides that all trials share

  def __call__(self, cfg: DictConfig) -> float:
    self.begun = True
    plugins.load(self.plugins)
    from posexp.tasks import make_task
    from posexp.tasks.results import score_of

    typed = HydraConfig.get().overrides
    config = resolve(compose([*typed.hydra, *typed.task]))  # not `cfg`: texts as they were typed
    task = make_task(config)
    try:
      summary = self.train(config)
    except (NotFinite, Unsuited) as error:
      own = " ".join(line for line in typed.task if line not in self.fixed)
      log.warning("not chosen: %s: %s", own, error)
      higher = score_of(task.metrics, task.score).metric.higher_is_better
      return -math.inf if higher else math.inf
    others = [f"validation/{key.partition('/')[2]}" for key in task.headline]
    return next(summary[key] for key in (task.score, *others) if key in summary)


class _NoCallbacks:
  """Callbacks for Hydra's jobs that do nothing, since `hydra.callbacks` are not heeded."""

  def on_job_start(self, **about: Any) -> None:
    """Ignore the start of a job."""

  def on_job_end(self, **about: Any) -> None:
    """Ignore its end."""


def _multirun(fixed: Sequence[str], swept: Sequence[str] = ()) -> dict[str, Any]:
  """Return the arguments from which Hydra makes a launcher or a sweeper.

  Each job has the `fixed` overrides.
  """
  with hydra_with_configs() as main:
    lines = [*fixed, *swept, "hydra.output_subdir=null"]
    config = main.compose_config("train", lines, RunMode.MULTIRUN)
  with read_write(config.hydra), open_dict(config.hydra):
    config.hydra.hydra_logging = config.hydra.job_logging  # which a launcher puts in place of it
    config.hydra.overrides.hydra += [line for line in fixed if not line.startswith("hydra")]
  return {"config": config, "hydra_context": HydraContext(main.config_loader, _NoCallbacks())}


def _made(make: Callable[..., Any], **asked: Any) -> Any:
  """Return a launcher or a sweeper; raise UserError if it cannot be made."""
  try:
    return make(**asked)
  except (HydraException, ImportError, RuntimeError) as error:
    raise UserError(f"Hydra: {' '.join(str(error).split())}") from error


def train_by_launcher(
  runs: Sequence[Member], train: Train, cfg: DictConfig, fixed: Sequence[str]
) -> Iterator[Report]:
  """Train the runs as jobs of the launcher that the `fixed` overrides choose."""
  for member in runs:
    yield member, RUNNING, ""
  job = functools.partial(_job, train, runs, Context.of(cfg))
  launcher = _made(Plugins.instance().instantiate_launcher, task_function=job, **_multirun(fixed))
  try:
    outcomes = [job.return_value for job in launcher.launch([[] for _ in runs], 0)]
  except Exception as error:  # of any class: a process that died, or what the launcher lacks
    why = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
    done = [member.finished and not member.config["rerun"] for member in runs]
    outcomes = [(DONE, "") if status else (FAILED, why) for status in done]
  for member, (state, _) in zip(runs, outcomes, strict=True):
    member.state = state  # they have ended at once: nothing is left when the first is said
  for member, outcome in zip(runs, outcomes, strict=True):
    yield member, *outcome


def sweep(train: Train, overrides: Sequence[Override], folder: Path) -> None:
  """Run the sweeper that the overrides choose over its trials, and name the best trial.

  The best has the highest or lowest value of the task's `score` on validation. Before the first
  trial, the first value of each option is checked with every encoding, in models of which only the
  shapes are computed. `folder` is where a sweeper writes what it has found.

  Raises:
    UserError: an option has no effect, or has no such value.
  """
  from posexp.tasks import make_task
  from posexp.tasks.results import score_of

  for o in overrides:
    if o.key_or_group in ("seeds", "workers") or o.key_or_group.startswith(f"{TUNE}."):
      raise UserError(f"{o.input_line} has no effect with a sweeper of Hydra's: leave it out")
  first = members(Namespace(overrides=read(map(_first, overrides)), multirun=True), compose())[0]
  task = make_task(first.config)
  metric = score_of(task.metrics, task.score).metric
  (results := folder / "optimization_results.yaml").unlink(missing_ok=True)
  swept = [o.input_line for o in overrides if o.is_sweep_override()]
  fixed = [o.input_line for o in overrides if not o.is_sweep_override()]
  asked = _multirun(fixed, swept)
  options = asked["config"].hydra.sweeper
  if "direction" in options and all(o.key_or_group != "hydra.sweeper.direction" for o in overrides):
    best = "maximize" if metric.higher_is_better else "minimize"
    asked = _multirun([*fixed, f"hydra.sweeper.direction={best}"], swept)
  trials = Trials(train, fixed)
  sweeper = _made(Plugins.instance().instantiate_sweeper, task_function=trials, **asked)
  try:
    sweeper.sweep(swept)
  except Exception as error:  # of any class: the sweeper's own library refuses its options
    if trials.begun or isinstance(error, UserError):
      raise
    said = " ".join(str(error).split())
    raise UserError(f"hydra/sweeper: {type(error).__name__}: {said}") from error
  if results.exists():
    winner = OmegaConf.to_container(OmegaConf.load(results))
    if not math.isfinite(winner["best_value"]):
      raise UserError("no trial has a score: each has diverged, or its options do not suit")
    best = show_options(winner.get("best_params"))
    value = format(winner["best_value"], metric.format)
    log.info("best of the sweep: %s: %s %s", best, metric.title, value)


def _first(o: Override) -> str:
  """Return an override with its first value only, or with all values where it chooses encodings."""
  if o.is_sweep_override() and o.is_interval_sweep():
    return f"{o.get_key_element()}={o.value().start}"
  return o.input_line if o.key_or_group == "encoding" else next(iter(values(o)))
