"""Models: a Stack with something on top."""

from __future__ import annotations

import jax.numpy as jnp
from flax import nnx
from jax import Array

from posexp.encodings.base import Encoding, Linear
from posexp.transformer import Size, Stack, drop


class Classifier(nnx.Module):
  """An encoder whose output is averaged over real tokens, or read at the first one ([CLS])."""

  def __init__(
    self,
    vocab_size: int,
    num_classes: int,
    encoding: Encoding,
    size: Size,
    *,
    first: bool = False,
    rngs: nnx.Rngs,
  ):
    self.stack = Stack(vocab_size, encoding, size, rngs=rngs.fork())
    self.head = Linear(size.d_model, num_classes, rngs=rngs.fork())
    self.first = first

  def __call__(self, tokens: Array, mask: Array, *, rngs: nnx.Rngs | None = None) -> Array:
    """tokens [B,L], mask bool [B,L] with a real token in every row -> logits [B,C], float32."""
    hidden = self.stack(tokens, mask, rngs=rngs).astype(jnp.float32)
    if self.first:
      summary = hidden[:, 0]
    else:
      counted = mask[:, :, None].astype(hidden.dtype)
      summary = (hidden * counted).sum(1) / counted.sum(1)
    return self.head(drop(summary, self.stack.size.dropout, rngs))
