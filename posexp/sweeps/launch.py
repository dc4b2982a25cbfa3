"""From the command line to jobs, and from whatever becomes of them to an exit status."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys
from argparse import Namespace
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.utils import configure_log
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from posexp.config import CONFIGS, register, resolve
from posexp.config.command_line import (
  CONFIG_ERRORS,
  check,
  common,
  compose,
  explain,
  parse,
  seeded,
)
from posexp.config.help import help_text
from posexp.errors import UserError
from posexp.sweeps.supervise import crew_for, oversee
from posexp.sweeps.sweep import Sweep

log = logging.getLogger("posexp")
SIGINT, SIGTERM = 130, 143  # exit statuses, 128 + the signal


def launch(job: Callable[[dict[str, Any]], None]) -> int:
  """Runs `job` on every config that the command line asks for; returns the exit status.

  `job` gets the plain config of `config.resolve`. A UserError becomes one line on stderr and
  status 2. In a sweep the other jobs go on; a last line names the runs that failed, and the status
  is 1. In a single run an unexpected exception is raised: a bug is not a user's mistake. An
  interrupt (Ctrl-C, SIGTERM, SystemExit(143) from the job) ends everything, with status 130 or 143.
  """
  try:
    with _hydra_raises(), _sigterm_exits():
      return _launch(job)
  except UserError as error:
    _say(f"error: {error}")
    return 2
  except (KeyboardInterrupt, SystemExit) as end:
    status = SIGINT if isinstance(end, KeyboardInterrupt) else end.code
    if status not in (SIGINT, SIGTERM):
      raise
    _say("interrupted; the same command goes on from here")
    return status


def _launch(job: Callable[[dict[str, Any]], None]) -> int:
  args = parse(sys.argv[1:])
  register()
  # Hydra reads what was typed by itself, and does not find options on both sides of a flag.
  flags = [typed for typed in sys.argv if typed not in args.overrides]
  main = hydra.main(config_path=str(CONFIGS), config_name="train", version_base="1.3")
  try:
    if args.help:
      print(help_text(compose(args, args.overrides)))
      return 0
    asked = seeded(args)
    flags += ["--multirun"] * (asked.multirun and not args.multirun)
    sweep = Sweep(check(asked), asked)
    task = Job(job, sweep)
    crew = crew_for(job, sweep, asked) if sweep.total or asked.multirun else None
    if crew is not None:
      oversee(sweep, crew)
    else:
      with mock.patch.object(sys, "argv", [*flags, *asked.overrides]), task.elsewhere(asked):
        main(task)()
  except CONFIG_ERRORS as error:
    raise explain(error, args) from error
  if task.error:
    raise task.error
  for line in sweep.results():
    log.info("%s", line)
  if sweep.failed:
    names = "; ".join(member.name for member in sweep.failed)
    _say(f"error: {len(sweep.failed)} of {len(sweep.runs)} runs failed: {names}")
    return 1
  return 0


class Job:
  """A job as Hydra calls it. It keeps its exceptions, since Hydra would print them its own way.

  Launchers other than Hydra's basic one call a copy of it, in another process: there it raises.
  """

  def __init__(self, job: Callable[[dict[str, Any]], None], sweep: Sweep):
    self.job = job
    self.sweep = sweep
    self.error: Exception | None = None  # of a single run

  @contextlib.contextmanager
  def elsewhere(self, args: Namespace) -> Iterator[None]:
    """In it Hydra launches; what other launchers do with a sweep is told from the run folders."""
    first = None
    try:
      yield
    except Exception as error:
      if isinstance(error, CONFIG_ERRORS) or not self.sweep.waiting:
        raise
      first = error
    if self.sweep.waiting:
      logs = common(args).hydra
      configure_log(logs.job_logging, logs.verbose)
      self.sweep.settle(first)

  def __call__(self, cfg: DictConfig) -> None:
    node = HydraConfig.get()
    if node.mode is not RunMode.MULTIRUN:
      try:
        self.job(resolve(cfg))
      except Exception as error:
        self.error = error
    elif not node.launcher._target_.endswith(".BasicLauncher"):
      if not self.sweep.repeats(node.job.num):
        self.job(resolve(cfg))
    else:
      self._of_sweep(cfg, node.job.num, OmegaConf.to_container(node.overrides.task))

  def _of_sweep(self, cfg: DictConfig, index: int, typed: list[str]) -> None:
    member = self.sweep.begin(index, typed, cfg)
    if member is None:
      return
    try:
      self.job(resolve(cfg))
    except Exception as error:
      self.sweep.fail(member, error)
    else:
      self.sweep.done(member)
    self.sweep.show()


@contextlib.contextmanager
def _hydra_raises() -> Iterator[None]:
  """Has Hydra raise what goes wrong, for `explain` to say, instead of printing it and leaving."""
  before = os.environ.get("HYDRA_FULL_ERROR")
  os.environ["HYDRA_FULL_ERROR"] = "1"
  try:
    yield
  finally:
    os.environ.pop("HYDRA_FULL_ERROR")
    if before is not None:
      os.environ["HYDRA_FULL_ERROR"] = before


@contextlib.contextmanager
def _sigterm_exits() -> Iterator[None]:
  before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(SIGTERM))
  try:
    yield
  finally:
    signal.signal(signal.SIGTERM, before)


def _say(message: str) -> None:
  print(f"posexp: {message}", file=sys.stderr)
