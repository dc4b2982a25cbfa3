"""Short causal convolutions of each channel, with which attention sees the order of near tokens.

What comes before a token is found by functions `before`: of arrays [B,Q,C] of tokens, they return
the same of the token before each one, of that before it, and so on. They give 0 for a token that
is padding, of another document, or not there. `in_row` and `in_cache` make such functions.

Shapes: B batch, Q tokens, C channels, K slots of a cache.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import jax.numpy as jnp
from flax import nnx
from jax import Array

from posexp.encodings.rngs import Rngs
from posexp.models.cache import Cache

Arrays = tuple[Array, ...]
Before = Callable[[Arrays], Sequence[Arrays]]


class Convolution(nnx.Module):
  """x_t + Σ_n w_n ⊙ x_{t−n}, n = 0 … `width` − 1, of each of several arrays x [B,L,C].

  It has no bias and no activation (Inkling; Canon layers, Allen-Zhu 2025). Taps w start from
  N(0, 0.02), as Hugging Face starts all convolutions, so that it is nearly the identity at first.
  """

  def __init__(self, width: int, channels: Sequence[int], *, rngs: Rngs):
    draws = nnx.initializers.normal(0.02)
    self.taps = nnx.List(nnx.Param(draws(rngs.params(), (width, each))) for each in channels)

  def __call__(self, x: Arrays, before: Before) -> Arrays:
    earlier = (x, *before(x))
    return tuple(
      each + sum(tap * past[i] for tap, past in zip(taps[...].astype(each.dtype), earlier))
      for i, (each, taps) in enumerate(zip(x, self.taps, strict=True))
    )


def alone(x: Arrays) -> list[Arrays]:
  """Return that there is nothing before any token."""
  return []


def in_row(groups: Array, width: int) -> Before:
  """Return what gives the `width` − 1 tokens before each one of a row that is all there.

  They count if they are of the same group, int [1 or B,Q]; groups below 0 are of no token.
  """

  def back(x: Array, n: int, fill: int) -> Array:
    rest = [(0, 0)] * (x.ndim - 2)
    return jnp.pad(x, [(0, 0), (n, 0), *rest], constant_values=fill)[:, : x.shape[1]]

  def before(x: Arrays) -> list[Arrays]:
    alike = [(back(groups, n, -1) == groups) & (groups >= 0) for n in range(1, width)]
    return [
      tuple(jnp.where(same[..., None], back(each, n, 0), 0) for each in x)
      for n, same in enumerate(alike, 1)
    ]

  return before


def in_cache(cache: Cache, i: int, window: int | None, slots: Array) -> Before:
  """Return what gives the tokens before new ones, of which a layer's cache gets what is to be kept.

  `slots` int [N,1 or B,Q] are where they stand, nearest first; −1 is nowhere.
  """
  first = cache.length + 1 - window if cache.rolls(window) else 0

  def before(x: Arrays) -> Iterator[Arrays]:
    wide = [cache.wider(held, new, 1, window) for held, new in zip(cache.columns[i][1], x)]
    for slot in slots[..., None]:
      place = jnp.maximum(slot - first, 0)
      yield tuple(jnp.where(slot < 0, 0, jnp.take_along_axis(each, place, 1)) for each in wide)

  return before


def slots_before(own: Array, count: int, seen: Array | None = None) -> Array:
  """Return the `count` slots before each of the slots `own` int [Q]: int [count,1 or B,Q].

  With `seen`, bool [B,Q,K], they are the last that the token sees; −1 is none.
  """
  place, found = own[None], []
  for _ in range(count):
    if seen is None:
      place = jnp.maximum(place - 1, -1)
    else:
      every = jnp.arange(seen.shape[2])
      place = jnp.where(seen & (every < place[..., None]), every, -1).max(2)
    found.append(place)
  return jnp.stack(found) if found else jnp.zeros((0, 1, len(own)), int)
