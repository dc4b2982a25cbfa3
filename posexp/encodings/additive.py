"""A vector per position, joined with the word's at the input: learned and sinusoidal."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import ClassVar, Literal

import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import Array

from posexp.config.checks import Base, Count
from posexp.encodings.base import Encoding, TokenEmbedding
from posexp.encodings.sinusoids import frequencies, sinusoids

# Of positions [1 or B,L] and, or None, the mask [B,L] of real tokens: [1 or B,L,F].
Vector = Callable[[Array, Array | None], Array]


@dataclasses.dataclass(frozen=True)
class Absolute(Encoding):
  """A vector p per position, and how it meets the word's vector w.

  `combine` is `sum`, w + p; `concat`, [w; p] W with a trained W; or `product`, w · p in every
  channel.
  """

  relative: ClassVar[bool] = False
  combine: Literal["sum", "concat", "product"] = dataclasses.field(default="sum", kw_only=True)

  def vector(self, features: int, rngs: nnx.Rngs) -> Vector:
    """What gives the positions' vectors."""
    raise NotImplementedError

  def embed(self, vocab_size, features, *, scale, causal=False, rngs):
    words = TokenEmbedding(vocab_size, features, scale=scale, rngs=rngs)
    vector = self.vector(features, rngs)
    if self.combine == "concat":
      return WordAndPosition(words, vector, Concatenation(features, rngs=rngs))
    return WordAndPosition(words, vector, jnp.add if self.combine == "sum" else jnp.multiply)


class WordAndPosition(nnx.Module):
  """join(word, vector(position)): their sum, unless `join` is another function of [...,F] twice."""

  def __init__(
    self,
    words: TokenEmbedding,
    vector: Vector,
    join: Callable[[Array, Array], Array] = jnp.add,
  ):
    self.words = words
    self.vector = vector
    self.join = join

  def __call__(self, tokens: Array, positions: Array, mask: Array | None = None) -> Array:
    return self.join(self.words(tokens), self.vector(positions, mask))


class Concatenation(nnx.Module):
  """[word; position] W, with W [2F,F] Glorot uniform."""

  def __init__(self, features: int, *, rngs: nnx.Rngs):
    init = nnx.initializers.glorot_uniform()
    self.kernel = nnx.Param(init(rngs.encoding(), (2 * features, features)))

  def __call__(self, word: Array, position: Array) -> Array:
    of_word, of_position = jnp.split(self.kernel[...], 2)
    return word @ of_word + position @ of_position


@dataclasses.dataclass(frozen=True)
class Learned(Absolute):
  """x = w + P[pos], P a trained table of `length` rows (Gehring et al. 2017; Devlin et al. 2019).

  Rows start from N(0, 0.02²), as in BERT; for a product, where that would put the words out, from
  N(1, 0.02²). There is nothing beyond the last row: longer inputs are an error.
  """

  length: Count = 512

  @property
  def limit(self) -> int:
    return self.length

  def vector(self, features, rngs):
    mean = 1.0 if self.combine == "product" else 0.0
    return Table(self.length, features, mean=mean, stddev=0.02, rngs=rngs)


class Table(nnx.Module):
  """A trained row per position; NaN, never another position's row, where there is none."""

  def __init__(
    self, length: int, features: int, *, mean: float = 0.0, stddev: float, rngs: nnx.Rngs
  ):
    init = nnx.initializers.normal(stddev)
    self.rows = nnx.Param(mean + init(rngs.encoding(), (length, features)))

  def __call__(self, positions: Array, mask: Array | None = None) -> Array:
    rows = self.rows[...].at[positions]
    return rows.get(mode="fill", fill_value=jnp.nan, wrap_negative_indices=False)


@dataclasses.dataclass(frozen=True)
class Sinusoidal(Absolute):
  """x = w + PE(pos), PE the sines and cosines of pos · base^(−2m/d) (Vaswani et al. 2017, 3.5).

  `layout` is how they lie in the vector: `interleaved` (sin, cos, sin, cos, as printed in the
  paper) or `half` (all sines, then all cosines, as in its released code, which also divides by
  d/2 − 1 where the paper has d/2: this is the paper's).
  """

  base: Base = 10000.0
  layout: Literal["interleaved", "half"] = "interleaved"

  def vector(self, features, rngs):
    return Sinusoid(frequencies(features, self.base), self.layout)


class Sinusoid(nnx.Module):
  """sin and cos of position · ω_m: channels 2m and 2m + 1, or all sines and then all cosines."""

  def __init__(self, omega: np.ndarray, layout: str = "interleaved"):
    self.omega = tuple(omega.tolist())
    self.layout = layout

  def __call__(self, positions: Array, mask: Array | None = None) -> Array:
    sin, cos = sinusoids(positions, np.array(self.omega))
    if self.layout == "half":
      return jnp.concatenate([sin, cos], axis=-1)
    return jnp.stack([sin, cos], axis=-1).reshape(*positions.shape, 2 * len(self.omega))
