"""Random bits for dropout, at a fraction of the cost of Threefry.

JAX's own bits come from a cipher of 20 rounds. On a CPU they take 8 to 17 % of the CPU time of a
small model's training step and 40 to 48 % of the CPU time of compiling it (docs/benchmarks). Masks
need less: each must be fair, and the masks of one run must be unrelated.
"""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
from jax import Array


def random_bits(key: Array, shape: tuple[int, ...]) -> Array:
  """Return uniform uint32 of this shape, a pure function of the key and of each number's place.

  The place passes through two rounds of an integer hash (Wellons 2018, "lowbias32"), each after a
  word of the key is mixed in. The bits do not depend on how arrays are sharded. Keys must be random
  themselves, such as those of `jax.random.fold_in`.
  """
  words = jax.random.key_data(key).ravel()
  place = jnp.zeros(shape, jnp.uint32)
  for axis in range(len(shape)):
    stride = jnp.uint32(math.prod(shape[axis + 1 :]) % 2**32)
    place += jax.lax.broadcasted_iota(jnp.uint32, shape, axis) * stride
  return _mixed(_mixed(place ^ words[0]) + words[-1])


def _mixed(x: Array) -> Array:
  """Map 32 bits one to one; each bit of the result depends on all bits of the input."""
  x = (x ^ (x >> 16)) * jnp.uint32(0x7FEB352D)
  x = (x ^ (x >> 15)) * jnp.uint32(0x846CA68B)
  return x ^ (x >> 16)
