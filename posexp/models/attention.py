"""The forms of attention; the one in blocks never holds all of [Q,K].

Queries and keys are cut into blocks. The softmax over all keys is taken online (Milakov &
Gimelshein 2018), and the backward pass computes each block's logits again (Dao et al. 2022). A
block's logits come from the relation itself, which is given the block's own span: whatever an
encoding adds to a score, it is added here by the same code as in the definition.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array

from posexp.encodings.base import Relation
from posexp.encodings.span import ByOffset, Span
from posexp.kernels.gradients import LEAST
from posexp.kernels.random_bits import random_bits
from posexp.kernels.target import target

SIZE = 512  # queries and keys in a block
# The length from which attention is in blocks. On a CPU that is never faster, but from here on
# every layer would keep a gigabyte of weights for eight sequences.
LONG = {"cpu": 2048, "gpu": 4096}


def form_of(chosen: str, relation: Relation, queries: int, keys: int) -> str:
  """How attention is computed: by its definition (`reference`), `blocked` or `fused`."""
  if chosen == "reference" or queries == 1:
    return "reference"
  if chosen == "fused":
    return "fused"
  long = min(queries, keys) >= LONG.get(target().platform, LONG["gpu"])
  return "blocked" if relation.blockwise and (long or chosen == "blocked") else "reference"


def ready(
  span: Span, shared: Callable[[Span], Any] | None, relation: Relation, chosen: str
) -> Span:
  """A span of self-attention with what its layers share, or what makes that of each block."""
  if form_of(chosen, relation, span.query.shape[1], span.key.shape[1]) == "blocked":
    return span.replace(shared_fn=shared)
  return span if shared is None else span.replace(shared=shared(span))


def check(
  form: str, relation: Relation, head_dim: int, dtype: str, dropout: float, max_position: int | None
) -> None:
  """Raises ValueError where a relation cannot be computed in the form that was chosen."""
  if form == "blocked" and not relation.blockwise:
    raise ValueError(
      "attention=blocked is not for an encoding whose logits may depend on more than a block of "
      "queries and keys, so leave it at auto"
    )
  if form != "fused":
    return
  for fits, needs in (
    (relation.supports_fused, "an encoding that its kernels know, so leave it at auto"),
    (target().platform == "gpu", f"a GPU, and here is a {target().platform} alone"),
    (dtype == "bfloat16", "dtype=bfloat16"),
    (dropout == 0, "dropout=0: its kernels do not drop weights"),
    (max_position is None, "positions that are consecutive"),
    (head_dim % 8 == 0 and head_dim <= 128, f"heads of 8, 16, … 128 channels, not {head_dim}"),
  ):
    if not fits:
      raise ValueError(f"attention=fused needs {needs}")


class Dropout(NamedTuple):
  """Dropout: each number is 0 with a probability of `rate`, to a multiple of 2^-32."""

  rate: float
  key: Array

  def __call__(self, x: Array) -> Array:
    dropped = jnp.uint32(min(round(self.rate * 2**32), 2**32 - 1))
    return jnp.where(random_bits(self.key, x.shape) >= dropped, x / (1 - self.rate), 0)


def attend(
  relation: Relation,
  q: Array | None,
  k: Array,
  v: Array,
  span: Span,
  dropout: Dropout | None = None,
  form: str = "reference",
) -> Array:
  """q [B,Q,H,D] attends to k, v [B,K,H,D], in the form that `form_of` says: [B,Q,H,D]."""
  if form == "fused":
    return relation.fused(q, k, v, span)
  if form == "blocked":
    return blocked(relation, q, k, v, span, dropout)
  return relation.attend(q, k, v, span, dropout or (lambda weights: weights))


def blocked(
  relation: Relation, q: Array, k: Array, v: Array, span: Span, dropout: Dropout | None
) -> Array:
  """Attention in blocks of queries and keys, whose last ones are filled up: [B,Q,H,D]."""
  queries, keys = q.shape[1], k.shape[1]
  rows, columns = min(SIZE, queries), min(SIZE, keys)
  more_rows, more_columns = -queries % rows, -keys % columns
  query = prolonged(span.query, more_rows, span.consecutive)
  wide = span.replace(
    query=query,
    key=query if span.own else prolonged(span.key, more_columns, span.consecutive),
    mask=padded(padded(span.mask, more_columns, axis=2), more_rows * (span.mask.shape[1] > 1)),
  )
  graphdef, params, others = nnx.split((relation, span.shared_fn), nnx.Param, ...)
  prepared = relation.prepare(wide, q.dtype)
  plan = Plan(
    graphdef, rows, columns, span.causal, span.consecutive, wide.farthest + 1,
    dropout and dropout.rate,
  )  # fmt: skip
  tensors = Tensors(
    nnx.as_pure(params),
    padded(q, more_rows),
    padded(k, more_columns),
    padded(v, more_columns),
    prepared and prepared.values,
  )
  others = Others(
    nnx.as_pure(others),
    wide.query,
    wide.key,
    wide.mask,
    prepared and prepared.first,
    dropout and dropout.key,
  )
  return in_blocks(plan, tensors, others)[:, :queries]


def padded(x: Array, more: int, axis: int = 1) -> Array:
  """x with `more` zeros on an axis."""
  return jnp.pad(x, [(0, more if i == axis else 0) for i in range(x.ndim)])


def prolonged(positions: Array, more: int, consecutive: bool) -> Array:
  """Positions [1 or B,L] followed by `more`: consecutive ones, or the last one repeated."""
  step = jnp.arange(1, more + 1) if consecutive else jnp.zeros(more, int)
  return jnp.concatenate([positions, positions[:, -1:] + step], axis=1)


class Plan(NamedTuple):
  """What is known when the program is compiled."""

  graphdef: Any  # of the relation and what layers share
  rows: int  # queries in a block
  columns: int  # keys in a block
  causal: bool
  consecutive: bool
  max_position: int  # larger than every offset of the whole span
  rate: float | None  # of dropout


class Tensors(NamedTuple):
  """What has a gradient."""

  params: Any
  q: Array
  k: Array
  v: Array
  by_offset: Array | None  # values [R,...] of what the relation has prepared


class Others(NamedTuple):
  """What has none."""

  settings: Any
  query: Array
  key: Array
  mask: Array
  first_offset: Array | None  # the offset of the first of `by_offset`
  dropout: Array | None


class Tile(NamedTuple):
  """Queries of block i and keys of block j."""

  plan: Plan
  others: Others
  i: Array
  j: Array

  @property
  def start(self) -> Array | int:
    """Where the block's part of `by_offset` begins; it has all of it if positions have gaps."""
    if not self.plan.consecutive:
      return 0
    rows, columns = self.plan.rows, self.plan.columns
    return self.j * columns + self.others.query.shape[1] - (self.i + 1) * rows

  def of(self, t: Tensors) -> Tensors:
    """The block's parts."""
    rows, columns = self.plan.rows, self.plan.columns
    by_offset = t.by_offset
    if by_offset is not None and self.plan.consecutive:
      by_offset = jax.lax.dynamic_slice_in_dim(by_offset, self.start, rows + columns - 1)
    k, v = (part(x, self.j, columns) for x in (t.k, t.v))
    return Tensors(t.params, part(t.q, self.i, rows), k, v, by_offset)

  def add(self, t: Tensors, more: Tensors) -> Tensors:
    """Gradients with those of the block's keys, values and offsets added where they belong."""
    columns = self.plan.columns
    by_offset = t.by_offset
    if by_offset is not None:
      by_offset = added(by_offset, more.by_offset, self.start, axis=0)
    k, v = (
      added(x, m, self.j * columns) for x, m in zip((t.k, t.v), (more.k, more.v), strict=True)
    )
    return t._replace(
      params=jax.tree.map(jnp.add, t.params, more.params), k=k, v=v, by_offset=by_offset
    )

  def span(self) -> Span:
    """The span of the block, without `shared` and `prepared`."""
    plan, others = self.plan, self.others
    query, key = part(others.query, self.i, plan.rows), part(others.key, self.j, plan.columns)
    mask = part(others.mask, self.j, plan.columns, axis=2)
    if mask.shape[1] > 1:
      mask = part(mask, self.i, plan.rows)
    return Span(
      query,
      key,
      mask,
      plan.causal,
      max_position=plan.max_position,
      consecutive=plan.consecutive,
      block=True,
    )

  def built(self, params: Any, by_offset: Array | None) -> tuple[Relation, Span]:
    """The relation and the whole span."""
    relation, shared_fn = nnx.merge(self.plan.graphdef, params, self.others.settings)
    span = self.span()
    if by_offset is not None:
      span = span.replace(prepared=ByOffset(self.others.first_offset + self.start, by_offset))
    return relation, span if shared_fn is None else span.replace(shared=shared_fn(span))

  def logits(self, params: Any, q: Array, k: Array, by_offset: Array | None) -> Array:
    """[B,H,rows,columns] in float32."""
    relation, span = self.built(params, by_offset)
    logits = relation.score(q, k, span).astype(jnp.float32)
    return jnp.where(span.visible[:, None], logits, LEAST)

  def combine(self, params: Any, weights: Array, v: Array, by_offset: Array | None) -> Array:
    """[B,rows,H,D], of weights that dropout has not touched."""
    relation, span = self.built(params, by_offset)
    return relation.combine(self.drop(weights).astype(v.dtype), v, span)

  def drop(self, weights: Array) -> Array:
    """Dropout, the same whenever the block is computed."""
    if self.plan.rate is None:
      return weights
    of_block = jax.random.fold_in(jax.random.fold_in(self.others.dropout, self.i), self.j)
    return Dropout(self.plan.rate, of_block)(weights)

  @property
  def seen(self) -> Array:
    """Whether any query may look at any key: bool []."""
    return self.span().visible.any()


