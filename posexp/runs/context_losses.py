"""The losses of a language model by context: context/<name>.npz in the folder of a run."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from posexp import reading, storage
from posexp.errors import UserError
from posexp.runs.run import Run

BEFORE = 16  # tokens of context, which nearly every model uses: a gain counts from there
LEAST_GAIN = 0.05  # bits per byte: a model that gains less says little about order and memory
EXCESS = 0.02  # nats above the minimum of a curve, from which on a model does not hold


class ContextLosses(NamedTuple):
  """Losses of the same targets of a text, by the number of tokens that are read before them.

  At the beginning of a text, this number is the position of a target. So these are also losses by
  position, from one sample of targets for all positions.
  """

  text: str  # the digest of the text's tokens
  place: np.ndarray  # int64 [N]: which tokens of it were targets
  bytes: np.ndarray  # int64 [N]: that each of them stands for
  nats: dict[int, np.ndarray]  # by context in ascending order, float32 [N]

  def scores(self, trained: int | None = None) -> dict[str, float]:
    """Return means by context, as a summary names them.

    For a model that was trained on segments of `trained` tokens, there are also `context/gain`, the
    bits per byte that a segment gains over BEFORE tokens, and, where longer contexts were measured,
    `context/slope` beyond the segment and `context/holds_to`.
    """
    means: dict[str, float] = {}
    for context, each in self.nats.items():
      means[f"context/loss/{context}"] = float(each.sum(dtype=np.float64) / len(each))
      means[f"context/bits_per_byte/{context}"] = bits_per_byte(each, self.bytes)
    if trained is None:
      return means
    if trained > BEFORE and {BEFORE, trained} <= self.nats.keys():
      least, most = (means[f"context/bits_per_byte/{each}"] for each in (BEFORE, trained))
      means["context/gain"] = least - most
    loss = {context: means[f"context/loss/{context}"] for context in self.nats}
    beyond = {context: each for context, each in loss.items() if context >= trained}
    if len(beyond) > 1:
      means["context/slope"] = slope(beyond)
      means["context/holds_to"] = holds_to(loss)
    return means


def slope(loss: Mapping[int, float]) -> float:
  """Return by how much losses grow per doubling of the context, fitted by least squares."""
  doublings = np.log2([*loss]) - np.log2([*loss]).mean()
  return float(doublings @ [*loss.values()] / (doublings @ doublings))


def holds_to(loss: Mapping[int, float]) -> float:
  """Return the first context, after the best one, at which losses by context exceed the lowest by
  EXCESS; the longest context if they never do.

  Between two contexts, the loss is a line over the logarithm of the context.
  """
  least = min(loss, key=loss.__getitem__)
  limit = loss[least] + EXCESS
  for (short, low), (long, high) in itertools.pairwise(loss.items()):
    if short >= least and high > limit:
      return float(short * (long / short) ** ((limit - low) / (high - low)))
  return float(max(loss))


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
  data = reading.read(path)
  if data is None:
    return None
  try:
    columns = reading.arrays(data)
    text, place, sizes = (columns.pop(key) for key in ("text", "place", "bytes"))
    nats = {int(key): columns[key] for key in sorted(columns, key=int)}
    if not all(values.shape == place.shape == (len(sizes),) for values in nats.values()):
      raise ValueError("columns of other lengths")
  except (ValueError, LookupError, TypeError) as error:
    raise UserError(
      f"{path} is damaged; python -m posexp.context RUN --at measures it again"
    ) from error
  return ContextLosses(str(text), place, sizes, nats)


def with_context_losses(runs: Sequence[Run]) -> tuple[list[Run], list[str]]:
  """Add the losses by context on the test split to the summaries of runs; return notes, too.

  A run whose file of losses is damaged keeps its summary as it is, and there is a note. What a run
  gains by context is what it has measured at its end, on as many targets as other runs.
  """
  completed, notes = [], []
  for run in runs:
    if run.summary is not None:
      try:
        if (measured := read_context_losses(run.path, "test")) is not None:
          trained = run.settings.get("task.segment")
          own = {key: run.summary[key] for key in ("context/gain",) if key in run.summary}
          scores = run.summary | measured.scores(trained) | own
          run = dataclasses.replace(run, summary=scores)
      except UserError as error:
        notes.append(str(error))
    completed.append(run)
  return completed, notes
