"""Weights that posexp has not trained: `init=hf:FOLDER` takes them from the source `hf`.

A source is a class in the table `SOURCES` of a plugin, under the prefix of the names that it knows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from posexp.config import plugins
from posexp.errors import UserError
from posexp.tasks.contract import Task


class Source:
  """A model by its whole name, such as "hf:FOLDER".

  To start runs from it, a source has `record` and `weights`; the other methods are optional.
  """

  def __init__(self, name: str):
    self.name = name

  def record(self) -> dict[str, str]:
    """Return the record for a run's config: the `path` to find the model again, with the prefix;
    `run`, a short name for the run's digest; and `results`, a digest of all weights.
    """
    raise NotImplementedError("a source must have a method record")

  def weights(self, task: Task, folder: Path, labels: Sequence[str]) -> Mapping[str, Any]:
    """Return the weights, which may be read as late as `np.asarray` asks for them.

    Args:
      task: that of the run.
      folder: the run's.
      labels: the names of the classes, if the task has some.

    Returns:
      Arrays, or what has a `shape` and becomes one, by the paths of parameters: "stack/embed".
    """
    raise NotImplementedError("a source must have a method weights")

  def overrides(self, typed: Sequence[str]) -> list[str]:
    """Return the options of a run that starts from the model, `typed` ones last."""
    return [*typed]

  def config(self) -> dict[str, Any]:
    """Return the model's own `encoding` and the sections of its options, for errors about sizes."""
    return {}

  def keep_tokens(self, folder: Path) -> None:
    """Write the model's tokenizer into the folder of a run, if the run has its tokens."""

  def open(self, typed: Sequence[str], *, data: bool) -> Any:
    """Return a `TrainedModel` with other options, and with the `data` of a task."""
    raise UserError(f"{self.name}: a run can start from it, and nothing else")

  def load(self, typed: Sequence[str]) -> Any:
    """Return the `Loaded` model of `posexp.load`, with other options."""
    raise UserError(f"{self.name}: a run can start from it, and nothing else")

  def inspect(self, models: Sequence[str], out: Path, count: int | None) -> tuple[list, list[Path]]:
    """Return lines that describe the positions of models, and the figures drawn into `out`.

    Args:
      models: of this source, and folders of runs.
      out: a folder.
      count: positions that are drawn; None leaves it to the source.
    """
    raise UserError(f"{self.name}: a run can start from it, and nothing else")


def source(name: Any) -> Source | None:
  """Return the model of a source that a name stands for; None for the folder of a run."""
  prefix, colon, _ = str(name).partition(":")
  kind = plugins.table("source", {}).get(prefix) if colon else None
  return None if kind is None else kind(str(name))


def record_of(model: Source) -> dict[str, str]:
  """Return the record of a model; raise TypeError if it is none."""
  record = model.record()
  if not isinstance(record, dict) or not all(
    isinstance(record.get(key), str) for key in ("path", "run", "results")
  ):
    raise TypeError(f"record must return texts by the names path, run and results, not {record!r}")
  return record


def path_of(parameter: str) -> str:
  """Return a parameter's path, which does not depend on what stands beside the word table."""
  return parameter.replace("/embed/words/", "/embed/")
