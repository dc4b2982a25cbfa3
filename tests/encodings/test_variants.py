"""Variants of RPR, complex-order and Kitaev and Klein's split, naively in float64."""

import jax.numpy as jnp
import numpy as np
import optax
import pytest
import slopes
from flax import nnx
from seed import some
from small import rngs

from posexp.encodings import Span
from posexp.encodings.complex_order import Complex, OneLinear
from posexp.encodings.relative import RPR
from posexp.encodings.split import Split
from posexp.models.size import Size
from posexp.models.transformer import Stack

B, L, H, D, VOCAB = 2, 6, 2, 4, 11
F = H * D
MASK = np.arange(L) < np.array([[6], [4]])
SIZE = Size(d_model=F, num_heads=H, d_ff=8, num_layers=2, dropout=0.0)
TOKENS = np.random.default_rng(1).integers(0, VOCAB, (B, L))
POSITIONS = np.arange(L)


def draw(*shape, seed=0):
  return np.random.default_rng(seed).normal(size=shape)


def span(**more):
  positions = jnp.arange(L)[None]
  mask = jnp.broadcast_to(jnp.asarray(MASK)[:, None], (B, L, L))
  return Span(positions, positions, mask, **more)


def softmax(logits):
  weights = np.exp(logits - logits.max(-1, keepdims=True)) * MASK[:, None, None]
  return weights / weights.sum(-1, keepdims=True)


def qkv():
  return [draw(B, L, H, D, seed=seed) for seed in range(3)]


def pairs(x):
  return x[..., 0::2] + 1j * x[..., 1::2]


def interleaved(z):
  return np.stack([z.real, z.imag], -1).reshape(*z.shape[:-1], -1)


@pytest.mark.parametrize(
  ("k", "table", "share", "beyond"),
  some(
    [
      (3, None, "heads", "last"),
      (2, 3, "heads", "zero"),
      (0, 3, "none", "last"),
      (9, None, "layers", "last"),
    ],
    2,
  ),
)
def test_rpr(k, table, share, beyond):
  encoding = RPR(k, share=share, table=table, beyond=beyond)
  relation = encoding.relation(H, D, causal=False, rngs=rngs())
  tables = encoding.shared(H, D, causal=False, rngs=rngs())
  assert (tables is None, relation.tables is None) == (share != "layers", share == "layers")
  tables = tables or relation.tables
  largest = k if table is None else table
  shape = (H,) * (share == "none") + (2 * largest + 1, D)
  assert tables.keys[...].shape == tables.values[...].shape == shape

  def function(q, keys, values, k, v):
    held = slopes.holding(tables, keys=keys, values=values)
    here = span(shared=held(span()))
    own = relation if share == "layers" else slopes.holding(relation, keys=keys, values=values)
    return own.attend(q, k, v, here, lambda weights: weights)

  def naive(q, keys, values, key, v):
    keys, values = (np.broadcast_to(each, (H, *each.shape[-2:])) for each in (keys, values))
    a_k, a_v = np.zeros((2, H, L, L, D))
    for i, j in np.ndindex(L, L):
      if beyond == "last" or abs(j - i) <= k:
        row = min(max(j - i, -k), k) + largest
        a_k[:, i, j], a_v[:, i, j] = keys[:, row], values[:, row]
    logits = np.einsum("bihd,bjhd->bhij", q, key) + np.einsum("bihd,hijd->bhij", q, a_k)
    weights = softmax(logits / D**0.5)
    summed = np.einsum("bhij,bjhd->bihd", weights, v)
    return summed + np.einsum("bhij,hijd->bihd", weights, a_v)

  q, key, v = qkv()
  slopes.check(function, naive, q, draw(*shape, seed=3), draw(*shape, seed=4), key, v)


def test_rpr_starts_from_glorot_s_bounds_also_per_head():
  for share in ("heads", "none"):
    tables = RPR(8, share=share).relation(4, 8, causal=False, rngs=rngs()).tables
    bound = (6 / (17 + 8)) ** 0.5
    assert 0.9 * bound < np.abs(tables.keys[...]).max() <= bound


