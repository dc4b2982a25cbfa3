"""Relations that know the offset between query and key: RPR and Transformer-XL."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, ClassVar, Literal

import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import Array

from posexp.config.checks import Base, Whole
from posexp.encodings.additive import Sinusoidal, WordAndPosition
from posexp.encodings.base import Encoding, Matrix, Relation, Setting, scaled
from posexp.encodings.rngs import Rngs
from posexp.encodings.sinusoids import frequencies, sinusoids
from posexp.encodings.span import Span
from posexp.kernels.gradients import add_bias, matmul
from posexp.kernels.lookup import by_key, by_offset


@dataclasses.dataclass(frozen=True)
class RPR(Encoding):
  """Relative position representations, clipped at distance k (Shaw, Uszkoreit & Vaswani 2018).

  e_ij = q_i · (k_j + a^K_c) / √d,  z_i = Σ_j α_ij (v_j + a^V_c),  c = clip(j − i, −k, k).
  One table of 2k+1 vectors for keys and one for values in each layer. `share` says who shares
  them: the `heads` of a layer, as in the authors' code and the paper's big model; `none`, a table
  per head as the paper says of its base model; or all `layers` and their heads. k=0 has no
  positions: the key term falls away in the softmax. `beyond` k the last vector is used (`last`) or
  none (`zero`, as in the authors' second implementation, of Music Transformer). `absolute` adds
  sinusoids to the words as well, which the authors saw no gain from. `table` is the largest k that
  the tables have room for (null: k itself). With one `table`, all k train in one compiled program,
  and start from the same vectors.
  """

  alternative = ("k", 4)
  order_blind: ClassVar[bool] = True
  k: Whole = 16
  keys: bool = True
  values: bool = True
  share: Literal["heads", "none", "layers"] = "heads"
  table: Whole | None = None
  beyond: Literal["last", "zero"] = "last"
  absolute: Literal["none", "sinusoidal"] = "none"

  def __post_init__(self):
    super().__post_init__()
    if self.table is not None and self.table < self.k:
      raise ValueError(f"table must be at least k={self.k}, not {self.table}")

  @property
  def relative(self) -> bool:
    return self.absolute == "none"

  @property
  def acts_in(self) -> tuple[str, ...]:
    return ("attention",) if self.relative else ("input", "attention")

  @property
  def in_blocks(self) -> tuple[str, ...]:
    return () if self.relative else ("k", "keys", "values", "share", "table", "beyond")

  def embed(self, vocab_size, features, *, scale, causal=False, rngs):
    words = super().embed(vocab_size, features, scale=scale, causal=causal, rngs=rngs)
    if self.absolute == "none":
      return words
    return WordAndPosition(words, Sinusoidal().vector(features, rngs))

  def rows_of(self, offsets, *, causal):
    beyond = np.abs(offsets) > self.k
    rows = np.clip(offsets, -self.k, self.k)
    return rows if self.beyond == "last" else np.ma.array(rows, mask=beyond)

  def relation(self, num_heads, head_dim, *, causal, rngs):
    return ClippedOffset(self, num_heads, head_dim, rngs=rngs)

  def shared(self, num_heads, head_dim, *, causal, rngs, embed=None):
    return Tables(self, num_heads, head_dim, rngs=rngs) if self.share == "layers" else None


class ClippedOffset(Relation):
  """A vector per clipped offset, added to keys, to values or to both (Shaw et al. 2018, eq. 3, 4).

  Nothing of shape [Q,K,D] is formed: queries are multiplied with the vectors and the products are
  looked up by offset; weights are summed by offset and then multiplied with the vectors.
  """

  def __init__(self, encoding: RPR, num_heads: int, head_dim: int, *, rngs: Rngs):
    self.terms = ("content", *["keys"] * encoding.keys, *["values"] * encoding.values)
    own = encoding.share != "layers"
    self.tables = Tables(encoding, num_heads, head_dim, rngs=rngs) if own else None

  def tables_of(self, span: Span) -> Tables:
    """Return the layer's own tables, or those that all layers share."""
    return span.shared if self.tables is None else self.tables

  def score(self, q, k, span):
    logits = super().score(q, k, span)
    tables = self.tables_of(span)
    if tables.keys is None:
      return logits
    keys = tables.vectors(tables.keys).astype(q.dtype)
    products = product(scaled(q).swapaxes(1, 2), keys.swapaxes(-1, -2))
    return logits + span.keep("keys") * by_key(products, span.offset, span.consecutive)

  def combine(self, weights, v, span):
    summed = super().combine(weights, v, span)
    tables = self.tables_of(span)
    if tables.values is None:
      return summed
    # The farthest offsets sum over most keys: in bfloat16 2,048 weights of 1/2048 add up to 1/8.
    sums = by_offset(weights.astype(jnp.float32), span.offset, span.consecutive, tables.far)
    sums = span.keep("values") * sums.astype(v.dtype)
    values = tables.vectors(tables.values).astype(v.dtype)
    return summed + product(sums, values).swapaxes(1, 2)


class Tables(nnx.Module):
  """Vectors of keys and of values for the offsets from −k to k, in the middle of their tables.

  k is traced: the program is the same for every k that the tables have room for.
  """

  def __init__(self, encoding: RPR, num_heads: int, head_dim: int, *, rngs: Rngs):
    self.largest = encoding.k if encoding.table is None else encoding.table
    self.beyond = encoding.beyond
    self.k = Setting(jnp.asarray(encoding.k))
    shape: tuple[int, ...] = (2 * self.largest + 1, head_dim)
    init = nnx.initializers.glorot_uniform()
    if encoding.share == "none":
      shape, init = (num_heads, *shape), nnx.initializers.glorot_uniform(batch_axis=0)
    self.keys = nnx.Param(init(rngs.encoding(), shape)) if encoding.keys else None
    self.values = nnx.Param(init(rngs.encoding(), shape)) if encoding.values else None

  @property
  def far(self) -> int:
    """The bound, at least 1, to which offsets are clipped."""
    return max(self.largest + (self.beyond == "zero"), 1)

  def vectors(self, table: nnx.Param) -> Array:
    """Return the vectors of the distinct clipped offsets, −far … far: [R,D] or [H,R,D]."""
    offset, k = jnp.arange(-self.far, self.far + 1), self.k[...]
    row = jnp.clip(offset, -k, k) + self.largest
    if self.beyond == "zero":  # a row beyond the table gives 0
      row = jnp.where(jnp.abs(offset) > k, 2 * self.largest + 1, row)
    return jnp.take(table[...], row, axis=-2, mode="fill", fill_value=0)

  def __call__(self, span: Span) -> Tables:
    return self


def product(x: Array, vectors: Array) -> Array:
  """Multiply x [B,H,Q,M] by vectors, [M,N] for all heads or [H,M,N] for each."""
  return matmul(x, vectors) if vectors.ndim == 2 else x @ vectors


@dataclasses.dataclass(frozen=True)
class TransformerXL(Encoding):
  """Relative encoding with a content and a position bias (Dai et al. 2019, section 3.3).

  A_ij = (a) q_i·k_j + (b) q_i·W_kR R(i−j) + (c) u·k_j + (d) v·W_kR R(i−j), all over √d, with R the
  sinusoids of the distance. `share_biases` makes all layers share u and v, as the paper prints
  them; its TensorFlow code shares them only in character-level models (`untie_r`), its PyTorch code
  always. In an encoder, which the paper does not treat, distances are signed. `clamp` is the
  largest distance, in an encoder on either side; farther ones are clipped to it (`clamp_len` in the
  authors' code, for memories longer than in training).
  """

  alternative = ("base", 100.0)
  a: bool = True
  b: bool = True
  c: bool = True
  d: bool = True
  share_biases: bool = True
  base: Base = 10000.0
  clamp: Whole | None = None

  def __post_init__(self):
    super().__post_init__()
    if not self.terms:
      raise ValueError("a, b, c and d are all off, so there is nothing to attend by")

  @property
  def terms(self) -> str:
    """The letters of the terms that are on."""
    return "".join(term for term in "abcd" if getattr(self, term))

  def relation(self, num_heads, head_dim, *, causal, rngs):
    return FourTerms(self, num_heads, head_dim, causal, rngs=rngs)

  def shared(self, num_heads, head_dim, *, causal, rngs, embed=None):
    return Biases(self.terms, num_heads, head_dim, rngs=rngs) if self.share_biases else None


class FourTerms(Relation):
  """The four terms of a Transformer-XL score, each on or off."""

  def __init__(
    self, encoding: TransformerXL, num_heads: int, head_dim: int, causal: bool, *, rngs: Rngs
  ):
    self.terms = tuple(encoding.terms)
    self.base, self.clamp = encoding.base, encoding.clamp
    self.causal = causal
    features = num_heads * head_dim
    init = nnx.initializers.glorot_uniform()
    if "b" in self.terms or "d" in self.terms:
      frequencies(features, self.base)
      kernel = init(rngs.encoding(), (features, features))
      self.distance_kernel = Matrix(kernel.reshape(features, num_heads, head_dim))  # W_kR
    own = not encoding.share_biases
    self.biases = Biases(self.terms, num_heads, head_dim, rngs=rngs) if own else None

  def qk_and_bias(self, q, k, span):
    u, v = self.biases(span) if self.biases else span.shared
    query, bias = self.query(span, q, "a", u, "c"), None
    if "b" in self.terms or "d" in self.terms:
      bias = self.by_distance(self.query(span, q, "b", v, "d"), span)
    return jnp.broadcast_to(query, q.shape), k, bias

  def query(self, span: Span, q: Array, own: str, bias: Array | None, common: str) -> Array:
    """Return (q + bias) / √d, q if `own` is on and bias if `common` is: [1 or B,1 or Q,H,D]."""
    asked = span.keep(own, axis=2) * q if own in self.terms else jnp.zeros_like(q[:1, :1])
    if common in self.terms:
      asked = add_bias(asked, span.keep(common, axis=2) * bias.astype(q.dtype)[None, None])
    return scaled(asked)

  def distances(self, span: Span, dtype: Any) -> Array:
    """Return W_kR R(i−j), [R,H,D], for the offsets of the window."""
    distance = -span.window
    if self.clamp is not None:
      distance = jnp.clip(distance, None if self.causal else -self.clamp, self.clamp)
    # sin(−x) = −sin x and cos(−x) = cos x: if both x and −x occur, one product serves both.
    size, index = jnp.abs(distance), jnp.arange(len(distance))
    if span.self_attention or not span.consecutive:
      size, index = jnp.arange(span.farthest + 1), size
    kernel = self.distance_kernel[...]
    waves = sinusoids(size, frequencies(len(kernel), self.base))
    sin, cos = (
      jnp.einsum("rf,fhd->rhd", wave.astype(dtype), half.astype(dtype))[index]
      for wave, half in zip(waves, jnp.split(kernel, 2), strict=True)
    )
    return jnp.sign(distance).astype(dtype)[:, None, None] * sin + cos

  def by_distance(self, position: Array, span: Span) -> Array:
    """Return position · W_kR R(i−j), [B,H,Q,K], for position [1 or B,1 or Q,H,D]."""
    return span.products(position, self.distances(span, position.dtype))


class Biases(nnx.Module):
  """u and v [H,D], added to every query in its products with contents and with distances."""

  def __init__(self, terms: Sequence[str], num_heads: int, head_dim: int, *, rngs: Rngs):
    init = nnx.initializers.normal(0.02)
    shape = (num_heads, head_dim)
    self.u = nnx.Param(init(rngs.encoding(), shape)) if "c" in terms else None
    self.v = nnx.Param(init(rngs.encoding(), shape)) if "d" in terms else None

  def __call__(self, span: Span) -> tuple[Array | None, Array | None]:
    return tuple(None if bias is None else bias[...] for bias in (self.u, self.v))
