"""Lines translated as they come, in batches of a few shapes, so that few programs are compiled."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import NamedTuple

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from posexp.data.examples import Sequences
from posexp.data.tokenizer import EOS, Tokenizer
from posexp.models.decoding import Search, searcher
from posexp.training.restore import TrainedModel

SHORTEST = 8  # tokens of the shortest batches


class Hypothesis(NamedTuple):
  """A translation, of a line that is not blank."""

  text: str  # on one line
  score: float  # Σ log p
  source: list[int]  # tokens as they were read, [EOS] last
  target: list[int]  # tokens as they were written, [EOS] last unless it was cut


def padded_length(count: int, limit: int | None = None) -> int:
  """The length of a batch for `count` tokens: SHORTEST times a power of two, at most `limit`."""
  length = SHORTEST << max(0, (count - 1) // SHORTEST).bit_length()
  return length if limit is None else min(length, limit)


def batch_rows(count: int, rows: int, devices: int) -> int:
  """The rows of batches for `count` lines: `rows`, a multiple of devices, or fewer if these do."""
  return min(rows, devices << max(0, -(-count // devices) - 1).bit_length())


class LineTranslator:
  """Translates lists of lines with a trained model, and counts what that took."""

  def __init__(self, trained: TrainedModel, search: Search, rows: int):
    """Batches have so many rows, a multiple of the devices of the model's snapshot."""
    self.snapshot, self.search, self.rows = trained.snapshot, search, rows
    self.source, self.target = map(Tokenizer, trained.tokenizers)
    self.limit = trained.spec.encoding.limit
    longest = trained.setup.task.max_length
    limits = (
      (longest, f"task.max_length={longest}"),
      (self.limit, f"its encoding has {self.limit} positions"),
    )
    # How many tokens of a source, [EOS] included, are read, and what limits them.
    given = [each for each in limits if each[0] is not None]
    self.most, self.why = min(given, default=(sys.maxsize, ""))
    self.count = self.tokens = 0  # of translations, [EOS] included
    self.cut_sources: list[int] = []  # counted from 0 over all calls
    self.cut_translations = 0
    self.seconds = self.compiling = 0.0
    self._lines = 0
    self._programs: dict[int, jax.stages.Compiled] = {}  # by length of the source

  def __call__(self, lines: Sequence[str]) -> list[Hypothesis | None]:
    """The translation of each line; None for one that is blank."""
    begun, compiling = time.perf_counter(), self.compiling
    real = [place for place, line in enumerate(lines) if line.strip()]
    sources = dict(zip(real, self.source.ids([lines[place] for place in real]), strict=True))
    for place, ids in sources.items():
      if len(ids) >= self.most:
        self.cut_sources.append(self._lines + place)
      sources[place] = [*ids[: self.most - 1], EOS]
    real.sort(key=lambda place: len(sources[place]))
    chunks = [real[start : start + self.rows] for start in range(0, len(real), self.rows)]
    # Devices go on with the next batch while this one's tokens become text.
    outputs = [self._search([sources[place] for place in chunk]) for chunk in chunks]
    found: list[Hypothesis | None] = [None] * len(lines)
    for chunk, output in zip(chunks, map(jax.device_get, outputs), strict=True):
      for row, place in enumerate(chunk):
        target = output["tokens"][row, : output["length"][row]].tolist()
        text = " ".join(self.target.decode(target).split())
        found[place] = Hypothesis(text, float(output["score"][row]), sources[place], target)
        self.tokens += len(target)
        self.cut_translations += target[-1] != EOS
    self.count += len(real)
    self._lines += len(lines)
    self.seconds += time.perf_counter() - begun - (self.compiling - compiling)
    return found

  def _search(self, sources: list[list[int]]) -> dict[str, jax.Array]:
    length = padded_length(max(map(len, sources)), self.limit)
    rows = np.arange(len(sources))
    tokens, mask = Sequences.of(sources).padded(rows, length, self.rows)
    weight = (np.arange(self.rows) < len(sources)).astype(np.float32)
    batch = {"source": tokens, "source_mask": mask, "weight": weight}
    batch = jax.device_put(batch, NamedSharding(self.snapshot.mesh, PartitionSpec("data")))
    inputs = self.snapshot.state.params, self.snapshot.state.settings, batch
    if length not in self._programs:
      begun = time.perf_counter()
      find = searcher(self.snapshot.program.graphdef, self.search)
      self._programs[length] = find.lower(*inputs).compile()
      self.compiling += time.perf_counter() - begun
    return self._programs[length](*inputs)
