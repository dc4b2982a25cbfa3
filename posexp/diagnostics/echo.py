"""Echo: endless streams of symbols; the task is to name the symbol some steps back.

It shows what a memory is for: with segments of T tokens and no memory, only T − k tokens of a
segment see the symbol k steps back, and none do if k ≥ T.
"""

from __future__ import annotations

import dataclasses
import itertools
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import numpy as np

from posexp.config.checks import Count, Name, between, check
from posexp.data.batches import Batch
from posexp.data.splits import EVALUATED
from posexp.tasks.contract import Data, Snapshot, Task
from posexp.tasks.results import Outputs, by_row, result_table, token_scores

if TYPE_CHECKING:
  from posexp.models.language_model import LanguageModelSpec

EPOCH = 1_000  # steps that count as an epoch, since streams never end
LANES = 64  # of an evaluated split


@dataclasses.dataclass(frozen=True)
class EchoData(Data):
  """Streams, ready for a language model; segment s of all lanes is a function of (seed, s)."""

  symbols: int
  back: int
  segment: int

  item: ClassVar[str] = "segment"
  unit: ClassVar[str] = "lanes"

  @property
  def held(self) -> int:
    """The segments of each lane of an evaluated split: most come after its first `back` tokens."""
    return 4 + 2 * -(-self.back // self.segment)

  @property
  def sizes(self) -> dict[str, int]:
    return {"train": EPOCH} | dict.fromkeys(EVALUATED, LANES * self.held)

  @property
  def about(self) -> tuple[str, str]:
    return (
      f"the symbol {self.back} steps back, in segments of {self.segment}",
      f"{self.symbols} symbols in streams that never end",
    )

  @property
  def length(self) -> int:
    return self.segment

  @property
  def word_counts(self) -> np.ndarray:
    return np.ones(self.symbols, int)

  @property
  def ceiling(self) -> float:
    """The accuracy that no model without a memory can exceed on an evaluated split.

    The first `back` tokens of a lane do not count; in endless lanes the ceiling would be lower.
    """
    visible = self.held * max(self.segment - self.back, 0)
    seen = visible / (self.held * self.segment - self.back)
    return seen + (1 - seen) / self.symbols

  def model(self, encoding, size, positions) -> LanguageModelSpec:
    from posexp.models.language_model import LanguageModelSpec

    return LanguageModelSpec(self.symbols, encoding, size, positions)

  def steps_per_epoch(self, batch_size: int) -> int:
    return EPOCH

  def batches(self, batch_size: int, *, seed: int, start: int = 0) -> Iterator[Batch]:
    for step in itertools.count(start):
      yield self.batch((seed,), batch_size, step)

  def evaluation(self, split: str, batch_size: int) -> Iterator[Batch]:
    """Yield all segments of a split, of as many lanes at a time as a batch has rows."""
    key = zlib.crc32(split.encode()), 0
    for first in range(0, LANES, batch_size):
      lanes = np.arange(first, first + batch_size)
      for step in range(self.held):
        every = self.batch(key, LANES, step)  # so that no batch size changes what is measured
        batch = {name: rows[lanes % LANES] for name, rows in every.items()}
        batch["weight"] = (lanes < LANES).astype(np.float32)
        batch["index"] = np.where(lanes < LANES, lanes * self.held + step, -1).astype(np.int32)
        yield batch

  def batch(self, key: tuple[int, ...], rows: int, step: int) -> Batch:
    """Return segment `step` of every lane; the first `back` tokens of a lane do not count."""
    before = -(-self.back // self.segment)
    drawn = [
      np.random.default_rng([*key, max(segment, 0)]).integers(
        self.symbols, size=(rows, self.segment)
      )
      for segment in range(step - before, step + 1)
    ]
    window = np.concatenate(drawn, axis=1).astype(np.int32)
    start = before * self.segment
    counts = step * self.segment + np.arange(self.segment) >= self.back
    return {
      "tokens": window[:, start:],
      "labels": window[:, start - self.back : window.shape[1] - self.back],
      "mask": np.broadcast_to(counts, (rows, self.segment)),
      "weight": np.ones(rows, np.float32),
      "fresh": np.full(rows, step == 0),
      "index": np.arange(rows, dtype=np.int32),
    }


@dataclasses.dataclass(frozen=True)
class Echo(Task):
  """The symbol `back` steps back in a stream that is read in segments."""

  score: ClassVar[str] = "validation/accuracy"
  headline: ClassVar[tuple[str, ...]] = ("test/accuracy",)
  followed: ClassVar[tuple[str, ...]] = ("loss", "accuracy")
  adjustable = ("back", "segment")

  name: Name = "echo"
  back: Annotated[int, between(1, 2**16)] = 32
  segment: Annotated[int, between(1, 2**16)] = 32
  symbols: Annotated[Count, between(2, 2**16)] = 16

  def __post_init__(self):
    check(self)

  def smallest_model(self, encoding, size, positions) -> LanguageModelSpec:
    return self.prepare(Path()).model(encoding, size, positions)

  def prepare(self, folder: Path) -> EchoData:
    return EchoData(self.symbols, self.back, self.segment)

  def answers(self, data: EchoData, split: str, found: Outputs) -> Outputs:
    """Return for every segment, [N] each: `loss`, `tokens` that count, and how many are `right`."""
    place = np.arange(len(found["index"])) % data.held * data.segment
    return by_row(found, np.clip(place + data.segment - data.back, 0, data.segment))

  def scores(self, found: Outputs) -> dict[str, float]:
    return token_scores(found)

  def conclude(self, data: EchoData, snapshot: Snapshot, folder: Path) -> dict[str, Any]:
    """Return the metrics of the test split, and the ceiling of models without a memory."""
    metrics = super().conclude(data, snapshot, folder)
    return metrics | {"ceiling/without_memory": data.ceiling}

  def table(self, summary: Mapping[str, Any]) -> Iterator[str]:
    yield from result_table(self.metrics, summary, EVALUATED, ("accuracy", "loss"))
    yield f"no model without a memory exceeds {summary['ceiling/without_memory']:.4f}"
