"""Tokenized splits, and batches of given rows."""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Self

import numpy as np

from posexp.data.tokenizer import BOS, EOS, PAD

Batch = dict[str, np.ndarray]


@dataclasses.dataclass(frozen=True)
class Sequences:
  """Sequences of token ids, end to end."""

  tokens: np.ndarray  # int [sum of lengths], or [sum of lengths, I]
  starts: np.ndarray  # int64 [N + 1], where each sequence begins in `tokens`, and the end

  @classmethod
  def of(cls, ids: Sequence[Sequence[int] | np.ndarray], *columns: np.ndarray) -> Self:
    """Concatenate sequences of token ids; `columns` are the fields that a subclass adds."""
    tokens = np.concatenate([np.asarray(each, np.int32) for each in ids])
    return cls(tokens, np.cumsum([0, *map(len, ids)], dtype=np.int64), *columns)

  @functools.cached_property
  def lengths(self) -> np.ndarray:
    return np.diff(self.starts)

  def padded(
    self, rows: np.ndarray, length: int, size: int, end: int | None = None
  ) -> tuple[np.ndarray, np.ndarray]:
    """Return the sequences `rows`, each with `end` after it: ids int32 [B, L] and mask [B, L], or
    ids int32 [B, L, I] where a token is I ids.

    B is `size`; rows beyond the sequences are padding. The mask has a True in every row, even in
    padding, or attention would divide by zero.
    """
    place, count = np.arange(length), self.lengths[rows, None]
    tokens = np.full((size, length, *self.tokens.shape[1:]), PAD, np.int32)
    mask = np.zeros((size, length), bool)
    mask[: len(rows)] = real = place < count
    tokens[mask] = self.tokens[(self.starts[rows, None] + place)[real]]
    if end is not None:
      tokens[: len(rows)][place == count] = end
      mask[: len(rows)] = place <= count
    mask[len(rows) :, 0] = True
    return tokens, mask


def numbered(rows: np.ndarray, size: int) -> Batch:
  """Return weight float32 [B] and index int32 [B] of a batch's rows; 0 and −1 in a padded row."""
  fill = (0, size - len(rows))
  return {
    "weight": np.pad(np.ones(len(rows), np.float32), fill),
    "index": np.pad(rows.astype(np.int32), fill, constant_values=-1),
  }


@dataclasses.dataclass(frozen=True)
class Examples(Sequences):
  """A tokenized split of labeled texts, each with at least one token."""

  labels: np.ndarray  # int32 [N]

  def batch(self, rows: np.ndarray, length: int, size: int) -> Batch:
    """Return the examples `rows`, padded to `length` tokens, and to `size` rows with weight 0.

    The batch has tokens int32 [B, L], mask bool [B, L], labels int32 [B], weight float32 [B] and
    index int32 [B], the place in the split (-1 for a padded row).
    """
    tokens, mask = self.padded(rows, length, size)
    labels = np.pad(self.labels[rows], (0, size - len(rows)))
    return {"tokens": tokens, "mask": mask, "labels": labels} | numbered(rows, size)


@dataclasses.dataclass(frozen=True)
class Pairs:
  """A tokenized split of pairs of sentences, without special tokens."""

  source: Sequences
  target: Sequences
  long: int = 0  # pairs beyond the maximum length: dropped from train, cut in other splits

  @functools.cached_property
  def lengths(self) -> np.ndarray:
    """The tokens of each pair's longer side, with its special token, int64 [N]."""
    return np.maximum(self.source.lengths, self.target.lengths) + 1

  def batch(self, rows: np.ndarray, length: int, size: int) -> Batch:
    """Return the pairs `rows`, padded to `length` tokens, and to `size` rows with weight 0.

    The batch has int32 [B, L]: source (its tokens, then [EOS]), target ([BOS], then its tokens) and
    labels (the target's tokens, then [EOS]); bool [B, L]: source_mask and mask, of target and
    labels; weight float32 [B], and index int32 [B], the place in the split (-1 for a padded row).
    """
    source, source_mask = self.source.padded(rows, length, size, EOS)
    labels, mask = self.target.padded(rows, length, size, EOS)
    target = np.where(mask, np.roll(labels, 1, axis=1), PAD)
    target[: len(rows), 0] = BOS
    batch = {"source": source, "target": target, "labels": labels}
    return batch | {"source_mask": source_mask, "mask": mask} | numbered(rows, size)