def test_one_real_matrix_for_both_parts():
  linear = OneLinear(6, 10, rngs=rngs())
  assert linear.kernel[...].shape == (3, 5)
  assert linear.bias[...].shape == (5,)

  def function(x, kernel, bias):
    return slopes.holding(linear, kernel=kernel, bias=bias)(x)

  def naive(x, kernel, bias):
    return interleaved(pairs(x) @ kernel + bias * (1 + 1j))

  slopes.check(function, naive, draw(4, 6), draw(3, 5, seed=1), draw(5, seed=2))
  wide = OneLinear(256, 256, rngs=rngs())
  assert np.var(wide(draw(64, 256).astype(np.float32))) == pytest.approx(1, rel=0.1)


@pytest.mark.parametrize("score", some(["real", "modulus", "unconjugated"], 1))
def test_complex_scores(score):
  relation = Complex(score=score).relation(H, D, causal=False, rngs=rngs())

  def naive(q, k):
    k = pairs(k) if score == "unconjugated" else pairs(k).conj()
    inner = np.einsum("bihd,bjhd->bhij", pairs(q), k) / (D // 2) ** 0.5
    return inner.real if score == "real" else np.abs(inner)

  slopes.check(lambda q, k: relation.score(q, k, span()), naive, *qkv()[:2])


@pytest.mark.parametrize("score", some(["real", "modulus", "unconjugated"], 1))
def test_complex_scores_with_the_terms_of_transformer_xl(score):
  encoding = Complex(score=score, distances="transformer_xl")
  relation = encoding.relation(H, D, causal=True, rngs=rngs())
  biases = encoding.shared(H, D, causal=True, rngs=rngs())
  n = D // 2
  distance = np.arange(L)[:, None] - np.arange(L)
  phase = distance[..., None] * 10000.0 ** (-np.arange(n) / n)  # n·H = F/2 features, half sines
  waves = np.concatenate([np.sin(phase), np.cos(phase)], -1)

  def function(q, k, u, v, kernel):
    held = slopes.holding(relation, distance_kernel=kernel)
    return held.score(q, k, span(shared=slopes.holding(biases, u=u, v=v)(span())))

  def naive(q, k, u, v, kernel):
    q, k = pairs(q), pairs(k)
    key = k if score == "unconjugated" else k.conj()
    rows = np.einsum("ijf,fhd->ijhd", waves, kernel)
    words = np.einsum("bihd,bjhd->bhij", q + u * (1 + 1j), key)
    places = np.einsum("bihd,ijhd->bhij", q + v * (1 + 1j), rows)
    if score == "real":
      return (words + places * (1 - 1j)).real / n**0.5
    return (np.abs(words) + np.abs(places)) / n**0.5

  shapes = (H, n), (H, n), (H * n, H, n)
  drawn = (draw(*shape, seed=3 + i) for i, shape in enumerate(shapes))
  slopes.check(function, naive, *qkv()[:2], *drawn)


def test_waves_begin_again():
  embed = Complex(wrap=4).embed(VOCAB, F, scale=1.0, rngs=rngs())
  tokens, positions = np.full((1, 9), 3), jnp.arange(9)[None]
  got = np.asarray(embed(tokens, positions))
  np.testing.assert_array_equal(got[:, 4:8], got[:, :4])
  assert np.abs(got[:, 1:4] - got[:, :3]).min(-1).max() > 0
  plain = Complex().embed(VOCAB, F, scale=1.0, rngs=rngs())
  np.testing.assert_array_equal(plain(tokens, positions)[:, :4], got[:, :4])


def test_waves_of_sinusoids_decay_by_the_formula():
  encoding = Complex(frequencies="sinusoids", decay=0.9999, initial_phase=True)
  embed = encoding.embed(VOCAB, F, scale=2.0, rngs=rngs())
  tokens, positions = np.array([[3, 1, 3, 0]]), np.array([[0, 5, 70, 9000]])
  radius = np.asarray(embed.amplitude[...], np.float64)[tokens] * 2 * 0.9999 ** positions[..., None]
  angle = positions[..., None] * 10000.0 ** (-np.arange(F // 2) / (F // 2))
  expected = radius * np.exp(1j * (angle + np.asarray(embed.phase[...], np.float64)[tokens]))
  got = np.asarray(embed(jnp.asarray(tokens), jnp.asarray(positions)), np.float64)
  np.testing.assert_allclose(got[..., ::2] + 1j * got[..., 1::2], expected, atol=1e-5)
  assert embed.frequency is None


def test_frequencies_begin_alike_and_move_by_their_share_of_the_rate():
  tokens, positions = np.full((1, 9), 3), jnp.arange(9)[None]
  drawn = draw(1, 9, F)
  moved = []
  for rate in (1.0, 0.25):
    embed = Complex(frequency_rate=rate).embed(VOCAB, F, scale=1.0, rngs=rngs())
    before = rate * embed.frequency[...]
    slopes = nnx.grad(lambda embed: jnp.sum(drawn * embed(tokens, positions)))(embed)
    nnx.Optimizer(embed, optax.adam(1e-3), wrt=nnx.Param).update(embed, slopes)
    moved.append((before, rate * embed.frequency[...] - before))
  (first, whole), (same, quarter) = moved
  np.testing.assert_allclose(same, first, rtol=1e-6)
  np.testing.assert_allclose(quarter, whole / 4, atol=1e-6)
  assert np.abs(whole[3]).min() > 9e-4


def test_position_only_attention():
  encoding = Split(length=L, form="position_only")
  relation = encoding.relation(H, D, causal=False, rngs=rngs())
  v = draw(B, L, H, D)

  def function(rows, w_q, w_k, v):
    held = slopes.holding(relation, query_kernel=w_q, key_kernel=w_k)
    none = jnp.zeros((B, L, H, 0))
    return held.attend(None, none, v, span(shared=(rows, rows)), lambda weights: weights)

  def naive(rows, w_q, w_k, v):
    q, k = (np.einsum("bif,fhd->bihd", rows, w) for w in (w_q, w_k))
    weights = softmax(np.broadcast_to(np.einsum("bihd,bjhd->bhij", q, k) / D**0.5, (B, H, L, L)))
    return np.einsum("bhij,bjhd->bihd", weights, v)

  slopes.check(function, naive, draw(1, L, F), draw(F, H, D, seed=1), draw(F, H, D, seed=2), v)


def test_position_only_attention_asks_the_embedding_s_own_table_in_every_layer():
  stack = Stack(VOCAB, Split(length=9, form="position_only"), SIZE, rngs=rngs())
  assert stack.shared.vector is stack.embed.vector
  again = nnx.merge(*nnx.split(stack))
  assert again.shared.vector is again.embed.vector
  paths = ["/".join(map(str, path)) for path, _ in nnx.to_flat_state(nnx.state(stack))]
  assert sum(path.endswith("/rows") for path in paths) == 1
  assert not any(path.endswith(("query/kernel", "attention/key/kernel")) for path in paths)
  here = stack.ready(Span(jnp.arange(L)[None], jnp.arange(L)[None], jnp.ones((1, L, L), bool)))
  for part in here.shared:
    assert np.array_equal(part[0], stack.embed.vector.rows[:L])


@pytest.mark.parametrize("form", ["concatenated", "added", "factored"])
def test_forms_of_the_embedding(form):
  embed = Split(length=L, form=form).embed(VOCAB, F, scale=3.0, rngs=rngs())
  words, rows = (np.asarray(x[...], np.float64) for x in (embed.words.table, embed.vector.rows))
  width = F if form == "added" else F // 2
  assert words.shape == (VOCAB, width)
  assert rows.shape == (L, width)
  assert rows.std() == pytest.approx(1, rel=0.3)
  got = np.asarray(embed(TOKENS, jnp.asarray(POSITIONS)[None]))
  w, p = 3 * words[TOKENS], np.broadcast_to(rows[POSITIONS], (B, L, width))
  if form == "added":
    np.testing.assert_allclose(got, w + p, rtol=1e-6, atol=1e-7)
  else:  # the halves of a vector lie channel by channel
    np.testing.assert_allclose(got[..., 0::2], w, rtol=1e-6)
    np.testing.assert_allclose(got[..., 1::2], p, rtol=1e-6)


@pytest.mark.parametrize(
  ("encoding", "parts"),
  [
    (Split(), 2),
    (Split(norms="joint"), 1),
    (Split(form="concatenated"), 1),
    (Split(form="position_only"), 1),
    (Complex(), 2),
    (Complex(network="real"), 1),
  ],
)
def test_norms_are_of_each_part_or_of_the_whole(encoding, parts):
  assert encoding.norm(F, rngs=rngs()).parts == parts
