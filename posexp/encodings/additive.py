"""A vector per position, combined with the word's at the input or in every layer's attention."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import ClassVar, Literal

import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import Array

from posexp.config.checks import Base, Count, Whole
from posexp.encodings.base import Encoding, Matrix, Relation, TokenEmbedding, scaled, width_of
from posexp.encodings.rngs import Rngs
from posexp.encodings.sinusoids import frequencies, sinusoids
from posexp.encodings.span import Span

# (positions [1 or B,L], mask [B,L] of real tokens or None) -> [1 or B,L,F].
Vector = Callable[[Array, Array | None], Array]


@dataclasses.dataclass(frozen=True)
class Absolute(Encoding):
  """A vector p per position, combined with the word's vector w.

  `combine` is `sum`, w + p; `concat`, [w; p] W with a trained W; or `product`, w · p in every
  channel. `at=attention` leaves the stream alone and adds p to the inputs of queries and keys, in
  every layer (position-infused attention, Press et al. 2021, section 5.1):
  e_ij = (x_i + p_i) W_Q · (x_j + p_j) W_K / √d, with values x_j W_V. So a memory can be read again.
  """

  relative: ClassVar[bool] = False
  in_blocks: ClassVar[tuple[str, ...]] = ("at",)
  combine: Literal["sum", "concat", "product"] = dataclasses.field(default="sum", kw_only=True)
  at: Literal["input", "attention"] = dataclasses.field(default="input", kw_only=True)

  def __post_init__(self):
    super().__post_init__()
    if self.at == "attention" and self.combine != "sum":
      raise ValueError("at=attention adds positions to queries and keys, so leave combine at sum")

  @property
  def acts_in(self) -> tuple[str, ...]:
    return (self.at,)

  @property
  def order_blind(self) -> bool:
    return self.combine != "product"

  @property
  def recurrent(self) -> bool:
    return self.at == "attention"

  def vector(self, features: int, rngs: Rngs) -> Vector:
    """Build the map from positions to their vectors."""
    raise NotImplementedError

  def embed(self, vocab_size, features, *, scale, causal=False, rngs):
    words = TokenEmbedding(vocab_size, features, scale=scale, rngs=rngs)
    if self.at == "attention":
      return words
    vector = self.vector(features, rngs)
    if self.combine == "concat":
      return WordAndPosition(words, vector, Concatenation(features, rngs=rngs))
    return WordAndPosition(words, vector, jnp.add if self.combine == "sum" else jnp.multiply)

  def relation(self, num_heads, head_dim, *, causal, rngs):
    return Relation() if self.at == "input" else Infused()

  def shared(self, num_heads, head_dim, *, causal, rngs, embed=None):
    if self.at == "input":
      return None
    return Rows(self.vector(width_of(embed, num_heads * head_dim), rngs))


class WordAndPosition(nnx.Module):
  """join(word, vector(position)), [...,F] each; `join` is their sum by default."""

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

  def __init__(self, features: int, *, rngs: Rngs):
    init = nnx.initializers.glorot_uniform()
    self.kernel = Matrix(init(rngs.encoding(), (2 * features, features)))

  def __call__(self, word: Array, position: Array) -> Array:
    of_word, of_position = jnp.split(self.kernel[...], 2)
    return word @ of_word + position @ of_position


class Rows(nnx.Module):
  """The vectors of a span's queries [1 or B,Q,F] and keys [1 or B,K,F]."""

  def __init__(self, vector: Vector):
    self.vector = vector

  def __call__(self, span: Span) -> tuple[Array, Array]:
    return self.vector(span.query, None), self.vector(span.key, None)


class Infused(Relation):
  """(q_i + p_i W_Q)·(k_j + p_j W_K) / √d, with the layer's own maps of queries and keys.

  Its terms are the four products of the sum, each on or off.
  """

  terms: ClassVar[tuple[str, ...]] = (
    "content",
    "content_to_position",
    "position_to_content",
    "position",
  )

  def bind(self, query, key):
    self.query, self.key = query, key

  def qk_and_bias(self, q, k, span):
    query, key = (
      project(rows.astype(k.dtype)).reshape(*rows.shape[:-1], *k.shape[2:])
      for project, rows in zip((self.query, self.key), span.shared, strict=True)
    )
    if span.term_scale is None:
      return scaled(q + query), k + key, None
    words, places = (
      span.keep(to_word, axis=2) * k + span.keep(to_place, axis=2) * key
      for to_word, to_place in (self.terms[:2], self.terms[2:])
    )
    asked = jnp.concatenate(jnp.broadcast_arrays(scaled(q), scaled(query)), axis=-1)
    return asked, jnp.concatenate([words, places], axis=-1), None


@dataclasses.dataclass(frozen=True)
class Learned(Absolute):
  """x = w + P[pos], P a trained table of `length` rows (Gehring et al. 2017; Devlin et al. 2019).

  Rows start from N(0, 0.02²), as in BERT; for a product, where that would nearly erase the words,
  from N(1, 0.02²). There is nothing beyond the last row: longer inputs are an error. `first` rows
  before that of position 0 have no position (RoBERTa: 2).
  """

  alternative = ("combine", "concat")
  length: Count = 512
  first: Whole = 0

  @property
  def limit(self) -> int:
    return self.length

  def vector(self, features, rngs):
    mean = 1.0 if self.combine == "product" else 0.0
    rows = self.length + self.first
    return Table(rows, features, first=self.first, mean=mean, stddev=0.02, rngs=rngs)


class Table(nnx.Module):
  """A trained row per position; beyond the table NaN, never another position's row."""

  def __init__(
    self,
    length: int,
    features: int,
    *,
    first: int = 0,
    mean: float = 0.0,
    stddev: float,
    rngs: Rngs,
  ):
    init = nnx.initializers.normal(stddev)
    self.first = first
    self.rows = nnx.Param(mean + init(rngs.encoding(), (length, features)))

  def __call__(self, positions: Array, mask: Array | None = None) -> Array:
    rows = self.rows[...].at[positions + self.first]
    return rows.get(mode="fill", fill_value=jnp.nan, wrap_negative_indices=False)


@dataclasses.dataclass(frozen=True)
class Sinusoidal(Absolute):
  """x = w + PE(pos), PE the sines and cosines of pos · base^(−2m/d) (Vaswani et al. 2017, 3.5).

  `layout` is their order in the vector: `interleaved` (sin, cos, sin, cos, as printed in the paper)
  or `half` (all sines, then all cosines, as in its released code). The code also divides by d/2 − 1
  where the paper has d/2; this follows the paper.
  """

  alternative = ("base", 100.0)
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
