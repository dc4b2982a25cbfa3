"""Look-ups of a query's numbers for each key, by an index or by the clipped offset."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from posexp.kernels.target import target

LARGEST = np.iinfo(np.int32).max  # the largest index


def looked_up(values: Array, index: Array) -> Array:
  """Look up values [B,H,Q,R] by an index, int [1 or B,1 or H,Q,K] below R: [B,H,Q,K]."""
  # By rows: `at` flattens the values, so XLA would gather all of them on every device.
  by_rows = target().by_rows
  if len(index) == 1:
    return by_rows(lambda values: at(values, index))(values)
  return by_rows(at)(values, index)


def at(values: Array, index: Array) -> Array:
  """Compute `looked_up` on one device."""
  batch, heads, queries, width = values.shape
  index = jnp.arange(queries)[:, None] * width + index
  # One index into all values: if batch and heads shared one, they would come last in memory.
  rows = jnp.arange(batch * heads, dtype=jnp.uint32) * np.uint32(queries * width)
  index = rows.reshape(batch, heads, 1, 1) + index.astype(jnp.uint32)
  return values.ravel().at[index].get(mode="promise_in_bounds")


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def by_key(values: Array, offset: Array, consecutive: bool) -> Array:
  """Look up values [B,H,Q,2f+1] of the offsets −f … f by each key's offset: [B,H,Q,K].

  Offsets, int [1 or B,Q,K], are clipped to ±f; if `consecutive`, they rise by one along each row.
  """
  return looked_up(values, column(offset, values.shape[-1] // 2))


@functools.partial(jax.custom_vjp, nondiff_argnums=(2, 3))
def by_offset(weights: Array, offset: Array, consecutive: bool, far: int) -> Array:
  """Sum weights [B,H,Q,K] by offset: [B,H,Q,2f+1], with f = `far`; the transpose of `by_key`."""
  *outer, queries, keys = weights.shape
  if not consecutive or queries * keys > LARGEST:
    values = jax.ShapeDtypeStruct((*outer, queries, 2 * far + 1), weights.dtype)
    index = column(offset, far)
    return jax.linear_transpose(lambda x: looked_up(x, index), values)(weights)[0]
  # At most one key has a given offset, except for the two farthest offsets.
  key = jnp.arange(1 - far, far) - offset[0, :, :1]
  index = jnp.where((key >= 0) & (key < keys), jnp.arange(queries)[:, None] * keys + key, -1)
  rows = weights.reshape(-1, queries * keys)
  near = jax.vmap(lambda row: jnp.where(index < 0, 0, row[index]))(rows)
  left, right = (
    jnp.where(side[:, None], weights, 0).sum(-1, keepdims=True)
    for side in (offset <= -far, offset >= far)
  )
  return jnp.concatenate([left, near.reshape(*outer, queries, -1), right], axis=-1)


def column(offset: Array, far: int) -> Array:
  """Return the index of each offset, int [1 or B,Q,K], among −far … far: [1 or B,1,Q,K]."""
  return (far + jnp.clip(offset, -far, far))[:, None]


by_key.defvjp(
  lambda values, offset, consecutive: (by_key(values, offset, consecutive), (offset, values[:0])),
  lambda consecutive, kept, grad: (
    by_offset(grad, kept[0], consecutive, kept[1].shape[-1] // 2),
    None,
  ),
)
by_offset.defvjp(
  lambda weights, offset, consecutive, far: (by_offset(weights, offset, consecutive, far), offset),
  lambda consecutive, far, offset, grad: (by_key(grad, offset, consecutive), None),
)
