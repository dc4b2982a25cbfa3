"""Short causal convolutions of each channel, with which attention sees the order of near tokens.

What comes before a token depends on how texts are read: `in_row` and `in_cache` make functions that
convolve arrays [B,Q,C] of tokens with taps [k,C]. A token before counts as 0 if it is padding, of
another document, or not there.

Shapes: B batch, Q tokens, C channels, K slots of a cache.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array

from posexp.encodings.rngs import Rngs
from posexp.kernels.gradients import total
from posexp.models.cache import Cache

Arrays = Sequence[Array]
Mix = Callable[[Arrays, Arrays], tuple[Array, ...]]


class Convolution(nnx.Module):
  """x_t + Σ_n w_n ⊙ x_{t−n}, n = 0 … `width` − 1, of each of several arrays x [B,Q,C].

  It has no bias and no activation (Inkling; Canon layers, Allen-Zhu 2025). Taps w start from
  N(0, 0.02), as Hugging Face starts all convolutions, so that it is nearly the identity at first.
  """

  def __init__(self, width: int, channels: Sequence[int], *, rngs: Rngs):
    draws = nnx.initializers.normal(0.02)
    self.taps = nnx.List(nnx.Param(draws(rngs.params(), (width, channel))) for channel in channels)

  def __call__(self, x: Arrays, mix: Mix) -> tuple[Array, ...]:
    given = [taps[...].astype(each.dtype) for each, taps in zip(x, self.taps, strict=True)]
    return tuple(each + more for each, more in zip(x, mix(x, given), strict=True))


def alone(x: Arrays, taps: Arrays) -> tuple[Array, ...]:
  """Convolve tokens with nothing before them."""
  return tuple(each * own[0] for each, own in zip(x, taps, strict=True))


def in_row(groups: Array | None, width: int) -> Mix:
  """Return a function that convolves the tokens of whole rows.

  Tokens count if they are of the same group, int [1 or B,Q]; groups below 0 are of no token. Rows
  whose padding comes last need no groups: what a padded token reads is read by no other.
  """
  near = None
  if groups is not None:
    same = [groups >= 0, *((moved(groups + 1, n) == groups + 1) for n in range(1, width))]
    near = jnp.stack([same[0] & each for each in same])[..., None]
  return lambda x, taps: tuple(convolved(*each, near) for each in zip(x, taps, strict=True))


def moved(x: Array, by: int) -> Array:
  """Shift x [B,Q,...] along a row by some tokens, back if the number is negative; zeros come in."""
  ends = jnp.pad(x, [(0, 0), (max(by, 0), max(-by, 0)), *[(0, 0)] * (x.ndim - 2)])
  return ends[:, max(-by, 0) :][:, : x.shape[1]]


@jax.custom_vjp
def convolved(x: Array, taps: Array, near: Array | None) -> Array:
  """Return Σ_n w_n ⊙ x_{t−n} over those tokens where `near`, bool [k,1 or B,Q,1], is True."""
  return sum(tap * _where(near, n, moved(x, n)) for n, tap in enumerate(taps))


def _where(near: Array | None, n: int, x: Array) -> Array:
  return x if near is None else jnp.where(near[n], x, 0)


def convolved_backward(
  kept: tuple[Array, Array, Array | None], grad: Array
) -> tuple[Array, Array, None]:
  x, taps, near = kept
  given = [_where(near, n, grad) for n in range(len(taps))]
  of_x = sum(moved(tap * each, -n) for n, (tap, each) in enumerate(zip(taps, given, strict=True)))
  # Padded once: with a padded copy for each tap, a small model's step took 1.4 times as long.
  more, length = len(taps) - 1, x.shape[1]
  padded = jax.lax.optimization_barrier(jnp.pad(x, [(0, 0), (more, 0), (0, 0)]))
  of_taps = [
    total(padded[:, more - n :][:, :length] * each, x.shape[2:]) for n, each in enumerate(given)
  ]
  return of_x, jnp.stack(of_taps), None


convolved.defvjp(lambda *given: (convolved(*given), given), convolved_backward)


def in_cache(cache: Cache, i: int, window: int | None, slots: Array) -> Mix:
  """Return a function that convolves new tokens of a layer, whose cache has those before them.

  `slots` int [k−1,1 or B,Q] are where these stand, nearest first; −1 is nowhere.
  """
  first = cache.length + 1 - window if window and cache.rolls(window) else 0

  def of(x: Array, taps: Array, held: Array) -> Array:
    wide, summed = cache.wider(held, x, 1, window), x * taps[0]
    for tap, slot in zip(taps[1:], slots[..., None], strict=True):
      earlier = jnp.take_along_axis(wide, jnp.maximum(slot - first, 0), axis=1)
      summed = summed + tap * jnp.where(slot < 0, 0, earlier)
    return summed

  return lambda x, taps: tuple(map(of, x, taps, cache.columns[i][1]))


def slots_before(own: Array, count: int, seen: Array | None = None) -> Array:
  """Return the `count` slots before each of the slots `own` int [Q]: int [count,1 or B,Q].

  With `seen`, bool [B,Q,K], they are the last that the token sees; −1 is none.
  """
  place, slots = own[None], []
  for _ in range(count):
    if seen is None:
      place = jnp.maximum(place - 1, -1)
    else:
      every = jnp.arange(seen.shape[2])
      place = jnp.where(seen & (every < place[..., None]), every, -1).max(2)
    slots.append(place)
  return jnp.stack(slots) if slots else jnp.zeros((0, 1, len(own)), int)
