"""The parts of a Transformer: attention, the feed-forward network, a block of both, and norms."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array

from posexp.encodings import check_declared, name_of
from posexp.encodings.base import Columns, Encoding, Layer, LayerNorm, Relation
from posexp.encodings.rngs import Rngs
from posexp.encodings.span import Span
from posexp.kernels.gradients import mean, spread
from posexp.models import attention, logits
from posexp.models.convolution import Convolution, Mix, alone
from posexp.models.size import FEED_FORWARDS, Size
from posexp.models.tied import check_plain, tied

Norm = Callable[[Array], Array]


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
      bias = part in size.biased
      return encoding.linear(in_features, out_features, bias=bias, rngs=rngs.fork())

    maps = linear(size.d_model, width, "qkv"), linear(size.d_model, kv_width, "qkv")
    self.query, self.key = maps if cross else tied(*maps, encoding, size)
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
          f"{factor} needs queries made from hidden states, and {name_of(encoding)} has none"
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
    self.query_norm, self.key_norm = (
      qk_norm(encoding, size, each, rngs) if size.qk_norm else None for each in widths
    )
    if size.logits_cap is not None and not cross:
      if type(self.relation).weights is not Relation.weights or not self.relation.uses_hidden:
        raise ValueError(
          f"logits_cap={size.logits_cap:g} is for encodings whose weights are the softmax of "
          "logits; leave it at null"
        )
      self.relation.cap = size.logits_cap

  def maps(self, x: Array) -> tuple[Array, ...]:
    """Return values of x [B,K,F] and, if they are made of it, keys: [B,K,G·D] each."""
    return (self.value(x),) if self.key is None else (self.value(x), self.key(x))

  def keys_values(
    self, x: Array, maps: tuple[Array, ...] | None = None
  ) -> tuple[Array, Array, Any]:
    """Return keys and values of x [B,K,F], [B,K,G,D] each, before positions enter, and columns.

    Keys are [B,K,G,0] if the relation does not compute them from hidden states; see
    `Encoding.columns` for columns. `maps` stand for those of x.
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
      return encoding.linear(*widths, bias="feed_forward" in size.biased, rngs=rngs.fork())

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
    if self.attention.relation.sums_to_one is None:
      check_plain(encoding, size, factor)
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
    self.before = size.norm in ("pre", "sandwich", "parallel")  # whether the inputs are normed
    self.dropout = size.dropout
    # It draws after all other parts.
    self.conv_of, kv_width = size.conv_of, size.kv_heads * size.width_of_head
    widths = [kv_width] * (1 + (self.attention.key is not None))
    widths = [size.d_model] if size.conv_of == "input" else widths
    self.conv = Convolution(size.conv, widths, rngs=rngs.fork()) if size.conv else None

  def held(self, x: Array, mix: Mix = alone) -> tuple[Array, Array, Array, Any]:
    """Return the input [B,L,F] of self-attention for x [B,L,F]; its keys, values and columns.

    With a convolution, which is by `mix`, what it reads stands beside the columns.
    """
    normed = self.before and self.attention_norm is not None
    x = self.attention_norm(x) if normed else x
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
    """Apply the block to x [B,Q,F], given what is `held` of it and of its context: [B,Q,F]."""

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


class RMSNorm(nnx.Module):
  """x / √(mean x² + ε) · scale (Zhang & Sennrich 2019), computed in float32.

  Features may be `parts` interleaved vectors, as in `LayerNorm`. The result is rounded to the dtype
  of x after it is scaled, as in Gemma and OLMo 2; Llama rounds before. `above` is added to the
  scale: with 1, as in Gemma, the parameter is what the scale differs by from 1.
  """

  def __init__(self, features: int, *, parts: int = 1, epsilon: float = 1e-6, above: float = 0.0):
    self.parts, self.epsilon, self.above = parts, epsilon, above
    self.scale = nnx.Param(jnp.full(features, 1.0 - above))

  def __call__(self, x: Array) -> Array:
    wide = x.astype(jnp.float32)
    steepness = jax.lax.rsqrt(mean(wide * wide, self.parts) + self.epsilon)
    scale = self.scale[...].astype(jnp.float32) + self.above if self.above else self.scale[...]
    return (wide * spread(steepness, x.shape[-1]) * scale).astype(x.dtype)


