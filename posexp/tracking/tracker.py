"""The interface of trackers, which show runs outside of their folders while they are trained.

A tracker is a frozen dataclass of options. It opens a `TrackedRun`, which gets what the run's
folder gets: rows of metrics, the result and some predictions.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from posexp.runs import Run, RunWriter

# Keys of a summary that are no metrics, and are results or layout rather than facts of the run.
RESULTS: tuple[str, ...] = ("step", "stopped_at", "averaged", "bleu_signature", "generated")
RESULTS += ("headline", "metrics", "columns", "gates", "parent", "parent_steps", "context_targets")
RESULTS += ("ended", "diverged", "bag_of", "parts_of", "guessing", "trained")

Tables = Mapping[str, Sequence[Mapping[str, Any]]]  # rows with the same keys, by the table's name


class TrackedRun:
  """A run that a tracker has opened. If one of its methods fails, the run goes on without it."""

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


def facts(summary: Mapping[str, Any] | None) -> dict[str, Any]:
  """Return the facts that training has logged, from the summary of a finished run."""
  return {k: v for k, v in (summary or {}).items() if "/" not in k and k not in RESULTS}
