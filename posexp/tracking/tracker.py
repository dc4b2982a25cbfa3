"""A run in Weights & Biases while it is trained: what metrics.jsonl and the summary hold."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from posexp.errors import UserError, pasted
from posexp.runs import RunWriter
from posexp.tracking import connection
from posexp.tracking.wandb_run import MODES, WandbOptions, WandbRun, run_settings

START = 3.0  # seconds of the timeout that are kept for starting offline

log = logging.getLogger("posexp")


class Tracker:
  """Logs one run to W&B; as a context manager it ends with the run.

  The methods are those of WandbRun, but never raise: a failure of W&B does not end the training.
  `line` says where the data goes.
  """

  def __init__(self, run: WandbRun | None = None, line: str = "disabled"):
    self.line = line
    self._run = run

  def log(self, step: int, metrics: Mapping[str, Any]) -> None:
    self._attempt(WandbRun.log, step, metrics)

  def summarize(self, summary: Mapping[str, Any]) -> None:
    self._attempt(WandbRun.summarize, summary)

  def samples(self, tables: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
    self._attempt(WandbRun.samples, tables)

  def __enter__(self) -> Tracker:
    return self

  def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
    code = error.code if isinstance(error, SystemExit) else error is not None
    self._attempt(WandbRun.finish, int(code) if isinstance(code, int) else 1)
    self._run = None

  def _attempt(self, method: Callable[..., None], *args: Any) -> None:
    if self._run is None:
      return
    try:
      method(self._run, *args)
    except Exception as error:  # W&B's have no class in common
      folder, self._run = self._run.folder, None
      connection.reset()
      log.warning(
        "W&B gets no more of this run (%s); send the rest with: %s",
        connection.reason(error),
        _sync_command(folder),
      )


def start(
  options: WandbOptions, *, config: Mapping[str, Any], facts: Mapping[str, Any], run: RunWriter
) -> Tracker:
  """Opens the run in W&B, and logs the rows of its history that W&B does not have; `facts` are
  those of `run_settings`.

  Raises:
    UserError: wandb.mode=online, and W&B cannot be reached; or nothing can be written.
  """
  deadline = time.monotonic() + options.timeout - START
  mode = options.mode
  if mode == "auto" and os.environ.get("WANDB_MODE") in MODES:
    mode = os.environ["WANDB_MODE"]
  if mode == "disabled":
    return Tracker()
  settings, why = run_settings(options, config, facts, run.path), ""
  if mode != "offline":
    try:
      opened = WandbRun(connection.open_online(settings, deadline), run.path)
      opened.catch_up(run.history)
      return Tracker(opened, opened.run.url)
    except Exception as error:
      connection.reset()
      why = connection.reason(error)
      if mode == "online":
        raise UserError(
          f"wandb.mode=online: {why}; wandb.mode=offline keeps the data to be sent later"
        ) from error
      why = f" ({why})"
  try:
    opened = WandbRun(connection.open_offline(settings), run.path)
    opened.catch_up(run.history)
  except Exception as error:
    raise UserError(
      f"wandb.mode=offline: {connection.reason(error)}; wandb.mode=disabled trains without W&B"
    ) from error
  return Tracker(opened, f"offline{why}; send with: {_sync_command(run.path)}")


def _sync_command(folder: Path) -> str:
  """The command that sends a run from its folder."""
  return f"python -m posexp.sync {pasted(folder)}"
