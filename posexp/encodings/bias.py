"""A number per head and offset, added to the logits: ALiBi and T5."""

from __future__ import annotations

import bisect
import dataclasses
from collections.abc import Callable
from typing import Annotated, Any, Literal

import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import Array

from posexp.config.checks import at_most, between, even_from
from posexp.encodings.base import HIDDEN, Encoding, Relation, Span
from posexp.encodings.rngs import Rngs
from posexp.encodings.sinusoids import REACH

MOST_BUCKETS = 1024  # their starts are computed with integers of about as many digits


class SharedBias(Encoding):
  """q·k / √d + a bias that all layers share, which a subclass makes in `shared`."""

  def relation(self, num_heads, head_dim, *, causal, rngs):
    return Biased()


@dataclasses.dataclass(frozen=True)
class ALiBi(SharedBias):
  """Attention with linear biases: e_ij = q·k/√d − m_h (i − j) (Press et al. 2022, section 3).

  m_h = 2^(−8h/H) for h = 1 … H. The paper is causal; `two_sided` says what an encoder does:
  `symmetric` takes |i − j|, which cannot tell left from right, `direction` brings keys on the left
  half a step nearer, |i − j| − [i > j]/2 (as Ruoss et al. 2023 do), and `divided` lets the
  first half of the heads see only the left and the second half only the right, with the slopes of
  H/2 heads each, as the first author proposed. `learned` trains the slopes from there, one set
  for all layers, which the paper tried and dropped. Its code adds m_h j, the same up to a constant
  in each row.
  """

  alternative = ("learned", True)
  two_sided: Literal["symmetric", "direction", "divided"] = "symmetric"
  learned: bool = False

  def shared(self, num_heads, head_dim, *, causal, rngs, embed=None):
    return Slopes(num_heads, causal=causal, two_sided=self.two_sided, learned=self.learned)


class Biased(Relation):
  """q·k / √d + a bias [1 or B,H,Q,K]: the layer's own, or the one that all layers share."""

  terms = ("content", "bias")

  def __init__(self, bias: Callable[[Span], Array] | None = None):
    self.bias = bias

  def qk_and_bias(self, q, k, span):
    query, key, _ = super().qk_and_bias(q, k, span)
    bias = span.shared if self.bias is None else self.bias(span)
    return query, key, span.keep("bias") * bias


def distance(span: Span) -> Array:
  """Return |i − j| in float32, [1 or B,1,Q,K]."""
  return jnp.abs(span.offset)[:, None].astype(jnp.float32)


def slopes(num_heads: int) -> np.ndarray:
  """Return 2^(−8h/H) for h = 1 … H if H is a power of two; else slopes as in the authors' code.

  There, the slopes of the next lower power of two, P, are followed by every second one of 2P.
  """

  def geometric(count: int) -> np.ndarray:
    return 2.0 ** (-8 * np.arange(1, count + 1) / count)

  power = 1 << (num_heads.bit_length() - 1)
  return np.concatenate([geometric(power), geometric(2 * power)[::2]])[:num_heads]


