"""A vector per position, added to the word's: learned and sinusoidal."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import ClassVar

import jax.numpy as jnp
from flax import nnx
from jax import Array

from posexp.encodings.base import Encoding, Words
from posexp.encodings.sinusoids import frequencies, sinusoids


class Sum(nnx.Module):
  """word + vector(position)."""

  def __init__(self, words: Words, vector: Callable[[Array], Array]):
    self.words = words
    self.vector = vector

  def __call__(self, tokens: Array, positions: Array, mask: Array | None = None) -> Array:
    return self.words(tokens) + self.vector(positions)


class Table(nnx.Module):
  """A trained row per position; NaN, never another position's row, where there is none."""

  def __init__(self, length: int, features: int, *, stddev: float, rngs: nnx.Rngs):
    init = nnx.initializers.normal(stddev)
    self.rows = nnx.Param(init(rngs.encoding(), (length, features)))

  def __call__(self, positions: Array) -> Array:
    rows = self.rows[...].at[positions]
    return rows.get(mode="fill", fill_value=jnp.nan, wrap_negative_indices=False)


class Sinusoid(nnx.Module):
  """PE(pos) = sin and cos of pos · base^(−2m/features) (Vaswani et al. 2017, section 3.5)."""

  def __init__(self, features: int, base: float, layout: str):
    frequencies(features, base)
    self.features, self.base, self.layout = features, base, layout

  def __call__(self, positions: Array) -> Array:
    sin, cos = sinusoids(positions, frequencies(self.features, self.base))
    if self.layout == "half":
      return jnp.concatenate([sin, cos], axis=-1)
    return jnp.stack([sin, cos], axis=-1).reshape(*positions.shape, self.features)


@dataclasses.dataclass(frozen=True)
class Learned(Encoding):
  """x = w + P[pos], P a trained table of `length` rows (Gehring et al. 2017; Devlin et al. 2019).

  Rows start from N(0, 0.02²), as in BERT. There is nothing beyond the last row: longer inputs
  are an error.
  """

  relative: ClassVar[bool] = False
  length: int = 512

  def __post_init__(self):
    if self.length < 1:
      raise ValueError(f"length must be at least 1, not {self.length}")

  @property
  def limit(self) -> int:
    return self.length

  def embed(self, vocab_size, features, *, scale, causal=False, rngs):
    words = Words(vocab_size, features, scale=scale, rngs=rngs)
    return Sum(words, Table(self.length, features, stddev=0.02, rngs=rngs))


@dataclasses.dataclass(frozen=True)
class Sinusoidal(Encoding):
  """x = w + PE(pos), sines and cosines of geometrically falling frequency (Vaswani et al. 2017).

  `layout` is how they lie in the vector: `interleaved` (sin, cos, sin, cos, as printed in the
  paper) or `half` (all sines, then all cosines, as in its released code).
  """

  relative: ClassVar[bool] = False
  base: float = 10000.0
  layout: str = "interleaved"

  def __post_init__(self):
    if self.base <= 1:
      raise ValueError(f"base must be above 1, not {self.base}")
    if self.layout not in ("interleaved", "half"):
      raise ValueError(f"layout must be interleaved or half, not {self.layout!r}")

  def embed(self, vocab_size, features, *, scale, causal=False, rngs):
    words = Words(vocab_size, features, scale=scale, rngs=rngs)
    return Sum(words, Sinusoid(features, self.base, self.layout))
