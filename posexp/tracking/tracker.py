"""A run in Weights & Biases while it is trained: what metrics.jsonl and the summary hold."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from posexp.errors import UserError, near, pasted
from posexp.runs import Run, RunWriter, read_run
from posexp.runs.predictions import load_samples
from posexp.tracking import connection, wandb_run
from posexp.tracking.wandb_run import (
  WandbOptions,
  WandbRun,
  run_settings,
  with_environment,
)

# What W&B's variables say of a run, by the argument of `wandb.init`.
SAID = {
  "id": "WANDB_RUN_ID",
  "name": "WANDB_NAME",
  "group": "WANDB_RUN_GROUP",
  "job_type": "WANDB_JOB_TYPE",
}
UNHEEDED = ("WANDB_DIR", "WANDB_RESUME")  # a run's folder has its data, and it always goes on
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
      connection.heard.flush()
    except Exception as error:  # W&B's have no class in common
      folder, self._run = self._run.folder, None
      connection.reset()
      log.warning(
        "W&B gets no more of this run (%s); send the rest with: %s",
        connection.reason(error),
        _sync_command(folder),
      )


def repeat(options: WandbOptions, config: Mapping[str, Any], folder: Path) -> None:
  """Log a finished run again where an agent of W&B has named the run that waits for its result.

  Raises:
    UserError: as `start` does.
  """
  if {"WANDB_SWEEP_ID", "WANDB_RUN_ID"} & os.environ.keys():
    run = read_run(folder)
    with start(options, config=config, facts=wandb_run.facts(run.summary), run=run) as opened:
      opened.summarize(run.summary)
      opened.samples(load_samples(folder))
    log.info("wandb: %s", opened.line)


def start(
  options: WandbOptions,
  *,
  config: Mapping[str, Any],
  facts: Mapping[str, Any],
  run: RunWriter | Run,
) -> Tracker:
  """Open the run in W&B, and log the rows of its history that W&B does not have; `facts` are those
  of `run_settings`. What W&B's environment says of the run counts.

  Raises:
    UserError: wandb.mode=online, and W&B cannot be reached; or nothing can be written.
  """
  deadline = time.monotonic() + options.timeout - START
  options = with_environment(options)
  mode = options.mode
  if mode == "disabled":
    return Tracker()
  for name in UNHEEDED:
    if name in os.environ:
      log.warning("%s is not heeded: what W&B keeps of a run is in %s", name, near(run.path))
  settings, why = run_settings(options, config, facts, run.path), ""
  settings |= {key: os.environ[name] for key, name in SAID.items() if os.environ.get(name)}
  if "WANDB_SWEEP_ID" in os.environ:  # which has them
    settings |= {"id": None, "entity": options.entity, "project": options.project}
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
  """Return the command that sends a run from its folder."""
  return f"python -m posexp.sync {pasted(folder)}"
