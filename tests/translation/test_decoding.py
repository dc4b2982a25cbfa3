"""Decoding against searches written plainly: uncached passes, lists of tokens, and sorting."""

import functools
import os
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from commands import simulated
from flax import nnx
from small import rngs
from states import python

from posexp.data.tokenizer import PAD
from posexp.encodings import Encoding
from posexp.encodings.additive import Learned, Sinusoidal
from posexp.encodings.relative import RPR
from posexp.encodings.rngs import Rngs
from posexp.models.positions import Positions
from posexp.models.size import Size
from posexp.translation.decoding import BLOCK, ROOM, largest, searcher
from posexp.translation.encoded import BOS, EOS
from posexp.translation.model import TranslatorSpec
from posexp.translation.search import Search

VOCAB, BEAM = 23, 3
LENGTHS = np.array([4, 1, 3, 2])  # of the sources
ROWS, WIDTH = len(LENGTHS), max(LENGTHS)
SIZE = {"d_model": 16, "num_heads": 2, "d_ff": 16, "num_layers": 1, "dropout": 0.0}
SOURCE = ("source", "source_mask")
GREEDY, WIDE = Search(beam=1), Search(beam=BEAM)


class Subject:
  """A model with random weights, which ends a sentence now and then; and its uncached passes."""

  def __init__(self, encoding, end=0.4, seed=5, **size):
    size = Size(**SIZE | size)
    model = TranslatorSpec(VOCAB, VOCAB, encoding, size).build(rngs())
    self.graphdef, params, settings = nnx.split(model, nnx.Param, ...)
    leaves, tree = jax.tree.flatten(nnx.as_pure(params))
    draw = np.random.default_rng(seed)
    shaken = [x + 0.1 * draw.normal(size=x.shape).astype(x.dtype) for x in map(np.asarray, leaves)]
    self.params, self.settings = tree.unflatten(shaken), nnx.as_pure(settings)
    self.params["head"]["bias"][EOS] += end
    self.logits = jax.jit(
      lambda params, settings, batch: nnx.merge(self.graphdef, params, settings)(batch)
    )

  def search(self, search, batch):
    found = searcher(self.graphdef, search)(self.params, self.settings, batch)
    return {name: np.asarray(value) for name, value in found.items()}

  def scores(self, source, mask, prefixes, width):
    """log p, float64 [N,width,V], of what follows each prefix: one uncached pass over all."""
    rows = len(prefixes)
    if rows < ROWS * BEAM:  # one program for all that is asked
      more = [(0, ROWS * BEAM - rows)]
      source, mask = np.pad(source, [*more, (0, 0)]), np.pad(mask, [*more, (0, 0)], mode="edge")
      prefixes = [*prefixes, *[()] * (ROWS * BEAM - rows)]
    target = np.full((len(prefixes), width), PAD, np.int32)
    for row, prefix in zip(target, prefixes, strict=True):
      row[: 1 + len(prefix)] = [BOS, *prefix]
    real = np.arange(width) < np.array([[1 + len(prefix)] for prefix in prefixes])
    batch = {"source": source, "source_mask": mask, "target": target, "mask": real}
    logits = np.asarray(self.logits(self.params, self.settings, batch), np.float64)
    top = logits.max(-1, keepdims=True)
    return (logits - top - np.log(np.exp(logits - top).sum(-1, keepdims=True)))[:rows]


@functools.cache
def subject(encoding, **options):
  return Subject(encoding, **options)


def some_batch(lengths=LENGTHS, width=WIDTH, seed=0):
  mask = np.arange(width) < np.asarray(lengths)[:, None]
  tokens = np.random.default_rng(seed).integers(EOS + 1, VOCAB, mask.shape)
  return {
    "source": np.where(mask, tokens, PAD).astype(np.int32),
    "source_mask": mask,
    "weight": np.ones(len(mask), np.float32),
  }


def limits(batch):
  return 2 * batch["source_mask"].sum(1) + 8


