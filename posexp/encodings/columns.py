"""Sums of numbers over the keys between a key and a query, and which keys stand before a key.

Shapes: B batch, Q queries, K keys, H heads.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array

from posexp.encodings.span import Span

FINE = 2.0**8  # parts of 1 in what is summed without an error


def sums_between(x: Array, span: Span, ahead: Array | None = None) -> Array:
  """Sum numbers of the keys that a query sees, from the query to each key, float32 [B,H,Q,K].

  For a key j behind query i it is the sum of x [B,K,H] over keys j+1 … i; for a key ahead, the sum
  of `ahead` [B,K,H] over keys i+1 … j. Without `ahead`, the numbers of keys ahead mean nothing.
  Keys that the query does not see count as 0. Keys are in the order of their positions.
  """
  if span.mask.shape[1] > 1:
    return sums_of_seen(x, span, ahead)
  seen = span.mask[:, 0, :, None]
  behind = differences(jnp.where(seen, x, 0), span)
  if ahead is None:
    return behind
  back = span.offset[:, None] <= 0
  return jnp.where(back, behind, -differences(jnp.where(seen, ahead, 0), span))


def differences(x: Array, span: Span) -> Array:
  """Subtract the sum of x [B,K,H] up to each key from that up to each query: [B,H,Q,K].

  Sums grow with the text, and would lose what differs between neighbors. So each number is parted
  into one of few digits, whose sums are exact below 65,536, and a small rest.
  """
  coarse = jax.lax.stop_gradient(jnp.round(x * FINE) / FINE)
  difference = 0.0
  for part in (coarse, x - coarse):
    key = query = jnp.cumsum(part.astype(jnp.float32), axis=1)
    if not span.self_attention:
      passed = (span.offset <= 0).sum(-1)[..., None]  # how many keys are not ahead of the query
      sums = jnp.pad(key, [(0, 0), (1, 0), (0, 0)])
      query = jnp.take_along_axis(sums, passed, axis=1)
    difference = difference + (query.swapaxes(1, 2)[..., None] - key.swapaxes(1, 2)[:, :, None])
  return difference


def sums_of_seen(x: Array, span: Span, ahead: Array | None) -> Array:
  """Return `sums_between` where queries differ in the keys that they see."""

  def seen(x: Array, passed: Array) -> Array:
    wide = x.astype(jnp.float32).swapaxes(1, 2)[:, :, None]
    return jnp.where((span.visible & passed)[:, None], wide, 0)

  behind = seen(x, span.offset <= 0)
  sums = jax.lax.cumsum(behind, axis=3, reverse=True) - behind
  return sums if ahead is None else sums + jnp.cumsum(seen(ahead, span.offset > 0), axis=3)


def neighbors(seen: Array, count: int) -> Array:
  """Return the indices of each key and of the last `count` − 1 seen keys before it.

  They are int [count,B,R,K], for `seen` bool [B,R,K]; −1 stands for a key that is not there.
  """
  place = jnp.broadcast_to(jnp.arange(seen.shape[2]), seen.shape)
  last = jax.lax.cummax(jnp.where(seen, place, -1), axis=2)
  before = jnp.pad(last, [(0, 0), (0, 0), (1, 0)], constant_values=-1)  # of place + 1
  places = [place]
  for _ in range(count - 1):
    places.append(jnp.take_along_axis(before, jnp.maximum(places[-1], 0), axis=2))
    places[-1] = jnp.where(places[-2] < 0, -1, places[-1])
  return jnp.stack(places)
