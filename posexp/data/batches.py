"""Batches of a few fixed shapes: texts of like length together, padded to the bucket's length."""

import dataclasses
import itertools
from collections.abc import Iterator
from typing import Protocol

import numpy as np

from posexp.data.tokenizer import PAD

BUCKETS = 3  # each costs seconds of compilation; a fourth saves less than a tenth of the tokens
GRANULE = 8  # lengths are multiples of it
CANDIDATES = 32  # lengths considered; longer texts get a coarser granule

Batch = dict[str, np.ndarray]


class Padded(Protocol):
  """Examples that can be laid out in batches."""

  lengths: np.ndarray  # int [N], in tokens

  def batch(self, rows: np.ndarray, length: int, size: int) -> Batch:
    """The examples `rows`, padded to `length` tokens and with rows of weight 0 to `size`."""


@dataclasses.dataclass(frozen=True)
class Examples:
  """The token ids of a split, end to end, and its labels."""

  tokens: np.ndarray  # int32 [sum of lengths]
  lengths: np.ndarray  # int64 [N]
  starts: np.ndarray  # int64 [N], where each text begins in `tokens`
  labels: np.ndarray  # int32 [N]

  @classmethod
  def of(cls, ids: list[list[int]], labels: list[int]) -> "Examples":
    """Examples of token ids and labels by text; no text may be without tokens."""
    tokens = np.fromiter(itertools.chain.from_iterable(ids), np.int32)
    lengths = np.fromiter(map(len, ids), np.int64, len(ids))
    return cls(tokens, lengths, np.cumsum(lengths) - lengths, np.asarray(labels, np.int32))

  def batch(self, rows: np.ndarray, length: int, size: int) -> Batch:
    """The examples `rows`, padded to `length` tokens and with rows of weight 0 to `size`.

    Returns tokens int32 [B, L], mask bool [B, L], labels int32 [B], weight float32 [B] and index
    int32 [B], the place in the split (-1 for a padded row). The mask of every row has a True, even
    of a padded one: without any, attention would divide by zero.
    """
    place = np.arange(length)
    mask = place < self.lengths[rows, None]
    tokens = self.tokens[np.minimum(self.starts[rows, None] + place, len(self.tokens) - 1)]
    fill = (0, size - len(rows))
    tokens = np.pad(np.where(mask, tokens, PAD), (fill, (0, 0)), constant_values=PAD)
    mask = np.pad(mask, (fill, (0, 0)))
    mask[len(rows) :, 0] = True
    return {
      "tokens": tokens,
      "mask": mask,
      "labels": np.pad(self.labels[rows], fill),
      "weight": np.pad(np.ones(len(rows), np.float32), fill),
      "index": np.pad(rows.astype(np.int32), fill, constant_values=-1),
    }


def buckets(lengths: np.ndarray, longest: int) -> np.ndarray:
  """At most `BUCKETS` lengths, the last for `longest` tokens, that need the least padding.

  `lengths` int [N] are those of the training texts, int [buckets] is returned, in order.
  """
  granule = GRANULE * -(-longest // (GRANULE * CANDIDATES))
  units, counts = np.unique(-(-lengths // granule), return_counts=True)
  last = -(-longest // granule)

  def padded(chosen: tuple[int, ...]) -> int:
    ends = np.asarray([*chosen, last])
    return ends[np.searchsorted(ends, units)] @ counts

  inner = [unit for unit in units.tolist() if unit < last]
  choices = itertools.combinations(inner, min(BUCKETS - 1, len(inner)))
  return np.asarray([*min(choices, key=padded), last]) * granule


def rows_of(ends: np.ndarray, tokens: int) -> np.ndarray:
  """Rows of a batch of about `tokens` tokens in each bucket, int [buckets]."""
  rows = np.maximum(tokens // ends, 1)
  return np.where(rows < GRANULE, rows, rows // GRANULE * GRANULE)


def steps_of(lengths: np.ndarray, ends: np.ndarray, rows: np.ndarray) -> int:
  """Batches in an epoch of `training_by_tokens`, the same in each."""
  counts = np.bincount(np.searchsorted(ends, lengths), minlength=len(ends))
  steps = left = 0
  for count, size in zip(counts.tolist(), rows.tolist(), strict=True):
    full, left = divmod(left + count, size)
    steps += full
  return steps + (left > 0)


def training(
  examples: Examples, ends: np.ndarray, size: int, *, seed: int, start: int
) -> Iterator[Batch]:
  """Batches of `size` rows without end from step `start` on, a pure function of (seed, step).

  An epoch has N // size batches, all full: N mod size examples, drawn anew in each epoch, sit it
  out, and every other one is seen once. What is left over in a bucket goes to the next longer one.
  """
  steps = len(examples.lengths) // size
  rows = np.full(len(ends), size)
  return _epochs(examples, ends, rows, steps * size, steps, seed=seed, start=start)


def training_by_tokens(
  examples: Padded, ends: np.ndarray, rows: np.ndarray, *, seed: int, start: int
) -> Iterator[Batch]:
  """Batches of `rows` by bucket without end from step `start` on, a function of (seed, step).

  Every example is seen once in an epoch of `steps_of` batches. What is left over in a bucket goes
  to the next longer one; of the longest, one batch is padded with rows of weight 0.
  """
  steps = steps_of(examples.lengths, ends, rows)
  return _epochs(examples, ends, rows, len(examples.lengths), steps, seed=seed, start=start)


def evaluation(examples: Padded, ends: np.ndarray, rows: int | np.ndarray) -> Iterator[Batch]:
  """Every example once, always in the same order; the last batch is padded with weight 0.

  `rows` are those of a batch, alike in all buckets or int [buckets].
  """
  rows = np.broadcast_to(rows, len(ends))
  for bucket, chosen in _plan(np.arange(len(examples.lengths)), examples.lengths, ends, rows):
    yield examples.batch(chosen, int(ends[bucket]), int(rows[bucket]))


def _epochs(
  examples: Padded,
  ends: np.ndarray,
  rows: np.ndarray,
  count: int,
  steps: int,
  *,
  seed: int,
  start: int,
) -> Iterator[Batch]:
  """Batches of epochs without end, each of `count` examples in `steps` batches."""
  first, done = divmod(start, steps)
  for epoch in itertools.count(first):
    random = np.random.default_rng([seed, epoch])
    order = random.permutation(len(examples.lengths))[:count]
    plan = _plan(order, examples.lengths, ends, rows)
    for i in random.permutation(steps)[done:]:
      bucket, chosen = plan[i]
      yield examples.batch(chosen, int(ends[bucket]), int(rows[bucket]))
    done = 0


def _plan(
  order: np.ndarray, lengths: np.ndarray, ends: np.ndarray, rows: np.ndarray
) -> list[tuple[int, np.ndarray]]:
  """(bucket, examples) of each batch; the last one alone may have fewer than rows[bucket]."""
  bucket = np.searchsorted(ends, lengths[order])
  plan, left = [], order[:0]
  for i, size in enumerate(rows.tolist()):
    chosen = np.concatenate([left, order[bucket == i]])
    full = len(chosen) // size * size
    plan += [(i, chosen[j : j + size]) for j in range(0, full, size)]
    left = chosen[full:]
  return [*plan, (len(ends) - 1, left)] if len(left) else plan
