"""Pairs of sentences as tokens on disk, and in batches by tokens."""

import itertools
import json
import random

import numpy as np
import pytest

from posexp import storage
from posexp.data import batches, side_by_side, tokenizer
from posexp.data.batches import GRANULE
from posexp.errors import UserError
from posexp.translation import encoded
from posexp.translation.parallel import rows_of

PAIRS = [
  ("A man rides a bicycle.", "Ein Mann fährt Fahrrad."),
  ('He said "no"\u2028and left\r\n twice', "Er ging [EOS] 漢字 \U0001f600"),
  ("  two blanks  ", "x"),
  ("x", "ein sehr langer Satz, der gar nicht enden will"),
]


pytestmark = pytest.mark.usefixtures("own_cache")


def trained(given=PAIRS, vocab_size=300):
  texts = itertools.chain.from_iterable(given)
  return tokenizer.train(texts, "bpe", vocab_size, encoded.SPECIAL["bpe"], decodes=True)


def encode(given, split="train", max_length=None, tokenizers=None, data="d"):
  tokenizers = tokenizers or (trained(),) * 2
  return encoded.encode(
    lambda: iter(given), tokenizers, split=split, max_length=max_length, data=data
  )


def many(count, seed=0):
  draw = random.Random(seed)
  words = lambda: " ".join(draw.choices(["man", "cat", "Haus", "ü"], k=draw.randint(1, 20)))  # noqa: E731
  return [(words(), words()) for _ in range(count)]


def test_the_tokenizer_is_deterministic_and_gives_every_text_back():
  json_text = trained()
  assert trained(iter(PAIRS)) == json_text
  opened = tokenizer.Tokenizer(json_text)
  vocabulary = json.loads(json_text)["model"]["vocab"]
  assert [vocabulary[name] for name in ("[PAD]", "[BOS]", "[EOS]")] == [0, 1, 2]
  assert tokenizer.Tokenizer(trained(vocab_size=encoded.LEAST)).vocab_size == 259
  for text in (text for pair in PAIRS for text in pair):
    (ids,) = opened.ids([text])
    assert min(ids) > 2  # "[EOS]" in a text is five characters
    assert opened.decode(np.array([1, *ids, 2, 0, 0], np.int32)) == text.removeprefix(" ")


def check(batch, given, data, opened, length, size):
  """A batch has the promised shapes and holds the pairs that it says."""
  for key in ("source", "target", "labels"):
    assert batch[key].dtype == np.int32
    assert batch[key].shape == (size, length)
  for key in ("source_mask", "mask"):
    assert batch[key].dtype == bool
    assert batch[key].any(axis=1).all()
    assert (np.diff(batch[key].astype(int), axis=1) <= 0).all()  # padding is behind
  assert not batch["source"][~batch["source_mask"]].any()
  assert not batch["target"][~batch["mask"]].any()
  assert not batch["labels"][~batch["mask"]].any()
  assert batch["weight"].dtype == np.float32
  assert batch["index"].dtype == np.int32
  assert ((batch["index"] >= 0) == (batch["weight"] == 1)).all()
  for row in np.flatnonzero(batch["weight"]):
    source, target = opened.ids(list(given[batch["index"][row]]))
    assert batch["source"][row][batch["source_mask"][row]].tolist() == [*source, 2]
    assert batch["target"][row][batch["mask"][row]].tolist() == [1, *target]
    assert batch["labels"][row][batch["mask"][row]].tolist() == [*target, 2]
    assert data.lengths[batch["index"][row]] == max(len(source), len(target)) + 1 <= length


