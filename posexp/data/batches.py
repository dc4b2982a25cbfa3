"""Batches of a few fixed shapes: texts of like length together, padded to the bucket's length."""

import dataclasses
import itertools
from collections.abc import Iterator

import numpy as np

from posexp.data.tokenizer import PAD

BUCKETS = 3  # each costs seconds of compilation; a fourth saves less than a tenth of the tokens
GRANULE = 8  # lengths are multiples of it
CANDIDATES = 32  # lengths considered; longer texts get a coarser granule

Batch = dict[str, np.ndarray]


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


def training(
  examples: Examples, ends: np.ndarray, size: int, *, seed: int, start: int
) -> Iterator[Batch]:
  """Batches without end from step `start` on, a pure function of (seed, step).

  An epoch has N // size batches, all full: N mod size examples, drawn anew in each epoch, sit it
  out, and every other one is seen once. What is left over in a bucket goes to the next longer one.
  """
  steps = len(examples.labels) // size
  first, done = divmod(start, steps)
  for epoch in itertools.count(first):
    random = np.random.default_rng([seed, epoch])
    order = random.permutation(len(examples.labels))[: steps * size]
    plan = _plan(order, examples.lengths, ends, size)
    for i in random.permutation(steps)[done:]:
      length, rows = plan[i]
      yield examples.batch(rows, length, size)
    done = 0


def evaluation(examples: Examples, ends: np.ndarray, size: int) -> Iterator[Batch]:
  """Every example once, always in the same order; the last batch is padded with weight 0."""
  for length, rows in _plan(np.arange(len(examples.labels)), examples.lengths, ends, size):
    yield examples.batch(rows, length, size)


def _plan(
  order: np.ndarray, lengths: np.ndarray, ends: np.ndarray, size: int
) -> list[tuple[int, np.ndarray]]:
  """(length, rows) of each batch; the last one alone may have fewer than `size` rows."""
  bucket = np.searchsorted(ends, lengths[order])
  plan, left = [], order[:0]
  for i, length in enumerate(ends.tolist()):
    rows = np.concatenate([left, order[bucket == i]])
    full = len(rows) // size * size
    plan += [(length, rows[j : j + size]) for j in range(0, full, size)]
    left = rows[full:]
  return [*plan, (int(ends[-1]), left)] if len(left) else plan