def word_table(embed: Callable[..., Array]) -> tuple[nnx.Param, float] | None:
  """Return an embedding's table [V,D] of word vectors and its factor; None if it has no table.

  The table is that of the first module with a `word_table` and a `scale`.
  """
  for _, module in nnx.iter_modules(embed) if isinstance(embed, nnx.Module) else ():
    if hasattr(module, "word_table"):
      return module.word_table, module.scale
  return None


def check_untied(size: Size) -> None:
  """Raise ValueError if embeddings are to be tied in a model without an output layer for words."""
  if size.tie_embeddings:
    raise ValueError("tie_embeddings is for models that write words; leave it at false")


def norm_of(encoding: Encoding, features: int, size: Size, rngs: Rngs) -> Callable[[Array], Array]:
  """Build a norm of the chosen kind for `features` as the encoding has them: together or in parts.

  Raises:
    ValueError: the encoding has a norm of its own that is of no kind.
  """
  made = encoding.norm(features, epsilon=size.norm_epsilon, rngs=rngs)
  if size.norm_kind == "layer":
    return made
  return norm_like(made, encoding, size.norm_kind, "norm_kind at layer")


def norm_like(made: Any, encoding: Encoding, kind: str, otherwise: str) -> Callable[..., Array]:
  """Return a norm of another kind in place of an encoding's LayerNorm.

  Raises:
    ValueError: it is another norm; the message says to leave what `otherwise` says.
  """
  if type(made) is not LayerNorm:
    raise ValueError(f"{name_of(encoding)} has a norm of its own, so leave {otherwise}")
  given: dict[str, Any] = {"parts": made.parts, "epsilon": made.epsilon}
  if kind == "layer_scale":
    return LayerNorm(len(made.scale[...]), bias=False, **given)
  return RMSNorm(len(made.scale[...]), above=float(kind == "rms_one"), **given)


def qk_norm(encoding: Encoding, size: Size, width: int, rngs: Rngs) -> Any:
  """Return the norm of queries or keys, which is an RMS norm."""
  like = encoding.norm(width, epsilon=size.norm_epsilon, rngs=rngs.fork())
  kind = "rms_one" if size.norm_kind == "rms_one" else "rms"
  return norm_like(like, encoding, kind, "qk_norm at false")


def normed(x: Array, norm: Callable[[Array], Array] | None, over_all: bool, heads: int) -> Array:
  """Split x [B,L,H·D] into heads [B,L,H,D], with a norm before (over all of them) or after."""
  if norm is not None and over_all:
    x = norm(x)
  x = x.reshape(*x.shape[:-1], heads, -1)
  return x if norm is None or over_all else norm(x)


def repeated(x: Array, num_heads: int) -> Array:
  """Repeat each head of keys or values in a row, [B,K,G,D] -> [B,K,H,D] for H heads."""
  return x if x.shape[2] == num_heads else jnp.repeat(x, num_heads // x.shape[2], axis=2)


class ToAllHeads(nnx.Module):
  """A map to the `own` heads of queries or keys, with each repeated up to `heads`, and no bias."""

  def __init__(self, linear: Callable[[Array], Array], own: int, heads: int):
    self.linear, self.own, self.heads = linear, own, heads

  def __call__(self, x: Array) -> Array:
    y = self.linear(x) - self.linear(jnp.zeros_like(x[:1, :1]))
    found = repeated(y.reshape(*y.shape[:-1], self.own, -1), self.heads)
    return found.reshape(*y.shape[:-1], -1)


def to_all_heads(
  linear: Callable[[Array], Array] | None, size: Size, own: int
) -> Callable[[Array], Array] | None:
  """Return a layer's map of queries or keys, which has `own` heads, as `Relation.bind` gets it.

  It maps [1 or B,L,F] to all heads of queries, [1 or B,L,H·D], without a bias.
  """
  if linear is None or (own == size.num_heads and "qkv" not in size.biased):
    return linear
  return ToAllHeads(linear, own, size.num_heads)


def check_unbound(encoding: Encoding, size: Size) -> None:
  """Check that nothing is asked of queries and keys that are not made of hidden states.

  Raises:
    ValueError: they are to be normed or tied, or to have heads that are not d_model wide together.
  """
  plain = not size.qk_norm and size.qk == "free"
  if not plain or size.num_heads * size.width_of_head != size.d_model:
    raise ValueError(
      f"{name_of(encoding)} makes queries and keys of positions alone, by maps of its own, so "
      "leave qk_norm at false, qk at free and head_dim at null"
    )
