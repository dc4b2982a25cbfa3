"""An encoder that writes the words of masked tokens, as BERT is trained (Devlin et al. 2019)."""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp
from flax import nnx
from jax import Array

from posexp.encodings.base import Encoding, Linear
from posexp.encodings.rngs import Rngs
from posexp.models.cross_entropy import Reader, Writer
from posexp.models.norms import norm_of
from posexp.models.positions import CONSECUTIVE, Positions
from posexp.models.size import FEED_FORWARDS, Size
from posexp.models.transformer import Stack


@dataclasses.dataclass(frozen=True)
class MaskedSpec:
  """All that such a model is built from; equal specifications build equal models."""

  vocab_size: int
  encoding: Encoding
  size: Size
  head: tuple[str, bool, bool] | None  # activation, a bias before it, a bias of words; or no head
  positions: Positions = CONSECUTIVE

  def build(self, rngs: Rngs) -> Masked:
    """Build the model with weights drawn from `rngs`; ValueError if the sizes do not suit."""
    return Masked(self, rngs=rngs)


class Masked(Writer):
  """norm(f(x W + b)) of an encoder's output x, and then words: their table, or a matrix.

  Without a head it gives the encoder's output itself.
  """

  def __init__(self, spec: MaskedSpec, *, rngs: Rngs):
    size = spec.size
    self.stack = Stack(spec.vocab_size, spec.encoding, size, rngs=rngs.fork())
    # In RoBERTa, whose table begins with rows that no position has, the last of these is padding's,
    # and the same number is that of padding as a word.
    self.padding = getattr(spec.encoding, "first", 0) - 1
    self.writes = spec.head is not None
    if not self.writes:
      return
    self.activation, first, last = spec.head
    self.transform = Linear(size.d_model, size.d_model, bias=first, rngs=rngs.fork())
    self.transform_norm = norm_of(spec.encoding, size.d_model, size, rngs.fork())
    self.head = self.make_head(spec.vocab_size, size, rngs.fork())
    self.bias = nnx.Param(jnp.zeros(spec.vocab_size)) if last else None

  @property
  def stacks(self) -> tuple[Stack, ...]:
    """The only stack."""
    return (self.stack,)

  @property
  def reader(self) -> Reader:
    """The output layer."""
    return dataclasses.replace(super().reader, bias=None if self.bias is None else self.bias[...])

  def __call__(
    self,
    tokens: Array,
    mask: Array | None = None,
    *,
    positions: Array | None = None,
    types: Array | None = None,
  ) -> Array:
    """Map tokens [B,L], mask bool [B,L] to logits [B,L,V], or to hidden states [B,L,F].

    Padding may stand anywhere. `positions` and `types` int [B,L] are as in `Stack`.
    """
    x = self.stack(tokens, mask, positions=positions, types=types, padding_last=False)
    if not self.writes:
      return x
    x = self.transform_norm(FEED_FORWARDS[self.activation].f(self.transform(x)))
    return self.reader.logits(x)
