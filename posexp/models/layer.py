"""Attention with an encoding for a Flax module of one's own."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from flax import nnx
from jax import Array

from posexp.encodings.base import Encoding, whole
from posexp.encodings.rngs import Rngs
from posexp.encodings.span import Span
from posexp.models import block
from posexp.models.attention import ready
from posexp.models.block import Size


class Attention(nnx.Module):
  """Multi-head self-attention whose positions are those of an encoding.

    attention = posexp.Attention(posexp.encoding("rpr", k=4), 64, 4, causal=True, rngs=nnx.Rngs(0))
    y = attention(x)  # [B,L,64]

  What the layers of a model share by the encoding's paper (Transformer-XL's u and v, T5's table)
  each layer here has on its own, unless it is given the layer with which it shares it.
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
    """Builds the layer from `rngs`, of which the default stream is enough.

    Raises:
      ValueError: the encoding enters by the embedding or by linear maps and not by attention, or
        the width does not suit it.
    """
    for part in ("embed", "linear"):
      if part == "embed" and encoding.relative:  # which puts no position there
        continue
      if getattr(type(encoding), part) is not getattr(Encoding, part):
        raise ValueError(
          f"{type(encoding).__name__} changes more of a Transformer than attention ({part}), so it "
          "needs posexp.Stack"
        )
    size = Size(d_model=d_model, num_heads=num_heads, dropout=dropout)
    # Each layer draws anew: a fork of the user's streams has those of an encoding, too.
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
    """x [B,L,F], mask bool [B,L] of real tokens, which come before padding -> [B,L,F].

    `positions` int [1 or B,L] are 0, 1, 2, … unless they are given, and then below L. Dropout needs
    `rngs`.
    """
    consecutive = positions is None
    if positions is None:
      positions = jnp.arange(x.shape[1])[None]
    real = jnp.ones((1, x.shape[1]), bool) if mask is None else mask
    span = Span(
      positions,
      positions,
      real[:, None],
      self.causal,
      max_position=None if consecutive else x.shape[1],
      consecutive=consecutive,
      padding_last=True,
    )
    span = ready(span, self.shared, self.attention.form)
    return self.attention(x, *self.attention.keys_values(x), span, rngs)
