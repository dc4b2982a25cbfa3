"""The parts of a Transformer: attention, the feed-forward network and a block of both."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Annotated, Any, ClassVar, Literal

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array

from posexp.config.checks import (
  Bound,
  Count,
  Positive,
  Share,
  at_least,
  between,
  check,
  only_with,
)
from posexp.encodings import check_declared
from posexp.encodings.base import Columns, Encoding, Layer, Relation, whole
from posexp.encodings.rngs import Rngs
from posexp.encodings.span import Span
from posexp.errors import counted
from posexp.models import attention, logits

Width = Annotated[int, between(1, 2**16)]
Rule = Annotated[
  str, Bound(f"one of none, {', '.join(logits.RULES)}", {"none", *logits.RULES}.__contains__)
]


@dataclasses.dataclass(frozen=True)
class Size:
  """The options of a Transformer, the same for every encoding."""

  backbone: ClassVar[str] = "transformer"  # among those of posexp/models/backbones.py
  varied: ClassVar[str] = "d_ff"  # the width that `match` chooses
  counted_at: ClassVar[None] = None
  input_scale: ClassVar[float] = 1.0  # multiplies embedded words

  d_model: Width = 128
  num_heads: Width = 4
  d_ff: Width = 512
  num_layers: Annotated[int, between(1, 1000)] = 2
  dropout: Share = 0.3
  norm: Literal["pre", "post"] = "pre"
  norm_epsilon: Annotated[float, between(1e-12, 1)] = 1e-6  # added to the variance
  embed_scale: Literal["sqrt", "none"] = "sqrt"
  dtype: Literal["float32", "bfloat16"] = "float32"
  attention: Literal["auto", "reference", "blocked", "fused"] = "auto"
  window: Count | None = None  # how far an encoder's tokens see
  window_ends: Annotated[Literal["strict", "relaxed"], only_with("window")] = "strict"
  memory: Annotated[int, between(0, 2**20)] = 0  # slots of a language model's memory
  same_length: Annotated[bool, only_with("memory")] = False  # each token sees `memory` keys
  logits_by: Rule = "none"  # the factor of each query: see posexp/models/logits.py
  logits_length: Annotated[int, at_least(2)] | None = None
  logits_rate: Positive | None = None
  logits_in: Annotated[Literal["all", "full"], only_with("logits_by")] = "all"
  logits_scale: Positive = 1.0  # multiplies queries beside it
  match: Literal["none", "parameters", "flops"] = "none"  # see posexp/training/matching.py
  match_to: Annotated[str, only_with("match")] = "none"
  vectors: str | None = None  # for a classifier: see posexp/data/word_vectors.py

  def __post_init__(self):
    check(self)
    whole(self.d_model, self.num_heads)
    logits.check(self.logits_by, self.logits_rate, self.logits_length)

  @property
  def width(self) -> int:
    """The width of the vector from which a class is read."""
    return self.d_model

  def about(self, match: str = "") -> str:
    """Return a line for the header; `match` is text to put after the matched width."""
    heads, layers = counted(self.num_heads, "head"), counted(self.num_layers, "layer")
    width = f"d_ff {self.d_ff}{match}"
    return f"d_model {self.d_model}, {heads}, {layers}, {width}, {self.norm}-norm, {self.dtype}"

  def factor(self, layer: Layer) -> logits.Factor | None:
    """Return the factor of a layer's queries, None if it is 1."""
    everywhere = self.logits_in == "all" or (layer.window is None and layer.chunk is None)
    by = self.logits_by if everywhere else "none"
    if by == "none" and self.logits_scale == 1:
      return None
    given = self.logits_rate, self.logits_length, self.logits_scale
    return logits.Factor(by, self.num_heads, *given)


def drop(x: Array, rate: float, rngs: Rngs | None) -> Array:
  """Apply dropout; without `rngs`, as in evaluation, return x."""
  if rngs is None or rate == 0:
    return x
  return attention.Dropout(rate, rngs.dropout())(x)


