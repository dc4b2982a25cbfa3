"""The first ideas for a vector per position, which explain why the others exist."""

from __future__ import annotations

import dataclasses
from typing import Annotated, ClassVar, Literal

import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import Array

from posexp.config.checks import Base, Count, Positive, between
from posexp.encodings.additive import Absolute, Sinusoid
from posexp.encodings.sinusoids import even


@dataclasses.dataclass(frozen=True)
class Index(Absolute):
  """x = w + scale · i · u, u = (1, −1, 1, −1, …)/√d: the position itself, along a direction.

  It has no bound: at i = √d it is as large as an untrained word, and the later a word stands, the
  more LayerNorm shrinks it. `direction` is `alternating`, this unit vector, or `constant`,
  u = (1, 1, …): i added to every channel. LayerNorm removes the mean of all channels, so it deletes
  a constant exactly: a pre-norm Transformer never sees it, and a post-norm one only in its first
  layer.
  """

  alternative = ("scale", 0.1)
  scale: Positive = 1.0
  direction: Literal["alternating", "constant"] = "alternating"

  def number(self, positions: Array, mask: Array | None) -> Array:
    """Return the number of each position, float32 [1 or B,L]."""
    return positions.astype(jnp.float32)

  def vector(self, features, rngs):
    return Ray(self, features)


class Ray(nnx.Module):
  """The encoding's number of each position, along one direction."""

  def __init__(self, encoding: Index, features: int):
    self.encoding = encoding
    self.features = features

  def __call__(self, positions: Array, mask: Array | None = None) -> Array:
    number = self.encoding.number(positions, mask)
    direction = np.ones(self.features, np.float32)
    if self.encoding.direction == "alternating":
      direction[1::2] = -1
      direction /= self.features**0.5
    return self.encoding.scale * number[..., None] * direction


@dataclasses.dataclass(frozen=True)
class Normalized(Index):
  """x = w + scale · (i / len) · u, u = (1, −1, 1, −1, …)/√d: the position as a share of len.

  It is bounded, and the step from word to word depends on the length. `len` is the number of real
  tokens of the sequence, or `length` if that is given. A causal stack needs `length`: i/len would
  tell every token how many are still to come. `direction` is as in `index`; beyond a given length,
  i/len exceeds 1.
  """

  alternative = ("scale", 10.0)
  length: Count | None = None

  def __post_init__(self):
    super().__post_init__()
    if self.at == "attention" and self.length is None:
      raise ValueError("length must be given with at=attention, where len would be a memory's, too")

  def number(self, positions, mask):
    length = self.length
    if length is None:
      length = positions.shape[1] if mask is None else jnp.maximum(mask.sum(1, keepdims=True), 1)
    return positions.astype(jnp.float32) / length

  def embed(self, vocab_size, features, *, scale, causal=False, rngs):
    if causal and self.length is None:
      raise ValueError(
        "length must be given where no token may look ahead, for i/len tells how many are to come"
      )
    return super().embed(vocab_size, features, scale=scale, causal=causal, rngs=rngs)


@dataclasses.dataclass(frozen=True)
class Binary(Absolute):
  """x = w + (b_0, b_1, …, 0, 0, …), b_m = ⌊i / 2^m⌋ mod 2: the position in binary.

  The least significant bit comes first, and zeros fill the rest. `signed` maps bits to ±1.
  Neighbors may be far apart: from 7 to 8 four bits flip. After 2^bits positions the vectors would
  repeat, so longer inputs are an error.
  """

  alternative = ("signed", False)
  limited_by: ClassVar[str] = "bits"
  bits: Annotated[int, between(1, 30)] = 10
  signed: bool = True

  @property
  def limit(self) -> int:
    return 2**self.bits

  def vector(self, features, rngs):
    if self.bits > features:
      raise ValueError(f"bits={self.bits} are more than the {features} channels of d_model")
    return Bits(self.bits, features, self.signed)


class Bits(nnx.Module):
  """The binary digits of a position, the least significant first; NaN if it has too many."""

  def __init__(self, bits: int, features: int, signed: bool):
    self.bits, self.features, self.signed = bits, features, signed

  def __call__(self, positions: Array, mask: Array | None = None) -> Array:
    digits = (positions[..., None] >> np.arange(self.bits)) & 1
    values = 2.0 * digits - 1 if self.signed else digits.astype(jnp.float32)
    there = (positions >= 0) & (positions < 2**self.bits)
    values = jnp.where(there[..., None], values, jnp.nan)
    return jnp.pad(values, [*[(0, 0)] * positions.ndim, (0, self.features - self.bits)])


@dataclasses.dataclass(frozen=True)
class Clock(Absolute):
  """x = w + (sin 2πi/T_0, cos 2πi/T_0, sin 2πi/T_1, …), T_j = period · base^j: hands of a clock.

  Periods grow by the factor `base` from hand to hand, not by base^(2/d) as in `sinusoidal`. So all
  but the first few hands stand still, however wide the vector is. With period and base 60 they are
  those of a clock that ticks once a word: seconds, minutes, … Distances wrap with the hands. Angles
  are computed in float64; at a period of 1 the first hand never moves.
  """

  alternative = ("period", 10.0)
  base: Base = 60.0
  period: Positive = 60.0

  def vector(self, features, rngs):
    # A power too small for float64 is 0, and so is the angle.
    turns = self.base ** -np.arange(even(features) // 2, dtype=np.float64) / self.period
    return Sinusoid(2 * np.pi * turns)
