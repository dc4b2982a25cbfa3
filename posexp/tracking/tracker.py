"""The interface of trackers, which show runs outside of their folders while they are trained.

A tracker is a frozen dataclass of options. It opens a `TrackedRun`, which gets what the run's
folder gets: rows of metrics, the result and some predictions.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import functools
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from posexp.errors import UserError
from posexp.runs import Run, RunWriter, read_run
from posexp.runs.predictions import load_samples

log = logging.getLogger("posexp")

# Keys of a summary that are no metrics, and are results or layout rather than facts of the run.
RESULTS: tuple[str, ...] = ("step", "stopped_at", "averaged", "bleu_signature", "generated")
RESULTS += ("headline", "metrics", "columns", "gates", "parent", "parent_steps", "context_targets")
RESULTS += ("ended", "diverged", "bag_of", "parts_of", "guessing", "trained")

Tables = Mapping[str, Sequence[Mapping[str, Any]]]  # rows with the same keys, by the table's name


class TrackedRun:
  """A run that a tracker has opened. Its methods may raise any error: see `Trackers`."""

  line: str = ""  # says where the run can be seen

  def __init__(self, line: str = ""):
    self.line = line

  def log(self, step: int, metrics: Mapping[str, Any]) -> None:
    """Add a row of metrics.jsonl, without its step."""

  def summarize(self, summary: Mapping[str, Any]) -> None:
    """Show the result."""

  def samples(self, tables: Tables) -> None:
    """Show predictions for some examples; a table may have no rows."""

  def close(self, status: int) -> None:
    """End the run; a status other than 0 says that it has failed or was stopped."""

  def failed(self, error: Exception) -> str:
    """Return why a method has failed, in a few words, after which none is called again."""
    return f"{type(error).__name__}: {error}"


@dataclasses.dataclass(frozen=True)
class Tracker:
  """The base class of trackers, whose fields are their options."""

  section: ClassVar[str | None] = None  # of the options in a config; None: tracker.<name>

  @property
  def named_by(self) -> str | None:
    """The environment variable that names the single run to be trained, if one does.

    It is then also opened if it is finished already, and there is no sweep.
    """
    return None

  def open(
    self, run: RunWriter | Run, config: Mapping[str, Any], facts: Mapping[str, Any]
  ) -> TrackedRun:
    """Open a run that begins, goes on, or is finished.

    Args:
      run: its `path` is the folder, and its `history` the rows that were logged before.
      config: the run's config.
      facts: numbers that training adds to a config, such as that of parameters.

    Raises:
      UserError: the run cannot be opened. It is not trained then.
    """
    raise NotImplementedError("a tracker must have a method open")


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
          opened = tracker.open(run, *about)
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


def facts(summary: Mapping[str, Any] | None) -> dict[str, Any]:
  """Return the facts that training has logged, from the summary of a finished run."""
  return {k: v for k, v in (summary or {}).items() if "/" not in k and k not in RESULTS}
