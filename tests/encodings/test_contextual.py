"""CoPE is its paper's formula, in float64."""

import math

import jax.numpy as jnp
import numpy as np
import oracle
import pytest

from posexp.encodings.contextual import CoPE


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


@pytest.mark.parametrize("rows", [2, 64])
def test_cope(rows):
  oracle.check(CoPE(rows), formula, tolerance=2e-5)


def test_gates_read_contents_that_are_switched_off():
  relation = CoPE(5).relation(oracle.H, oracle.D, causal=True, rngs=None)
  draw = np.random.default_rng(0)
  q, k = (jnp.asarray(draw.normal(size=(1, oracle.K, oracle.H, oracle.D))) for _ in "qk")
  relation.rows[...] = jnp.asarray(draw.normal(size=(5, oracle.D)), jnp.float32)
  at = oracle.span()
  ones = jnp.ones(oracle.H)
  position = relation.score(q, k, at.replace(term_scale={"content": 0 * ones, "position": ones}))
  content = relation.score(q, k, at.replace(term_scale={"content": ones, "position": 0 * ones}))
  np.testing.assert_allclose(position + content, relation.score(q, k, at), atol=1e-5)
