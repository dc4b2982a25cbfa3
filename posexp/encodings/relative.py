"""Relations that know the offset between query and key: RPR and Transformer-XL."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import Array

from posexp.encodings.base import Encoding, Relation, Setting, Span, scaled
from posexp.encodings.sinusoids import frequencies, sinusoids


class ClippedOffset(Relation):
  """A vector per clipped offset, added to keys, to values or to both (Shaw et al. 2018, eq. 3, 4).

  Nothing of shape [Q,K,D] is formed: queries meet the vectors first and the results are looked up
  by offset; weights are summed by offset first and then meet the vectors.
  """

  def __init__(self, encoding: RPR, num_heads: int, head_dim: int, *, rngs: nnx.Rngs):
    self.terms = ("content", *["keys"] * encoding.keys, *["values"] * encoding.values)
    own = encoding.share != "layers"
    self.tables = Tables(encoding, num_heads, head_dim, rngs=rngs) if own else None

  def offsets(self, span: Span) -> Offsets:
    """The layer's own, or those of all layers."""
    return span.shared if self.tables is None else self.tables(span)

  def score(self, q, k, span):
    logits = super().score(q, k, span)
    row, keys, _ = self.offsets(span)
    if keys is None:
      return logits
    table = "rd" if keys.ndim == 2 else "hrd"
    by_row = jnp.einsum(f"bqhd,{table}->bhqr", scaled(q), keys.astype(q.dtype))
    found = jnp.take_along_axis(by_row, row[:, None], axis=-1, mode="fill", fill_value=0)
    return logits + span.keep("keys") * found

  def combine(self, weights, v, span):
    summed = super().combine(weights, v, span)
    row, _, values = self.offsets(span)
    if values is None:
      return summed
    # The rows at ±k sum over most keys: in bfloat16 2,048 weights of 1/2048 add up to 1/8.
    by_row = sum_by_row(weights.astype(jnp.float32), row, values.shape[-2])
    by_row = span.keep("values") * by_row.astype(v.dtype)
    table = "rd" if values.ndim == 2 else "hrd"
    return summed + jnp.einsum(f"bhqr,{table}->bqhd", by_row, values.astype(v.dtype))


class Offsets(NamedTuple):
  """What RPR makes of a span."""

  row: Array  # the tables' row for each query and key, int [1 or B,Q,K]; none, where outside
  keys: Array | None  # [rows,D], or [H,rows,D]
  values: Array | None


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

  def __call__(self, span: Span) -> Offsets:
    k = self.k[...]
    keys, values = (None if each is None else each[...] for each in (self.keys, self.values))
    row = jnp.clip(span.offset, -k, k) + self.largest
    if self.beyond == "zero":
      row = jnp.where(jnp.abs(span.offset) > k, 2 * self.largest + 1, row)
    return Offsets(row, keys, values)


def sum_by_row(weights: Array, row: Array, rows: int) -> Array:
  """Sums weights [B,H,Q,K] over the keys of each row, row int [1 or B,Q,K]: [B,H,Q,rows]."""

  def one(weights: Array, row: Array) -> Array:  # [K], [K] -> [rows]
    return jax.ops.segment_sum(weights, row, rows)

  over_queries = jax.vmap(one)
  over_heads = jax.vmap(over_queries, (0, None))
  over_batch = jax.vmap(over_heads)
  return over_batch(weights, jnp.broadcast_to(row, (weights.shape[0], *row.shape[1:])))


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

  def by_distance(self, position: Array, span: Span) -> Array:
    """position · W_kR R(i−j), [B,H,Q,K], with position [1 or B,1 or Q,H,D].

    The dot products with all distances that the span may hold come first, then each offset takes
    its own, so any positions will do; a distance outside gives NaN, not a plausible number.
    """
    reach = span.farthest
    distances = np.arange(-reach, reach + 1)
    features = self.distance_kernel.shape[0]
    if self.clamp is not None:
      distances = np.clip(distances, None if self.causal else -self.clamp, self.clamp)
    sin, cos = sinusoids(jnp.asarray(distances), frequencies(features, self.base))
    waves = jnp.concatenate([sin, cos], axis=-1).astype(position.dtype)
    r = jnp.einsum("rf,fhd->rhd", waves, self.distance_kernel[...].astype(position.dtype))
    by_distance = jnp.einsum("bqhd,rhd->bhqr", position, r)
    index = reach - span.offset
    index = jnp.where(index < 0, len(waves), index)[:, None]  # −1 would be the last row
    return jnp.take_along_axis(by_distance, index, axis=-1, mode="fill", fill_value=jnp.nan)


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
