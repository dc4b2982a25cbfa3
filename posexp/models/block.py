"""The parts of a Transformer: attention, the feed-forward network and a block of both."""

from __future__ import annotations

import dataclasses
import functools
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
  row_of,
)
from posexp.encodings import check_declared
from posexp.encodings.base import Columns, Encoding, Layer, Relation, whole
from posexp.encodings.rngs import Rngs
from posexp.encodings.span import Span
from posexp.errors import counted
from posexp.models import attention, logits
from posexp.models.parts import (
  BIASES,
  FEED_FORWARDS,
  PARTS,
  biased,
  check_unbound,
  norm_of,
  normed,
  qk_norm,
  repeated,
  to_all_heads,
)

WIDEST = 2**16
NORMS = {"layer": "norm", "layer_scale": "norm without bias", "rms": "RMS-norm"}
NORMS["rms_one"] = "RMS-norm of 1 + w"
BIAS = Bound(
  f"one of {', '.join(BIASES)}, or of {', '.join(PARTS)} joined by +",
  lambda bias: bias in BIASES or {*bias.split("+")} <= {*PARTS},
)
Norm = Callable[[Array], Array]
Width = Annotated[int, between(1, WIDEST)]
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
  num_kv_heads: Width | None = None  # of keys and values; None: as many as of queries
  head_dim: Width | None = None  # None: d_model / num_heads
  d_ff: Width = 512
  feed_forward: Annotated[str, row_of(FEED_FORWARDS)] = "relu"
  num_layers: Annotated[int, between(1, 1000)] = 2
  dropout: Share = 0.3
  norm: Literal["pre", "post", "sandwich", "output", "parallel"] = "pre"
  norm_kind: Literal["layer", "layer_scale", "rms", "rms_one"] = "layer"
  norm_epsilon: Annotated[float, between(1e-12, 1)] = 1e-6  # added to the variance
  first_norm: bool = True  # whether the first layer's attention has a norm before it
  qk_norm: bool = False  # of queries and keys, before positions
  qk_norm_over: Annotated[Literal["head", "all"], only_with("qk_norm")] = "head"
  output_gate: bool = False  # of attention
  bias: Annotated[str, BIAS] = "feed_forward"
  embed_scale: Literal["sqrt", "none"] = "sqrt"
  embed_norm: bool = False  # of the sum that enters the first layer
  token_types: Annotated[int, between(0, WIDEST)] = 0  # rows of a table beside that of words
  tie_embeddings: bool = False  # the table of words is the output layer, too
  dtype: Literal["float32", "bfloat16"] = "float32"
  attention: Literal["auto", "reference", "blocked", "fused"] = "auto"
  window: Count | None = None  # how far an encoder's tokens see
  window_ends: Annotated[Literal["strict", "relaxed"], only_with("window")] = "strict"
  memory: Annotated[int, between(0, 2**20)] = 0  # slots of a language model's memory
  same_length: Annotated[bool, only_with("memory")] = False  # each token sees `memory` keys
  logits_by: Rule = "none"  # the factor of each query: see posexp/models/logits.py
  logits_length: Annotated[int, at_least(2)] | None = None
  logits_growth: Positive | None = None
  logits_in: Annotated[Literal["all", "full"], only_with("logits_by")] = "all"
  logits_scale: Positive = 1.0  # multiplies queries beside it
  logits_cap: Positive | None = None  # c: logits e of attention become c·tanh(e/c)
  head_cap: Positive | None = None  # the same of the logits of words
  match: Literal["none", "parameters", "flops"] = "none"  # see posexp/training/matching.py
  match_to: Annotated[str, only_with("match")] = "none"
  vectors: str | None = None  # for a classifier: see posexp/data/word_vectors.py

  def __post_init__(self):
    check(self)
    logits.check(self.logits_by, self.logits_growth, self.logits_length)
    if self.num_heads % self.kv_heads:
      raise ValueError(
        f"num_heads={self.num_heads} is not divisible by num_kv_heads={self.num_kv_heads}"
      )
    if self.num_heads * self.width_of_head > WIDEST:
      raise ValueError(
        f"num_heads={self.num_heads} heads of head_dim={self.head_dim} are wider than {WIDEST}"
      )

  @property
  def width_of_head(self) -> int:
    """The width of a head."""
    return self.head_dim or whole(self.d_model, self.num_heads)

  @property
  def kv_heads(self) -> int:
    """The number of heads of keys and values; each serves as many heads of queries, in a row."""
    return self.num_kv_heads or self.num_heads

  def has_bias(self, part: str) -> bool:
    """Return whether linear maps of this part, as in BIASES, have a bias."""
    return part in biased(self.bias)

  @property
  def before(self) -> bool:
    """Whether the inputs of attention and of the feed-forward network are normed."""
    return self.norm in ("pre", "sandwich", "parallel")

  @property
  def behind(self) -> bool:
    """Whether their outputs are, before they are added."""
    return self.norm in ("sandwich", "output")

  @property
  def width(self) -> int:
    """The width of the vector from which a class is read."""
    return self.d_model

  def about(self, match: str = "") -> str:
    """Return a line for the header; `match` is text to put after the matched width."""
    heads, layers = counted(self.num_heads, "head"), counted(self.num_layers, "layer")
    wide = f" of {self.head_dim}" if self.head_dim else ""
    fewer = f" ({self.num_kv_heads} of keys and values)" if self.num_kv_heads else ""
    unit = "" if self.feed_forward == "relu" else f" {self.feed_forward}"
    named = {
      f"bias {self.bias}": self.bias != "feed_forward",
      "QK norm": self.qk_norm and self.qk_norm_over == "head",
      "QK norm over all heads": self.qk_norm_over == "all",
      "no first norm": not self.first_norm,
      "norm of embeddings": self.embed_norm,
      f"{self.token_types} token types": self.token_types > 0,
      f"logits capped at {self.logits_cap}": self.logits_cap is not None,
      f"words' logits capped at {self.head_cap}": self.head_cap is not None,
      "output gate": self.output_gate,
      "tied embeddings": self.tie_embeddings,
    }
    norm = f"{self.norm}-{NORMS[self.norm_kind]}"
    parts = [name for name, on in named.items() if on]
    width = f"d_ff {self.d_ff}{match}{unit}"
    sizes = f"d_model {self.d_model}", f"{heads}{wide}{fewer}", layers, width, norm
    return ", ".join([*sizes, *parts, self.dtype])

  def factor(self, layer: Layer) -> logits.Factor | None:
    """Return the factor of a layer's queries, None if it is 1."""
    everywhere = self.logits_in == "all" or (layer.window is None and layer.chunk is None)
    by = self.logits_by if everywhere else "none"
    if by == "none" and self.logits_scale == 1:
      return None
    given = self.logits_growth, self.logits_length, self.logits_scale
    return logits.Factor(by, self.num_heads, *given)


