"""TensorBoard: the folder `tensorboard` of a run, for `tensorboard --logdir runs`."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import socket
import time
from collections.abc import Mapping
from pathlib import Path
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
    folder = run.path / "tensorboard"
    # Events cannot be taken back: a run that goes on writes all of its rows again.
    storage.remove(folder)  # a link, too, by which events would be written elsewhere
    opened = TensorBoardRun(folder, {**settings(config), **facts})
    opened.add_text("config", yaml.safe_dump(dict(config), sort_keys=False))
    logged = times(run.path, run.history)
    for row in run.history:
      opened.log(row["step"], row, logged[row["step"]])
    return opened


class TensorBoardRun(TrackedRun):
  """A run whose events are written; `parameters` are those that runs are compared by.

  Each event is written as it is added. The thread by which tensorboardX's SummaryWriter writes them
  ends where the disk is full, and what adds more to its queue then waits for ever.
  """

  def __init__(self, folder: Path, parameters: Mapping[str, Any]):
    from tensorboardX import RecordWriter

    super().__init__(f"tensorboard --logdir {pasted(folder)}")
    folder.mkdir(parents=True)
    name = f"events.out.tfevents.{int(time.time())}.{socket.gethostname()}"
    self.writer = RecordWriter(str(folder / name))
    self.parameters = parameters
    self.drawn: set[str] = set()  # the names of curves
    self._add(file_version="brain.Event:2")

  def _add(self, at: float | None = None, **about: Any) -> None:
    from tensorboardX.proto.event_pb2 import Event

    self.writer.write(Event(wall_time=at or time.time(), **about).SerializeToString())

  def add_text(self, name: str, shown: str, number: int = 0) -> None:
    """Add a text, which TensorBoard takes for Markdown, so that it is shown as it is."""
    from tensorboardX.summary import text

    code = "".join(f"    {line}\n" for line in shown.splitlines())
    self._add(summary=text(name, code), step=number)

  def log(self, step: int, metrics: Mapping[str, Any], at: float | None = None) -> None:
    from tensorboardX.summary import scalar

    for name, value in metrics.items():
      if "/" in name and is_number(value):
        self._add(at, summary=scalar(name, value), step=step)
        self.drawn.add(name)
    self.writer.flush()

  def summarize(self, summary: Mapping[str, Any]) -> None:
    from tensorboardX.summary import hparams

    plain = {
      key: value if isinstance(value, bool | int | float | str) else json.dumps(value)
      for key, value in self.parameters.items()
    }
    # Without the list of all options, which TensorBoard takes from one run: others have others.
    for about in hparams(plain, {})[1:]:
      self._add(summary=about)
    # At the best step, an earlier one, curves would turn back: what rows have is drawn already.
    last = summary.get("step", 0)  # one that has diverged has no best step
    self.log(last, {key: summary[key] for key in summary.keys() - self.drawn})

  def samples(self, tables: Tables) -> None:
    for name, rows in tables.items():
      for number, row in enumerate(rows):
        self.add_text(name, json.dumps(row, ensure_ascii=False, indent=1), number)

  def close(self, status: int) -> None:
    self.writer.close()

  def failed(self, error: Exception) -> str:
    """Return why, once the file is closed."""
    with contextlib.suppress(OSError):
      self.writer.close()
    return super().failed(error)
