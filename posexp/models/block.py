"""The parts of a Transformer: attention, and a block of it with the feed-forward network."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array

from posexp.encodings import check_declared, name_of
from posexp.encodings.base import Columns, Encoding, Layer, Relation
from posexp.encodings.rngs import Rngs
from posexp.encodings.span import Span
from posexp.models import attention, logits
from posexp.models.convolution import Convolution, Mix, alone
from posexp.models.feed_forward import Experts, FeedForward, drop
from posexp.models.norms import norm_of, normed, qk_norm
from posexp.models.sinks import check_softmax, sink_of, without_own
from posexp.models.size import Size
from posexp.models.tied import tied
from posexp.models.triangles import Triangles

Norm = Callable[[Array], Array]


class MultiHeadAttention(nnx.Module):
  """Multi-head attention: [z_1, …, z_H] W_O with z_h = Σ_j α_ij v_j.

  With `qk_norm`, an RMS norm over the width of each head, whose scale [D] all heads share, follows
  the maps of queries and keys; then keys are cached, and then positions enter (as in Qwen 3). It
  may also be over all heads at once (OLMo 2). With `output_gate`, z_h is multiplied by σ(x W_G)_h,
  where x is the input of the queries (Qiu et al. 2025; Lin et al. 2025). Head h of the queries
  reads head ⌊h·G/H⌋ of the G heads of keys and values (Ainslie et al. 2023). All of this also holds
  for attention to a source, but not sinks and the removal of own values: see `sinks`.
  """

  def __init__(
    self,
    encoding: Encoding,
    size: Size,
    *,
    causal: bool,
    cross: bool,
    factor: logits.Factor | None = None,
    rngs: Rngs,
  ):
    self.num_heads, self.kv_heads = size.num_heads, size.kv_heads
    self.dropout, self.form, self.factor = size.dropout, size.attention, factor
    head_dim = size.width_of_head
    width, kv_width = self.num_heads * head_dim, self.kv_heads * head_dim
    if not cross:
      check_declared(encoding, size.d_model, causal=causal)
    maps, biased = Encoding if cross else type(encoding), "qkv" in size.biased
    heads = size.num_heads, size.kv_heads, head_dim
    query = maps.query_map(encoding, size.d_model, *heads, bias=biased, rngs=rngs.fork())
    key = maps.key_map(encoding, size.d_model, *heads[1:], bias=biased, rngs=rngs.fork())
    if size.qk != "free" and not cross:
      query, key = tied(query, key, encoding, size)
    self.query, self.key = query, key
    self.value = encoding.linear(size.d_model, kv_width, bias=biased, rngs=rngs.fork())
    self.out = encoding.linear(width, size.d_model, bias="out" in size.biased, rngs=rngs.fork())
    self.relation: Relation = (
      encoding.cross(size.num_heads, head_dim)
      if cross
      else encoding.relation(size.num_heads, head_dim, causal=causal, rngs=rngs.fork())
    )
    check_relation(encoding, self.relation, size, factor)
    if not self.relation.uses_hidden:
      self.query = self.key = None
    self.relation.bind(
      to_all_heads(self.query, size, size.num_heads), to_all_heads(self.key, size, size.kv_heads)
    )
    self.key_columns, self.query_columns = (
      Columns()
      if cross
      else encoding.columns(size.d_model, size.num_heads, head_dim, causal=causal, rngs=rngs)
    )
    # These draw after all other parts, which therefore start with the same values without them.
    self.gate = (
      encoding.linear(size.d_model, width, bias=biased, rngs=rngs.fork())
      if size.output_gate
      else None
    )
    self.over_all = size.qk_norm_over == "all"
    widths = (width, kv_width) if self.over_all else (head_dim, head_dim)
    self.query_norm, self.key_norm = (
      qk_norm(encoding, size, each, rngs) if size.qk_norm else None for each in widths
    )
    if size.logits_cap is not None and not cross:
      check_softmax(self.relation, f"logits_cap={size.logits_cap:g}", "null")
      self.relation.cap = size.logits_cap
    if size.triangles:
      self.relation = Triangles(self.relation, head_dim)
    has_sink = size.sinks != "none" and not cross
    self.sink = sink_of(size, self.relation, rngs) if has_sink else None
    self.removes_own = size.own_value == "removed" and not cross

  def maps(self, x: Array) -> tuple[Array, ...]:
    """Return the values of x [B,K,F], and also its keys if the relation has any: [B,K,G·D] each."""
    return (self.value(x),) if self.key is None else (self.value(x), self.key(x))

  def keys_values(
    self, x: Array, maps: tuple[Array, ...] | None = None
  ) -> tuple[Array, Array, Any]:
    """Return keys and values of x [B,K,F], [B,K,G,D] each, before positions enter, and columns.

    Keys are [B,K,G,0] if the relation does not compute them from hidden states; see
    `Encoding.columns` for columns. `maps` are used in place of those of x.
    """
    v, *k = self.maps(x) if maps is None else maps
    v = v.reshape(*v.shape[:-1], self.kv_heads, -1)
    columns = self.key_columns and self.key_columns(x)
    if not k:
      return v[..., :0], v, columns
    return normed(*k, self.key_norm, self.over_all, self.kv_heads), v, columns

  def queries(self, x: Array) -> Array | None:
    """Return queries [B,Q,H,D] of x [B,Q,F]; None if they do not come from hidden states."""
    if self.query is None:
      return None
    return normed(self.query(x), self.query_norm, self.over_all, self.num_heads)

  def asked(self, x: Array, columns: Any, span: Span) -> tuple[Array | None, Span]:
    """Return the queries of x [B,Q,F], and the span with the keys' `columns` and with the queries'
    own columns and sinks.

    Queries and their columns are multiplied by the layer's factor.
    """
    q, asked = self.queries(x), self.query_columns and self.query_columns(x)
    if self.factor is not None:
      factor = self.factor(span)
      q = (q * factor).astype(q.dtype)
      asked = jax.tree.map(lambda each: each * factor, asked)
    sinks = self.sink and self.sink(x)
    return q, span.replace(key_columns=columns, query_columns=asked, sinks=sinks)

  def __call__(
    self, x: Array, k: Array, v: Array, columns: Any, span: Span, rngs: Rngs | None = None
  ) -> Array:
    """Compute attention of x [B,Q,F] to k, v [B,K,G,D] and their columns: [B,Q,F]."""
    dropout = None
    if rngs is not None and self.dropout:
      dropout = attention.Dropout(self.dropout, rngs.dropout())
    # Scaled terms are for diagnosis, which uses the definition.
    chosen = self.form if span.term_scale is None else "reference"
    form = attention.form_for(chosen, span)
    q, span = self.asked(x, columns, span)
    k, v = (repeated(part, self.num_heads) for part in (k, v))
    attended = attention.attend(self.relation, q, k, v, span, dropout, form)
    if self.removes_own:
      attended = without_own(attended, span.own(v))
    attended = attended.reshape(*x.shape[:-1], -1)
    return self.out(attended if self.gate is None else attended * jax.nn.sigmoid(self.gate(x)))


class Block(nnx.Module):
  """Self-attention, then attention to a source if there is one, then the feed-forward network.

  Each of them, f, has a norm n (`size.norm`): x + f(n(x)) is `pre`, n(x + f(x)) `post`, x + n(f(x))
  `output`, x + n'(f(n(x))) `sandwich`; of `parallel` blocks the feed-forward network reads what
  attention reads, x + f(n(x)) + f'(n'(x)).
  """

  def __init__(
    self, layer: Layer, size: Size, *, causal: bool, cross: bool, first: bool = False, rngs: Rngs
  ):
    encoding, factor = layer.encoding, size.factor(layer)

    def norm() -> Callable[[Array], Array]:
      return norm_of(encoding, size.d_model, size, rngs.fork())

    self.attention = MultiHeadAttention(
      encoding, size, causal=causal, cross=False, factor=factor, rngs=rngs.fork()
    )
    self.attention_norm = norm() if size.first_norm or not first else None
    network = Experts if size.experts else FeedForward
    self.feed_forward = network(encoding, size, rngs=rngs.fork())
    self.feed_forward_norm = norm()
    both = size.norm == "sandwich"
    self.attention_out_norm = norm() if both else None
    self.feed_forward_out_norm = norm() if both else None
    if cross and size.norm not in ("pre", "post"):
      raise ValueError(f"norm={size.norm} is not for translation: choose pre or post")
    if cross:
      self.cross = MultiHeadAttention(encoding, size, causal=False, cross=True, rngs=rngs.fork())
      self.cross_norm = norm()
    else:
      self.cross = self.cross_norm = None
    self.norm = size.norm
    self.before = size.norm in ("pre", "sandwich", "parallel")  # whether the inputs are normed
    self.dropout = size.dropout
    # It draws after all other parts.
    self.conv_of, kv_width = size.conv_of, size.kv_heads * size.width_of_head
    widths = [kv_width] * (1 + (self.attention.key is not None))
    widths = [size.d_model] if size.conv_of == "input" else widths
    self.conv = Convolution(size.conv, widths, rngs=rngs.fork()) if size.conv else None

  def held(self, x: Array, mix: Mix = alone) -> tuple[Array, Array, Array, Any]:
    """Return the arrays of self-attention for x [B,L,F]: input [B,L,F], keys, values and columns.

    With a convolution, which `mix` computes, its own inputs stand beside the columns.
    """
    x = self.attention_norm(x) if self.before and self.attention_norm is not None else x
    if self.conv is None:
      return x, *self.attention.keys_values(x)
    if self.conv_of == "input":
      read, (x,) = (x,), self.conv((x,), mix)
      k, v, columns = self.attention.keys_values(x)
    else:
      read = self.attention.maps(x)
      k, v, columns = self.attention.keys_values(x, self.conv(read, mix))
    return x, k, v, (columns, read)

  def columns(self, x: Array) -> Any:
    """Return the columns of x [B,L,F] alone."""
    return self.held(x)[3]

  def __call__(
    self,
    x: Array,
    held: tuple[Array, Array, Array, Any],
    span: Span,
    source: tuple | None = None,
    rngs: Rngs | None = None,
  ) -> Array:
    """Apply the block to x [B,Q,F], given the `held` arrays of it and of its context: [B,Q,F]."""

    def add(
      x: Array, norm: Norm | None, f: Callable[[Array], Array], after: Norm | None = None
    ) -> Array:
      """Return x with f of it; `after` is the second norm of a sandwich."""
      if self.norm == "post":
        return norm(x + drop(f(x), self.dropout, rngs))
      if not self.before:
        return x + drop(norm(f(x)), self.dropout, rngs)
      y = f(x if norm is None else norm(x))
      return x + drop(y if after is None else after(y), self.dropout, rngs)

    read, (inputs, k, v, columns) = x, held
    columns = columns if self.conv is None else columns[0]
    norm, after = None if self.before else self.attention_norm, self.attention_out_norm
    attended = self.attention(inputs[:, -x.shape[1] :], k, v, columns, span, rngs)
    x = add(x, norm, lambda _: attended, after)
    if self.cross is not None:
      *keys_values, there = source
      there = there.replace(query=jnp.zeros((1, x.shape[1]), int))  # positions do not matter
      x = add(x, self.cross_norm, lambda y: self.cross(y, *keys_values, there, rngs))
    if self.norm == "parallel":
      return x + drop(self.feed_forward(self.feed_forward_norm(read), rngs), self.dropout, rngs)
    feed_forward = functools.partial(self.feed_forward, rngs=rngs)
    return add(x, self.feed_forward_norm, feed_forward, self.feed_forward_out_norm)


def word_table(embed: Callable[..., Array]) -> tuple[nnx.Param, float] | None:
  """Return an embedding's table [V,D] of word vectors and its factor; None if it has no table.

  The table is that of the first module with a `word_table` and a `scale`.
  """
  for _, module in nnx.iter_modules(embed) if isinstance(embed, nnx.Module) else ():
    if hasattr(module, "word_table"):
      return module.word_table, module.scale
  return None


def check_wordless(size: Size) -> None:
  """Raise ValueError for options of an output layer for words in a model that has none."""
  if size.tie_embeddings:
    raise ValueError("tie_embeddings is for models that write words; leave it at false")
  if size.head_cap is not None:
    raise ValueError("head_cap is for models that write words; leave it at null")


def repeated(x: Array, num_heads: int) -> Array:
  """Repeat each head of keys or values in a row, [B,K,G,D] -> [B,K,H,D] for H heads."""
  return x if x.shape[2] == num_heads else jnp.repeat(x, num_heads // x.shape[2], axis=2)


class ToAllHeads(nnx.Module):
  """A map to the `own` heads of queries or keys, with each repeated up to `heads`, and no bias."""

  def __init__(self, linear: Callable[[Array], Array], own: int, heads: int):
    self.linear, self.own, self.heads = linear, own, heads

  def __call__(self, x: Array) -> Array:
    y = self.linear(x) - self.linear(jnp.zeros_like(x[:1, :1]))
    repeated_heads = repeated(y.reshape(*y.shape[:-1], self.own, -1), self.heads)
    return repeated_heads.reshape(*y.shape[:-1], -1)


def to_all_heads(
  linear: Callable[[Array], Array] | None, size: Size, own: int
) -> Callable[[Array], Array] | None:
  """Return a layer's map of queries or keys, which has `own` heads, as `Relation.bind` gets it.

  It maps [1 or B,L,F] to all heads of queries, [1 or B,L,H·D], without a bias.
  """
  if linear is None or (own == size.num_heads and "qkv" not in size.biased):
    return linear
  return ToAllHeads(linear, own, size.num_heads)


def check_relation(
  encoding: Encoding, relation: Relation, size: Size, factor: logits.Factor | None
) -> None:
  """Check a relation, and that the options of queries and keys suit it.

  Raises:
    TypeError: the names of its terms are no tuple.
    ValueError: queries are to be multiplied, normed or tied, but are not made of hidden states or
      have no logits; or they are not made of hidden states, and heads are not d_model wide
      together.
  """
  if isinstance(relation.terms, str):
    raise TypeError(f"terms must be a tuple, as in terms = ({relation.terms!r},)")
  plain = not size.qk_norm and size.qk == "free"
  narrow = size.num_heads * size.width_of_head != size.d_model
  if not relation.uses_hidden and factor is not None:
    raise ValueError(
      f"{factor} needs queries made from hidden states, and {name_of(encoding)} has none"
    )
  if not relation.uses_hidden and (not plain or narrow):
    raise ValueError(
      f"{name_of(encoding)} makes queries and keys of positions alone, by maps of its own, so "
      "leave qk_norm at false, qk at free and head_dim at null"
    )
  if relation.sums_to_one is None and (factor is not None or not plain):
    raise ValueError(
      f"{name_of(encoding)} has no logits, and norms queries and keys itself: leave qk_norm at "
      "false, qk at free, logits_by at none and logits_scale at 1"
    )
