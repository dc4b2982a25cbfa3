"""Compares a relation's logits and their gradients with a formula in float64."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import slopes
from flax import nnx

from posexp.analysis.properties import paths
from posexp.encodings import Span
from posexp.encodings.rngs import Rngs

B, K, H, D = 2, 7, 4, 8
REACH = 40
SPACED = np.array([3, 4, 6, 9, 10, 15, 31])


def span(queries=K, *, causal=True, spaced=False):
  """The last `queries` of the positions look at all of them, or at those that are not ahead.

  These are one after another, or have gaps.
  """
  key = SPACED if spaced else np.arange(K)
  query = key[K - queries :]
  mask = (key <= query[:, None]) | (not causal)
  return Span(*map(jnp.asarray, (query[None], key[None], mask[None])), max_position=REACH)


def check(encoding, formula, *, causal=True, heads=H, values=lambda path, x: x, tolerance=1e-5):
  """`formula(p, q, k, i, j)` gives the logits [B,H,Q,K] of positions i and j, all in float64.

  p maps the paths of parameters to arrays. Logits are compared for whole and for cached sequences,
  for positions with and without gaps; derivatives with finite differences of the formula.
  """
  kind, width = {"causal": causal, "rngs": Rngs(params=0, encoding=1)}, D * H // heads
  parts = {"relation": encoding.relation(heads, width, **kind)}
  shared = encoding.shared(heads, width, **kind)
  if isinstance(shared, nnx.Module):
    parts["shared"] = shared
  parts = nnx.Dict(parts)
  graphdef, params, rest = nnx.split(parts, nnx.Param, ...)
  leaves, tree = jax.tree.flatten(params)
  draw = np.random.default_rng(7)
  p = {path: values(path, draw.normal(size=x.shape)) for path, x in paths(parts).items()}
  assert [x.shape for x in p.values()] == [x.shape for x in leaves]

  def score(at, q, k, *numbers):
    built = nnx.merge(graphdef, tree.unflatten(numbers), rest)
    here = at.replace(shared=built["shared"](at)) if "shared" in built else at
    return jnp.where(at.mask[:, None], built["relation"].score(q, k, here), 0)

  def naive(at, q, k, *numbers):
    i, j = np.asarray(at.query[0]), np.asarray(at.key[0])
    logits = formula(dict(zip(p, numbers, strict=True)), q, k, i, j)
    return np.where(at.mask[:, None], logits, 0)

  compiled = jax.jit(score)
  k = draw.normal(size=(B, K, heads, width))
  for queries, spaced in ((K, False), (K, True), (2, True)):
    at = span(queries, causal=causal, spaced=spaced)
    given = draw.normal(size=(B, queries, heads, width)), k, *p.values()
    if queries == K:
      single = (jnp.asarray(x, jnp.float32) for x in given)
      slopes.close(compiled(at, *single), naive(at, *given), tolerance)
    else:
      of, by = (functools.partial(each, at) for each in (score, naive))
      slopes.check(of, by, *given, tolerance=tolerance)
