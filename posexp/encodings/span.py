"""Spans: where queries and keys of one attention stand, and which may meet.

Shapes: B batch, Q queries, K keys, H heads, R offsets of the window.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
from flax import struct
from jax import Array

from posexp.kernels.diagonals import products, skewed

TermScale = dict[str, Array]  # the factor of each term for each head, [H], if not 1


class ByOffset(NamedTuple):
  """Values of the offsets first, first + 1, first + 2, …"""

  first: Array  # int []
  values: Array  # [R,...]

  def look_up(self, x: Array, offset: Array) -> Array:
    """The entries of x at offsets int [1 or B,Q,K]: [1 or B,H,Q,K].

    x [1 or B,H,1 or Q,R] has an entry for each of these values. An offset that is not among them
    gives NaN, not a plausible number.
    """
    index = offset - self.first
    index = jnp.where(index < 0, x.shape[-1], index)[:, None]  # −1 would be the last
    return jnp.take_along_axis(x, index, axis=-1, mode="fill", fill_value=jnp.nan)


@struct.dataclass
class Span:
  """Where queries and keys stand, and which may meet.

  Encoder, decoder, cache, memory, padding and packing are all just different spans.
  Every query may look at one key at least.
  """

  query: Array  # positions, int [B,Q]; B is 1 where the batch shares them
  key: Array  # positions, int [B,K]
  mask: Array  # bool [B,1 or Q,K]; True where the query may look at the key
  causal: bool = struct.field(pytree_node=False, default=False)  # and at no key ahead of it
  shared: Any = None  # what `Encoding.shared` made of this span, the same for every layer
  term_scale: TermScale | None = None
  max_position: int | None = struct.field(pytree_node=False, default=None)  # positions are below it
  # Positions go up one by one and are the same for the whole batch: offsets lie on diagonals.
  consecutive: bool = struct.field(pytree_node=False, default=False)
  # Keys come first, padding last, the same for every query.
  padding_last: bool = struct.field(pytree_node=False, default=False)
  shared_fn: Any = struct.field(pytree_node=False, default=None)  # makes `shared` of each block
  block: bool = struct.field(pytree_node=False, default=False)  # of a longer span
  prepared: ByOffset | None = None  # what `Relation.prepare` made, or a block's part of it

  @property
  def visible(self) -> Array:
    """Which keys each query may look at, bool [B,1 or Q,K]."""
    return self.mask & (self.offset <= 0) if self.causal else self.mask

  @property
  def own(self) -> bool:
    """Whether queries are known, when the program is compiled, to stand where the keys do."""
    return self.consecutive and self.query is self.key

  @property
  def farthest(self) -> int:
    """The largest possible offset in either direction; K − 1 where positions are consecutive."""
    return max(self.max_position or 0, self.query.shape[1], self.key.shape[1]) - 1

  @property
  def offset(self) -> Array:
    """Key position − query position, int [B,Q,K]."""
    return self.key[:, None, :] - self.query[:, :, None]

  @property
  def least(self) -> Array:
    """The smallest offset, int []."""
    return self.key.min() - self.query.max()

  @property
  def most(self) -> Array:
    """The largest offset, int []."""
    return self.key.max() - self.query.min()

  @property
  def window(self) -> Array:
    """All possible offsets in ascending order: int [R]."""
    if self.consecutive:
      width = self.query.shape[1] + self.key.shape[1] - 1
      return self.key[0, 0] - self.query[0, -1] + jnp.arange(width)
    return jnp.arange(-self.farthest, self.farthest + 1)

  def look_up(self, by_offset: Array) -> Array:
    """Values [1 or B,H,1 or Q,R] by offset of the window as [1 or B,H,Q,K], if consecutive."""
    *outer, _, width = by_offset.shape
    whole = jnp.broadcast_to(by_offset, (*outer, self.query.shape[1], width))
    return skewed(whole, self.key.shape[1])

  def products(self, x: Array, rows: ByOffset) -> Array:
    """x [1 or B,1 or Q,H,D] times the row [H,D] of each key's offset: [1 or B,H,Q,K].

    Rows are those of the window where positions are consecutive.
    """
    queries, keys = self.query.shape[1], self.key.shape[1]
    if not self.consecutive:
      return rows.look_up(jnp.einsum("bqhd,rhd->bhqr", x, rows.values), self.offset)
    if x.shape[1] < queries:
      return self.look_up(jnp.einsum("bqhd,rhd->bhqr", x, rows.values))
    return products(x, rows.values, keys)

  def of_offsets(self, f: Callable[[Array], Array]) -> Array:
    """f of every offset, [1 or B,H,Q,K]; f maps offsets int [...] to values [H,...]."""
    if self.consecutive:
      return self.look_up(f(self.window)[None, :, None])
    return jnp.moveaxis(f(self.offset), 0, 1)

  def keep(self, term: str, axis: int = 1) -> Array | float:
    """The factor of a named term of the relation: 1, or four axes of which `axis` is heads."""
    if self.term_scale is None:
      return 1.0
    return jnp.expand_dims(self.term_scale[term], [each for each in range(4) if each != axis])
