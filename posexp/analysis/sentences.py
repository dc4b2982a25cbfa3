"""Sentences translated as they come, in batches of a few shapes, so that few programs compile."""

from __future__ import annotations

import functools
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from posexp.data.tokenizer import EOS, PAD, Tokenizer
from posexp.models.decoding import Search, searcher
from posexp.training.restore import TrainedModel

SHORTEST = 8  # tokens of the shortest batches
WINDOW = 16  # batches among which lines are sorted by length


class Hypothesis(NamedTuple):
  """A translation, of a text that is not blank."""

  text: str  # on one line
  score: float  # Σ log p
  source: list[int]  # tokens as they were read, [EOS] last
  target: list[int]  # tokens as they were written, [EOS] last unless it was cut


def padded(count: int, limit: int | None = None) -> int:
  """The length of a batch for `count` tokens: SHORTEST times a power of two, at most `limit`."""
  length = SHORTEST << max(0, (count - 1) // SHORTEST).bit_length()
  return length if limit is None else min(length, limit)


def enough(count: int, rows: int, devices: int) -> int:
  """The rows of batches for `count` texts: `rows`, which devices divide, or fewer if these do."""
  return min(rows, devices << max(0, -(-count // devices) - 1).bit_length())


class Sentences:
  """Translates lists of texts in batches of so many rows, and counts what that took."""

  def __init__(self, opened: TrainedModel, search: Search, rows: int):
    self.search, self.rows = search, rows
    self.snapshot = opened.snapshot
    first, second = opened.tokenizers
    self.source = Tokenizer(first)
    self.target = self.source if second == first else Tokenizer(second)
    self.limit = opened.spec.encoding.limit
    longest = opened.setup.task.max_length
    reads = {f"task.max_length={longest}": longest}
    reads[f"its encoding has {self.limit} positions"] = self.limit
    limits = [(most, why) for why, most in reads.items() if most is not None]
    # Tokens of a source, [EOS] counted: what the model was tested on, and no more.
    self.most, self.why = min(limits, default=(sys.maxsize, ""))
    self.seconds = self.compiling = 0.0
    self.count = self.tokens = 0  # translations and what they consist of, [EOS] counted
    self.long: list[int] = []  # the sources that were cut, counted from 0 over all calls
    self.unended = 0  # translations that were cut
    self._seen = 0
    self._program = functools.cache(self._compiled)

  def __call__(self, texts: list[str]) -> list[Hypothesis | None]:
    """The translation of each text; None for one that is blank."""
    begun, compiling = time.perf_counter(), self.compiling
    real = [place for place, text in enumerate(texts) if text.strip()]
    sources = self._read([texts[place] for place in real])
    self.long += [self._seen + place for place, (_, cut) in zip(real, sources, strict=True) if cut]
    order = sorted(range(len(real)), key=lambda each: len(sources[each][0]))
    chunks = [order[start : start + self.rows] for start in range(0, len(order), self.rows)]
    # Devices go on with the next batch while this one's tokens become text.
    found = [self._search([sources[each][0] for each in chunk]) for chunk in chunks]
    said: list[Hypothesis | None] = [None] * len(texts)
    for chunk, output in zip(chunks, found, strict=True):
      output = jax.device_get(output)
      for row, each in enumerate(chunk):
        target = output["tokens"][row, : output["length"][row]].tolist()
        text = " ".join(self.target.decode(target).split())
        score = float(output["score"][row])
        said[real[each]] = Hypothesis(text, score, sources[each][0], target)
        self.tokens += len(target)
        self.unended += target[-1] != EOS
    self.count += len(real)
    self._seen += len(texts)
    self.seconds += time.perf_counter() - begun - (self.compiling - compiling)
    return said

  def _read(self, texts: list[str]) -> list[tuple[list[int], bool]]:
    """The tokens of each text, [EOS] last, and whether there were more than can be read."""
    room = self.most - 1
    return [([*ids[:room], EOS], len(ids) > room) for ids in self.source.ids(texts)]

  def _search(self, sources: list[list[int]]) -> dict[str, jax.Array]:
    rows, length = self.rows, padded(max(map(len, sources)), self.limit)
    batch = {
      "source": np.full((rows, length), PAD, np.int32),
      "source_mask": np.zeros((rows, length), bool),
      "weight": np.zeros(rows, np.float32),
    }
    batch["source_mask"][:, 0] = True
    for row, tokens in enumerate(sources):
      batch["source"][row, : len(tokens)] = tokens
      batch["source_mask"][row, : len(tokens)] = True
      batch["weight"][row] = 1
    batch = jax.device_put(batch, NamedSharding(self.snapshot.mesh, PartitionSpec("data")))
    state = self.snapshot.state
    return self._program(length)(state.params, state.settings, batch)

  def _compiled(self, length: int) -> Callable[..., dict[str, Any]]:
    begun, rows = time.perf_counter(), self.rows
    sharding = NamedSharding(self.snapshot.mesh, PartitionSpec("data"))

    def shape(*shape: int, dtype: Any) -> jax.ShapeDtypeStruct:
      return jax.ShapeDtypeStruct(shape, dtype, sharding=sharding)

    batch = {
      "source": shape(rows, length, dtype=np.int32),
      "source_mask": shape(rows, length, dtype=bool),
      "weight": shape(rows, dtype=np.float32),
    }
    state = self.snapshot.state
    find = searcher(self.snapshot.program.graphdef, self.search)
    program = find.lower(state.params, state.settings, batch).compile()
    self.compiling += time.perf_counter() - begun
    return program
