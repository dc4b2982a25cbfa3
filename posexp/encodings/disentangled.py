"""Words and positions in separate terms of the logits: DeBERTa and TUPE."""

from __future__ import annotations

import bisect
import dataclasses
import functools
import itertools
from typing import Annotated, ClassVar

import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import Array

from posexp.config.checks import Count, at_most, between, even_from, only_with
from posexp.encodings.additive import Table
from posexp.encodings.base import Encoding, LayerNorm, Linear, Relation, Span, width_of
from posexp.encodings.bias import MOST_BUCKETS, buckets_by_offset, check_buckets
from posexp.encodings.rngs import Rngs
from posexp.encodings.sinusoids import REACH
from posexp.kernels.gradients import scores


@dataclasses.dataclass(frozen=True)
class DeBERTa(Encoding):
  """Disentangled attention (He et al. 2021, eq. 2 to 4).

  e_ij = (q_i·k_j + q_i·K_δ(i,j) + k_j·Q_δ(j,i)) / √(t d), with K = P W_K and Q = P W_Q, W_K and
  W_Q of each layer, P [2k, d_model] of all layers, δ(i, j) = clip(i − j + k, 0, 2k − 1), and t the
  number of terms that are on. `log_buckets` b > 0 makes offsets beyond b/2 share rows of a table
  of 2b, on a logarithmic scale up to k, and `normalized` applies a LayerNorm to P, both as in
  DeBERTa-v2. The released code looks up Q at δ(i, j) too, contrary to the paper: that is
  `mirrored=false`. `biases` adds that code's biases of W_K and W_Q, which the paper does not print.
  With `share_maps` these are the layer's own maps of keys and queries, as in DeBERTa-v3.
  """

  alternative = ("k", 16)
  k: Annotated[int, between(1, REACH)] = 512
  content_to_position: bool = True
  position_to_content: bool = True
  log_buckets: Annotated[int, even_from(4, 0), at_most(MOST_BUCKETS)] = 0
  normalized: bool = False
  mirrored: bool = True
  biases: bool = False
  share_maps: bool = False
  norm_epsilon: Annotated[float, between(1e-12, 1), only_with("normalized")] = 1e-7

  def __post_init__(self):
    super().__post_init__()
    if self.share_maps and self.biases:
      raise ValueError("biases are of maps that share_maps=true does not have; leave it at false")
    if self.log_buckets and self.k - 1 <= self.log_buckets // 2:
      raise ValueError(f"log_buckets={self.log_buckets} must be less than twice k - 1")

  @property
  def terms(self) -> tuple[str, ...]:
    """The names of the terms that are on."""
    positional = ("content_to_position", "position_to_content")
    return ("content", *(term for term in positional if getattr(self, term)))

  def rows_of(self, offsets, *, causal):
    return np.asarray(self.row(-offsets))

  def row(self, distance: Array) -> Array:
    """Return δ, the row of P for each distance, int."""
    half = self.log_buckets or self.k
    if self.log_buckets:
      far = jnp.minimum(jnp.abs(distance), self.k)
      distance = jnp.sign(distance) * jnp.asarray(log_buckets(half, self.k))[far]
    return jnp.clip(distance + half, 0, 2 * half - 1)

  def relation(self, num_heads, head_dim, *, causal, rngs):
    return Disentangled(self, num_heads, head_dim, rngs=rngs)

  def shared(self, num_heads, head_dim, *, causal, rngs, embed=None):
    if len(self.terms) == 1:
      return None
    rows = 2 * (self.log_buckets or self.k)
    epsilon, features = self.norm_epsilon if self.normalized else None, num_heads * head_dim
    if self.share_maps:  # which read vectors as wide as those of words
      features = width_of(embed, features)
    return RelativeTable(rows, features, epsilon=epsilon, rngs=rngs)


def projection(features: int, *, bias: bool, rngs: Rngs) -> Linear:
  """Return a linear map that only this encoding has."""
  return Linear(features, features, bias=bias, rngs=Rngs(params=rngs.encoding()))


