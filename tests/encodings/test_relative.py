"""RPR and Transformer-XL are their papers' formulas, in float64 and in bfloat16."""

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
import slopes
from seed import some
from slopes import close, draw, float64
from small import rngs

from posexp.encodings import Span
from posexp.encodings.relative import RPR, TransformerXL

B, L, H, D = 2, 6, 2, 4
POSITIONS = jnp.arange(L)[None]
MASK = np.arange(L) < np.array([[6], [4]])


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
    here = Span(POSITIONS, POSITIONS, jnp.asarray(MASK)[:, None])
    here = here.replace(shared=held(here))
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
    weights = np.exp(logits / D**0.5) * MASK[:, None, None]
    weights /= weights.sum(-1, keepdims=True)
    summed = np.einsum("bhij,bjhd->bihd", weights, v)
    return summed + np.einsum("bhij,hijd->bihd", weights, a_v)

  q, key, v = (draw(B, L, H, D, seed=seed) for seed in range(3))
  slopes.check(function, naive, q, draw(*shape, seed=3), draw(*shape, seed=4), key, v)


def test_rpr_starts_from_glorot_s_bounds_also_per_head():
  for share in ("heads", "none"):
    tables = RPR(8, share=share).relation(4, 8, causal=False, rngs=rngs()).tables
    bound = (6 / (17 + 8)) ** 0.5
    assert 0.9 * bound < np.abs(tables.keys[...]).max() <= bound


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
