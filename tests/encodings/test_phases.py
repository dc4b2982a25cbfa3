"""Phases far out: right at position 100,000 in a bfloat16 run, and NaN where there is none."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from posexp.encodings import ENCODINGS, Span
from posexp.encodings.relative import TransformerXL
from posexp.encodings.rngs import Rngs
from posexp.encodings.sinusoids import REACH, frequencies, sinusoids
from posexp.models.size import Size
from posexp.models.transformer import Stack

FAR = np.array([[0, 1, 4095, 4096, 4097, 99999, 100000]])


def rngs():
  return Rngs(params=0, encoding=1)


def float64(x):
  return np.asarray(x[...], np.float64)


def test_sinusoids_are_right_to_the_last_bits():
  positions = np.random.default_rng(0).integers(1 - REACH, REACH, 1000)
  omega = frequencies(32, 10000.0)
  phase = positions[:, None] * omega
  sin, cos = jax.jit(lambda x: sinusoids(x, omega))(positions)
  assert np.abs(sin - np.sin(phase)).max() < 3e-7
  assert np.abs(cos - np.cos(phase)).max() < 3e-7


def test_sinusoids_beyond_their_reach_are_nan():
  ends = np.array([1 - REACH, REACH - 1, -REACH, REACH])
  sin, cos = jax.jit(lambda x: sinusoids(x, np.array([1.0, 0.1])))(ends)
  for values in (sin, cos):
    assert np.isfinite(values[:2]).all()
    assert np.isnan(values[2:]).all()


@pytest.mark.parametrize("name", ["sinusoidal", "complex"])
def test_positions_in_a_bfloat16_run(name):
  width = 32
  size = Size(d_model=width, num_heads=4, d_ff=32, num_layers=1, dropout=0.0, dtype="bfloat16")
  model = Stack(23, ENCODINGS[name](), size, rngs=rngs())
  tokens = np.full(FAR.shape, 8)
  got = jax.jit(lambda *at: model.read(*at, None))(tokens, FAR)
  assert got.dtype == jnp.bfloat16
  expected = np.zeros((*FAR.shape, width))
  if name == "sinusoidal":
    phase = FAR[..., None] * 10000.0 ** (-np.arange(0, width, 2) / width)
    expected[..., 0::2], expected[..., 1::2] = np.sin(phase), np.cos(phase)
    expected += width**0.5 * float64(model.embed.words.table)[tokens]
  else:
    phase = FAR[..., None] * float64(model.embed.frequency)[tokens]
    wave = width**0.5 * float64(model.embed.amplitude)[tokens] * np.exp(1j * phase)
    expected[..., 0::2], expected[..., 1::2] = wave.real, wave.imag
  assert np.abs(np.asarray(got, np.float64) - expected).max() < 2**-8 * np.abs(expected).max()


@pytest.mark.parametrize("distance", [4096, 100000])
def test_distances_in_a_bfloat16_run(distance):
  heads, width, keys = 2, 8, 8
  encoding = TransformerXL(a=False, c=False, share_biases=False)
  relation = encoding.relation(heads, width, causal=True, rngs=rngs())
  there = np.ones((1, 1, distance + 1), bool)
  span = Span(np.array([[distance]]), np.arange(distance + 1)[None], there)
  draw = np.random.default_rng(0)
  q = jnp.asarray(draw.normal(size=(1, 1, heads, width)), jnp.bfloat16)
  k = np.zeros((1, distance + 1, heads, width), jnp.bfloat16)
  # Of the keys that are farthest away:
  got = jax.jit(relation.score)(q, k, span)[0, :, 0, :keys]
  assert got.dtype == jnp.bfloat16
  features = heads * width
  phase = (distance - np.arange(keys))[:, None] * 1e4 ** (-np.arange(0, features, 2) / features)
  waves = np.concatenate([np.sin(phase), np.cos(phase)], axis=-1)
  r = np.einsum("kf,fhd->khd", waves, float64(relation.distance_kernel))
  query = np.asarray(q[0, 0], np.float64) + float64(relation.biases.v)
  expected = np.einsum("hd,khd->hk", query, r) / width**0.5
  assert np.abs(np.asarray(got, np.float64) - expected).max() < 0.03 * np.std(expected)


def test_an_impossible_distance_has_no_score():
  keys = 7
  relation = TransformerXL(share_biases=False).relation(2, 8, causal=False, rngs=rngs())
  score = jax.jit(relation.score)
  q, k = (np.ones((2, count, 2, 8), np.float32) for count in (1, keys))
  for query in (-9, -7, 13, 27):
    span = Span(np.array([[query]]), np.arange(keys)[None], np.ones((1, 1, keys), bool))
    possible = np.abs(np.arange(keys) - query) < keys
    assert (np.isfinite(score(q, k, span)) == possible).all(), query
