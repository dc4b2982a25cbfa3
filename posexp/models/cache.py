"""What a Transformer keeps of earlier tokens: a cache of keys and values, or a memory of inputs."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jax import Array

from posexp.models.size import Size


class Cache(struct.PyTreeNode):
  """Keys and values of all slots for each layer, in the layout that products read.

  A layer with a window holds only those of the last window − 1 tokens.
  """

  keys: tuple[Array, ...]  # [B,G,D,K], G heads of keys and values
  values: tuple[Array, ...]  # [B,G,K,D]
  positions: Array  # int [1 or B,K]: the position of each slot
  length: Array  # int: the number of filled slots
  columns: tuple[Any, ...]  # arrays [B,K,...]: see `Encoding.columns`
  rolling: bool = struct.field(pytree_node=False, default=False)  # layers with a window hold less
  least: int = struct.field(pytree_node=False, default=1)  # tokens that each layer holds

  @classmethod
  def empty(
    cls,
    size: Size,
    windows: Sequence[int | None],
    makers: Sequence[Callable[[Array], Any] | None],
    batch: int,
    length: int,
    positions: Array,
    rolling: bool,
  ) -> Cache:
    """Return an empty cache for layers with these `windows` and makers of `columns`."""
    # Separate buffers: a donated one may not appear twice.
    empty = cls((), (), positions, jnp.zeros((), jnp.int32), (), rolling, size.conv)
    heads, width = size.kv_heads, size.width_of_head
    slots = [window - 1 if window and empty.rolls(window) else length for window in windows]
    keys = tuple(jnp.zeros((batch, heads, width, slot), size.dtype) for slot in slots)
    values = tuple(jnp.zeros((batch, heads, slot, width), size.dtype) for slot in slots)

    def columns(make: Callable[[Array], Any] | None, slots: int) -> Any:
      x = jax.ShapeDtypeStruct((batch, 1, size.d_model), size.dtype)
      shapes = make and jax.eval_shape(make, x)
      return jax.tree.map(
        lambda each: jnp.zeros((batch, slots, *each.shape[2:]), each.dtype), shapes
      )

    made = tuple(map(columns, makers, slots))
    return empty.replace(keys=keys, values=values, columns=made)

  def rolls(self, window: int | None) -> bool:
    """Return whether layers with this window hold less than all slots."""
    within = window is not None and self.least <= window <= self.positions.shape[1]
    return self.rolling and within

  def wider(self, held: Array, new: Array, axis: int, window: int | None) -> Array:
    """Return an array of a layer with the new tokens' appended along `axis`."""
    if self.rolls(window):
      return jnp.concatenate([held, new.astype(held.dtype)], axis=axis)
    start = [self.length if at == axis else 0 for at in range(held.ndim)]
    return jax.lax.dynamic_update_slice(held, new.astype(held.dtype), start)

  def added(
    self, i: int, new: tuple[Array, Array, Any], window: int | None, kept: Array | int
  ) -> tuple[tuple[Array, Array, Any], tuple[Array, Array, Any]]:
    """Return a layer's arrays with new tokens, and the part to keep if `kept` of these stay."""
    rolls = self.rolls(window)

    def left(x: Array, axis: int) -> Array:
      return jax.lax.dynamic_slice_in_dim(x, kept, window - 1, axis=axis) if rolls else x

    def each(f: Callable[..., Array], *parts: tuple[Array, Array, Any]) -> tuple[Array, Array, Any]:
      axes = zip((3, 2, 1), *parts, strict=True)  # of keys, values and columns
      return tuple(jax.tree.map(functools.partial(f, axis=axis), *part) for axis, *part in axes)

    wider = functools.partial(self.wider, window=window)
    wide = each(wider, (self.keys[i], self.values[i], self.columns[i]), new)
    return wide, each(left, wide)


class Memory(struct.PyTreeNode):
  """The inputs [B,M,F] of every layer for earlier tokens; gradients stop here."""

  layers: tuple[Array, ...]
  documents: Array  # int [B,M]: the document of each slot, −1 if the slot is empty

  def cleared(self, fresh: Array) -> Memory:
    """Empty the rows where `fresh`, bool [B], is True."""
    return self.replace(documents=jnp.where(fresh[:, None], -1, self.documents))
