"""Numbers of each query, looked up for each key."""

import jax.numpy as jnp
import numpy as np
from jax import Array

from posexp.kernels.target import target


def looked_up(values: Array, index: Array) -> Array:
  """Of values [B,H,Q,R] those of an index, int [1 or B,1 or H,Q,K] below R: [B,H,Q,K]."""
  by_rows = target().by_rows  # one index of all values would have them on every device
  if len(index) == 1:
    return by_rows(lambda values: at(values, index))(values)
  return by_rows(at)(values, index)


def at(values: Array, index: Array) -> Array:
  """`looked_up`, on one device."""
  batch, heads, queries, width = values.shape
  index = jnp.arange(queries)[:, None] * width + index
  # One index of all values: one that batch and heads shared would have them come last in memory.
  rows = jnp.arange(batch * heads, dtype=jnp.uint32) * np.uint32(queries * width)
  index = rows.reshape(batch, heads, 1, 1) + index.astype(jnp.uint32)
  return values.ravel().at[index].get(mode="promise_in_bounds")
