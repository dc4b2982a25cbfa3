"""The door to trackers, which follow runs from outside, as Weights & Biases and TensorBoard do."""

from __future__ import annotations

import contextlib
import copy
import functools
import logging
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from posexp.config import build, look_up, plugins
from posexp.config.checks import brief
from posexp.config.composed import tracker_variables
from posexp.errors import UserError
from posexp.runs import Run, RunWriter, read_run
from posexp.runs.predictions import load_samples
from posexp.tracking.tracker import TrackedRun, Tracker, facts

log = logging.getLogger("posexp")


def chosen(config: Mapping[str, Any]) -> dict[str, Tracker]:
  """Return the trackers that a run's config asks for, by their names.

  Raises:
    UserError: there is no such tracker, or an option of one is wrong; if an environment variable
      has given it, the message begins with that.
  """
  table, trackers = plugins.table("tracker", {}), {}
  for name, options in (config.get("tracker") or {}).items():
    cls = look_up(table, name, "tracker")
    if not issubclass(cls, Tracker):
      raise UserError(f"tracker {name}: the class {cls.__name__} must inherit posexp.Tracker")
    section = cls.section or f"tracker.{name}"
    try:
      trackers[name] = build(cls, options, section)
    except UserError as error:
      for option, variable in tracker_variables().get(section, {}).items():
        value = os.environ.get(variable)
        named = re.match(rf"{section}\.{option}\b", str(error))
        if named and value is not None and value == options.get(option):
          raise UserError(f"{variable}={brief(value)}: {error}") from error
      raise
  return trackers


class Trackers(contextlib.AbstractContextManager):
  """The open trackers of a run; a context manager that ends with the run.

  Where one of them fails, a warning says so, and the run goes on without it.
  """

  def __init__(
    self, trackers: Mapping[str, Tracker], run: RunWriter | Run, *about: Mapping[str, Any]
  ):
    """Open a run in all of its trackers; the arguments and errors are those of `Tracker.open`."""
    self._opened: dict[str, TrackedRun] = {}
    self.lines: dict[str, str] = {}
    try:
      for name, tracker in trackers.items():
        try:
          opened = tracker.open(run, *copy.deepcopy(about))  # which it may change
          self.lines[name] = opened.line  # which what a user's own returns may lack
          self._opened[name] = opened
        except (UserError, OSError):
          raise
        except Exception as error:  # a mistake in a tracker of the user's own
          log.warning("%s gets nothing of this run: %s: %s", name, type(error).__name__, error)
    except BaseException:
      self._each("close", 1)  # those that were open before
      raise

  def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
    code = error.code if isinstance(error, SystemExit) else error is not None
    self._each("close", int(code) if isinstance(code, int) else 1)

  def _each(self, method: str, *args: Any) -> None:
    for name, tracked in list(self._opened.items()):
      try:
        getattr(tracked, method)(*map(copy.copy, args))  # which it may change
      except Exception as error:  # which may be of any class
        del self._opened[name]
        log.warning("%s gets no more of this run: %s", name, tracked.failed(error))

  log = functools.partialmethod(_each, "log")
  summarize = functools.partialmethod(_each, "summarize")
  samples = functools.partialmethod(_each, "samples")


def repeat(trackers: Mapping[str, Tracker], folder: Path, config: Mapping[str, Any]) -> None:
  """Show a finished run again in trackers whose run the environment names.

  Raises:
    UserError: as `Tracker.open` does.
  """
  if waiting := {name: tracker for name, tracker in trackers.items() if tracker.named_by}:
    run = read_run(folder)
    with Trackers(waiting, run, config, facts(run.summary)) as opened:
      opened.summarize(run.summary or {})
      opened.samples(load_samples(folder))