def test_every_pair_is_trained_on_once_an_epoch_in_equal_steps():
  given = many(500)
  data, opened = encode(given), tokenizer.Tokenizer(trained())
  ends = batches.buckets(data.lengths, int(data.lengths.max()))
  rows = rows_of(ends, 300)
  steps = batches.steps_of(data.lengths, ends, rows)
  stream = batches.training(data, ends, rows, seed=1, start=0)
  orders = []
  for _ in range(3):
    epoch = [next(stream) for _ in range(steps)]
    for batch in epoch:
      length = batch["source"].shape[1]
      check(batch, given, data, opened, length, rows[ends.tolist().index(length)])
    assert sum(not batch["weight"].all() for batch in epoch) <= 1
    orders.append(np.concatenate([batch["index"] for batch in epoch]).tolist())
    assert sorted(i for i in orders[-1] if i >= 0) == list(range(500))
  assert len({tuple(order) for order in orders}) == 3


def test_evaluation_by_length_leaves_least_for_a_search_to_wait_for():
  data = encode(many(107))
  ends, only = batches.buckets(data.lengths, int(data.lengths.max())), np.arange(0, 107, 2)
  chosen = data.by_length(only)
  assert sorted(chosen.tolist()) == only.tolist()

  def spread(order):
    shown = [batch["index"] for batch in batches.evaluation(data, ends, 10, order)]
    return sum(np.ptp(data.lengths[index[index >= 0]]) for index in shown)

  assert spread(chosen) < spread(only)
  assert (np.diff(data.lengths[data.by_length()]) >= 0).all()


def test_rows_are_a_multiple_of_the_granule_where_that_leaves_any():
  ends = np.array([8, 24, 64, 512])
  assert rows_of(ends, 250).tolist() == [24, 8, 3, 1]
  assert rows_of(ends, 4096).tolist() == [512, 168, 64, GRANULE]


def test_long_pairs_are_dropped_from_training_and_cut_elsewhere():
  opened = tokenizer.Tokenizer(trained())
  given = many(50)
  sizes = [max(map(len, opened.ids(list(pair)))) + 1 for pair in given]
  most = sorted(sizes)[25]
  kept = [size for size in sizes if size <= most]
  train, test = encode(given, max_length=most), encode(given, "test", max_length=most)
  assert train.lengths.tolist() == kept
  assert test.lengths.tolist() == [min(size, most) for size in sizes]
  assert train.long == test.long == 50 - len(kept) > 0
  (row,) = test.batch(np.array([sizes.index(max(sizes))]), most, 1)["source"]
  source = opened.ids([given[sizes.index(max(sizes))][0]])[0]
  assert row[row > 2].tolist() == source[: most - 1].tolist()
  with pytest.raises(UserError, match=r"all 50 train pairs .* than 1 tokens; raise task\.max_len"):
    encode(given, max_length=1)


def test_tokens_are_written_once_for_the_same_data():
  first = encode(many(30))
  (folder,) = (storage.cache_folder() / "encoded").iterdir()
  assert (folder / "source.tokens").stat().st_size == 2 * first.source.starts[-1]
  again = encode([], data="d")  # read from the disk
  assert (again.target.tokens == first.target.tokens).all()
  assert encode(many(20), data="other").lengths.shape == (20,)
  separate = (trained(), trained([["ü ü ü"]], 259))
  apart = encode(many(30), tokenizers=separate)
  for i, side in enumerate((apart.source, apart.target)):
    (ids,) = tokenizer.Tokenizer(separate[i]).ids([many(30)[0][i]])
    assert side.tokens[: side.starts[1]].tolist() == ids.tolist()


def test_pairs_are_encoded_alike_by_several_processes(monkeypatch):
  pairs = many(60)
  alone = encode(pairs, max_length=15)
  monkeypatch.setattr(encoded, "CHUNK", 7)
  # More tokens than two bytes tell apart.
  monkeypatch.setattr(tokenizer.Tokenizer, "vocab_size", 2**16 + 1, raising=False)
  monkeypatch.setattr(side_by_side, "ALONE", 1)
  monkeypatch.setattr(side_by_side, "cores", lambda: 3)
  shared = encode(pairs, max_length=15, data="again")
  assert alone.long == shared.long > 0
  for one, other in ((alone.source, shared.source), (alone.target, shared.target)):
    np.testing.assert_array_equal(one.tokens, other.tokens)
    np.testing.assert_array_equal(one.starts, other.starts)
