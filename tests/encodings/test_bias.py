"""Biases by offset and by distance, and CoPE, are their papers' formulas, in float64."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
from flax import nnx
from seed import some

from posexp.encodings.bias import T5, ALiBi, buckets_by_offset, slopes
from posexp.encodings.contextual import CoPE
from posexp.encodings.disentangled import log_buckets
from posexp.encodings.distance import FIRE, KERPLE, Sandwich


def biased(bias):
  """q·k/√d + bias(p, h, i, j), h counted from 0."""

  def formula(p, q, k, i, j):
    logits = np.einsum("bihd,bjhd->bhij", q, k) / q.shape[-1] ** 0.5
    for h, a, b in np.ndindex(logits.shape[1:]):
      logits[:, h, a, b] += bias(p, h, int(i[a]), int(j[b]))
    return logits

  return formula


@pytest.mark.parametrize(("heads", "lower"), [(1, 1), (8, 8), (3, 2), (12, 8), (13, 8)])
def test_slopes_are_of_a_power_of_two_with_others_between(heads, lower):
  first = [2 ** (-8 * h / lower) for h in range(1, lower + 1)]
  between = [2 ** (-8 * h / (2 * lower)) for h in range(1, 2 * lower + 1, 2)]
  np.testing.assert_allclose(slopes(heads), [*first, *between[: heads - lower]])


@pytest.mark.parametrize(
  ("encoding", "causal", "heads"),
  [
    (ALiBi("direction"), True, 4),
    (ALiBi("divided"), True, 2),
    (ALiBi(learned=True), True, 4),
    (ALiBi(), False, 4),
    (ALiBi("direction"), False, 4),
  ],
  ids=str,
)
def test_alibi(encoding, causal, heads):
  def bias(p, h, i, j):
    slope = p["shared/slopes"][h] if encoding.learned else slopes(heads)[h]
    near = 0.5 * (i > j) if (encoding.two_sided, causal) == ("direction", False) else 0
    return -slope * (abs(i - j) - near)

  oracle.check(encoding, biased(bias), causal=causal, heads=heads)
  if encoding.learned:
    first = encoding.shared(heads, 8, causal=causal, rngs=nnx.Rngs(0)).slopes
    np.testing.assert_allclose(first[...], slopes(heads))


def test_alibi_with_a_side_for_each_head():
  at = oracle.span(causal=False)
  bias = np.asarray(ALiBi("divided").shared(4, 8, causal=False, rngs=nnx.Rngs(0))(at))[0]
  i, j = np.indices((oracle.K, oracle.K))
  for h in range(4):
    seen = j <= i if h < 2 else j >= i
    np.testing.assert_allclose(bias[h][seen], -(slopes(2)[h % 2] * abs(i - j))[seen])
    assert (bias[h][~seen] < -1e29).all()


def bucket(offset, buckets, max_distance, causal):
  """Raffel et al.'s own, with a hair added where the logarithm is whole."""
  ahead = 0
  if not causal:
    buckets //= 2
    ahead = buckets if offset > 0 else 0
  n = max(-offset, 0) if causal else abs(offset)
  exact = buckets // 2
  if n < exact:
    return ahead + n
  share = math.log(n / exact) / math.log(max_distance / exact)
  return ahead + min(exact + int(share * (buckets - exact) + 1e-9), buckets - 1)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("buckets", "max_distance"), [(32, 128), (6, 5)])
def test_buckets_of_t5(buckets, max_distance, causal):
  offsets = range(-max_distance, max_distance + 1)
  expected = [bucket(offset, buckets, max_distance, causal) for offset in offsets]
  assert buckets_by_offset(buckets, max_distance, causal=causal).tolist() == expected


@pytest.mark.parametrize(("half", "max_distance"), [(256, 512), (4, 9), (16, 17)])
def test_buckets_of_deberta(half, max_distance):
  exact = half // 2

  def bucket(n):
    if n <= exact:
      return n
    share = math.log(n / exact) / math.log((max_distance - 1) / exact)
    return exact + math.ceil(share * (exact - 1) - 1e-9)

  assert log_buckets(half, max_distance).tolist() == [bucket(n) for n in range(max_distance + 1)]


@pytest.mark.parametrize("causal", some([False, True], 1))
def test_t5(causal):
  def bias(p, h, i, j):
    return p["shared/table"][bucket(j - i, 8, 16, causal), h]

  oracle.check(T5(8, 16), biased(bias), causal=causal)


def positive(path, x):
  return np.random.default_rng(len(path)).uniform(0.1, 1.9, x.shape)


