"""Batches of labeled texts: lengths, shapes and order."""

import numpy as np
import pytest

from posexp.data import batches, tokenizer
from posexp.data.batches import Examples


def examples(count, seed=0, most=40):
  random = np.random.default_rng(seed)
  ids = [random.integers(3, 99, n).tolist() for n in random.integers(1, most + 1, count)]
  return ids, Examples.of(ids, random.integers(0, 3, count).astype(np.int32))


def test_buckets_are_few_cover_the_longest_and_save_padding():
  lengths = np.array([5] * 50 + [12] * 50 + [30] * 3)
  assert batches.buckets(lengths, 37).tolist() == [8, 16, 40]
  assert batches.buckets(np.array([3, 4]), 5).tolist() == [8]
  assert batches.buckets(np.array([3, 4]), 20).tolist() == [8, 24]
  many = np.arange(1, 5001)
  ends = batches.buckets(many, 5000)
  assert len(ends) <= batches.BUCKETS
  assert ends[-1] >= 5000
  assert ends[np.searchsorted(ends, many)].sum() < 0.7 * 5000 * 5000


def check(batch, ids, size):
  """A batch has the promised shapes and holds the tokens of the examples it says."""
  length = batch["tokens"].shape[1]
  kinds = {"tokens": np.int32, "mask": bool, "labels": np.int32, "weight": np.float32}
  for key, kind in (kinds | {"index": np.int32}).items():
    assert batch[key].dtype == kind
    assert batch[key].shape == ((size, length) if key in ("tokens", "mask") else (size,))
  assert batch["mask"].any(axis=1).all()
  assert (batch["tokens"][~batch["mask"]] == tokenizer.PAD).all()
  assert ((batch["index"] >= 0) == (batch["weight"] == 1)).all()
  for row in np.flatnonzero(batch["weight"]):
    assert batch["tokens"][row][batch["mask"][row]].tolist() == ids[batch["index"][row]]


def test_an_epoch_has_full_batches_of_few_shapes_and_no_example_twice():
  ids, data = examples(107)
  ends = batches.buckets(data.lengths, 40)
  stream = batches.training(data, ends, 10, seed=1, start=0)
  left_out = set()
  for _ in range(30):
    epoch = [next(stream) for _ in range(10)]
    for batch in epoch:
      check(batch, ids, 10)
      assert batch["weight"].all()
      assert batch["tokens"].shape[1] in ends
    seen = np.concatenate([batch["index"] for batch in epoch])
    assert len(set(seen.tolist())) == 100
    left_out |= set(range(107)) - set(seen.tolist())
    assert (data.labels[seen] == np.concatenate([b["labels"] for b in epoch])).all()
  assert len(left_out) > 80  # nobody sits out always


@pytest.mark.parametrize("count", [1, 10, 107])
def test_evaluation_shows_every_example_once_in_one_order(count):
  ids, data = examples(count)
  ends = batches.buckets(data.lengths, 40)
  first, second = ([*batches.evaluation(data, ends, 10)] for _ in range(2))
  for batch, again in zip(first, second, strict=True):
    check(batch, ids, 10)
    assert (batch["index"] == again["index"]).all()
  index = np.concatenate([batch["index"] for batch in first])
  assert sorted(index[index >= 0].tolist()) == list(range(count))
  assert len(first) == -(-count // 10)


def test_lengths_of_batches():
  assert [batches.padded_length(n) for n in (1, 8, 9, 16, 17, 100)] == [8, 8, 16, 16, 32, 128]
  assert batches.padded_length(17, limit=20) == 20