def part(x: Array, i: Array, size: int, axis: int = 1) -> Array:
  """Part i of an axis."""
  return jax.lax.dynamic_slice_in_dim(x, i * size, size, axis)


def added(x: Array, more: Array, first: Array | int, axis: int = 1) -> Array:
  """x with `more` added from `first` on."""
  here = jax.lax.dynamic_slice_in_dim(x, first, more.shape[axis], axis)
  return jax.lax.dynamic_update_slice_in_dim(x, here + more, first, axis)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def in_blocks(plan: Plan, t: Tensors, others: Others) -> Array:
  """[B,Q,H,D]."""
  return forward(plan, t, others)[0]


def forward(plan: Plan, t: Tensors, others: Others) -> tuple[Array, Array]:
  """[B,Q,H,D], and the logarithm of what the softmax divides by, [B,H,Q]."""
  batch, keys, heads, width = t.v.shape
  counted = jnp.arange(keys // plan.columns)

  def of_queries(_, i):
    q = part(t.q, i, plan.rows)

    def step(carry, j):
      tile = Tile(plan, others, i, j)

      def more(carry):
        highest, total, summed = carry
        mine = tile.of(t)
        logits = tile.logits(t.params, q, mine.k, mine.by_offset)
        now = jnp.maximum(highest, logits.max(-1))
        weights = jnp.exp(logits - now[..., None])
        scale = jnp.exp(highest - now)
        found = tile.combine(t.params, weights, mine.v, mine.by_offset)
        summed = summed * scale.swapaxes(1, 2)[..., None] + found.astype(jnp.float32)
        return now, total * scale + weights.sum(-1), summed

      return jax.lax.cond(tile.seen, more, lambda carry: carry, carry), None

    start = (
      jnp.full((batch, heads, plan.rows), LEAST),
      jnp.zeros((batch, heads, plan.rows)),
      jnp.zeros((batch, plan.rows, heads, width)),
    )
    (highest, total, summed), _ = jax.lax.scan(step, start, counted)
    out = (summed / total.swapaxes(1, 2)[..., None]).astype(t.v.dtype)
    return None, (out, highest + jnp.log(total))

  _, (out, log_total) = jax.lax.scan(of_queries, None, jnp.arange(t.q.shape[1] // plan.rows))
  out = jnp.moveaxis(out, 0, 1).reshape(batch, -1, heads, width)
  return out, jnp.moveaxis(log_total, 0, 2).reshape(batch, heads, -1)


def forward_and_keep(plan, t, others):
  out, log_total = forward(plan, t, others)
  return out, (t, others, out, log_total)


def backward(plan, kept, grad):
  t, others, out, log_total = kept
  counted = jnp.arange(t.k.shape[1] // plan.columns)
  # Σ_k weight · its gradient, since the output is linear in the weights.
  level = (grad.astype(jnp.float32) * out.astype(jnp.float32)).sum(-1).swapaxes(1, 2)

  def of_queries(grads, i):
    asked, by_level = part(grad, i, plan.rows), part(level, i, plan.rows, axis=2)
    q, below = part(t.q, i, plan.rows), part(log_total, i, plan.rows, axis=2)

    def step(carry, j):
      tile = Tile(plan, others, i, j)

      def more(carry):
        grads, of_q = carry
        mine = tile.of(t)
        logits, to_inputs = jax.vjp(tile.logits, t.params, q, mine.k, mine.by_offset)
        weights = jnp.exp(logits - below[..., None])
        _, to_parts = jax.vjp(tile.combine, t.params, weights, mine.v, mine.by_offset)
        params, of_weights, of_v, of_offset = to_parts(asked)
        of_logits = weights * (of_weights - by_level[..., None])
        params_too, more_q, of_k, offset_too = to_inputs(of_logits)
        params, of_offset = jax.tree.map(jnp.add, (params, of_offset), (params_too, offset_too))
        return tile.add(grads, Tensors(params, None, of_k, of_v, of_offset)), of_q + more_q

      return jax.lax.cond(tile.seen, more, lambda carry: carry, carry), None

    (grads, of_q), _ = jax.lax.scan(step, (grads, jnp.zeros_like(q)), counted)
    return grads, of_q

  start = jax.tree.map(jnp.zeros_like, t._replace(q=None))
  grads, of_q = jax.lax.scan(of_queries, start, jnp.arange(t.q.shape[1] // plan.rows))
  of_q = jnp.moveaxis(of_q, 0, 1).reshape(t.q.shape)
  return grads._replace(q=of_q), None


in_blocks.defvjp(forward_and_keep, backward)
