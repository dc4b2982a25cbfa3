"""Complex-order words, maps and scores are the formulas of Wang et al. 2020, in float64."""

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
import slopes
from seed import some
from slopes import close, draw, float64, interleaved, pairs
from small import rngs

from posexp.encodings.complex_order import Complex, ComplexLinear, OneLinear
from posexp.encodings.split import SplitLinear

H, D = 2, 4
VOCAB, F = 11, 16


def streams(x, a, b, bias):
  """Content by one matrix, position by another."""
  return interleaved(x[:, 0::2] @ a + 1j * (x[:, 1::2] @ b)) + bias


@pytest.mark.parametrize(
  ("cls", "naive", "shapes"),
  [
    (ComplexLinear, lambda x, a, b, c: interleaved(pairs(x) @ (a + 1j * b)) + c, [(3, 5)] * 2),
    (OneLinear, lambda x, a, c: interleaved(pairs(x) @ a + c * (1 + 1j)), [(3, 5)]),
    (SplitLinear, streams, [(3, 5)] * 2),
  ],
)
def test_a_map_of_pairs_is_its_formula_and_keeps_the_variance(cls, naive, shapes):
  linear = cls(6, 10, rngs=rngs())
  names = ["kernel_a", "kernel_b", "bias"] if len(shapes) == 2 else ["kernel", "bias"]
  arrays = [draw(*shape, seed=i) for i, shape in enumerate([*shapes, linear.bias[...].shape])]

  def function(x, *arrays):
    return slopes.holding(linear, **dict(zip(names, arrays, strict=True)))(x)

  slopes.check(function, naive, draw(4, 6, seed=3), *arrays)
  wide = cls(256, 256, rngs=rngs())
  assert np.var(wide(np.float32(draw(64, 256)))) == pytest.approx(1, rel=0.1)


WORDS = [  # each with each would say nothing that these do not
  {},
  {"initial_phase": True, "shared_period": "word", "shared_amplitude": "dimension"},
  {"shared_period": "dimension", "shared_amplitude": "word"},
  {"order": False},
  {"frequency_rate": 0.25, "wrap": 4},
  {"frequencies": "sinusoids", "decay": 0.9999, "initial_phase": True},
]
SHAPES = {"none": (VOCAB, F // 2), "word": (1, F // 2), "dimension": (VOCAB, 1)}
FALLING = 1e4 ** (-np.arange(F // 2) / (F // 2))


@pytest.mark.parametrize("options", WORDS, ids=str)
def test_words_are_waves(options):
  encoding = Complex(**options)
  embed = encoding.embed(VOCAB, F, scale=4.0, rngs=rngs())
  assert embed.amplitude[...].shape == SHAPES[encoding.shared_amplitude]
  phase, omega = np.zeros((1, 1)), FALLING
  if embed.phase is not None:
    phase = float64(embed.phase)
    assert phase.shape == (VOCAB, F // 2)
    assert ((phase >= 0) & (phase < 2 * np.pi)).all()
    assert phase.max() > np.pi
  assert (embed.phase is not None) == (encoding.initial_phase or not encoding.order)
  trained = encoding.order and encoding.frequencies == "learned"
  assert (embed.frequency is not None) == trained
  if trained:
    omega = encoding.frequency_rate * float64(embed.frequency)
    assert omega.shape == SHAPES[encoding.shared_period]
    if encoding.shared_period == "dimension":
      assert len(np.unique(omega)) == VOCAB
      assert ((omega > 1e-4) & (omega <= 1)).all()
    else:
      close(omega, np.broadcast_to(FALLING, omega.shape), 1e-6)
    embed.frequency[...] = jnp.float32(draw(*omega.shape))
    omega = encoding.frequency_rate * float64(embed.frequency)
  far = 9 if trained else 9000
  tokens, positions = np.array([[3, 0, 10, 3], [1, 2, 3, 4]]), np.array([[0, 1, 5, far]])
  at = (positions % (encoding.wrap or far + 1) * encoding.order)[..., None]
  radius, omega, phase = (
    np.broadcast_to(each, (VOCAB, F // 2))[tokens]
    for each in (float64(embed.amplitude), omega, phase)
  )
  expected = 4 * radius * encoding.decay**at * np.exp(1j * (omega * at + phase))
  close(pairs(jax.jit(embed.__call__)(tokens, positions)), expected, 1e-5)


@pytest.mark.parametrize("distances", ["none", "transformer_xl"])
@pytest.mark.parametrize("score", some(["real", "modulus", "unconjugated"], 1))
def test_scores(score, distances):
  encoding, n = Complex(score=score, distances=distances), D // 2
  relation = encoding.relation(H, D, causal=True, rngs=rngs())
  biases = encoding.shared(H, D, causal=True, rngs=rngs())
  distance = np.subtract.outer(*[np.arange(oracle.K)] * 2)
  phase = distance[..., None] * 10000.0 ** (-np.arange(n) / n)  # n·H = F/2 features, half sines
  waves = np.concatenate([np.sin(phase), np.cos(phase)], -1)
  at = oracle.span(causal=False)
  shapes = ((H, n), (H, n), (H * n, H, n)) if biases else ()

  def function(q, k, u=None, v=None, kernel=None):
    if kernel is None:
      return relation.score(q, k, at)
    held = slopes.holding(relation, distance_kernel=kernel)
    return held.score(q, k, at.replace(shared=slopes.holding(biases, u=u, v=v)(at)))

  def naive(q, k, u=0, v=0, kernel=None):
    q, k = pairs(q), pairs(k)
    key = k if score == "unconjugated" else k.conj()
    words, places = np.einsum("bihd,bjhd->bhij", q + u * (1 + 1j), key), 0
    if kernel is not None:
      rows = np.einsum("ijf,fhd->ijhd", waves, kernel)
      places = np.einsum("bihd,ijhd->bhij", q + v * (1 + 1j), rows)
    if score == "real":
      return (words + places * (1 - 1j)).real / n**0.5
    return (np.abs(words) + np.abs(places)) / n**0.5

  drawn = (draw(*shape, seed=3 + i) for i, shape in enumerate(shapes))
  q, k = (draw(oracle.B, oracle.K, H, D, seed=seed) for seed in range(2))
  slopes.check(function, naive, q, k, *drawn)


def test_modulus_has_a_slope_at_zero():
  relation = Complex(score="modulus").relation(H, D, causal=False, rngs=rngs())
  q, k = (np.float32(draw(oracle.B, oracle.K, H, D, seed=seed)) for seed in range(2))
  slope = jax.jit(jax.grad(lambda q: relation.score(q, k, oracle.span(causal=False)).sum()))
  assert not np.asarray(slope(np.zeros_like(q))).any()
  assert np.isfinite(slope(q)).all()


@pytest.mark.parametrize(("network", "parts"), [("complex", 2), ("real", 1)])
def test_norms_are_of_each_part_or_of_the_whole(network, parts):
  assert Complex(network=network).norm(F, rngs=rngs()).parts == parts
