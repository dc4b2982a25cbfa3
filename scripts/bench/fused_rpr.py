"""The encoding `fused_rpr`: RPR with a kernel for GPUs, which forms nothing of shape [Q,K].

This file is a plugin, and no part of the package: the kernel runs on NVIDIA's GPUs alone. On an
H100 it equals RPR's definition and attends in 0.24 to 0.70 of the time.

    python -m posexp.train plugins=scripts/bench/fused_rpr.py encoding=fused_rpr \\
      model.attention=fused ...

The softmax is computed online, and the backward pass recomputes logits. Arrays by offset (a query's
products with vectors, or sums of its weights) have a column for each of the 2f+1 clipped offsets.
Offsets between −f and f belong to one key each, so such a pair reads and writes an entry of its
own. All pairs of a farther block share one column and need no look-up.

Shapes: B batch, Q queries, K keys, H heads, D width of a head, R = 2f+1 clipped offsets.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu

from posexp.encodings.base import scaled
from posexp.encodings.relative import RPR, ClippedOffset
from posexp.kernels.target import Target, target

BLOCK = 64  # queries, or keys, in a block
NARROWEST = 16  # the least width of a head in the matrix units of a GPU
LEAST = float(jnp.finfo(jnp.float32).min)
dot = functools.partial(jnp.dot, preferred_element_type=jnp.float32)


@dataclasses.dataclass(frozen=True)
class FusedRPR(RPR):
  """RPR, with the same options, whose attention has a form `fused` as well."""

  def relation(self, num_heads, head_dim, *, causal, rngs):
    return FusedOffset(self, num_heads, head_dim, rngs=rngs)


class FusedOffset(ClippedOffset):
  """A clipped offset's vectors, which a kernel adds to keys and values."""

  def fused(self, q, k, v, span):
    if span.mask.shape[1] > 1:  # a mask for each query, which the kernel does not take
      return self.attend(q, k, v, span, lambda weights: weights)
    if self.terms == ("content",):
      return super().fused(q, k, v, span)
    tables = self.tables_of(span)
    return attend(
      scaled(q),
      k,
      v,
      None if tables.keys is None else tables.vectors(tables.keys),
      None if tables.values is None else tables.vectors(tables.values),
      jnp.broadcast_to(span.mask[:, 0], k.shape[:2]),
      span.key[0, 0] - span.query[0, 0],
      causal=span.causal,
      target=target(),
    )


def attend(
  q: Array, k: Array, v: Array, keys: Array | None, values: Array | None, mask: Array,
  first: Array, *, causal: bool, target: Target,
) -> Array:  # fmt: skip
  """Compute attention of q [B,Q,H,D], already scaled, to k, v [B,K,H,D]: [B,Q,H,D].

  `keys` and `values` are the vectors, [R,D] or [H,R,D], of the offsets −f … f with f ≥ 1; farther
  offsets are clipped. One of the two may be None. `first`, int [], is the offset of key 0 from
  query 0. The mask, bool [B,K], is True for real keys; every query must see at least one. On a CPU
  the kernel is interpreted.
  """
  batch, queries, _, width = q.shape
  vectors = jnp.zeros_like(values) if keys is None else keys
  by_offset = filled(product("bqhd,rd->bqhr", q, vectors, jnp.float32), 1, BLOCK)
  wide = max(pl.next_power_of_2(width), NARROWEST)
  q, k, v = (filled(filled(x, 1, BLOCK), 3, wide) for x in (q, k, v))
  first = jnp.broadcast_to(first, (batch, 1))
  inputs = Inputs(first, q, k, v, filled(mask, 1, BLOCK), by_offset)
  out, weights = summed(causal, target, inputs)
  out = out[:, :queries, :, :width]
  if values is None:
    return out
  return out + product("bqhr,rd->bqhd", weights[:, :queries].astype(v.dtype), values, v.dtype)


