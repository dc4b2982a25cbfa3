"""Relations that know the offset between query and key: RPR and Transformer-XL."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array

from posexp.encodings.base import Encoding, Relation, Setting, scaled
from posexp.encodings.sinusoids import frequencies, sinusoids
from posexp.encodings.span import Span


class ClippedOffset(Relation):
  """A vector per clipped offset, added to keys, to values or to both (Shaw et al. 2018, eq. 3, 4).

  Nothing of shape [Q,K,D] is formed: queries meet the vectors first and the results are looked up
  by offset; weights are summed by offset first and then meet the vectors. In a block that is far
  from the diagonal all offsets have one vector, and nothing is looked up.
  """

  def __init__(self, encoding: RPR, num_heads: int, head_dim: int, *, rngs: nnx.Rngs):
    self.terms = ("content", *["keys"] * encoding.keys, *["values"] * encoding.values)
    own = encoding.share != "layers"
    self.tables = Tables(encoding, num_heads, head_dim, rngs=rngs) if own else None

  def vectors(self, span: Span) -> Vectors:
    """The layer's own, or those of all layers."""
    return span.shared if self.tables is None else self.tables(span)

  def score(self, q, k, span):
    logits = super().score(q, k, span)
    vectors = self.vectors(span)
    if vectors.keys is None:
      return logits

    def of(keys: Array) -> Array:
      table = "rd" if keys.ndim == 2 else "hrd"
      return jnp.einsum(f"bqhd,{table}->bhqr", scaled(q), keys.astype(q.dtype))

    def near() -> Array:
      return by_key(of(vectors.keys), vectors.row(span.offset))

    def far() -> Array:
      return jnp.broadcast_to(of(vectors.at(vectors.keys, vectors.any)), logits.shape)

    found = jax.lax.cond(vectors.one, far, near) if span.block else near()
    return logits + span.keep("keys") * found

  def combine(self, weights, v, span):
    summed = super().combine(weights, v, span)
    vectors = self.vectors(span)
    if vectors.values is None:
      return summed

    def of(by_row: Array, values: Array) -> Array:
      table = "rd" if values.ndim == 2 else "hrd"
      by_row = span.keep("values") * by_row.astype(v.dtype)
      return jnp.einsum(f"bhqr,{table}->bqhd", by_row, values.astype(v.dtype))

    def near() -> Array:
      # The rows at ±k sum over most keys: in bfloat16 2,048 weights of 1/2048 add up to 1/8.
      rows = vectors.values.shape[-2]
      summed = sum_by_row(weights.astype(jnp.float32), vectors.row(span.offset), rows)
      return of(summed, vectors.values)

    def far() -> Array:
      whole = weights.astype(jnp.float32).sum(-1, keepdims=True)
      return of(whole, vectors.at(vectors.values, vectors.any))

    return summed + (jax.lax.cond(vectors.one, far, near) if span.block else near())


class Vectors:
  """What RPR makes of a span: vectors [rows,D] or [H,rows,D] and the row of each offset."""

  def __init__(self, tables: Tables, span: Span):
    self.k, self.largest, self.beyond = tables.k[...], tables.largest, tables.beyond
    self.keys, self.values = (
      None if each is None else each[...] for each in (tables.keys, tables.values)
    )
    least = span.key.min() - span.query.max()
    most = span.key.max() - span.query.min()
    self.any = least[None]  # one of the offsets, [1]
    same_side = (least > 0) | (most < 0)
    self.one = same_side & (self.row(least) == self.row(most))  # have all of them the same row?

  def row(self, offset: Array) -> Array:
    """The row of each offset; one that no table has where there is no vector."""
    row = jnp.clip(offset, -self.k, self.k) + self.largest
    if self.beyond == "last":
      return row
    return jnp.where(jnp.abs(offset) > self.k, 2 * self.largest + 1, row)

  def at(self, table: Array, offsets: Array) -> Array:
    """The vectors of offsets int [R]: [R,D] or [H,R,D]."""
    return jnp.take(table, self.row(offsets), axis=-2, mode="fill", fill_value=0)