@pytest.mark.parametrize("causal", [False, True])
def test_kerple(causal):
  def log(p, h, i, j):
    return -p["shared/p"][h] * math.log(1 + p["shared/a"][h] * abs(i - j))

  def power(p, h, i, j):
    return -p["shared/a"][h] * abs(i - j) ** p["shared/p"][h]

  kind, bias = ("log", log) if causal else ("power", power)
  encoding = KERPLE(kind, symmetric=not causal)
  oracle.check(encoding, biased(bias), causal=causal, values=positive)


def test_kerple_keeps_its_parameters_in_bounds():
  kernel = KERPLE("power").shared(4, 8, causal=True, rngs=nnx.Rngs(0))
  kernel.p[...], kernel.a[...] = jnp.array([-1.0, 3.0, 1.0, 1.0]), jnp.array([1.0, 1.0, -1.0, 5.0])
  bias = np.asarray(kernel(oracle.span()))[0, :, -1, 0]
  far = oracle.K - 1
  np.testing.assert_allclose(bias, [-(far**0.01), -(far**2.0), -0.01 * far, -5.0 * far], rtol=1e-6)


@pytest.mark.parametrize("encoding", some([FIRE(5, 9.0, True), FIRE(5, 100.0)], 1), ids=str)
def test_fire(encoding):
  own = "shared" if encoding.share_layers else "relation/bias"

  def bias(p, h, i, j):
    def psi(x):
      return math.log(1 + abs(p[f"{own}/c"] * x))

    reach = psi(max(i, abs(p[f"{own}/stretch"] * encoding.threshold))) + 1e-6
    hidden = p[f"{own}/kernel_in"] * psi(i - j) / reach + p[f"{own}/bias_in"]
    return np.maximum(hidden, 0) @ p[f"{own}/kernel_out"][:, h] + p[f"{own}/bias_out"][h]

  oracle.check(encoding, biased(bias))


@pytest.mark.parametrize("causal", some([False, True], 1))
def test_sandwich(causal):
  def bias(p, h, i, j):
    waves = [math.cos((i - j) * 50.0 ** (-2 * t / 12)) for t in range(1, 7)]
    return (sum(waves) - 6) * 4 / (8 * (h + 1))

  oracle.check(Sandwich(12, 50.0), biased(bias), causal=causal)


def test_sandwich_far_out():
  there = jnp.array([[100000, 100001, 100100]])
  at = oracle.span(3).replace(query=there, key=there, mask=jnp.ones((1, 3, 3), bool))
  bias = np.asarray(jax.jit(Sandwich().shared(4, 8, causal=True, rngs=None))(at))[0, 0]
  omega = 10000.0 ** (-2 * np.arange(1, 65) / 128)
  expected = [(np.cos(distance * omega).sum() - 64) / 2 for distance in (0, 1, 100)]
  np.testing.assert_allclose(bias[0], expected, atol=1e-4)


def formula(p, q, k, i, j):
  rows = p["relation/rows"]
  scores = np.einsum("bihd,bjhd->bhij", q, k) / q.shape[-1] ** 0.5
  logits = scores.copy()
  for b, h, x, y in np.ndindex(scores.shape):
    read = [t for t in range(y, len(j)) if j[t] <= i[x]]
    count = sum(1 / (1 + math.exp(-scores[b, h, x, t])) for t in read)
    place = min(count, len(rows) - 1)
    below, above = math.floor(place), math.ceil(place)
    row = rows[below] + (place - below) * (rows[above] - rows[below])
    logits[b, h, x, y] += q[b, x, h] @ row
  return logits


def test_cope():
  oracle.check(CoPE(4), formula, tolerance=2e-5)


def test_gates_read_contents_that_are_switched_off():
  relation = CoPE(5).relation(oracle.H, oracle.D, causal=True, rngs=None)
  draw = np.random.default_rng(0)
  q, k = (jnp.asarray(draw.normal(size=(1, oracle.K, oracle.H, oracle.D))) for _ in "qk")
  relation.rows[...] = jnp.asarray(draw.normal(size=(5, oracle.D)), jnp.float32)
  at = oracle.span()
  ones, score = jnp.ones(oracle.H), jax.jit(relation.score)
  position, content, both = (
    score(q, k, at.replace(term_scale={"content": c * ones, "position": p * ones}))
    for c, p in ((0, 1), (1, 0), (1, 1))
  )
  np.testing.assert_allclose(position + content, both, atol=1e-5)