def plain(model, batch, beam, penalty=0.6):
  """The best (tokens, Σ log p) of each row by definition: whole passes and a sorted list."""
  source, mask = (np.repeat(batch[name], beam, axis=0) for name in SOURCE)
  most = limits(batch)
  rows = [[((), 0.0)] for _ in most]

  def ended(row, tokens):
    return tokens[-1:] == (EOS,) or len(tokens) == most[row]

  def rank(hypothesis):
    return -hypothesis[1] / ((5 + len(hypothesis[0])) / 6) ** penalty

  while any(not ended(i, tokens) for i, row in enumerate(rows) for tokens, _ in row):
    prefixes = [row[k][0] if k < len(row) else () for row in rows for k in range(beam)]
    going = [prefix[: max(most) - 1] for prefix in prefixes]  # a cut one has no place left
    scores = model.scores(source, mask, going, max(most)).reshape(len(rows), beam, max(most), -1)
    for i, row in enumerate(rows):
      candidates = []
      for k, (tokens, score) in enumerate(row):
        if ended(i, tokens):
          candidates.append((tokens, score))
          continue
        for token, more in enumerate(scores[i, k, len(tokens)]):
          if token not in (PAD, BOS):
            candidates.append(((*tokens, token), score + more))
      rows[i] = sorted(candidates, key=rank)[:beam]
  return [row[0] for row in rows]


def hypotheses(found):
  """The tokens of every row, whose form is checked: what follows their length is padding."""
  for tokens, length in zip(found["tokens"], found["length"], strict=True):
    assert (tokens[length:] == PAD).all()
    assert (tokens[: max(0, length - 1)] > EOS).all()
  return [tuple(row[:n].tolist()) for row, n in zip(found["tokens"], found["length"], strict=True)]


def assert_found(found, expected):
  assert hypotheses(found) == [tokens for tokens, _ in expected]
  np.testing.assert_allclose(found["score"], [score for _, score in expected], rtol=0, atol=1e-5)


# tests/analysis/test_conformance.py holds the cache and the source of every encoding against
# whole passes.
def test_a_beam_is_the_plain_beam_search_however_a_batch_is_padded():
  model, batch = subject(RPR()), some_batch()
  expected = plain(model, batch, BEAM)
  padded = in_a_bucket(batch)
  found = model.search(WIDE, padded)
  assert_found({name: found[name][:ROWS] for name in ("tokens", "length", "score")}, expected)
  assert found["length"][ROWS] == found["score"][ROWS] == 0

  # Other rows beside the first one, which are longer too.
  others = some_batch([*LENGTHS[:1], 6, 6, 6, 6], width=6, seed=1)
  others["source"][0] = padded["source"][0]
  mated = model.search(WIDE, others)
  assert hypotheses(mated)[0] == expected[0][0]
  assert abs(mated["score"][0] - expected[0][1]) < 1e-5
  assert hypotheses(mated)[1:ROWS] != [tokens for tokens, _ in expected[1:]]


def in_a_bucket(batch):
  """The same rows in a batch of longer ones, the last of which is padding."""
  padded = {name: np.pad(batch[name], [(0, 1), (0, 2)]) for name in SOURCE}
  padded["source_mask"][-1, 0] = True
  padded["source"] = np.where(padded["source_mask"], padded["source"], 17)  # whatever stands there
  return {**padded, "weight": np.pad(batch["weight"], (0, 1))}


def test_hypotheses_are_ranked_as_in_the_paper():
  """Wu et al. 2016, equation 14."""
  assert [Search(length_penalty=p).rank(-3.0, 7) for p in (0.0, 1.0, 2.0)] == [-3.0, -1.5, -0.75]


@pytest.mark.parametrize("width", [5, 3 * BLOCK, 9 * BLOCK + 7])
@pytest.mark.parametrize("kinds", [3, 10**6])  # of values: with few, many are equal
def test_the_largest_are_those_of_a_sorted_list(width, kinds):
  x = np.random.default_rng(0).integers(0, kinds, (40, 2, width)).astype(np.float32)
  x[0, :, BLOCK:] = -np.inf
  value, index = map(np.asarray, largest(jnp.asarray(x), 3, first=2))
  order = 2 + np.argsort(-x[..., 2:], axis=-1, kind="stable")[..., :3]
  assert (index == order).all()
  assert (value == np.take_along_axis(x, order, axis=-1)).all()


@pytest.mark.slow
def test_bfloat16():
  model, batch = subject(Sinusoidal(), dtype="bfloat16"), some_batch()
  found = model.search(WIDE, batch)
  assert found["score"].dtype == np.float32
  tokens = hypotheses(found)
  scores = model.scores(
    batch["source"], batch["source_mask"], [row[:-1] for row in tokens], max(limits(batch))
  )
  forced = [sum(scores[i, j, token] for j, token in enumerate(row)) for i, row in enumerate(tokens)]
  # Sums of log p in bfloat16, which has 8 bits, would be off by a tenth.
  np.testing.assert_allclose(found["score"], forced, rtol=0, atol=0.02)