class Tables(nnx.Module):
  """Vectors of keys and of values for the offsets from −k to k, in the middle of their tables.

  k is traced: the program is the same for every k that the tables have room for.
  """

  def __init__(self, encoding: RPR, num_heads: int, head_dim: int, *, rngs: nnx.Rngs):
    self.largest = encoding.k if encoding.table is None else encoding.table
    self.beyond = encoding.beyond
    self.k = Setting(jnp.asarray(encoding.k))
    shape = (2 * self.largest + 1, head_dim)
    init = nnx.initializers.glorot_uniform()
    if encoding.share == "none":
      shape, init = (num_heads, *shape), nnx.initializers.glorot_uniform(batch_axis=0)
    self.keys = nnx.Param(init(rngs.encoding(), shape)) if encoding.keys else None
    self.values = nnx.Param(init(rngs.encoding(), shape)) if encoding.values else None

  def __call__(self, span: Span) -> Vectors:
    return Vectors(self, span)


def by_key(by_row: Array, row: Array) -> Array:
  """Of values [B,H,Q,rows] each key's own, for row int [1 or B,Q,K]; 0 for no row: [B,H,Q,K]."""
  return jnp.take_along_axis(by_row, row[:, None], axis=-1, mode="fill", fill_value=0)


def sum_by_row(weights: Array, row: Array, rows: int) -> Array:
  """The transpose of `by_key`: weights [B,H,Q,K] summed over the keys of each row, [B,H,Q,rows]."""
  by_row = jax.ShapeDtypeStruct((*weights.shape[:3], rows), weights.dtype)
  return jax.linear_transpose(lambda values: by_key(values, row), by_row)(weights)[0]


@dataclasses.dataclass(frozen=True)
class RPR(Encoding):
  """Relative position representations, clipped at distance k (Shaw, Uszkoreit & Vaswani 2018).

  e_ij = q_i · (k_j + a^K_c) / √d,  z_i = Σ_j α_ij (v_j + a^V_c),  c = clip(j − i, −k, k).
  One table of 2k+1 vectors for keys and one for values in each layer. `share` says who shares
  them: the `heads` of a layer, as in the authors' code and the paper's big model; `none`, a table
  per head as the paper says of its base model; or all `layers` and their heads. k=0 has no
  positions: the key term falls away in the softmax. `beyond` k the last vector is used (`last`) or
  none (`zero`, as in the authors' second implementation, of Music Transformer). `table` is the
  largest k that the tables have room for (null: k itself). With one `table`, all k train in one
  compiled program, and start from the same vectors.
  """

  k: int = 16
  keys: bool = True
  values: bool = True
  share: str = "heads"
  table: int | None = None
  beyond: str = "last"

  def __post_init__(self):
    if self.k < 0:
      raise ValueError(f"k must be at least 0, not {self.k}")
    if self.share not in ("heads", "none", "layers"):
      raise ValueError(f"share must be heads, none or layers, not {self.share!r}")
    if self.beyond not in ("last", "zero"):
      raise ValueError(f"beyond must be last or zero, not {self.beyond!r}")
    if self.table is not None and self.table < self.k:
      raise ValueError(f"table must be at least k={self.k}, not {self.table}")

  def relation(self, num_heads, head_dim, *, causal, rngs):
    return ClippedOffset(self, num_heads, head_dim, rngs=rngs)

  def shared(self, num_heads, head_dim, *, causal, rngs):
    return Tables(self, num_heads, head_dim, rngs=rngs) if self.share == "layers" else None


