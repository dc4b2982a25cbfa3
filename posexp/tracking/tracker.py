"""A run in Weights & Biases while it is trained: what metrics.jsonl and the summary hold."""

from __future__ import annotations

import logging
import os
import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from posexp.errors import UserError, near
from posexp.tracking import wandb_run as mirrors
from posexp.tracking.wandb_run import Mirror, WandbOptions

if TYPE_CHECKING:
  from posexp.runs import RunWriter

START = 3.0  # seconds of the timeout that are kept for starting offline

log = logging.getLogger("posexp")


class Tracker:
  """The mirror of one run while it is trained; as a context manager it ends with the run.

  `line` says where the data goes. Once it is open nothing raises: a run is not lost because its
  mirror is.
  """

  def __init__(self, mirror: Mirror | None = None, line: str = "disabled"):
    self.line = line
    self._mirror = mirror

  def log(self, step: int, metrics: Mapping[str, Any]) -> None:
    """Adds a row; one that W&B has already, from before the run was stopped, is not sent again."""
    self._tell(lambda mirror: mirror.log(step, metrics))

  def summarize(self, summary: Mapping[str, Any]) -> None:
    """Sets what W&B shows as the run's result."""
    self._tell(lambda mirror: mirror.summarize(summary))

  def samples(self, rows: Sequence[Mapping[str, Any]]) -> None:
    """Shows what the model said of some examples as a table; all rows have the same columns."""
    self._tell(lambda mirror: mirror.samples(rows))

  def finish(self, exit_code: int = 0) -> None:
    """Sends what is left and closes the run, which has failed unless `exit_code` is 0."""
    self._tell(lambda mirror: mirror.finish(exit_code))
    self._mirror = None

  def __enter__(self) -> Tracker:
    return self

  def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
    if isinstance(error, SystemExit) and isinstance(error.code, int):
      self.finish(error.code)
    else:
      self.finish(0 if error is None else 1)

  def _tell(self, act: Callable[[Mirror], None]) -> None:
    if self._mirror is None:
      return
    try:
      act(self._mirror)
    except Exception as error:  # W&B's have no class in common
      path, self._mirror = self._mirror.path, None
      mirrors.reset()
      log.warning(
        "W&B is told no more of this run (%s); what it has not got is sent by: %s",
        mirrors.reason(error),
        _sync(path),
      )


def start(
  options: WandbOptions, *, config: Mapping[str, Any], facts: Mapping[str, Any], run: RunWriter
) -> Tracker:
  """Opens the mirror of a run, and brings it up to the run's history.

  `facts` are what the config does not say but runs are compared by: the number of parameters.

  Raises:
    UserError: wandb.mode=online, and W&B cannot be had.
  """
  deadline = time.monotonic() + options.timeout - START
  mode = options.mode
  if mode == "auto" and os.environ.get("WANDB_MODE") in mirrors.MODES:
    mode = os.environ["WANDB_MODE"]
  if mode == "disabled":
    return Tracker()
  mirrors.imported()
  told = mirrors.told(options, config, facts, run.path)
  why = ""
  if mode != "offline":
    try:
      return _online(told, run, deadline)
    except Exception as error:
      mirrors.reset()
      why = mirrors.reason(error)
      if mode == "online":
        raise UserError(
          f"wandb.mode=online: {why}; wandb.mode=offline keeps the data to be sent later"
        ) from error
  try:
    return _offline(told, run, why)
  except Exception as error:
    raise UserError(
      f"wandb.mode=offline: {mirrors.reason(error)}; wandb.mode=disabled trains without W&B"
    ) from error


def _online(told: dict[str, Any], run: RunWriter, deadline: float) -> Tracker:
  """A mirror on the server; an error of any kind if it cannot be had before the deadline."""
  mirror = mirrors.online(told, run.path, deadline)
  mirror.catch_up(run.history)
  return Tracker(mirror, mirror.run.url)


def _offline(told: dict[str, Any], run: RunWriter, why: str) -> Tracker:
  """A mirror on disk."""
  mirror = mirrors.offline(told, run.path)
  if not _sent(run.path):  # else the server has the history, and adds to it what this one holds
    mirror.catch_up(run.history)
  return Tracker(mirror, f"offline{f' ({why})' if why else ''}; send with: {_sync(run.path)}")


def _sent(path: Path) -> bool:
  """Whether an earlier mirror of a run has gone to the server."""
  return any(path.glob("wandb/run-*")) or any(path.glob("wandb/offline-run-*/*.synced"))


def _sync(path: Path) -> str:
  """The command that sends a run from its folder."""
  return shlex.join(["python", "-m", "posexp.sync", near(path)])