@functools.cache
def log_buckets(half: int, max_distance: int) -> np.ndarray:
  """Return the bucket of each distance from 0 to max_distance, int32.

  Distances up to e = half/2 have a bucket each, and further ones bucket e + s with
  s = ceil(log(n/e) / log((max_distance − 1)/e) · (e − 1)). Integers are compared, since floating
  point may miss values that are whole before they are rounded up.
  """
  exact, distances = half // 2, range(max_distance + 1)
  buckets = list(range(exact + 1))
  for step in itertools.count():
    if len(buckets) > max_distance:
      break
    scale, last = exact**step, (max_distance - 1) ** step * exact ** (exact - 1)
    end = bisect.bisect_right(distances, last // scale, key=lambda n: n ** (exact - 1))
    buckets += [exact + step] * (end - len(buckets))
  return np.asarray(buckets, np.int32)


class RelativeTable(nnx.Module):
  """P [rows, F]: a vector per offset, which all layers share."""

  def __init__(self, rows: int, features: int, *, epsilon: float | None, rngs: Rngs):
    init = nnx.initializers.normal(0.02)
    self.rows = nnx.Param(init(rngs.encoding(), (rows, features)))
    self.norm = None if epsilon is None else LayerNorm(features, epsilon=epsilon)

  def __call__(self, span: Span) -> Array:
    return self.rows[...] if self.norm is None else self.norm(self.rows[...])


class Disentangled(Relation):
  """q·k, q·P W_K and k·P W_Q, all over √(t d) for t terms."""

  def __init__(self, encoding: DeBERTa, num_heads: int, head_dim: int, *, rngs: Rngs):
    self.encoding = encoding
    self.terms = encoding.terms
    features = num_heads * head_dim

    def project(term: str) -> Linear | None:
      if term not in self.terms:
        return None
      return projection(features, bias=encoding.biases, rngs=rngs)

    if not encoding.share_maps:
      self.key = project("content_to_position")
      self.query = project("position_to_content")

  def bind(self, query, key):
    if self.encoding.share_maps:  # with their biases, which the layer's maps leave out otherwise
      of_key, of_query = (getattr(part, "linear", part) for part in (key, query))
      self.key = of_key if "content_to_position" in self.terms else None
      self.query = of_query if "position_to_content" in self.terms else None

  def qk_and_bias(self, q, k, span):
    scale = (len(self.terms) * q.shape[-1]) ** -0.5
    bias = []
    if self.key is not None:
      terms = self.looked_up(q * scale, self.key, span, mirrored=True)
      bias.append(span.keep("content_to_position") * terms)
    if self.query is not None:
      turned = span.replace(query=span.key, key=span.query)
      terms = self.looked_up(k * scale, self.query, turned, mirrored=self.encoding.mirrored)
      bias.append(span.keep("position_to_content") * terms.swapaxes(2, 3))
    return span.keep("content", axis=2) * (q * scale), k, sum(bias) if bias else None

  def looked_up(self, x: Array, project: Linear, span: Span, *, mirrored: bool) -> Array:
    """Multiply x [B,Q,H,D] by each distance's projected row: [B,H,Q,K].

    Distance is key − query or, if `mirrored`, query − key.
    """
    sign = -1 if mirrored else 1
    table, window = span.shared.astype(x.dtype), sign * span.window

    def rows(table: Array) -> Array:
      by_head = project(table).reshape(len(table), -1, x.shape[-1])
      return jnp.repeat(by_head, x.shape[2] // by_head.shape[1], axis=1)

    if len(window) < len(table):
      return span.products(x, rows(table[self.encoding.row(window)]))
    if span.consecutive:
      return span.products(x, rows(table)[self.encoding.row(window)])
    by_row = jnp.einsum("bqhd,rhd->bhqr", x, rows(table))
    index = self.encoding.row(sign * span.offset)
    return jnp.take_along_axis(by_row, index[:, None], axis=-1)


@dataclasses.dataclass(frozen=True)
class TUPE(Encoding):
  """Untied positional encoding (Ke et al. 2021, eq. 7, 8 and 10).

  e_ij = q·k/√(2d) + (p_i U_Q)·(p_j U_K)/√(2d) + b[bucket(j − i)], the last two computed once for
  all layers; nothing is added to words. The vectors of `length` positions are normalized before U_Q
  and U_K, which have biases, both as in the authors' code. `untie_cls` replaces the products of
  position 0 by two numbers per head, for [CLS] as a query and as a key: use it with task.cls=true.
  `buckets` > 0 adds T5's bias, which turns TUPE-A into TUPE-R.
  """

  alternative = ("buckets", 32)
  relative: ClassVar[bool] = False
  recurrent: ClassVar[bool] = True
  length: Count = 512
  untie_cls: Annotated[bool, only_with("task.cls")] = False
  buckets: Annotated[int, even_from(4, 0), at_most(MOST_BUCKETS)] = 0
  max_distance: Annotated[int, between(1, REACH), only_with("buckets")] = 128

  def __post_init__(self):
    super().__post_init__()
    if self.buckets:
      check_buckets(self.buckets, self.max_distance)

  @property
  def limit(self) -> int:
    return self.length

  def relation(self, num_heads, head_dim, *, causal, rngs):
    return Untied(bias=self.buckets > 0)

  def shared(self, num_heads, head_dim, *, causal, rngs, embed=None):
    return PositionLogits(self, num_heads, head_dim, rngs=rngs)


class Untied(Relation):
  """q·k / √(2d), and the logits of positions that all layers share."""

  def __init__(self, bias: bool):
    self.terms = ("content", "position", *["bias"] * bias)

  def qk_and_bias(self, q, k, span):
    query, key, _ = super().qk_and_bias(q, k, span)
    position, bias = span.shared
    position = span.keep("position") * position
    if bias is not None:
      position = position + span.keep("bias") * bias
    return query * 2**-0.5, key, position


class PositionLogits(nnx.Module):
  """The logits of positions, [1 or B,H,Q,K], and the biases of buckets of offsets or None."""

  def __init__(self, encoding: TUPE, num_heads: int, head_dim: int, *, rngs: Rngs):
    features = num_heads * head_dim
    self.num_heads, self.encoding = num_heads, encoding
    self.table = Table(encoding.length + encoding.untie_cls, features, stddev=0.02, rngs=rngs)
    self.norm = LayerNorm(features, epsilon=1e-5)  # as in the authors' code: rows start small
    self.query = projection(features, bias=True, rngs=rngs)
    self.key = projection(features, bias=True, rngs=rngs)
    init = nnx.initializers.normal(0.02)
    shape = (encoding.buckets + 1, num_heads)
    self.biases = nnx.Param(init(rngs.encoding(), shape)) if encoding.buckets else None

  def __call__(self, span: Span) -> tuple[Array, Array | None]:
    query = self.projected(self.query, self.rows(span.query))
    key = self.projected(self.key, self.rows(span.key))
    position = scores(query, key)
    if self.encoding.untie_cls:
      # Rows 0 and 1 stand for [CLS]: 0·0 is its logit as a query of all, 1·1 as a key of others.
      rows = self.norm(self.table.rows[:2])
      both = self.projected(self.query, rows) * self.projected(self.key, rows)
      from_cls, to_cls = both.sum(-1)[:, :, None, None]
      position = jnp.where((span.key == 0)[:, None, None, :], to_cls, position)
      position = jnp.where((span.query == 0)[:, None, :, None], from_cls, position)
    return position, self.bias(span)

  def rows(self, positions: Array) -> Array:
    """Return the normalized vectors of positions [1 or B,L]; NaN where there are none."""
    first = int(self.encoding.untie_cls)
    return self.norm(self.table(jnp.where(positions < 0, -1, positions + first)))

  def projected(self, project: Linear, rows: Array) -> Array:
    """Project rows [...,F] -> [...,H,D], scaled for a product over √(2d)."""
    heads = project(rows).reshape(*rows.shape[:-1], self.num_heads, -1)
    return heads * (2 * heads.shape[-1]) ** -0.25

  def bias(self, span: Span) -> Array | None:
    """Return the bias of each key's bucket of offsets, [1 or B,H,Q,K], or None."""
    if self.biases is None:
      return None
    reach, buckets = self.encoding.max_distance, self.encoding.buckets
    by_offset = jnp.asarray(buckets_by_offset(buckets, reach, causal=False))
    bucket = by_offset[jnp.clip(span.offset, -reach, reach) + reach]
    if self.encoding.untie_cls:  # the row that no offset has, and one at the end
      bucket = jnp.where((span.key == 0)[:, None, :], buckets, bucket)
      bucket = jnp.where((span.query == 0)[:, :, None], buckets // 2, bucket)
    return jnp.moveaxis(self.biases[...][bucket], -1, 1)