def product(formula: str, x: Array, vectors: Array, dtype: jnp.dtype) -> Array:
  """Multiply x by vectors, [R,D] for all heads or [H,R,D] for each."""
  formula = formula.replace(",rd", ",hrd") if vectors.ndim == 3 else formula
  return jnp.einsum(formula, x, vectors.astype(x.dtype), preferred_element_type=dtype)


def filled(x: Array, axis: int, size: int) -> Array:
  """Pad the end of an axis of x with zeros, to a multiple of `size`."""
  return jnp.pad(x, [(0, -n % size if i == axis else 0) for i, n in enumerate(x.shape)])


class Inputs(NamedTuple):
  """The inputs of attention, padded to whole blocks. A kernel has references to its head's part."""

  first: Array  # [B,1]
  q: Array
  k: Array
  v: Array
  mask: Array
  by_offset: Array  # [B,Q,H,R], added to the logits


class Saved(NamedTuple):
  """The numbers of each query that the backward kernels read."""

  out_grad: Array  # [B,Q,H,D]
  weights_grad: Array  # [B,Q,H,R], the gradient of weights summed by offset
  log_total: Array  # [B,Q,H]
  level: Array  # [B,Q,H], Σ_k weight · its gradient


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def summed(causal: bool, target: Target, x: Inputs) -> tuple[Array, Array]:
  """Return v summed by weights, [B,Q,H,D], and the weights summed by offset, [B,Q,H,R]."""
  return forward(causal, target, x)[0]


def forward(causal, target, x):
  found = jnp.full_like(x.by_offset, -jnp.inf)
  out = jax.ShapeDtypeStruct(x.q.shape, x.v.dtype)
  log_total = jax.ShapeDtypeStruct(x.q.shape[:3], jnp.float32)
  found, out, log_total = launch(forward_kernel, causal, target, (found, out, log_total), x)
  weights = jnp.exp(found - log_total[..., None])
  return (out, weights), (x, out, weights, log_total)


def backward(causal, target, kept, grads):
  x, out, weights, log_total = kept
  out_grad, weights_grad = grads
  level = (out_grad.astype(jnp.float32) * out.astype(jnp.float32)).sum(-1)
  level += (weights_grad * weights).sum(-1)
  saved = Saved(out_grad, weights_grad, log_total, level)
  outputs = jnp.zeros_like(weights), x.q
  of_offsets, of_q = launch(query_kernel, causal, target, outputs, x, saved)
  _, of_k, of_v = launch(key_kernel, causal, target, (None, x.k, x.v), x, saved)
  return (Inputs(None, of_q, of_k, of_v, None, of_offsets),)


summed.defvjp(forward, backward)


