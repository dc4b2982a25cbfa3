"""Spans: where queries and keys of one attention stand, and which may meet.

Shapes: B batch, Q queries, K keys, H heads, R offsets of the window.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jax import Array

from posexp.errors import UserError
from posexp.kernels.diagonals import products, skewed

TermScale = dict[str, Array]  # the factor of each term for each head, [H], if not 1


class Span(struct.PyTreeNode):
  """Where queries and keys stand, and which may meet.

  Encoder, decoder, cache, memory, padding and packing are all just different spans.
  Every query may look at one key at least.
  """

  query: Array  # positions, int [B,Q]; B is 1 where the batch shares them
  key: Array  # positions, int [B,K]
  mask: Array  # bool [B,1 or Q,K]; True where the query may look at the key
  causal: bool = struct.field(pytree_node=False, default=False)  # and at no key ahead of it
  shared: Any = None  # what `Encoding.shared` made of this span, the same for every layer
  key_columns: Any = None  # what `Encoding.columns` made of each key, arrays [B,K,...]
  query_columns: Any = None  # and of each query, [B,Q,...]
  sinks: Array | None = None  # the logit of each query's sink, float32 [1 or B,Q,H]
  term_scale: TermScale | None = None
  max_position: int | None = struct.field(pytree_node=False, default=None)  # positions are below it
  # Positions go up one by one and are the same for the whole batch: offsets lie on diagonals.
  consecutive: bool = struct.field(pytree_node=False, default=False)
  # Queries are the keys, at consecutive positions.
  self_attention: bool = struct.field(pytree_node=False, default=False)
  # Keys come first, padding last, the same for every query.
  padding_last: bool = struct.field(pytree_node=False, default=False)
  # In causal self-attention: a query sees the last so many keys, its own included.
  last: int | None = struct.field(pytree_node=False, default=None)
  first: Array | None = None  # which key is the first query's; None if queries are the last keys
  shared_fn: Any = struct.field(pytree_node=False, default=None)  # makes `shared` of each block

  @classmethod
  def within(cls, positions: Array | None, mask: Array, causal: bool, **known: Any) -> Span:
    """Return the span of a sequence that attends to itself, of a mask bool [1 or B,1 or L,L].

    Positions int [1 or B,L] are 0, 1, 2, … if they are None; `known` has other fields.
    """
    given = jnp.arange(mask.shape[-1])[None] if positions is None else positions
    known["consecutive"] = known["self_attention"] = positions is None
    return cls(given, given, mask, causal, **known)

  @property
  def visible(self) -> Array:
    """Which keys each query may look at, bool [B,1 or Q,K]."""
    if not self.causal:
      return self.mask
    seen = self.mask & (self.offset <= 0)
    return seen if self.last is None else seen & (self.offset > -self.last)

  def own(self, x: Array) -> Array:
    """Return the rows of x [B,K,...] at each query's own key: [B,Q,...]."""
    queries = self.query.shape[1]
    first = x.shape[1] - queries if self.first is None else self.first
    return jax.lax.dynamic_slice_in_dim(x, first, queries, axis=1)

  @property
  def farthest(self) -> int:
    """The largest possible offset in either direction; K − 1 where positions are consecutive."""
    if self.max_position and not self.consecutive:
      return self.max_position - 1
    return max(self.max_position or 0, self.query.shape[1], self.key.shape[1]) - 1

  @property
  def offset(self) -> Array:
    """Key position − query position, int [B,Q,K]."""
    return self.key[:, None, :] - self.query[:, :, None]

  @property
  def window(self) -> Array:
    """All possible offsets in ascending order: int [R]."""
    if self.consecutive:
      width = self.query.shape[1] + self.key.shape[1] - 1
      return self.key[0, 0] - self.query[0, -1] + jnp.arange(width)
    return jnp.arange(-self.farthest, self.farthest + 1)

  def look_up(self, by_offset: Array) -> Array:
    """Look up values [1 or B,H,1 or Q,R] of the window's offsets for each key: [1 or B,H,Q,K].

    An offset that is not in the window gives NaN, not a plausible number.
    """
    if not self.consecutive:
      index = self.offset - self.window[0]
      index = jnp.where(index < 0, by_offset.shape[-1], index)[:, None]  # −1 would be the last
      return jnp.take_along_axis(by_offset, index, axis=-1, mode="fill", fill_value=jnp.nan)
    *outer, _, width = by_offset.shape
    whole = jnp.broadcast_to(by_offset, (*outer, self.query.shape[1], width))
    return skewed(whole, self.key.shape[1])

  def products(self, x: Array, rows: Array) -> Array:
    """Multiply x [1 or B,1 or Q,H,D] by the row of each key's offset: [1 or B,H,Q,K].

    Rows [R,H,D] are those of the window.
    """
    if not self.consecutive or x.shape[1] < self.query.shape[1]:
      return self.look_up(jnp.einsum("bqhd,rhd->bhqr", x, rows))
    return products(x, rows, self.key.shape[1])

  def of_offsets(self, f: Callable[[Array], Array]) -> Array:
    """Return f of every offset, [1 or B,H,Q,K]; f maps offsets int [...] to values [H,...]."""
    if self.consecutive:
      return self.look_up(f(self.window)[None, :, None])
    return jnp.moveaxis(f(self.offset), 0, 1)

  def keep(self, term: str, axis: int = 1) -> Array | float:
    """Return the factor of a named term: 1, or an array of four axes of which `axis` is heads."""
    if self.term_scale is None:
      return 1.0
    if term not in self.term_scale:
      known = ", ".join(self.term_scale)
      raise UserError(f"span.keep({term!r}): `terms` of the relations have only {known}")
    return jnp.expand_dims(self.term_scale[term], [at for at in range(4) if at != axis])
