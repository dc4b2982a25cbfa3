"""TensorBoard: the folder `tensorboard` of a run, for `tensorboard --logdir runs`."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Mapping
from typing import Any

import yaml

from posexp import storage
from posexp.errors import check_installed, pasted
from posexp.reading import is_number
from posexp.runs import Run, RunWriter
from posexp.runs.identity import settings
from posexp.runs.run import times
from posexp.tracking.tracker import Tables, TrackedRun, Tracker


@dataclasses.dataclass(frozen=True)
class TensorBoard(Tracker):
  """TensorBoard shows scalars, the config, the result and predictions."""

  def __post_init__(self):
    check_installed("tracker=tensorboard", "tensorboard", "tensorboardX")

  def open(
    self, run: RunWriter | Run, config: Mapping[str, Any], facts: Mapping[str, Any]
  ) -> TrackedRun:
    from tensorboardX import SummaryWriter

    folder = run.path / "tensorboard"
    # Events cannot be taken back: a run that goes on writes all of its rows again.
    storage.remove(folder)  # a link, too, by which events would be written elsewhere
    writer = SummaryWriter(str(folder))
    writer.add_text("config", _code(yaml.safe_dump(dict(config), sort_keys=False)))
    opened = TensorBoardRun(writer, {**settings(config), **facts})
    opened.line = f"tensorboard --logdir {pasted(folder)}"
    logged = times(run.path, run.history)
    for row in run.history:
      opened.log(row["step"], row, logged[row["step"]])
    return opened


class TensorBoardRun(TrackedRun):
  """A run whose events are written; `parameters` are those that runs are compared by."""

  def __init__(self, writer: Any, parameters: Mapping[str, Any]):
    self.writer = writer
    self.parameters = parameters
    self.drawn: set[str] = set()  # the names of curves

  def log(self, step: int, metrics: Mapping[str, Any], at: float | None = None) -> None:
    for name, value in metrics.items():
      if "/" in name and is_number(value):
        self.writer.add_scalar(name, value, step, at or time.time())
        self.drawn.add(name)
    self.writer.flush()

  def summarize(self, summary: Mapping[str, Any]) -> None:
    from tensorboardX.summary import hparams

    plain = {
      key: value if isinstance(value, bool | int | float | str) else json.dumps(value)
      for key, value in self.parameters.items()
    }
    # Without the list of all options, which TensorBoard takes from one run: others have others.
    for event in hparams(plain, {})[1:]:
      self.writer.file_writer.add_summary(event)
    # At the best step, an earlier one, curves would turn back: what rows have is drawn already.
    self.log(summary["step"], {key: summary[key] for key in summary.keys() - self.drawn})

  def samples(self, tables: Tables) -> None:
    for name, rows in tables.items():
      for number, row in enumerate(rows):
        self.writer.add_text(name, _code(json.dumps(row, ensure_ascii=False, indent=1)), number)

  def close(self, status: int) -> None:
    self.writer.close()


def _code(text: str) -> str:
  """Return a text that Markdown, which TensorBoard shows, leaves as it is."""
  return "".join(f"    {line}\n" for line in text.splitlines())
