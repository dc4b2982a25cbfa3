"""Spans: where queries and keys of one attention stand, and which may meet.

Shapes: B batch, Q queries, K keys, H heads, R offsets of the window.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jax import Array

from posexp.kernels.target import target

TOGETHER = 64  # queries that meet the rows of offsets in one product


class ByOffset(NamedTuple):
  """Values of the offsets first, first + 1, …; where they stand is known by the offset alone."""

  first: Array  # int []
  values: Array  # [R,...]

  def look_up(self, x: Array, offset: Array) -> Array:
    """Of x [1 or B,H,1 or Q,R], made of these values, each own of offsets [·,Q,K]: [·,H,Q,K].

    An offset that is not among them gives NaN, not a plausible number.
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
  term_scale: dict[str, Array] | None = None  # the factor of each term for each head, [H], if not 1
  max_position: int | None = struct.field(pytree_node=False, default=None)  # positions are below it
  # Do positions go up one by one, the same for all of the batch? Offsets then lie on diagonals.
  consecutive: bool = struct.field(pytree_node=False, default=False)
  # Do the keys that there are come before those that are not, the same for every query?
  padding_last: bool = struct.field(pytree_node=False, default=False)
  shared_fn: Any = struct.field(pytree_node=False, default=None)  # makes `shared` of each block
  block: bool = struct.field(pytree_node=False, default=False)  # is this a block of a longer span?
  prepared: ByOffset | None = None  # what `Relation.prepare` made, or a block's part of it

  @property
  def visible(self) -> Array:
    """Which keys each query may look at, bool [B,1 or Q,K]."""
    return self.mask & (self.offset <= 0) if self.causal else self.mask

  @property
  def own(self) -> bool:
    """Is it known, when the program is compiled, that queries stand where the keys do?"""
    return self.consecutive and self.query is self.key

  @property
  def farthest(self) -> int:
    """The largest offset there may be, to either side: K − 1 where positions are consecutive."""
    return max(self.max_position or 0, self.query.shape[1], self.key.shape[1]) - 1

  @property
  def offset(self) -> Array:
    """Key position − query position, int [B,Q,K]."""
    return self.key[:, None, :] - self.query[:, :, None]

  @property
  def window(self) -> Array:
    """All offsets that there may be, in a row: int [R]."""
    if self.consecutive:
      width = self.query.shape[1] + self.key.shape[1] - 1
      return self.key[0, 0] - self.query[0, -1] + jnp.arange(width)
    return jnp.arange(-self.farthest, self.farthest + 1)

  def look_up(self, by_offset: Array) -> Array:
    """Of values [1 or B,H,1 or Q,R] of the window of consecutive positions: [1 or B,H,Q,K]."""
    *outer, _, width = by_offset.shape
    whole = jnp.broadcast_to(by_offset, (*outer, self.query.shape[1], width))
    return skewed(whole, self.key.shape[1])

  def products(self, x: Array, rows: ByOffset) -> Array:
    """x [1 or B,1 or Q,H,D] times each key's own of rows [R,H,D]: [1 or B,H,Q,K].

    Rows are those of the window where positions are consecutive.
    """
    queries, keys = self.query.shape[1], self.key.shape[1]
    if not self.consecutive:
      return rows.look_up(jnp.einsum("bqhd,rhd->bhqr", x, rows.values), self.offset)
    if x.shape[1] < queries:
      return self.look_up(jnp.einsum("bqhd,rhd->bhqr", x, rows.values))
    # A few queries meet little more than a row for each key; all of them meet twice as many.
    count = -(-queries // TOGETHER)
    size = -(-queries // count)
    more = count * size - queries
    x = jnp.pad(x, [(0, 0), (0, more), (0, 0), (0, 0)])
    own = jnp.pad(rows.values, [(more, 1), (0, 0), (0, 0)])
    parts = jnp.stack([own[(count - 1 - i) * size :][: size + keys] for i in range(count)])
    found = diagonals(x.reshape(len(x), count, size, *x.shape[2:]), parts)
    return found.reshape(*found.shape[:2], count * size, keys)[:, :, :queries]

  def of_offsets(self, f: Callable[[Array], Array]) -> Array:
    """f, which takes offsets int [...] to a value for each head [H,...]: [1 or B,H,Q,K]."""
    if self.consecutive:
      return self.look_up(f(self.window)[None, :, None])
    return jnp.moveaxis(f(self.offset), 0, 1)

  def keep(self, term: str, axis: int = 1) -> Array | float:
    """The factor of a named term of the relation: 1, or four axes of which `axis` is heads."""
    if self.term_scale is None:
      return 1.0
    return jnp.expand_dims(self.term_scale[term], [each for each in range(4) if each != axis])


@jax.custom_vjp
def diagonals(x: Array, rows: Array) -> Array:
  """x [B,N,Q,H,D] times rows [N,Q+K,H,D] of offsets, of which the last counts for nothing.

  y[…,i,j] = x[i] · rows[j − i + Q − 1], [B,H,N,Q,K]. That row more makes what is read as one row
  begin one place further to the left with every query.
  """
  return forward(x, rows)[0]


def forward(x, rows):
  batch, parts, queries, heads, width = x.shape
  x = x.transpose(1, 3, 0, 2, 4).reshape(parts, heads, batch * queries, width)
  every = rows.shape[1] - 1
  found = (x @ rows.transpose(0, 2, 3, 1)).reshape(parts, heads, batch, -1)
  found = found[..., queries - 1 : queries - 1 + queries * every]
  found = found.reshape(parts, heads, batch, queries, every)[..., : every + 1 - queries]
  return found.transpose(2, 1, 0, 3, 4), (x, rows)


def backward(kept, grad):
  x, rows = kept
  batch, heads, parts, queries, keys = grad.shape
  # Where each product of a query and an offset went: looking there is faster than shifting rows.
  i, r = np.arange(queries)[:, None], np.arange(queries + keys)
  j = r + i - (queries - 1)
  there = (j >= 0) & (j < keys)
  index = np.where(there, i * keys + j, 0).ravel()

  def placed(grad: Array) -> Array:
    flat = jax.lax.optimization_barrier(grad.transpose(2, 1, 0, 3, 4)).reshape(-1, queries * keys)
    flat = jax.vmap(lambda row: row[index])(flat).reshape(-1, *there.shape)
    return (
      jnp.where(there, flat, 0).reshape(parts, heads, -1, *there.shape).transpose(2, 0, 1, 3, 4)
    )

  # XLA does not divide what texts and heads are one axis of.
  flat = target().by_rows(placed)(grad).transpose(1, 2, 0, 3, 4)
  flat = flat.reshape(parts, heads, batch * queries, queries + keys)
  of_x = (flat @ rows.transpose(0, 2, 1, 3)).reshape(parts, heads, batch, queries, -1)
  of_rows = x.swapaxes(2, 3) @ flat
  return of_x.transpose(2, 0, 3, 1, 4), of_rows.transpose(0, 3, 1, 2)


diagonals.defvjp(forward, backward)


def skewed(x: Array, keys: int) -> Array:
  """[...,Q,Q+K−1] -> [...,Q,K] with y[i, j] = x[i, j − i + Q − 1]: diagonals become columns.

  Read as one row with a gap after each, every next row starts one place to the left.
  """
  *outer, queries, width = x.shape
  flat = jnp.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, 1)]).reshape(*outer, queries * (width + 1))
  flat = flat[..., queries - 1 : queries - 1 + queries * width]
  return flat.reshape(x.shape)[..., :keys]