class FourTerms(Relation):
  """The four terms of a Transformer-XL score, each on or off."""

  def __init__(
    self, encoding: TransformerXL, num_heads: int, head_dim: int, causal: bool, *, rngs: nnx.Rngs
  ):
    self.terms = tuple(encoding.terms)
    self.base, self.clamp = encoding.base, encoding.clamp
    self.causal = causal
    features = num_heads * head_dim
    init = nnx.initializers.glorot_uniform()
    if "b" in self.terms or "d" in self.terms:
      frequencies(features, self.base)
      kernel = init(rngs.encoding(), (features, features))
      self.distance_kernel = nnx.Param(kernel.reshape(features, num_heads, head_dim))  # W_kR
    own = not encoding.share_biases
    self.biases = Biases(self.terms, num_heads, head_dim, rngs=rngs) if own else None

  def score(self, q, k, span):
    u, v = self.biases(span) if self.biases else span.shared
    logits = 0
    if "a" in self.terms or "c" in self.terms:
      query = self.query(span, q, "a", u, "c")
      logits += jnp.einsum("bqhd,bkhd->bhqk", query, k)
    if "b" in self.terms or "d" in self.terms:
      query = self.query(span, q, "b", v, "d")
      logits += self.by_distance(query, span)
    return jnp.broadcast_to(logits, (q.shape[0], q.shape[2], q.shape[1], k.shape[1]))

  def query(self, span: Span, q: Array, own: str, bias: Array | None, common: str) -> Array:
    """(q + bias) / √d, less what is off: [1 or B,1 or Q,H,D]; `own`, `common` are their terms."""
    asked = 0
    if own in self.terms:
      asked += span.keep(own, axis=2) * q
    if common in self.terms:
      asked += span.keep(common, axis=2) * bias.astype(q.dtype)[None, None]
    return scaled(asked)

  def by_offset(self, span, dtype):
    """W_kR R(i−j), [R,H,D]: of each offset, whatever the positions are."""
    if "b" not in self.terms and "d" not in self.terms:
      return None
    distance = -span.window
    if self.clamp is not None:
      distance = jnp.clip(distance, None if self.causal else -self.clamp, self.clamp)
    # sin(−x) = −sin x and cos(−x) = cos x: one product serves both sides.
    kernel = self.distance_kernel[...]
    waves = sinusoids(jnp.arange(span.farthest + 1), frequencies(len(kernel), self.base))
    sin, cos = (
      jnp.einsum("rf,fhd->rhd", wave.astype(dtype), half.astype(dtype))[jnp.abs(distance)]
      for wave, half in zip(waves, jnp.split(kernel, 2), strict=True)
    )
    return jnp.sign(distance).astype(dtype)[:, None, None] * sin + cos

  def by_distance(self, position: Array, span: Span) -> Array:
    """position · W_kR R(i−j), [B,H,Q,K], with position [1 or B,1 or Q,H,D]."""
    r = span.rows if span.block else self.by_offset(span, position.dtype)
    return span.products(position, r)


class Biases(nnx.Module):
  """u and v [H,D]: what every query asks of contents and of distances."""

  def __init__(self, terms: str, num_heads: int, head_dim: int, *, rngs: nnx.Rngs):
    init = nnx.initializers.normal(0.02)
    shape = (num_heads, head_dim)
    self.u = nnx.Param(init(rngs.encoding(), shape)) if "c" in terms else None
    self.v = nnx.Param(init(rngs.encoding(), shape)) if "d" in terms else None

  def __call__(self, span: Span) -> tuple[Array | None, Array | None]:
    return tuple(None if bias is None else bias[...] for bias in (self.u, self.v))


@dataclasses.dataclass(frozen=True)
class TransformerXL(Encoding):
  """Relative encoding with a content and a position bias (Dai et al. 2019, section 3.3).

  A_ij = (a) q_i·k_j + (b) q_i·W_kR R(i−j) + (c) u·k_j + (d) v·W_kR R(i−j), all over √d, with R the
  sinusoids of the distance. `share_biases` is whether all layers share u and v, as the paper
  prints them; its code shares them in the character-level models only. In an encoder, where the
  paper does not go, distances are signed. `clamp` has distances beyond it count as it, in an
  encoder to either side (`clamp_len` in the authors' code, for memories longer than in training).
  """

  a: bool = True
  b: bool = True
  c: bool = True
  d: bool = True
  share_biases: bool = True
  base: float = 10000.0
  clamp: int | None = None

  def __post_init__(self):
    if not self.terms:
      raise ValueError("a, b, c and d are all off, so there is nothing to attend by")
    if self.base <= 1:
      raise ValueError(f"base must be above 1, not {self.base}")
    if self.clamp is not None and self.clamp < 0:
      raise ValueError(f"clamp must be at least 0, not {self.clamp}")

  @property
  def terms(self) -> str:
    """The letters of the terms that are on."""
    return "".join(term for term in "abcd" if getattr(self, term))

  def relation(self, num_heads, head_dim, *, causal, rngs):
    return FourTerms(self, num_heads, head_dim, causal, rngs=rngs)

  def shared(self, num_heads, head_dim, *, causal, rngs):
    return Biases(self.terms, num_heads, head_dim, rngs=rngs) if self.share_biases else None
