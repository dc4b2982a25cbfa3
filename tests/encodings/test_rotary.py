"""Rotations and other phases are their papers' formulas in float64, also far out in bfloat16."""

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
from seed import some
from small import rngs

from posexp.encodings import ENCODINGS, Span
from posexp.encodings.relative import TransformerXL
from posexp.encodings.rotary import RoPE, XPos
from posexp.encodings.sinusoids import REACH, frequencies, sinusoids
from posexp.models.size import Size
from posexp.models.transformer import Stack


def planes(x, layout):
  """Channels [..., 2M] as complex numbers [..., M]."""
  if layout == "interleaved":
    return x[..., 0::2] + 1j * x[..., 1::2]
  half = x.shape[-1] // 2
  return x[..., :half] + 1j * x[..., half:]


def rotated(omega, layout="interleaved", shrink=None):
  """Σ_t Re(q_t conj(k_t) e^{i(m−n)ω_t}) ζ_t^(m−n), and channels beyond the planes as they are."""

  def formula(p, q, k, i, j):
    turning = 2 * len(omega)
    distance = i[:, None] - j
    factor = np.exp(1j * distance[..., None] * omega)
    if shrink is not None:
      factor = factor * shrink ** distance[..., None]
    a, b = planes(q[..., :turning], layout), planes(k[..., :turning], layout)
    logits = np.einsum("bihm,bjhm,ijm->bhij", a, b.conj(), factor).real
    logits = logits + np.einsum("bihd,bjhd->bhij", q[..., turning:], k[..., turning:])
    return logits / q.shape[-1] ** 0.5

  return formula


def omega(turning, base):
  return base ** (-2 * np.arange(turning // 2) / turning)


@pytest.mark.parametrize(
  ("share", "layout", "causal"),
  some(
    [
      (1.0, "interleaved", True),
      (1.0, "half", False),
      (0.5, "half", True),
      (0.25, "interleaved", False),
    ],
    2,
  ),
)
def test_rope(share, layout, causal):
  turning = int(share * oracle.D)
  encoding = RoPE(base=500.0, share=share, layout=layout)
  oracle.check(encoding, rotated(omega(turning, 500.0), layout), causal=causal)


def zeta(gamma, scale_base):
  return ((2 * np.arange(4) / 8 + gamma) / (1 + gamma)) ** (1 / scale_base)


@pytest.mark.parametrize(("gamma", "scale_base"), some([(0.4, 512.0), (0.1, 8.0)], 1))
def test_xpos(gamma, scale_base):
  formula = rotated(omega(8, 1e4), shrink=zeta(gamma, scale_base))
  oracle.check(XPos(gamma=gamma, scale_base=scale_base), formula)


@pytest.mark.parametrize("encoding", [RoPE(layout="half"), XPos()], ids=str)
def test_far_positions_in_a_bfloat16_run(encoding):
  position, keys, width = 100000, 5, 32
  relation = encoding.relation(2, width, causal=True, rngs=None)
  key = np.arange(position - keys + 1, position + 1)
  span = Span(jnp.array([[position]]), jnp.asarray(key)[None], jnp.ones((1, 1, keys), bool))
  draw = np.random.default_rng(0)
  q, k = (jnp.asarray(draw.normal(size=(1, n, 2, width)), jnp.bfloat16) for n in (1, keys))
  shrink = None
  if isinstance(encoding, XPos):
    shrink = ((2 * np.arange(16) / 32 + 0.4) / 1.4) ** (1 / 512)
  layout = getattr(encoding, "layout", "interleaved")
  formula = rotated(omega(width, 1e4), layout, shrink)
  expected = formula(None, *(np.asarray(x, np.float64) for x in (q, k)), np.array([position]), key)
  score = jax.jit(lambda q, k: relation.score(q, k, span))
  single = score(np.asarray(q, np.float32), np.asarray(k, np.float32))
  assert np.abs(np.asarray(single, np.float64) - expected).max() < 1e-5
  got = score(q, k)
  assert got.dtype == jnp.bfloat16
  assert np.abs(np.asarray(got, np.float64) - expected).max() < 0.03 * np.std(expected)


@pytest.mark.parametrize(
  ("scale_base", "reach", "options"),
  some(
    [
      (512.0, 200_000, {}),
      (8.0, 2048, {"max_position": 2048}),
      (0.01, 24, {"consecutive": True}),
      (1e-39, 24, {"max_position": 24}),
    ],
    2,
  ),
)
def test_xpos_is_right_and_its_gradients_are_finite_over_any_gaps(scale_base, reach, options):
  draw = np.random.default_rng(0)
  key = np.sort(draw.choice(reach, 24, replace=False))
  mask = key[:, None] >= key
  span = Span(*map(jnp.asarray, (key[None], key[None], mask[None])), **options)
  relation = XPos(scale_base=scale_base).relation(2, 8, causal=True, rngs=None)
  q, k = (jnp.asarray(draw.normal(size=(1, 24, 2, 8)), jnp.float32) for _ in range(2))

  @jax.jit
  def sloped(q, k):
    got, backward = jax.vjp(lambda q, k: relation.score(q, k, span), q, k)
    return got, *backward(jnp.asarray(mask, jnp.float32) * jnp.ones_like(got))

  got, *slopes = map(np.asarray, sloped(q, k))
  far = np.where(mask, key[:, None] - key, 0)[..., None]
  with np.errstate(under="ignore", over="ignore"):
    rate = np.maximum(np.log((2 * np.arange(4) / 8 + 0.4) / 1.4) / scale_base, -1e30)
    factor = np.exp(far * rate + 1j * far * omega(8, 1e4))
  a, b = (planes(np.asarray(x, np.float64), "interleaved") for x in (q, k))
  expected = np.einsum("bihm,bjhm,ijm->bhij", a, b.conj(), factor).real / 8**0.5
  np.testing.assert_allclose(got[..., mask], expected[..., mask], atol=1e-5)
  assert all(np.isfinite(slope).all() for slope in slopes)


def test_every_plane_of_a_head_has_its_rate():
  assert len(XPos().relation(1, 98, causal=True, rngs=None).rate) == 49


FAR = np.array([[0, 1, 4095, 4096, 4097, 99999, 100000]])


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


def test_distances_in_a_bfloat16_run():
  distance, heads, width, keys = 100000, 2, 8, 8
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
