"""A sweep whose runs are trained in other processes: who trains them, and the table meanwhile."""

from __future__ import annotations

import contextlib
import logging
import shutil
import sys
from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Protocol, Self

from hydra.core.utils import configure_log
from omegaconf import OmegaConf

from posexp.config import Run, build
from posexp.config.command_line import common
from posexp.errors import UserError
from posexp.sweeps.sweep import DONE, FAILED, RUNNING, WAITING, Member, Sweep, terminal
from posexp.training import processes

log = logging.getLogger("posexp")

SLURM = "hydra_plugins.hydra_submitit_launcher.submitit_launcher.SlurmLauncher"
BASIC = "hydra._internal.core_plugins.basic_launcher.BasicLauncher"

Report = tuple[Member, str, str, str]  # the new state of a run; why it failed; the traceback's file


class Crew(Protocol):
  """Processes that train the runs of a sweep.

  It is a context: left by an exception (a signal's, say), it has what it trains saved, or says
  what becomes of it.
  """

  def __enter__(self) -> Self: ...

  def __exit__(self, kind: type | None, *rest: Any) -> None: ...

  def start(self, members: Sequence[Member]) -> None:
    """Is to train these."""

  def reports(self) -> Iterable[Report]:
    """What has changed; returns after a moment if nothing has."""


def crew_for(job: Callable[[dict[str, Any]], None], sweep: Sweep, args: Namespace) -> Crew | None:
  """Who is to train a sweep as its options ask for; None if that is left to Hydra.

  Raises:
    UserError: the options do not go together.
  """
  cfg = common(args)
  launcher = cfg.hydra.launcher._target_
  workers = build(Run, {"workers": cfg.get("workers", 1)}, where="").workers
  if workers != 1 and launcher != BASIC:
    name = cfg.hydra.runtime.choices["hydra/launcher"]
    raise UserError(f"workers={workers} are processes of this machine: drop it, or drop {name}")
  if workers != 1 and processes.process_info().count > 1:
    raise UserError(f"workers={workers}, but a run here takes several processes: drop workers")
  if workers == 1 and launcher != SLURM:
    return None
  if not sweep.members:
    raise UserError(
      f"workers={workers} needs to know all runs of the sweep before: write their options out"
    )
  configure_log(cfg.hydra.job_logging, cfg.hydra.verbose)
  if launcher == SLURM:
    from posexp.sweeps.slurm import Slurm

    return Slurm(job, cfg)
  from posexp.sweeps.workers import Workers, places

  logs = OmegaConf.to_container(cfg.hydra.job_logging, resolve=True)
  return Workers(job, places(workers, len(sweep.runs)), cfg.hydra.sweep.dir, logs)


def oversee(sweep: Sweep, crew: Crew) -> None:
  """Has a crew train what is to be trained, and says what becomes of it."""
  todo = [member for member in sweep.members if sweep.needs(member)]
  for member in todo:
    if member.wrong:
      sweep.failed_with(member, str(member.wrong))
  left = [member for member in todo if not member.wrong]
  board = Board(sweep)
  board.draw()
  with crew:
    crew.start(left)
    while any(member.state in (WAITING, RUNNING) for member in left):
      reports = list(crew.reports())
      with board.lifted(bool(reports)):
        for member, state, reason, file in reports:
          turn(sweep, member, state, reason, file)


def turn(sweep: Sweep, member: Member, state: str, reason: str, file: str) -> None:
  """A run is in another state."""
  if state == RUNNING:
    sweep.start(member)
  elif state == DONE:
    sweep.done(member)
  elif state == FAILED:
    sweep.failed_with(member, reason, file)
  else:
    sweep.wait(member, reason)


class Board:
  """The table of states at the bottom of a terminal; elsewhere its first line, once."""

  def __init__(self, sweep: Sweep):
    self.sweep = sweep
    self.shown: list[str] = []

  def draw(self) -> None:
    """Shows it as it is now, in the place of what was shown before."""
    lines = [self.sweep.heading()]
    if not terminal():
      if not self.shown:
        log.info("%s", lines[0])
    else:
      width, height = shutil.get_terminal_size()
      lines = [line[: width - 1] for line in [*lines, *self.sweep.states()]]
      if len(lines) >= height:
        lines = [*lines[: height - 2], "  …"]
      if lines != self.shown:
        self.erase()
        print("\n".join(lines), flush=True)
    self.shown = lines

  def erase(self) -> None:
    """Leaves the terminal as if it had not been shown."""
    if terminal() and self.shown:
      sys.stdout.write(f"\x1b[{len(self.shown)}F\x1b[J")
    self.shown = []

  @contextlib.contextmanager
  def lifted(self, speaks: bool) -> Iterator[None]:
    """Makes room for lines above it."""
    if speaks and terminal():
      self.erase()
    yield
    self.draw()