class Slopes(nnx.Module):
  """−slope · distance, with a slope for each head."""

  def __init__(self, num_heads: int, *, causal: bool, two_sided: str, learned: bool):
    self.divided = two_sided == "divided" and not causal
    self.direction = two_sided == "direction" and not causal
    if self.divided and num_heads % 2:
      raise ValueError(f"two_sided=divided gives each side half the heads, but {num_heads} is odd")
    first = np.tile(slopes(num_heads // 2), 2) if self.divided else slopes(num_heads)
    self.num_heads = num_heads
    self.slopes = nnx.Param(jnp.asarray(first, jnp.float32)) if learned else None
    self.fixed = None if learned else tuple(first.tolist())

  def __call__(self, span: Span) -> Array:
    slope = jnp.asarray(self.fixed, jnp.float32) if self.slopes is None else self.slopes[...]
    far = distance(span)
    offset = span.offset[:, None]
    if self.direction:
      far = far - 0.5 * (offset < 0)
    bias = -slope[:, None, None] * far
    if self.divided:
      left = (jnp.arange(self.num_heads) < self.num_heads // 2)[:, None, None]
      bias = jnp.where(jnp.where(left, offset > 0, offset < 0), HIDDEN, bias)
    return bias


@dataclasses.dataclass(frozen=True)
class T5(SharedBias):
  """A bias per bucket of offsets: e_ij = q·k/√d + b_h[bucket(j − i)] (Raffel et al. 2020, 2.1).

  Half of the buckets hold one distance each, the others grow geometrically up to `max_distance`,
  beyond which is a single bucket. In an encoder each side has half of the buckets. All layers share
  the table, which starts from N(0, 1/d_model), as in the released code. T5 itself leaves out 1/√d
  and draws smaller queries instead; here contents are scaled as in every other encoding.
  """

  alternative = ("buckets", 16)
  buckets: Annotated[int, even_from(4), at_most(MOST_BUCKETS)] = 32
  max_distance: Annotated[int, between(1, REACH)] = 128

  def __post_init__(self):
    super().__post_init__()
    check_buckets(self.buckets, self.max_distance)

  def rows_of(self, offsets, *, causal):
    reach = self.max_distance
    by_offset = buckets_by_offset(self.buckets, reach, causal=causal)
    return by_offset[np.clip(offsets, -reach, reach) + reach]

  def shared(self, num_heads, head_dim, *, causal, rngs, embed=None):
    return Buckets(num_heads, head_dim, self, causal=causal, rngs=rngs)


def bucket_starts(buckets: int, max_distance: int) -> list[int]:
  """Return the least distance of each bucket: 0, 1, 2 … in the first half, then geometric.

  Half of the buckets, e, hold one distance each. Bucket e + s of the other m starts where
  m·log(n/e)/log(max_distance/e) reaches s. Some starts are whole numbers, which rounding may miss
  on either side, so this compares integers: n^m e^s with max_distance^s e^m.
  """
  exact = buckets // 2
  rest = buckets - exact
  starts = list(range(exact))
  for step in range(rest):
    least = max_distance**step * exact ** (rest - step)
    starts.append(bisect.bisect_left(range(max_distance + 1), least, key=lambda n: n**rest))
  return starts


def buckets_by_offset(buckets: int, max_distance: int, *, causal: bool) -> np.ndarray:
  """Return the bucket of each offset −max_distance … max_distance, int32 [2·max_distance+1].

  Without `causal` the first half of the buckets is for keys on the left, the second for those on
  the right; the first bucket of the second half is never used.
  """
  side = buckets if causal else buckets // 2
  starts = bucket_starts(side, max_distance)
  bucket: Any = np.searchsorted(starts, np.arange(max_distance + 1), side="right")
  by_distance = bucket - 1
  ahead = np.zeros(max_distance, int) if causal else side + by_distance[1:]
  return np.concatenate([by_distance[::-1], ahead]).astype(np.int32)


class Buckets(nnx.Module):
  """A trained number per head and bucket of offsets."""

  def __init__(self, num_heads: int, head_dim: int, encoding: T5, *, causal: bool, rngs: Rngs):
    self.buckets, self.max_distance, self.causal = encoding.buckets, encoding.max_distance, causal
    init = nnx.initializers.normal((num_heads * head_dim) ** -0.5)
    self.table = nnx.Param(init(rngs.encoding(), (encoding.buckets, num_heads)))

  def __call__(self, span: Span) -> Array:
    by_offset = buckets_by_offset(self.buckets, self.max_distance, causal=self.causal)
    reach = self.max_distance

    def value(offset: Array) -> Array:
      bucket = jnp.asarray(by_offset)[jnp.clip(offset, -reach, reach) + reach]
      return jnp.moveaxis(self.table[...][bucket], -1, 0)

    return span.of_offsets(value)


def check_buckets(buckets: int, max_distance: int) -> None:
  """Raise ValueError if the range of buckets ends too soon."""
  if max_distance <= buckets // 2:
    raise ValueError(f"max_distance must be above half of the buckets, not {max_distance}")
