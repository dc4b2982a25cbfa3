"""Parallel text that is ready for a translator."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import numpy as np

from posexp.data import batches, tokenizer
from posexp.data.batches import Batch
from posexp.errors import UserError
from posexp.runs import bleu
from posexp.tasks.results import guessing
from posexp.translation.encoded import Pairs

if TYPE_CHECKING:
  from posexp.translation.model import TranslatorSpec


class TextPair(NamedTuple):
  """A pair that is evaluated; a group, where it has one, is measured by itself."""

  source: str
  target: str
  group: str = ""


@dataclasses.dataclass(frozen=True)
class ParallelData(batches.Bucketed):
  """Pairs of sentences, ready for a translator."""

  languages: tuple[str, str]  # of the source and of the target
  tokenizers: tuple[tokenizer.Tokenizer, tokenizer.Tokenizer]  # one object twice if they share it
  notes: tuple[str, ...]
  texts_of: dict[str, list[TextPair]]  # of the splits that are evaluated
  examples: dict[str, Pairs]

  item: ClassVar[str] = "sentence"
  unit: ClassVar[str] = "tokens"

  @functools.cached_property
  def tokenize(self) -> str:
    """The tokenizer of BLEU, which all splits and parts of splits share."""
    texts = (text.target for texts in self.texts_of.values() for text in texts)
    return bleu.tokenizer(texts, self.languages[1])

  @property
  def about(self) -> tuple[str, str]:
    first, second = self.tokenizers
    size = f"{first.vocab_size:,}" + ("" if second is first else f" and {second.vocab_size:,}")
    return (
      " to ".join(self.languages),
      f"vocabulary {size}, longest sentence {self.longest} tokens",
    )

  def model(self, encoding, size, positions) -> TranslatorSpec:
    from posexp.translation.model import TranslatorSpec

    source, target = (each.vocab_size for each in self.tokenizers)
    longest = int(self.examples["train"].lengths.max())
    return TranslatorSpec(source, target, encoding, size, positions, slots=longest)

  @property
  def word_counts(self) -> np.ndarray:
    tokens = self.examples["train"].source.tokens
    return np.bincount(tokens, minlength=self.tokenizers[0].vocab_size)

  @property
  def chance(self) -> float:
    target = self.examples["train"].target
    return guessing(np.append(np.bincount(target.tokens), len(target.lengths)))  # ends, too

  def rows_of(self, batch_size: int) -> np.ndarray:
    return rows_of(self.bucket_lengths, batch_size)

  def steps_per_epoch(self, batch_size: int) -> int:
    """Count the batches of an epoch; UserError if a batch does not hold the longest sentence."""
    if batch_size < self.length:
      raise UserError(
        f"train.batch_size={batch_size}: it counts tokens, and the longest batches have "
        f"{self.length} a sentence; set train.batch_size={self.length} or more, or lower "
        "task.max_length"
      )
    rows = self.rows_of(batch_size)
    return batches.steps_of(self.examples["train"].lengths, self.bucket_lengths, rows)

  def texts(self, split: str, batch_size: int) -> Iterator[Batch]:
    for batch in self.evaluation(split, batch_size):
      yield {"tokens": batch["source"], "mask": batch["source_mask"], "weight": batch["weight"]}


def rows_of(ends: np.ndarray, tokens: int) -> np.ndarray:
  """Return the rows of a batch of about `tokens` tokens in each bucket, int [buckets]."""
  rows = np.maximum(tokens // ends, 1)
  return np.where(rows < batches.GRANULE, rows, rows // batches.GRANULE * batches.GRANULE)