class MultiHeadAttention(nnx.Module):
  """Multi-head attention. Projections have no bias, as in the paper."""

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
    self.num_heads = size.num_heads
    self.dropout, self.form, self.factor = size.dropout, size.attention, factor
    head_dim = whole(size.d_model, size.num_heads)
    if not cross:
      check_declared(encoding, size.d_model, causal=causal)

    def linear() -> Callable[[Array], Array]:
      return encoding.linear(size.d_model, size.d_model, bias=False, rngs=rngs.fork())

    self.query, self.key, self.value, self.out = linear(), linear(), linear(), linear()
    self.relation: Relation = (
      encoding.cross(size.num_heads, head_dim)
      if cross
      else encoding.relation(size.num_heads, head_dim, causal=causal, rngs=rngs.fork())
    )
    if not self.relation.uses_hidden:
      self.query = self.key = None
      if factor is not None:
        raise ValueError(
          f"{factor} multiplies queries, but here they do not come from hidden states"
        )
    self.relation.bind(self.query, self.key)
    self.key_columns, self.query_columns = (
      Columns()
      if cross
      else encoding.columns(size.d_model, size.num_heads, head_dim, causal=causal, rngs=rngs)
    )

  def heads(self, x: Array) -> Array:
    """Split features into heads, [B,L,F] -> [B,L,H,D]."""
    return x.reshape(*x.shape[:-1], self.num_heads, -1)

  def keys_values(self, x: Array) -> tuple[Array, Array, Any]:
    """Return keys and values of x [B,K,F], [B,K,H,D] each, before positions enter, and columns.

    Keys are [B,K,H,0] if the relation does not compute them from hidden states; see
    `Encoding.columns` for columns.
    """
    v = self.heads(self.value(x))
    k = v[..., :0] if self.key is None else self.heads(self.key(x))
    return k, v, self.key_columns and self.key_columns(x)

  def queries(self, x: Array) -> Array | None:
    """Return queries [B,Q,H,D] of x [B,Q,F]; None if they do not come from hidden states."""
    return None if self.query is None else self.heads(self.query(x))

  def asked(self, x: Array, columns: Any, span: Span) -> tuple[Array | None, Span]:
    """Return queries of x [B,Q,F] and the span with the columns of keys and of these queries.

    Both are multiplied by the factor.
    """
    q, asked = self.queries(x), self.query_columns and self.query_columns(x)
    if self.factor is not None:
      factor = self.factor(span)
      q = (q * factor).astype(q.dtype)
      asked = jax.tree.map(lambda each: each * factor, asked)
    return q, span.replace(key_columns=columns, query_columns=asked)

  def __call__(
    self, x: Array, k: Array, v: Array, columns: Any, span: Span, rngs: Rngs | None = None
  ) -> Array:
    """Compute attention of x [B,Q,F] to k, v [B,K,H,D] and their columns: [B,Q,F]."""
    dropout = None
    if rngs is not None and self.dropout:
      dropout = attention.Dropout(self.dropout, rngs.dropout())
    # Scaled terms are for diagnosis, which uses the definition.
    chosen = self.form if span.term_scale is None else "reference"
    form = attention.form_of(chosen, x.shape[1], k.shape[1], span.last)
    q, span = self.asked(x, columns, span)
    found = attention.attend(self.relation, q, k, v, span, dropout, form)
    return self.out(found.reshape(x.shape))


class FeedForward(nnx.Module):
  """relu(x W1 + b1) W2 + b2."""

  def __init__(self, encoding: Encoding, size: Size, *, rngs: Rngs):
    self.up = encoding.linear(size.d_model, size.d_ff, rngs=rngs.fork())
    self.down = encoding.linear(size.d_ff, size.d_model, rngs=rngs.fork())
    self.dropout = size.dropout

  def __call__(self, x: Array, rngs: Rngs | None = None) -> Array:
    return self.down(drop(jax.nn.relu(self.up(x)), self.dropout, rngs))


class Block(nnx.Module):
  """Self-attention, then attention to a source if there is one, then the feed-forward network."""

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
    def norm() -> Callable[[Array], Array]:
      return encoding.norm(size.d_model, epsilon=size.norm_epsilon, rngs=rngs.fork())

    self.attention = MultiHeadAttention(
      encoding, size, causal=causal, cross=False, factor=factor, rngs=rngs.fork()
    )
    self.attention_norm = norm()
    self.feed_forward = FeedForward(encoding, size, rngs=rngs.fork())
    self.feed_forward_norm = norm()
    if cross:
      self.cross = MultiHeadAttention(encoding, size, causal=False, cross=True, rngs=rngs.fork())
      self.cross_norm = norm()
    else:
      self.cross = self.cross_norm = None
    self.pre = size.norm == "pre"
    self.dropout = size.dropout

  def context(self, x: Array) -> Array:
    """Return the input of self-attention's keys and values for x [B,L,F]."""
    return self.attention_norm(x) if self.pre else x

  def __call__(
    self,
    x: Array,
    held: tuple[Array, Array, Any],
    span: Span,
    source: tuple | None = None,
    rngs: Rngs | None = None,
  ) -> Array:
    """Apply the block to x [B,Q,F], given keys, values and columns of the context: [B,Q,F]."""

    def add(x: Array, norm: Callable[[Array], Array], f: Callable[[Array], Array]) -> Array:
      if self.pre:
        return x + drop(f(norm(x)), self.dropout, rngs)
      return norm(x + drop(f(x), self.dropout, rngs))

    x = add(x, self.attention_norm, lambda y: self.attention(y, *held, span, rngs))
    if self.cross is not None:
      *keys_values, there = source
      there = there.replace(query=jnp.zeros((1, x.shape[1]), int))  # positions do not matter
      x = add(x, self.cross_norm, lambda y: self.cross(y, *keys_values, there, rngs))
    return add(x, self.feed_forward_norm, lambda y: self.feed_forward(y, rngs))
