"""Who trains the runs of a sweep: this process, other processes, or a launcher.

Each way is a generator of reports: it trains the runs that it is given, and yields every change
of a run's state, and None when a moment has passed without one. When it is closed early, by a
signal, say, what it trains is saved first, or goes on by itself.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import ClassVar

from hydra.core.override_parser.types import Override
from omegaconf import DictConfig

from posexp import status
from posexp.config import RunOptions, build, plugins
from posexp.config.arguments import say
from posexp.config.checks import brief
from posexp.errors import UserError
from posexp.sweeps import tuning
from posexp.sweeps.handover import train_by_launcher
from posexp.sweeps.sweep import (
  DONE,
  ELSEWHERE,
  FAILED,
  RUNNING,
  STATES,
  WAITING,
  Member,
  Report,
  Sweep,
  Train,
  attempt,
)
from posexp.sweeps.until import Rounds
from posexp.sweeps.workers import devices, train_in_workers

log = logging.getLogger("posexp")

Means = Callable[[Sequence[Path], float | None], Iterable[str]]
Trainer = Callable[[Iterable[Member]], Iterator[Report | None]]


def trainer_for(
  train: Train, runs: int, cfg: DictConfig, overrides: Sequence[Override] = ()
) -> tuple[Trainer, bool]:
  """Return the function that trains the runs of a sweep, and whether a live table shows them.

  `overrides` are the options that were typed.

  Raises:
    UserError: options do not go together, or one of the overrides has no effect.
  """
  launcher = cfg.hydra.runtime.choices["hydra/launcher"]
  workers = build(RunOptions, {"workers": cfg.get("workers", 1)}, where="").workers
  here = workers == 1 and launcher == "basic"  # one by one
  idle = {"hydra.launcher.": launcher == "basic", "hydra.sweep.": here, "hydra.sweeper.m": not here}
  for o in overrides:
    if any(o.key_or_group.startswith(key) and idle[key] for key in idle):
      raise UserError(
        f"{brief(o.input_line)}: {o.key_or_group} has no effect with hydra/launcher={launcher} "
        f"workers={workers}; leave it out"
      )
  if workers != 1 and launcher != "basic":
    raise UserError(f"workers={workers} are processes of this machine: drop it, or drop {launcher}")
  if (kind := plugins.table("launcher", {}).get(launcher)) is not None:
    own = kind()
    own.check(cfg)
    return lambda members: _reports(own, launcher, [*members], cfg), True
  if launcher != "basic":
    fixed = [o.input_line for o in overrides if not o.is_sweep_override()]
    return lambda members: train_by_launcher(members, train, cfg, fixed), False
  if workers == 1:
    before = itertools.count()  # so that the first run alone is shown, of all calls together
    return lambda members: train_here(members, train, before), False
  bound_to = devices(workers, runs)
  return lambda members: train_in_workers(members, train, bound_to, cfg), True


def _reports(
  own: Launcher, name: str, members: Sequence[Member], cfg: DictConfig
) -> Iterator[Report | None]:
  """Yield what a launcher reports, which may be one of the user's own."""
  plugin = plugins.found("launcher").get(name)
  used = {"launcher": {"name": name, "path": plugin.file}} if plugin else {}
  with plugins.explained({"plugins": used}), contextlib.closing(own.train(members, cfg)) as reports:
    for report in reports:
      if report is not None and report[1] not in STATES:
        raise ValueError(f"the state of a run is one of {', '.join(STATES)}, not {report[1]!r}")
      if used and report and report[1] == DONE and not report[0].finished:
        report = report[0], FAILED, f"{name} says done, and there is no result"
      yield report
    for member in members:
      if member.state in (WAITING, RUNNING):
        lost = FAILED, f"{name} has ended, and does not say what became of it"
        yield member, *((DONE, "") if member.finished else lost)