def test_a_hypothesis_is_cut_at_its_limit():
  model, batch = subject(Encoding(), end=-100.0, norm="post"), some_batch()
  assert max(limits(batch)) > WIDTH + ROOM  # so that the first cache is too small
  found = model.search(GREEDY, batch)
  assert found["length"].tolist() == limits(batch).tolist()
  assert EOS not in found["tokens"]
  assert_found(found, plain(model, batch, 1))
  assert found["steps"] == found["length"].max()
  cut = model.search(Search(beam=1, max_length=5), batch)
  assert cut["tokens"].shape == (ROWS, 5)
  assert (cut["tokens"] == found["tokens"][:, :5]).all()


def test_no_hypothesis_is_longer_than_the_encoding_has_positions():
  model, batch = subject(Learned(length=9), end=-100.0), some_batch()
  found = model.search(Search(max_length=50), batch)
  assert found["tokens"].shape == (ROWS, 9)
  assert found["length"].tolist() == [9] * ROWS
  assert np.isfinite(found["score"]).all()
  found = model.search(Search(max_length=50), some_batch([10, 2], width=10))
  assert np.isfinite(found["score"]).tolist() == [False, True]  # ten tokens have no ten positions


def test_it_stops_when_all_is_done():
  batch = some_batch()
  ending = subject(Encoding(), end=100.0)
  assert ending.search(GREEDY, batch)["steps"] == 1
  assert ending.search(WIDE, batch)["steps"] == 2  # the first one has [EOS] once for a row
  nothing = {**batch, "weight": np.zeros(ROWS, np.float32)}
  assert ending.search(WIDE, nothing)["steps"] == 0
  model = subject(Encoding())
  found = model.search(GREEDY, batch)
  last = found["length"] == found["length"].max()
  assert not last.all()
  sooner = model.search(GREEDY, {**batch, "weight": np.where(last, 0, 1).astype(np.float32)})
  assert sooner["steps"] == found["length"][~last].max()
  assert (sooner["tokens"][~last] == found["tokens"][~last]).all()


@pytest.mark.slow
def test_random_positions_do_not_tell_a_translator_how_long_its_target_is():
  def hidden(slots, width, length):
    size, positions = Size(**SIZE), Positions("randomized", 40)
    model = TranslatorSpec(VOCAB, VOCAB, RPR(k=8), size, positions, slots).build(rngs())
    real = np.tile(np.arange(width) < length, (ROWS, 1))
    target = np.where(real, np.resize(np.arange(1, VOCAB), width), PAD)
    program = nnx.jit(lambda model, pair: model.hidden(pair, rngs=Rngs(positions=1, dropout=2)))
    return program(model, {**some_batch(), "target": target, "mask": real})[:, :3]

  short = hidden(12, 4, 4)
  for width, length in ((6, 4), (6, 6), (16, 4)):
    np.testing.assert_allclose(hidden(12, width, length), short, atol=2e-5)
  assert not np.allclose(hidden(None, 6, 6), short, atol=1e-3)


SHARDED = """
import jax
from jax.sharding import NamedSharding, PartitionSpec
from posexp.training.devices import mesh_for, shard
from posexp.encodings.rngs import Rngs
from test_decoding import RPR, ROWS, WIDE, some_batch, subject

model, batch = subject(RPR()), some_batch()
alone = model.search(WIDE, batch)
mesh = mesh_for(ROWS)
assert mesh.size == 4
whole = NamedSharding(mesh, PartitionSpec())
model.params, model.settings = jax.device_put((model.params, model.settings), whole)
((batch, _),) = shard([{**batch, "mask": batch["source_mask"]}], mesh)
divided = model.search(WIDE, batch)
assert (divided["tokens"] == alone["tokens"]).all()
assert abs(divided["score"] - alone["score"]).max() < 1e-5
"""


@pytest.mark.slow
def test_rows_are_divided_among_devices():
  places = os.pathsep.join(map(str, Path(__file__).parents[:2]))
  done = python(SHARDED, XLA_FLAGS=simulated(8), PYTHONPATH=places)
  assert done.communicate() == ("", "")
  assert done.returncode == 0
