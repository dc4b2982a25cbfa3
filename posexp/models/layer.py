"""An attention layer with an encoding, for any Flax module."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from flax import nnx
from jax import Array

from posexp.encodings.base import Encoding, Layer, whole
from posexp.encodings.rngs import Rngs
from posexp.encodings.span import Span
from posexp.models import block
from posexp.models.attention import ready
from posexp.models.size import Size


class Attention(nnx.Module):
  """Multi-head self-attention with the positions of an encoding.

    attention = posexp.Attention(posexp.encoding("rpr", k=4), 64, 4, causal=True, rngs=nnx.Rngs(0))
    y = attention(x)  # [B,L,64]

  Some encodings share parameters among layers (Transformer-XL's u and v, T5's table). Each layer
  here has its own, unless `share_with` is a layer to share them with.
  """

  def __init__(
    self,
    encoding: Encoding,
    d_model: int,
    num_heads: int,
    *,
    causal: bool = False,
    dropout: float = 0.0,
    share_with: Attention | None = None,
    rngs: nnx.Rngs,
  ):
    """Build the layer; the default stream of `rngs` is enough.

    Raises:
      ValueError: the encoding acts in the embedding or in linear maps, not in attention alone, or
        the width does not suit the encoding.
    """
    if more := [part for part in encoding.acts_in if part in ("input", "linear")]:
      raise ValueError(
        f"{type(encoding).__name__} changes more of a Transformer than attention ({more[0]}), so "
        "it needs posexp.Stack"
      )
    if any(layer != Layer(encoding) for layer in encoding.layers(2)):
      raise ValueError(
        f"{type(encoding).__name__} differs by layer: build one attention for each, with the "
        "encodings that its `layers` returns, or posexp.Stack, which has their windows, too"
      )
    size = Size(d_model=d_model, num_heads=num_heads, dropout=dropout)
    # Each layer draws new keys, also for the stream `encoding`, which `rngs` need not have.
    streams = Rngs(params=rngs.params(), encoding=rngs.params())
    self.attention = block.MultiHeadAttention(
      encoding, size, causal=causal, cross=False, rngs=streams
    )
    self.shared: Any = (
      encoding.shared(num_heads, whole(d_model, num_heads), causal=causal, rngs=streams)
      if share_with is None
      else share_with.shared
    )
    self.causal = causal

  def __call__(
    self,
    x: Array,
    mask: Array | None = None,
    *,
    positions: Array | None = None,
    rngs: nnx.Rngs | None = None,
  ) -> Array:
    """Compute attention of x [B,L,F], mask bool [B,L] of real tokens, padding last -> [B,L,F].

    `positions`, int [1 or B,L] and below L, default to 0, 1, 2, … Dropout needs `rngs`.
    """
    real = jnp.ones((1, x.shape[1]), bool) if mask is None else mask
    known = {"max_position": None if positions is None else x.shape[1], "padding_last": True}
    span = Span.within(positions, real[:, None], self.causal, **known)
    span = ready(span, self.shared, self.attention.form)
    return self.attention(x, *self.attention.keys_values(x), span, rngs)