def train_here(members: Iterable[Member], train: Train, before: Iterator[int]) -> Iterator[Report]:
  """Train the runs one after another in this process; print the output of the first one.

  `before` counts the runs over several calls. The output of all other runs is in their train.log;
  only their warnings are printed, too.
  """
  for member in members:
    yield member, RUNNING, ""
    with _quiet() if next(before) else contextlib.nullcontext():
      ended = attempt(train, member)
    yield member, *ended


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
  """Keep the present log handlers from printing anything but warnings within the context."""
  handlers = logging.getLogger().handlers[:]

  def heard(record: logging.LogRecord) -> bool:
    return record.levelno > logging.INFO

  for handler in handlers:
    handler.addFilter(heard)
  try:
    yield
  finally:
    for handler in handlers:
      handler.removeFilter(heard)


def carry_out(sweep: Sweep, trainer: Trainer, live: bool, rounds: Rounds | None = None) -> None:
  """Train the runs of a sweep, and report each change of state, as `supervise` does."""
  live = live and sys.stdout.isatty() and status.terminal()
  if not live:
    log.info("%s", sweep.heading())
  sweep.keep_plan()
  try:
    for runs in _turns(sweep, rounds):
      if runs:
        sweep.keep_plan()  # which trials, or a look at the seeds, may have completed
        with contextlib.closing(trainer(runs)) as reports:
          for report in reports:
            if report is not None:
              sweep.turn(*report)
            status.show(sweep.table() if live else "")
  finally:
    sweep.keep_plan()
    if live:
      print(sweep.table())


def _turns(sweep: Sweep, rounds: Rounds | None) -> Iterator[list[Member]]:
  """Yield the runs that can be trained next, each time those before have ended."""
  yield sweep.to_train()
  yield sweep.left()
  yield tuning.ready(sweep)
  yield sweep.left()
  while rounds and (runs := rounds.next()):
    yield runs
    yield sweep.left()


def supervise(
  sweep: Sweep, trainer: Trainer, live: bool, means: Means, rounds: Rounds | None = None
) -> bool:
  """Train the unfinished runs of a sweep; report each change of state, and the means at the end.

  Runs that another process was training are looked at again when the others have ended. With
  `live`, a terminal shows the table of states below the log. `means` yields the lines at the end,
  from the folders of finished runs. Returns whether a run has failed.
  """
  said = [rounds.plan()] if rounds else sweep.added()
  for line in [*tuning.plan(sweep.members), *said]:
    log.info("%s", line)
  carry_out(sweep, trainer, live, rounds)
  if rounds:
    log.info("%s", rounds.conclusion())
  if done := [member.path for member in sweep.in_state(DONE) if member.finished]:
    for line in means(done, rounds.margin if rounds else None):
      log.info("%s", line)
  if elsewhere := sweep.options_in(ELSEWHERE):
    log.info("another process still trains %s; the same command shows them later", elsewhere)
  if failed := sweep.in_state(FAILED):
    say(f"error: {len(failed)} of {len(sweep.runs)} runs failed: {sweep.options_in(FAILED)}")
  return bool(failed)


class Launcher:
  """The base class of launchers."""

  # A job is the command line that was typed, with this environment variable: the job's own folder.
  variable: ClassVar[str] = ""  # none: it has no jobs

  def check(self, cfg: DictConfig) -> None:
    """Raise UserError if an option of `cfg.hydra.launcher` is wrong."""

  def train(self, members: Sequence[Member], cfg: DictConfig) -> Iterator[Report | None]:
    """Train runs; yield each change of a run's state, and None after a moment without one.

    A change is the run, its state ("running", "done", "failed" or "waiting"), and why, or "".

    When it is closed early, jobs are saved first, or go on by themselves.
    """
    raise NotImplementedError("a launcher must have a method train")

  def work(self, train: Train, place: Path) -> int:
    """Train the run of a job in the folder that its variable names; return the exit status."""
    raise NotImplementedError("a launcher must have a method work")


def job() -> tuple[Launcher, Path] | None:
  """Return the launcher whose job this process is, and the job's folder; None if it is no job."""
  for launcher in plugins.table("launcher", {}).values():
    if place := os.environ.pop(launcher.variable, ""):
      return launcher(), Path(place)
  return None
