"""Rotations and other phases are their papers' formulas in float64, also far out in bfloat16."""

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
from seed import some
from slopes import draw, float64, pairs
from small import rngs

from posexp.encodings import ENCODINGS, Span
from posexp.encodings.rotary import RoPE, XPos
from posexp.encodings.sinusoids import REACH, frequencies, sinusoids
from posexp.models.size import Size
from posexp.models.transformer import Stack


def planes(x, layout):
  """Channels [..., 2M] as complex numbers [..., M]."""
  if layout == "interleaved":
    return pairs(x)
  real, imaginary = np.split(np.asarray(x, np.float64), 2, -1)
  return real + 1j * imaginary


def rotated(encoding):
  """Σ_t Re(q_t conj(k_t) e^{i(m−n)ω_t}) ζ_t^(m−n), where only xPos has ζ."""

  def formula(p, q, k, i, j):
    width = q.shape[-1]
    t = 2 * np.arange(width // 2) / width
    rate = 1j * 1e4**-t
    if isinstance(encoding, XPos):
      rate += np.log((t + encoding.gamma) / (1 + encoding.gamma)) / encoding.scale_base
    factor = np.exp((i[:, None] - j)[..., None] * rate)
    a, b = (planes(x, getattr(encoding, "layout", "interleaved")) for x in (q, k))
    return np.einsum("bihm,bjhm,ijm->bhij", a, b.conj(), factor).real / width**0.5

  return formula


@pytest.mark.parametrize("encoding", some([XPos(), XPos(gamma=0.1, scale_base=8.0)], 1), ids=str)
def test_xpos(encoding):
  oracle.check(encoding, rotated(encoding))


@pytest.mark.parametrize("encoding", [RoPE(layout="half"), XPos()], ids=str)
def test_far_positions_in_a_bfloat16_run(encoding):
  position, keys, width = 100000, 5, 32
  relation = encoding.relation(2, width, causal=True, rngs=None)
  key = np.arange(position - keys + 1, position + 1)
  span = Span(jnp.array([[position]]), jnp.asarray(key)[None], jnp.ones((1, 1, keys), bool))
  q, k = (jnp.asarray(draw(1, n, 2, width), jnp.bfloat16) for n in (1, keys))
  expected = rotated(encoding)(None, q, k, np.array([position]), key)
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
  key = np.sort(np.random.default_rng(0).choice(reach, 24, replace=False))
  mask = key[:, None] >= key
  span = Span(*map(jnp.asarray, (key[None], key[None], mask[None])), **options)
  encoding = XPos(scale_base=scale_base)
  relation = encoding.relation(2, 8, causal=True, rngs=None)
  q, k = (jnp.asarray(draw(1, 24, 2, 8, seed=seed), jnp.float32) for seed in (1, 2))

  @jax.jit
  def sloped(q, k):
    got, backward = jax.vjp(lambda q, k: relation.score(q, k, span), q, k)
    return got, *backward(jnp.asarray(mask, jnp.float32) * jnp.ones_like(got))

  got, *slopes = map(np.asarray, sloped(q, k))
  with np.errstate(all="ignore"):  # of keys ahead, which are not seen
    expected = rotated(encoding)(None, q, k, key, key)
  np.testing.assert_allclose(got[..., mask], expected[..., mask], atol=1e-5)
  assert all(np.isfinite(slope).all() for slope in slopes)


def test_every_plane_of_a_head_has_its_rate():
  assert len(XPos().relation(1, 98, causal=True, rngs=None).rate) == 49


FAR = np.array([[0, 1, 4095, 4096, 4097, 99999, 100000]])


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
