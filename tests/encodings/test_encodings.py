"""Each encoding is its paper's formula, written here naively in float64."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
from flax import nnx
from seed import some
from small import rngs

from posexp.encodings import Span
from posexp.encodings.additive import Sinusoidal
from posexp.encodings.base import Encoding
from posexp.encodings.complex_order import Complex, ComplexLinear
from posexp.encodings.relative import RPR, TransformerXL
from posexp.encodings.split import Split, SplitLinear
from posexp.models.size import Size
from posexp.models.transformer import Stack

B, H, D = 2, 2, 8
VOCAB, F = 11, 16


def filled(module, stddev=1.0):
  """The module with random numbers in all its parameters, also those that start at 0 or 1."""
  graphdef, params, rest = nnx.split(module, nnx.Param, ...)
  leaves, tree = jax.tree.flatten(params)
  numbers = [np.float32(stddev) * draw(*x.shape, seed=i) for i, x in enumerate(leaves)]
  return nnx.merge(graphdef, tree.unflatten(map(jnp.asarray, numbers)), rest)


def float64(param):
  return np.asarray(param[...], np.float64)


def close(got, expected, tolerance=1e-5):
  got, expected = np.asarray(got, np.float64), np.asarray(expected, np.float64)
  assert got.shape == expected.shape
  np.testing.assert_allclose(got, expected, rtol=tolerance, atol=tolerance)


def draw(*shape, seed=0):
  return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def pairs(x):
  """Neighbors [..., 2M] as complex numbers [..., M]."""
  x = np.asarray(x, np.float64)
  return x[..., 0::2] + 1j * x[..., 1::2]


def wave(position, base, features, m):
  phase = position * base ** (-2 * m / features)
  return math.sin(phase), math.cos(phase)


# Added to words


@pytest.mark.parametrize(("base", "layout"), [(10000.0, "interleaved"), (100.0, "half")])
def test_sinusoidal(layout, base):
  tokens = np.array([[3, 0, 10, 5, 5]])
  positions = np.array([[0, 1, 511, 512, 5000]])
  embed = Sinusoidal(base, layout).embed(VOCAB, F, scale=4.0, rngs=rngs())
  words = float64(embed.words.table)
  expected = 4.0 * words[tokens]
  for column, position in enumerate(positions[0]):
    for m in range(F // 2):
      sin, cos = wave(position, base, F, m)
      here, there = (2 * m, 2 * m + 1) if layout == "interleaved" else (m, F // 2 + m)
      expected[0, column, here] += sin
      expected[0, column, there] += cos
  close(jax.jit(embed.__call__)(tokens, positions), expected, 2e-6)


def test_words_come_out_with_variance_one():
  embed = Encoding().embed(300, 64, scale=8.0, rngs=rngs())
  assert float64(embed.table).std() == pytest.approx(1 / 8, rel=0.03)
  assert np.std(embed(np.arange(300)[None])) == pytest.approx(1, rel=0.03)


# Relations


def test_rpr_sums_bfloat16_weights_without_losing_any():
  relation = RPR(2, keys=False).relation(1, D, causal=False, rngs=rngs())
  keys = 2048
  span = Span(np.array([[keys]]), np.arange(keys)[None], np.ones((1, 1, keys), bool))
  weights = np.full((1, 1, 1, keys), 1 / keys, jnp.bfloat16)
  values = np.zeros((1, keys, 1, D), jnp.bfloat16)
  rows = float64(relation.tables.values)
  expected = (rows[0] * (keys - 1) + rows[1]) / keys
  got = jax.jit(relation.combine)(weights, values, span)
  close(got[0, 0, 0], expected, 1e-2)


@pytest.mark.parametrize(
  ("terms", "shared", "clamp"),
  [("abcd", True, 2), *some([("bd", False, None), ("c", False, None), ("cd", True, 2)], 1)],
)
def test_transformer_xl(terms, shared, clamp):
  kept = {term: term in terms for term in "abcd"}
  encoding = TransformerXL(**kept, share_biases=shared, clamp=clamp)

  def formula(p, q, k, i, j):
    heads, width = q.shape[2:]
    distance = np.clip(i[:, None] - j, -(clamp or 99), clamp or 99)
    phase = distance[..., None] * 1e4 ** (-np.arange(0, heads * width, 2) / (heads * width))
    waves = np.concatenate([np.sin(phase), np.cos(phase)], -1)
    biases = "shared" if shared else "relation/biases"
    assert [f"{biases}/{name}" in p for name in "uv"] == ["c" in terms, "d" in terms]
    logits = np.zeros((len(q), heads, len(i), len(j)))
    if "a" in terms:
      logits += np.einsum("bihd,bjhd->bhij", q, k)
    if "c" in terms:
      logits += np.einsum("hd,bjhd->bhj", p[f"{biases}/u"], k)[:, :, None]
    asked = {"b": q, "d": np.broadcast_to(p.get(f"{biases}/v", 0.0), q.shape)}
    for term in {"b", "d"} & {*terms}:
      rows = np.einsum("ijf,fhd->ijhd", waves, p["relation/distance_kernel"])
      logits += np.einsum("bihd,ijhd->bhij", asked[term], rows)
    return logits / width**0.5

  oracle.check(encoding, formula, causal=not shared, tolerance=2e-5)


# Complex numbers


def test_complex_linear_is_complex_multiplication():
  linear = filled(ComplexLinear(6, 10, rngs=rngs()))
  x = draw(3, 6)
  matrix = float64(linear.kernel_a) + 1j * float64(linear.kernel_b)
  got = pairs(linear(x))
  expected = pairs(x) @ matrix + pairs(linear.bias[...])
  close(got.real, expected.real)
  close(got.imag, expected.imag)
  wide = ComplexLinear(256, 256, rngs=rngs())
  assert np.var(wide(draw(64, 256))) == pytest.approx(1, rel=0.1)


def test_modulus_has_a_slope_at_zero():
  relation = Complex(score="modulus").relation(H, D, causal=False, rngs=rngs())
  q, k = draw(B, oracle.K, H, D), draw(B, oracle.K, H, D, seed=1)
  slope = jax.jit(jax.grad(lambda q: relation.score(q, k, oracle.span(causal=False)).sum()))
  assert not np.asarray(slope(np.zeros_like(q))).any()
  assert np.isfinite(slope(q)).all()


SHAPES = {"none": (VOCAB, F // 2), "word": (1, F // 2), "dimension": (VOCAB, 1)}


# Each with each would say nothing that these do not.
SHARED = [("none", "none", False), ("word", "dimension", True), ("dimension", "word", True)]


@pytest.mark.parametrize(("shared_period", "shared_amplitude", "phased"), some(SHARED, 1))
def test_complex_order(shared_period, shared_amplitude, phased):
  encoding = Complex(
    initial_phase=phased, shared_period=shared_period, shared_amplitude=shared_amplitude
  )
  embed = encoding.embed(VOCAB, F, scale=4.0, rngs=rngs())
  frequency = float64(embed.frequency)
  assert frequency.shape == SHAPES[shared_period]
  if shared_period == "dimension":
    assert len(np.unique(frequency)) == VOCAB
    assert ((frequency > 1e-4) & (frequency <= 1)).all()
  else:
    close(frequency, np.broadcast_to(1e4 ** (-np.arange(F // 2) / (F // 2)), frequency.shape))
  embed = filled(embed)
  frequency, amplitude = float64(embed.frequency), float64(embed.amplitude)
  phase = float64(embed.phase) if phased else np.zeros((VOCAB, F // 2))
  assert amplitude.shape == SHAPES[shared_amplitude]
  tokens, positions = np.array([[3, 0, 10, 3], [1, 2, 3, 4]]), np.array([[0, 1, 2, 9]])
  expected = np.zeros((2, 4, F // 2), complex)
  for b, i, c in np.ndindex(expected.shape):
    j, position = tokens[b, i], positions[0, i]
    omega = np.broadcast_to(frequency, (VOCAB, F // 2))[j, c]
    r = np.broadcast_to(amplitude, (VOCAB, F // 2))[j, c]
    expected[b, i, c] = 4.0 * r * np.exp(1j * (omega * position + phase[j, c]))
  got = pairs(jax.jit(embed.__call__)(tokens, positions))
  close(got.real, expected.real)
  close(got.imag, expected.imag)


def test_complex_vanilla():
  embed = Complex(order=False).embed(VOCAB, F, scale=4.0, rngs=rngs())
  amplitude, phase = float64(embed.amplitude), float64(embed.phase)
  assert embed.frequency is None
  assert ((phase >= 0) & (phase < 2 * np.pi)).all()
  assert phase.max() > np.pi
  tokens = np.array([[3, 0, 10]])
  expected = (4.0 * amplitude * np.exp(1j * phase))[tokens]
  for positions in ([[0, 1, 2]], [[7, 7, 900]]):
    got = pairs(embed(tokens, np.array(positions)))
    close(got.real, expected.real)
    close(got.imag, expected.imag)


# Content and position


def test_split_linear_keeps_the_streams_apart():
  linear = filled(SplitLinear(6, 10, rngs=rngs()))
  x = draw(3, 6)
  bias = float64(linear.bias)
  expected = np.zeros((3, 10))
  expected[:, 0::2] = x[:, 0::2] @ float64(linear.kernel_a) + bias[0::2]
  expected[:, 1::2] = x[:, 1::2] @ float64(linear.kernel_b) + bias[1::2]
  close(linear(x), expected)
  matrix = np.asarray(linear.matrix())
  assert not matrix[0::2, 1::2].any()
  assert not matrix[1::2, 0::2].any()


WHOLE, CONTENT, POSITION = slice(None), slice(0, None, 2), slice(1, None, 2)


@pytest.mark.parametrize(
  ("encoding", "streams"),
  some(
    [
      (Encoding(), [WHOLE]),
      (Split(), [CONTENT, POSITION]),
      (Split(attention="content"), [CONTENT]),
      (Split(attention="position"), [POSITION]),
    ],
    2,
  ),
)
def test_attention_is_the_scaled_dot_product_of_its_streams(encoding, streams):
  def formula(p, q, k, i, j):
    logits = sum(np.einsum("bihd,bjhd->bhij", q[..., s], k[..., s]) for s in streams)
    return logits / q.shape[-1] ** 0.5

  oracle.check(encoding, formula, causal=False)


@pytest.mark.parametrize("attention", ["content", "position"])
def test_split_attention_ignores_what_it_does_not_attend_to(attention):
  size = Size(d_model=32, num_heads=4, d_ff=32, num_layers=2)
  stack = filled(Stack(VOCAB, Split(attention=attention), size, rngs=rngs()), 0.3)
  tokens = np.random.default_rng(0).integers(0, VOCAB, (2, 6))
  positions = jnp.arange(6)[None]
  run = jax.jit(stack.__call__)
  out, moved = (run(tokens, positions=at) for at in (positions, positions + 9))
  words = run((tokens + 1) % VOCAB, positions=positions)
  assert np.allclose(out[..., 1::2], words[..., 1::2]) == (attention == "position")
  assert np.allclose(out[..., 0::2], moved[..., 0::2]) == (attention == "content")
