"""Vectors per position, and how they meet the word's: naively in float64."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import slopes
from flax import nnx
from slopes import close, float64
from small import rngs

from posexp.analysis.properties import paths
from posexp.encodings.additive import Infused, Learned, Sinusoidal
from posexp.encodings.base import Encoding, Span
from posexp.encodings.naive import Binary, Clock, Index, Normalized
from posexp.models.size import Size
from posexp.models.transformer import Stack

VOCAB, F = 11, 16
POSITIONS = np.array([[0, 1, 2, 3, 100]])
MASK = np.arange(5) < np.array([[5], [3]])
SIZE = Size(d_model=F, num_heads=2, d_ff=8, num_layers=2, dropout=0.0)


def vector(encoding, positions=POSITIONS, mask=None, features=F):
  return np.asarray(encoding.vector(features, rngs())(jnp.asarray(positions), mask), np.float64)


@pytest.mark.parametrize("features", [F, 5])
def test_index_is_the_position_along_a_direction(features):
  u = np.array([(-1) ** c for c in range(features)]) / features**0.5
  got = vector(Index(scale=0.5), features=features)
  close(got[0], [0.5 * i * u for i in POSITIONS[0]])
  assert np.linalg.norm(got[0, 1]) == pytest.approx(0.5)
  constant = vector(Index(direction="constant"), features=features)
  close(constant[0], [[i] * features for i in POSITIONS[0]])


def test_normalized_divides_by_the_real_tokens():
  u = np.array([(-1) ** c for c in range(F)]) / F**0.5
  got = vector(Normalized(scale=3.0), np.arange(5)[None], MASK)
  close(got, [[3 * i / length * u for i in range(5)] for length in (5, 3)])
  close(vector(Normalized(), np.arange(5)[None])[0], [i / 5 * u for i in range(5)])
  close(vector(Normalized(length=50), mask=MASK)[0], [i / 50 * u for i in POSITIONS[0]])


def test_binary():
  got = vector(Binary(bits=7))
  for row, position in zip(got[0], POSITIONS[0], strict=True):
    digits = [int(digit) for digit in reversed(f"{position:07b}")]
    assert row.tolist() == [2 * digit - 1 for digit in digits] + [0] * (F - 7)
  assert vector(Binary(bits=7, signed=False))[0, 4].tolist() == [0, 0, 1, 0, 0, 1, 1] + [0] * 9
  assert Binary(bits=7).limit == 128
  at_the_ends = vector(Binary(bits=3), np.array([[-1, 0, 7, 8]]))[0, :, :3]
  assert np.isnan(at_the_ends).any(-1).tolist() == [True, False, False, True]


@pytest.mark.parametrize(("base", "period"), [(60.0, 60.0), (3.0, 7.5), (3600.0**2, 2 * math.pi)])
def test_clock(base, period):
  positions = np.array([[0, 1, 59, 3600, 100000]])
  expected = []
  for position in positions[0]:
    turns = [position / (period * base**hand) for hand in range(F // 2)]
    waves = [(math.sin(2 * math.pi * x), math.cos(2 * math.pi * x)) for x in turns]
    expected.append(np.ravel(waves))
  close(vector(Clock(base, period), positions)[0], expected)
  # All but the first hands stand still, however wide it is.
  wide = vector(Clock(), np.arange(512)[None], features=1024)[0]
  assert np.isfinite(wide).all()
  assert (wide.std(0) > 1e-3).sum() == 5


@pytest.mark.parametrize("combine", ["sum", "concat", "product"])
def test_ways_to_combine(combine):
  embed = Learned(combine=combine).embed(VOCAB, F, scale=4.0, rngs=rngs())
  tokens = np.array([[3, 0, 10, 5, 5]])
  held = {path.rpartition("/")[2]: x for path, x in paths(embed).items()}
  shapes = {"table": (VOCAB, F), "rows": (512, F), "kernel": (2 * F, F)}
  assert {name: x.shape for name, x in held.items()} == {name: shapes[name] for name in held}

  def function(*arrays):
    made = slopes.holding(embed, **dict(zip(held, arrays, strict=True)))
    return made(tokens, jnp.asarray(POSITIONS))

  def naive(*arrays):
    p = dict(zip(held, arrays, strict=True))
    w = 4.0 * p["table"][tokens]
    v = p["rows"][POSITIONS]
    if combine == "concat":
      return np.concatenate([w, v], axis=-1) @ p["kernel"]
    return w + v if combine == "sum" else w * v

  slopes.check(function, naive, *held.values())


@pytest.mark.parametrize(("combine", "mean"), [("sum", 0), ("product", 1)])
def test_learned_vectors_start_so_that_words_are_not_erased(combine, mean):
  rows = vector(Learned(combine=combine))
  assert rows.mean() == pytest.approx(mean, abs=0.02)
  assert rows.std() == pytest.approx(0.02, rel=0.3)


def infused(x, p, w_q, w_k, off=()):
  """Logits of queries and keys made of words x and positions p, by Shortformer's attention."""
  scale = {term: jnp.full(2, float(term not in off)) for term in Infused.terms} if off else None
  at = jnp.arange(x.shape[1])[None]
  span = Span(at, at, jnp.ones((1, 1, x.shape[1]), bool), shared=(p, p), term_scale=scale)
  relation = Sinusoidal(at="attention").relation(2, F // 2, causal=False, rngs=rngs())
  relation.bind(*(lambda rows, w=w: rows @ w for w in (w_q, w_k)))
  q, k = ((x @ w).reshape(*x.shape[:2], 2, F // 2) for w in (w_q, w_k))
  return relation.score(q, k, span)


def test_positions_are_added_to_what_queries_and_keys_are_made_of():
  draw = np.random.default_rng(3)
  x, p = draw.normal(size=(2, 5, F)), draw.normal(size=(1, 5, F))
  w_q, w_k = draw.normal(size=(2, F, F)) / F**0.5

  def product(x, y, w_q, w_k):
    q, k = (each.reshape(*each.shape[:2], 2, F // 2) for each in (x @ w_q, y @ w_k))
    return np.einsum("bihd,bjhd->bhij", q, k) / (F // 2) ** 0.5

  def naive(x, p, w_q, w_k):
    return product(x + p, x + p, w_q, w_k)

  slopes.check(infused, naive, x, p, w_q, w_k)
  single = [jnp.asarray(each, jnp.float32) for each in (x, p, w_q, w_k)]
  p = np.broadcast_to(p, x.shape)
  pairs = {"content": (x, x), "content_to_position": (x, p)}
  pairs |= {"position_to_content": (p, x), "position": (p, p)}
  for term, (one, other) in pairs.items():
    close(infused(*single, off={*pairs} - {term}), product(one, other, w_q, w_k), 1e-5)


@pytest.mark.parametrize("cls", [Learned, Sinusoidal])
def test_positions_in_attention_leave_the_stream_and_the_values_alone(cls):
  stack = Stack(VOCAB, cls(at="attention"), SIZE, rngs=rngs())
  plain = Stack(VOCAB, Encoding(), SIZE, rngs=rngs())
  own, others = (paths(each).keys() for each in (stack, plain))
  assert own - others == ({"shared/vector/rows"} if cls is Learned else set())
  assert others <= own
  tokens = np.array([[1, 2, 3, 4, 5]])
  there = jnp.asarray(POSITIONS)
  assert np.array_equal(stack.embed(tokens, there), plain.embed(tokens, there))
  again = nnx.merge(*nnx.split(stack))  # the relation's maps are the layer's own
  for block in (*stack.blocks, *again.blocks):
    assert block.attention.relation.query is block.attention.query
    assert block.attention.relation.key is block.attention.key


@pytest.mark.parametrize(("base", "layout"), [(10000.0, "interleaved"), (100.0, "half")])
def test_sinusoidal(layout, base):
  tokens = np.array([[3, 0, 10, 5, 5]])
  positions = np.array([[0, 1, 511, 512, 5000]])
  embed = Sinusoidal(base, layout).embed(VOCAB, F, scale=4.0, rngs=rngs())
  words = float64(embed.words.table)
  expected = 4.0 * words[tokens]
  for column, position in enumerate(positions[0]):
    for m in range(F // 2):
      phase = position * base ** (-2 * m / F)
      here, there = (2 * m, 2 * m + 1) if layout == "interleaved" else (m, F // 2 + m)
      expected[0, column, here] += math.sin(phase)
      expected[0, column, there] += math.cos(phase)
  close(jax.jit(embed.__call__)(tokens, positions), expected)


def test_words_come_out_with_variance_one():
  embed = Encoding().embed(300, 64, scale=8.0, rngs=rngs())
  assert float64(embed.table).std() == pytest.approx(1 / 8, rel=0.03)
  assert np.std(embed(np.arange(300)[None])) == pytest.approx(1, rel=0.03)
