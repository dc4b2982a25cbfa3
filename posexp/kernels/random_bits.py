"""Random bits for dropout, which cost a fraction of Threefry's.

JAX's own bits are those of a cipher of 20 rounds. On a CPU they cost a small model 8 to 17 % of
the CPU time of a training step and 40 to 48 % of that in which it is compiled (docs/cost.md). What
masks need is less: that each is fair, and that no two of one run have anything in common.
"""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
from jax import Array


def random_bits(key: Array, shape: tuple[int, ...]) -> Array:
  """Uniform uint32 of this shape, a pure function of the key and of each number's place.

  Two rounds of an integer hash of the place (Wellons 2018, "lowbias32"), each behind a word of the
  key. They are the same on every device, however arrays are divided. Keys should themselves be
  random, as those that `jax.random.fold_in` gives.
  """
  words = jax.random.key_data(key).ravel()
  place = jnp.zeros(shape, jnp.uint32)
  for axis in range(len(shape)):
    stride = jnp.uint32(math.prod(shape[axis + 1 :]) % 2**32)
    place += jax.lax.broadcasted_iota(jnp.uint32, shape, axis) * stride
  return _mixed(_mixed(place ^ words[0]) + words[-1])


def _mixed(x: Array) -> Array:
  """A bijection of 32 bits in which each bit of the result depends on all of the input's."""
  x = (x ^ (x >> 16)) * jnp.uint32(0x7FEB352D)
  x = (x ^ (x >> 15)) * jnp.uint32(0x846CA68B)
  return x ^ (x >> 16)
