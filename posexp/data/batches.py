"""Tokenized splits, and batches of examples of similar length, in a few fixed shapes."""

import dataclasses
import functools
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar, Protocol, Self

import numpy as np

from posexp.data.tokenizer import PAD
from posexp.errors import UserError

BUCKETS = 3  # each costs seconds of compilation; a fourth saves less than a tenth of the tokens
GRANULE = 8  # lengths of batches are multiples of it
CANDIDATES = 32  # lengths considered; longer texts get a coarser granule


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

  def padded(self, rows: np.ndarray, length: int, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the sequences `rows`: ids int32 [B, L] and mask [B, L], or ids int32 [B, L, I] where a
    token is I ids.

    B is `size`; rows beyond the sequences are padding. The mask has a True in every row, even in
    padding, or attention would divide by zero.
    """
    place, count = np.arange(length), self.lengths[rows, None]
    tokens = np.full((size, length, *self.tokens.shape[1:]), PAD, np.int32)
    mask = np.zeros((size, length), bool)
    mask[: len(rows)] = real = place < count
    tokens[mask] = self.tokens[(self.starts[rows, None] + place)[real]]
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


class Tokenized(Protocol):
  """A tokenized split, of which batches are made."""

  @property
  def lengths(self) -> np.ndarray:
    """The tokens of each example, int [N]."""

  def batch(self, rows: np.ndarray, length: int, size: int) -> Batch:
    """Return the examples `rows`, padded to `length` tokens, and to `size` rows with weight 0."""


def buckets(lengths: np.ndarray, longest: int) -> np.ndarray:
  """Return at most `BUCKETS` lengths of batches, int in order, with the least padding.

  The last holds `longest` tokens. `lengths` int [N] are those of the training examples.
  """
  granule = GRANULE * -(-longest // (GRANULE * CANDIDATES))
  units, counts = np.unique(-(-lengths // granule), return_counts=True)
  last = -(-longest // granule)

  def tokens(chosen: tuple[int, ...]) -> int:
    ends = np.asarray([*chosen, last])
    return ends[np.searchsorted(ends, units)] @ counts

  inner = [unit for unit in units.tolist() if unit < last]
  choices = itertools.combinations(inner, min(BUCKETS - 1, len(inner)))
  return np.asarray([*min(choices, key=tokens), last]) * granule


def padded_length(count: int, limit: int | None = None) -> int:
  """Return the length of a batch for `count` tokens: GRANULE times a power of two, so that few
  programs serve all lengths, and at most `limit`.
  """
  length = GRANULE << max(0, (count - 1) // GRANULE).bit_length()
  return length if limit is None else min(length, limit)


def steps_of(lengths: np.ndarray, ends: np.ndarray, rows: np.ndarray) -> int:
  """Count the batches of an epoch that shows every example; rows int [buckets] by bucket."""
  counts = np.bincount(np.searchsorted(ends, lengths), minlength=len(ends))
  steps = left = 0
  for count, size in zip(counts.tolist(), rows.tolist(), strict=True):
    full, left = divmod(left + count, size)
    steps += full
  return steps + (left > 0)


def training(
  examples: Tokenized, ends: np.ndarray, rows: int | np.ndarray, *, seed: int, start: int
) -> Iterator[Batch]:
  """Yield batches of `rows` without end from step `start` on, a pure function of (seed, step).

  Examples left over in a bucket go to the next longer one. If `rows` is one number for all buckets,
  every batch is full, and each epoch leaves out N mod rows examples, drawn anew. If it is int
  [buckets], an epoch of `steps_of` batches shows every example once, and one of the longest batches
  is padded with rows of weight 0.
  """
  count = len(examples.lengths)
  if isinstance(rows, int):
    count -= count % rows
    steps = count // rows
  else:
    steps = steps_of(examples.lengths, ends, rows)
  first, done = divmod(start, steps)
  for epoch in itertools.count(first):
    random = np.random.default_rng([seed, epoch])
    order = random.permutation(len(examples.lengths))[:count]
    epoch_batches = list(_plan(order, examples.lengths, ends, rows))
    for i in random.permutation(steps)[done:]:
      yield examples.batch(*epoch_batches[i])
    done = 0


def evaluation(
  examples: Tokenized,
  ends: np.ndarray,
  rows: int | np.ndarray,
  only: np.ndarray | None = None,
) -> Iterator[Batch]:
  """Yield every example once, always in the same order; the last batch is padded with weight 0.

  `rows` of a batch is one number for all buckets or int [buckets]. `only`, int [n], selects
  examples.
  """
  order = np.arange(len(examples.lengths)) if only is None else only
  for planned in _plan(order, examples.lengths, ends, rows):
    yield examples.batch(*planned)


class Bucketed:
  """Data with batches of a few lengths; subclasses hold the examples."""

  examples: Mapping[str, Tokenized]  # by split
  full: ClassVar[bool] = False  # whether each batch of training is full, as of `training`

  @property
  def sizes(self) -> dict[str, int]:
    return {split: len(own.lengths) for split, own in self.examples.items()}

  @functools.cached_property
  def longest(self) -> int:
    return max(int(split.lengths.max()) for split in self.examples.values())

  @functools.cached_property
  def bucket_lengths(self) -> np.ndarray:
    """The lengths of batches, int [buckets]."""
    return buckets(self.examples["train"].lengths, self.longest)

  @property
  def length(self) -> int:
    return int(self.bucket_lengths[-1])

  def rows_of(self, batch_size: int) -> np.ndarray:
    """Return the rows of a batch in each bucket, int [buckets]."""
    return np.full(len(self.bucket_lengths), batch_size)

  def steps_per_epoch(self, batch_size: int) -> int:
    """Count the full batches of an epoch; UserError if there is none."""
    if batch_size > self.sizes["train"]:
      raise UserError(
        f"train.batch_size={batch_size}: there are only {self.sizes['train']} training examples"
      )
    return self.sizes["train"] // batch_size

  def batches(self, batch_size: int, *, seed: int, start: int = 0) -> Iterator[Batch]:
    """Yield training batches: those of the examples' `batch`, with weight [B]."""
    self.steps_per_epoch(batch_size)
    rows = batch_size if self.full else self.rows_of(batch_size)
    return training(self.examples["train"], self.bucket_lengths, rows, seed=seed, start=start)

  def evaluation(self, split: str, batch_size: int) -> Iterator[Batch]:
    """Yield every example of a split once; the last batch is padded with weight 0."""
    return evaluation(self.examples[split], self.bucket_lengths, self.rows_of(batch_size))

  texts = evaluation


def _plan(
  order: np.ndarray, lengths: np.ndarray, ends: np.ndarray, rows: int | np.ndarray
) -> Iterator[tuple[np.ndarray, int, int]]:
  """Yield (examples, length, rows) of each batch; only the last may have fewer examples."""
  bucket = np.searchsorted(ends, lengths[order])
  left = order[:0]
  for i, (end, size) in enumerate(np.broadcast(ends, rows)):
    chosen = np.concatenate([left, order[bucket == i]])
    full = len(chosen) // size * size
    for j in range(0, full, size):
      yield chosen[j : j + size], int(end), int(size)
    left = chosen[full:]
  if len(left):
    yield left, int(end), int(size)
