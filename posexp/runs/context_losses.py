"""The losses of a language model by context: context/<name>.npz in the folder of a run."""

from __future__ import annotations

import dataclasses
import io
import math
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from posexp import storage
from posexp.errors import UserError
from posexp.runs.run import Run


class ContextLosses(NamedTuple):
  """Losses of the same targets of a text, by the number of tokens that are read before them."""

  text: str  # the digest of the text's tokens
  place: np.ndarray  # int64 [N]: which tokens of it were targets
  bytes: np.ndarray  # int64 [N]: that each of them stands for
  nats: dict[int, np.ndarray]  # by context in ascending order, float32 [N]

  def scores(self) -> dict[str, float]:
    """Return means by context, as a summary names them."""
    found = {}
    for context, each in self.nats.items():
      found[f"context/loss/{context}"] = float(each.sum(dtype=np.float64) / len(each))
      found[f"context/bits_per_byte/{context}"] = bits_per_byte(each, self.bytes)
    return found


def bits_per_byte(nats: np.ndarray, bytes: np.ndarray) -> float:
  """Return the loss of targets from their nats [N] and the bytes int [N] that they stand for."""
  return float(nats.sum(dtype=np.float64) / math.log(2) / max(1, int(bytes.sum())))


def write_context_losses(folder: Path, name: str, found: ContextLosses) -> Path:
  """Write losses to a run's folder; `name` is the split, with options that differ from training.

  Raises:
    OSError: the file cannot be written.
  """
  path = storage.unlinked(folder / "context") / f"{name}.npz"
  columns = {"text": np.array(found.text), "place": found.place, "bytes": found.bytes}
  columns |= {str(context): each for context, each in found.nats.items()}
  with storage.replacing(path) as temporary, temporary.open("wb") as file:
    np.savez_compressed(file, **columns)
  return path


def read_context_losses(folder: Path, name: str) -> ContextLosses | None:
  """Return the losses that were measured of a run; None if there are none.

  Raises:
    UserError: the file is damaged.
  """
  path = folder / "context" / f"{name}.npz"
  data = storage.read(path)
  if data is None:
    return None
  try:
    with np.load(io.BytesIO(data)) as file:  # which takes no pickles
      columns = {key: file[key] for key in file.files}
    text, place, sizes = (columns.pop(key) for key in ("text", "place", "bytes"))
    nats = {int(key): columns[key] for key in sorted(columns, key=int)}
    if not all(each.shape == place.shape == (len(sizes),) for each in nats.values()):
      raise ValueError("columns of other lengths")
  except (ValueError, LookupError, EOFError, OSError, TypeError, zipfile.BadZipFile) as error:
    raise UserError(
      f"{path} is damaged; python -m posexp.evaluate RUN --context measures it again"
    ) from error
  return ContextLosses(str(text), place, sizes, nats)


def with_context_losses(runs: Sequence[Run]) -> tuple[list[Run], list[str]]:
  """Add the losses by context on the test split to the summaries of runs; return notes, too.

  A run whose file of losses is damaged keeps its summary as it is, and there is a note.
  """
  found, notes = [], []
  for run in runs:
    if run.summary is not None:
      try:
        if (measured := read_context_losses(run.path, "test")) is not None:
          run = dataclasses.replace(run, summary=run.summary | measured.scores())
      except UserError as error:
        notes.append(str(error))
    found.append(run)
  return found, notes
