"""Compares a relation's logits and their gradients with a formula in float64."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
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
  for positions with and without gaps; derivatives in a direction of each argument, with finite
  differences of the formula.
  """
  rngs = Rngs(params=0, encoding=1)
  width = D * H // heads
  parts = {"relation": encoding.relation(heads, width, causal=causal, rngs=rngs)}
  shared = encoding.shared(heads, width, causal=causal, rngs=rngs)
  if isinstance(shared, nnx.Module):
    parts["shared"] = shared
  parts = nnx.Dict(parts)
  graphdef, params, rest = nnx.split(parts, nnx.Param, ...)
  leaves, tree = jax.tree.flatten(params)
  draw = np.random.default_rng(7)
  p = {path: values(path, draw.normal(size=x.shape)) for path, x in paths(parts).items()}
  assert [x.shape for x in p.values()] == [x.shape for x in leaves]
  draw = np.random.default_rng(8)
  k = draw.normal(size=(B, K, heads, width))

  def score(numbers, q, k, span):
    built = nnx.merge(graphdef, tree.unflatten(numbers), rest)
    if "shared" in built:
      span = span.replace(shared=built["shared"](span))
    return built["relation"].score(q, k, span)

  @jax.jit
  def sloped(numbers, q, k, span, cotangent):
    got, backward = jax.vjp(functools.partial(score, span=span), numbers, q, k)
    return got, *backward(cotangent)

  def single(x):
    return jnp.asarray(x, jnp.float32)

  numbers, compiled = [*map(single, p.values())], jax.jit(score)
  for queries, spaced in ((K, False), (K, True), (2, True)):
    q = draw.normal(size=(B, queries, heads, width))
    at = span(queries, causal=causal, spaced=spaced)
    i, j = np.asarray(at.query[0]), np.asarray(at.key[0])
    mask = np.asarray(at.mask[:, None])
    expected = formula(p, q, k, i, j)
    if queries == K:
      got = compiled(numbers, single(q), single(k), at)
    else:
      cotangent = draw.normal(size=expected.shape) * mask
      got, numbers, *gradients = sloped(numbers, single(q), single(k), at, single(cotangent))
    assert got.shape == expected.shape
    apart = np.abs(np.where(mask, np.asarray(got, np.float64) - expected, 0)).max()
    assert apart < tolerance * max(1, np.abs(expected).max()), apart

  named = dict(zip([*p, "q", "k"], [*numbers, *gradients], strict=True))
  for name, gradient in named.items():
    where = p | {"q": q, "k": k}
    direction, step = draw.normal(size=where[name].shape), 1e-6

    def moved(amount, name=name, direction=direction, where=where):
      there = where | {name: where[name] + amount * direction}
      return (formula(there, there["q"], there["k"], i, j) * cotangent).sum()

    difference = (moved(step) - moved(-step)) / (2 * step)
    derivative = (np.asarray(gradient, np.float64) * direction).sum()
    size = np.abs(np.asarray(gradient)).max() * np.sqrt(direction.size) + 1e-2
    assert abs(derivative - difference) < 1e-4 * size, (name, derivative, difference)
