"""Content and position, apart or together (Kitaev & Klein 2018)."""

from __future__ import annotations

import dataclasses
from typing import ClassVar, Literal

import jax.numpy as jnp
from flax import nnx

from posexp.config.checks import Count
from posexp.encodings.additive import Rows, Table, WordAndPosition
from posexp.encodings.base import (
  Encoding,
  LayerNorm,
  Linear,
  Matrix,
  Relation,
  TokenEmbedding,
  scaled,
)
from posexp.encodings.paired import Paired, half, interleave
from posexp.encodings.rngs import Rngs

STREAMS = ("content", "position")


@dataclasses.dataclass(frozen=True)
class Split(Encoding):
  """Content and position, in the four forms that Kitaev & Klein 2018 compare (section 3).

  `factored`: two streams of half the width, and every map is block-diagonal, in attention and in
  the feed-forward network, so q·k = q_c·k_c + q_p·k_p. `attention` keeps both terms or only one.
  `concatenated`: x = [w; p], halves of the width, and ordinary maps, which mix them. `added`:
  x = w + p. `position_only`: x = w + p, but in every layer queries and keys are made of p, the
  table's row itself, and only values are made of the stream.

  Positions are learned, `length` of them, from N(0, 1). `norms` are for `factored`: `separate`
  norms each stream on its own; `joint` norms both together, as the authors do, so that words leak
  into the position stream. Logits are divided by √D; the authors' code of 2018 divides by √d_model.
  """

  alternative = ("norms", "joint")
  relative: ClassVar[bool] = False
  order_blind: ClassVar[bool] = True
  length: Count = 512
  attention: Literal["both", "content", "position"] = "both"
  form: Literal["factored", "concatenated", "added", "position_only"] = "factored"
  norms: Literal["separate", "joint"] = "separate"

  def __post_init__(self):
    super().__post_init__()
    if self.form != "factored" and (self.attention, self.norms) != ("both", "separate"):
      raise ValueError(f"form={self.form} has one stream, so leave attention and norms alone")

  @property
  def limit(self) -> int:
    return self.length

  @property
  def acts_in(self) -> tuple[str, ...]:
    if self.form == "factored":
      return ("input", "linear", *["norms"] * (self.norms == "separate"), "attention")
    return ("input", "attention") if self.form == "position_only" else ("input",)

  @property
  def in_blocks(self) -> tuple[str, ...]:
    return ("attention", "norms", *["form"] * (self.form == "position_only"))

  @property
  def paired(self) -> bool:
    return self.form in ("factored", "concatenated")

  def embed(self, vocab_size, features, *, scale, causal=False, rngs):
    width = half(features) if self.paired else features
    words = TokenEmbedding(vocab_size, width, scale=scale, rngs=rngs)
    table = Table(self.length, width, stddev=1.0, rngs=rngs)
    return WordAndPosition(words, table, interleave if self.paired else jnp.add)

  def linear(self, in_features, out_features, *, bias=True, rngs):
    linear = SplitLinear if self.form == "factored" else Linear
    return linear(in_features, out_features, bias=bias, rngs=rngs)

  def norm(self, features, *, epsilon=1e-6, rngs):
    separate = self.form == "factored" and self.norms == "separate"
    return LayerNorm(features, parts=2 if separate else 1, epsilon=epsilon)

  def relation(self, num_heads, head_dim, *, causal, rngs):
    if self.form == "position_only":
      return PositionOnly(num_heads, head_dim, rngs=rngs)
    if self.form != "factored":
      return Relation()
    half(head_dim)
    return Factored(STREAMS if self.attention == "both" else (self.attention,))

  def shared(self, num_heads, head_dim, *, causal, rngs, embed=None):
    return Rows(embed.vector) if self.form == "position_only" else None


class SplitLinear(Paired):
  """Content to content by A, position to position by B."""

  def blocks(self):
    a, b = self.kernel_a[...], self.kernel_b[...]
    return (a, jnp.zeros_like(a)), (jnp.zeros_like(b), b)


class Factored(Relation):
  """q·k of the chosen streams, each on the scale of both."""

  def __init__(self, terms: tuple[str, ...]):
    self.terms = terms

  def qk_and_bias(self, q, k, span):
    query = scaled(q)
    if self.terms != STREAMS:
      stream = slice(STREAMS.index(self.terms[0]), None, 2)
      return span.keep(self.terms[0], axis=2) * query[..., stream], k[..., stream], None
    if span.term_scale is not None:
      parts = (span.keep(term, axis=2) * query[..., i::2] for i, term in enumerate(STREAMS))
      query = interleave(*parts)
    return query, k, None


class PositionOnly(Relation):
  """W_Q p_i · W_K p_j / √D: the same weights for every text, as in a convolution."""

  terms: ClassVar[tuple[str, ...]] = ("position",)
  uses_hidden: ClassVar[bool] = False

  def __init__(self, num_heads: int, head_dim: int, *, rngs: Rngs):
    init = nnx.initializers.glorot_uniform()
    features = num_heads * head_dim
    shape = (features, num_heads, head_dim)
    self.query_kernel = Matrix(init(rngs.encoding(), (features, features)).reshape(shape))
    self.key_kernel = Matrix(init(rngs.encoding(), (features, features)).reshape(shape))

  def qk_and_bias(self, q, k, span):
    query, key = (
      jnp.einsum("blf,fhd->blhd", rows.astype(k.dtype), kernel[...].astype(k.dtype))
      for rows, kernel in zip(span.shared, (self.query_kernel, self.key_kernel), strict=True)
    )
    query = span.keep("position", axis=2) * scaled(query)
    return *(jnp.broadcast_to(part, (len(k), *part.shape[1:])) for part in (query, key)), None