def launch(kernel: Callable, causal: bool, target: Target, outputs: tuple, *inputs: Any) -> tuple:
  """Run a kernel on all blocks of all heads and return arrays like `outputs`.

  The first output is None or an array with initial values: the kernel writes only some entries.
  """

  def launched(*inputs: Any) -> tuple:
    batch, _, heads, width = inputs[1].q.shape
    own = jax.tree.map(lambda x: jax.ShapeDtypeStruct((batch, *x.shape[1:]), x.dtype), outputs)
    return pl.pallas_call(
      functools.partial(kernel, causal),
      grid=(outputs[1].shape[1] // BLOCK, heads, batch),
      out_shape=own,
      in_specs=jax.tree.map(of_head, inputs),
      out_specs=jax.tree.map(of_head, own),
      input_output_aliases={} if outputs[0] is None else {0: 0},
      compiler_params=plgpu.CompilerParams(num_warps=4 if width <= 64 else 8, num_stages=2),
      interpret=target.platform == "cpu",
      name=("causal_" if causal else "") + kernel.__name__,
    )(*inputs)

  return target.by_rows(launched)(outputs[0], *inputs)


def of_head(x: Array) -> pl.BlockSpec:
  """Return the spec of one head's part of x [B,L], [B,L,H] or [B,L,H,N]: [L] or [L,N]."""
  shape = tuple(None if axis in (0, 2) else size for axis, size in enumerate(x.shape))
  return pl.BlockSpec(shape, lambda _, head, text: (text, 0, head, 0)[: len(shape)])


def block(i: Array) -> pl.Slice:
  """Return the slice of block i of queries or keys."""
  return pl.ds(i * BLOCK, BLOCK)


def forward_kernel(causal, _, x, found, out, log_total):
  """Compute outputs; `found` gets the log of weights by offset, not yet divided by their total."""
  i, head = pl.program_id(0), Head(x, causal)
  query = x.q[block(i)]

  def step(tile: Tile, carry: tuple) -> tuple:
    highest, total, summed, ends = carry
    logits = tile.logits(query, x.k[tile.columns])
    tile.put(found, logits)
    now = jnp.maximum(highest, logits.max(1))
    weights = jnp.exp(logits - now[:, None])
    scale = jnp.exp(highest - now)
    more = dot(weights.astype(x.v.dtype), x.v[tile.columns])
    ends = tuple(end * scale + each for end, each in zip(ends, tile.ends(weights), strict=True))
    return now, total * scale + weights.sum(1), summed * scale[:, None] + more, ends

  none = jnp.zeros(BLOCK)
  carry = jnp.full(BLOCK, LEAST), none, jnp.zeros(query.shape), (none, none)
  highest, total, summed, ends = head.over_keys(i, step, carry)
  out[block(i)] = (summed / total[:, None]).astype(out.dtype)
  log_total[block(i)] = highest + jnp.log(total)
  for column, end in zip((0, 2 * head.far), ends, strict=True):
    found[block(i), column] = highest + jnp.log(end)


def query_kernel(causal, _, x, saved, of_offsets, of_q):
  """Compute gradients of queries and of the per-offset logits."""
  i, head = pl.program_id(0), Head(x, causal)
  query, grad = x.q[block(i)], saved.out_grad[block(i)]

  def step(tile: Tile, carry: tuple) -> tuple:
    of_query, ends = carry
    key = x.k[tile.columns]
    _, of_logits = tile.backward(saved, query, key, grad, x.v[tile.columns])
    tile.put(of_offsets, of_logits)
    of_query += dot(of_logits.astype(key.dtype), key)
    return of_query, tuple(map(jnp.add, ends, tile.ends(of_logits)))

  carry = jnp.zeros(query.shape), (jnp.zeros(BLOCK),) * 2
  of_query, ends = head.over_keys(i, step, carry)
  of_q[block(i)] = of_query.astype(of_q.dtype)
  for column, end in zip((0, 2 * head.far), ends, strict=True):
    of_offsets[block(i), column] = end


def key_kernel(causal, _, x, saved, __, of_k, of_v):
  """Compute gradients of keys and values."""
  j, head = pl.program_id(0), Head(x, causal)
  key, value = x.k[block(j)], x.v[block(j)]

  def step(tile: Tile, carry: tuple) -> tuple:
    of_key, of_value = carry
    query, grad = x.q[tile.rows], saved.out_grad[tile.rows]
    weights, of_logits = tile.backward(saved, query, key, grad, value)
    of_key += dot(of_logits.astype(query.dtype).T, query)
    return of_key, of_value + dot(weights.astype(grad.dtype).T, grad)

  of_key, of_value = head.over_queries(j, step, (jnp.zeros(key.shape), jnp.zeros(value.shape)))
  of_k[block(j)] = of_key.astype(of_k.dtype)
  of_v[block(j)] = of_value.astype(of_v.dtype)


class Head:
  """A head's loops over blocks. On side −1 all offsets are clipped to −f, on side 1 to f."""

  def __init__(self, x: Inputs, causal: bool):
    self.x, self.causal, self.first = x, causal, x.first[0]
    self.far = x.by_offset.shape[1] // 2
    self.sides = (-1, 0) if causal else (-1, 0, 1)
    self.ahead = 1 if causal else self.far  # from this offset on, pairs are alike or invisible

  def over_keys(self, i: Array, step: Callable, carry: Any) -> Any:
    """Return carry after step(tile, carry) for queries i and all keys that they may see."""
    ranges = near(i * BLOCK - self.first, self.x.k.shape[0] // BLOCK, self.far, self.ahead)
    return self.over(ranges, lambda side, j, carry: step(Tile(self, i, j, side), carry), carry)

  def over_queries(self, j: Array, step: Callable, carry: Any) -> Any:
    """Return carry after step(tile, carry) for keys j and all queries that may see them."""
    ranges = near(j * BLOCK + self.first, self.x.q.shape[0] // BLOCK, self.ahead, self.far)[::-1]
    return self.over(ranges, lambda side, i, carry: step(Tile(self, i, j, side), carry), carry)

  def over(self, ranges: tuple, step: Callable, carry: Any) -> Any:
    """Return carry after step(side, block, carry) for the blocks in each side's range."""
    for side in self.sides:
      carry = jax.lax.fori_loop(*ranges[side + 1], functools.partial(step, side), carry)
    return carry


def near(base: Array, count: int, before: int, after: int) -> tuple:
  """Return the ranges of blocks before, near and after a block of tokens that begins at `base`.

  A near block has a token less than `before` before, or less than `after` after, one of these.
  """
  start = jax.lax.div(jnp.maximum(base - before + 1, 0), BLOCK)
  stop = jax.lax.div(jnp.maximum(base + BLOCK + after - 1, 0) + BLOCK - 1, BLOCK)
  start, stop = jnp.minimum(start, count), jnp.minimum(stop, count)
  return (0, start), (start, stop), (stop, count)


class Tile:
  """The pairs of the queries in block i and the keys in block j."""

  def __init__(self, head: Head, i: Array, j: Array, side: int):
    self.head, self.side = head, side
    self.rows, self.columns = block(i), block(j)
    row, column = i * BLOCK + jnp.arange(BLOCK)[:, None], j * BLOCK + jnp.arange(BLOCK)
    self.offset = head.first + column - row
    self.place = row, jnp.clip(self.offset, -head.far, head.far) + head.far

  def look_up(self, by_offset: Array) -> Array:
    """Look up [Q,R] for each pair: [rows,columns], or [rows,1] where all pairs share a column."""
    if self.side:
      return by_offset[self.rows, self.head.far * (1 + self.side)][:, None]
    return plgpu.load(by_offset.at[self.place])

  def put(self, by_offset: Array, x: Array) -> None:
    """Write x [rows,columns] into [Q,R] for the pairs that have an entry of their own."""
    if not self.side:
      plgpu.store(by_offset.at[self.place], x, mask=jnp.abs(self.offset) < self.head.far)

  def ends(self, x: Array) -> tuple[Array, Array]:
    """Sum x [rows,columns] over the offsets clipped to −f, and over those to f: [rows] each."""
    if self.side:
      total, none = x.sum(1), jnp.zeros(BLOCK)
      return (total, none) if self.side < 0 else (none, total)
    there = self.offset <= -self.head.far, self.offset >= self.head.far
    return tuple(jnp.where(each, x, 0).sum(1) for each in there)

  def logits(self, query: Array, key: Array) -> Array:
    """Return the masked logits, [rows,columns]."""
    visible = self.head.x.mask[self.columns][None]
    if self.head.causal:
      visible &= self.offset <= 0
    logits = dot(query, key.T) + self.look_up(self.head.x.by_offset)
    return jnp.where(visible, logits, LEAST)

  def backward(self, saved: Saved, query: Array, key: Array, grad: Array, value: Array) -> tuple:
    """Return weights and gradients of logits, [rows,columns] each."""
    weights = jnp.exp(self.logits(query, key) - saved.log_total[self.rows][:, None])
    of_weights = dot(grad, value.T) + self.look_up(saved.weights_grad)
    return weights, weights * (of_weights - saved.level[self.rows][:, None])


ENCODINGS = {"fused_rpr": FusedRPR}