def drop(x: Array, rate: float, rngs: Rngs | None) -> Array:
  """Apply dropout; without `rngs`, as in evaluation, return x."""
  if rngs is None or rate == 0:
    return x
  return attention.Dropout(rate, rngs.dropout())(x)


class MultiHeadAttention(nnx.Module):
  """Multi-head attention: [z_1, …, z_H] W_O with z_h = Σ_j α_ij v_j.

  With `qk_norm`, an RMS norm over the width of each head, whose scale [D] all heads share, follows
  the maps of queries and keys; then keys are cached, and then positions enter (as in Qwen 3). It
  may also be over all heads at once (OLMo 2). With
  `output_gate`, z_h is multiplied by σ(x W_G)_h, where x is the input of the queries (Qiu et al.
  2025; Lin et al. 2025). Head h of the queries reads head ⌊h·G/H⌋ of the G heads of keys and values
  (Ainslie et al. 2023). All of this also holds for attention to a source.
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

    def linear(in_features: int, out_features: int, part: str) -> Callable[[Array], Array]:
      bias = size.has_bias(part)
      return encoding.linear(in_features, out_features, bias=bias, rngs=rngs.fork())

    self.query = linear(size.d_model, width, "qkv")
    self.key = linear(size.d_model, kv_width, "qkv")
    self.value = linear(size.d_model, kv_width, "qkv")
    self.out = linear(width, size.d_model, "out")
    self.relation: Relation = (
      encoding.cross(size.num_heads, head_dim)
      if cross
      else encoding.relation(size.num_heads, head_dim, causal=causal, rngs=rngs.fork())
    )
    if not self.relation.uses_hidden:
      check_unbound(encoding, size)
      self.query = self.key = None
      if factor is not None:
        raise ValueError(
          f"{factor} multiplies queries, but here they do not come from hidden states"
        )
    self.relation.bind(
      to_all_heads(self.query, size, size.num_heads), to_all_heads(self.key, size, size.kv_heads)
    )
    self.key_columns, self.query_columns = (
      Columns()
      if cross
      else encoding.columns(size.d_model, size.num_heads, head_dim, causal=causal, rngs=rngs)
    )
    # These draw after all other parts, which therefore start with the same values without them.
    self.gate = linear(size.d_model, width, "qkv") if size.output_gate else None
    self.over_all = size.qk_norm_over == "all"
    widths = (width, kv_width) if self.over_all else (head_dim, head_dim)
    self.query_norm, self.key_norm = (qk_norm(encoding, size, each, rngs) for each in widths)
    if size.logits_cap is not None and not cross:
      if type(self.relation).weights is not Relation.weights or not self.relation.uses_hidden:
        raise ValueError(
          f"logits_cap={size.logits_cap:g} is for encodings whose weights are the softmax of "
          "logits; leave it at null"
        )
      self.relation.cap = size.logits_cap

  def heads(self, x: Array) -> Array:
    """Split features of queries into heads, [B,L,H·D] -> [B,L,H,D]."""
    return normed(x, None, False, self.num_heads)

  def keys_values(self, x: Array) -> tuple[Array, Array, Any]:
    """Return keys and values of x [B,K,F], [B,K,G,D] each, before positions enter, and columns.

    Keys are [B,K,G,0] if the relation does not compute them from hidden states; see
    `Encoding.columns` for columns.
    """
    v = self.value(x)
    v = v.reshape(*v.shape[:-1], self.kv_heads, -1)
    columns = self.key_columns and self.key_columns(x)
    if self.key is None:
      return v[..., :0], v, columns
    return normed(self.key(x), self.key_norm, self.over_all, self.kv_heads), v, columns

  def queries(self, x: Array) -> Array | None:
    """Return queries [B,Q,H,D] of x [B,Q,F]; None if they do not come from hidden states."""
    if self.query is None:
      return None
    return normed(self.query(x), self.query_norm, self.over_all, self.num_heads)

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
    """Compute attention of x [B,Q,F] to k, v [B,K,G,D] and their columns: [B,Q,F]."""
    dropout = None
    if rngs is not None and self.dropout:
      dropout = attention.Dropout(self.dropout, rngs.dropout())
    # Scaled terms are for diagnosis, which uses the definition.
    chosen = self.form if span.term_scale is None else "reference"
    form = attention.form_for(chosen, span)
    q, span = self.asked(x, columns, span)
    k, v = (repeated(each, self.num_heads) for each in (k, v))
    found = attention.attend(self.relation, q, k, v, span, dropout, form)
    found = found.reshape(*x.shape[:-1], -1)
    return self.out(found if self.gate is None else found * jax.nn.sigmoid(self.gate(x)))


class FeedForward(nnx.Module):
  """f(x W1 + b1) W2 + b2, or (f(x W3 + b3) · (x W1 + b1)) W2 + b2 if it is gated (Shazeer 2020)."""

  def __init__(self, encoding: Encoding, size: Size, *, rngs: Rngs):
    def linear(*widths: int) -> Callable[[Array], Array]:
      return encoding.linear(*widths, bias=size.has_bias("feed_forward"), rngs=rngs.fork())

    self.unit = size.feed_forward
    self.up, self.down = linear(size.d_model, size.d_ff), linear(size.d_ff, size.d_model)
    self.gate = linear(size.d_model, size.d_ff) if FEED_FORWARDS[self.unit].gated else None
    self.dropout = size.dropout

  def __call__(self, x: Array, rngs: Rngs | None = None) -> Array:
    f, up = FEED_FORWARDS[self.unit].f, self.up(x)
    hidden = f(up) if self.gate is None else f(self.gate(x)) * up
    return self.down(drop(hidden, self.dropout, rngs))


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
    self.feed_forward = FeedForward(encoding, size, rngs=rngs.fork())
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
    self.before = size.before
    self.dropout = size.dropout

  def context(self, x: Array) -> Array:
    """Return the input of self-attention's keys and values for x [B,L,F]."""
    return self.attention_norm(x) if self.before and self.attention_norm is not None else x

  def __call__(
    self,
    x: Array,
    held: tuple[Array, Array, Any],
    span: Span,
    source: tuple | None = None,
    rngs: Rngs | None = None,
  ) -> Array:
    """Apply the block to x [B,Q,F], given keys, values and columns of the context: [B,Q,F]."""

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

    read = x
    after = self.attention_out_norm
    x = add(x, self.attention_norm, lambda y: self.attention(y, *held, span, rngs), after)
    if self.cross is not None:
      *keys_values, there = source
      there = there.replace(query=jnp.zeros((1, x.shape[1]), int))  # positions do not matter
      x = add(x, self.cross_norm, lambda y: self.cross(y, *keys_values, there, rngs))
    if self.norm == "parallel":
      return x + drop(self.feed_forward(self.feed_forward_norm(read), rngs), self.dropout, rngs)
    feed_forward = functools.partial(self.feed_forward, rngs=rngs)
    return add(x, self.feed_forward_norm, feed_forward, self.feed_forward_out_norm)
