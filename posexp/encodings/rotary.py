"""Queries and keys turned by angles that grow with their positions: RoPE and xPos."""

from __future__ import annotations

import dataclasses
from typing import Annotated, ClassVar, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from posexp.config.checks import Base, Bound, Positive, at_least, only_with
from posexp.encodings.base import Encoding, Relation, Span, scaled
from posexp.encodings.sinusoids import REACH, frequencies, sinusoids

STEEP = 60.0  # the exponent of xPos' factors is below it; float32 overflows at 88
FASTEST = 1e30  # a rate of decay by which nothing is left of the next position


@dataclasses.dataclass(frozen=True)
class RoPE(Encoding):
  """Queries and keys rotated by their positions (Su et al. 2021, eq. 14 to 16, 34).

  e_mn = (R_m q)·(R_n k) / √d, where R_m turns plane t by m·base^(−2t/r): only n − m is left of the
  positions. r = share·d channels turn, the first ones, and the rest ignore positions (GPT-NeoX:
  0.25). A plane is two neighbors (`interleaved`, the paper) or channels t and t + r/2 (`half`,
  GPT-NeoX and LLaMA). `scaling` fits a text `factor` times as long into the angles of training:
  `linear` divides positions (Chen et al. 2023), `ntk` multiplies base by factor^(r/(r−2)), which
  slows the slowest plane by factor and leaves the fastest (bloc97 2023).
  """

  base: Base = 10000.0
  share: Annotated[float, Bound("above 0 and at most 1", lambda share: 0 < share <= 1)] = 1.0
  layout: Literal["interleaved", "half"] = "interleaved"
  scaling: Literal["none", "linear", "ntk"] = "none"
  factor: Annotated[float, at_least(1), only_with("scaling")] = 1.0

  def relation(self, num_heads, head_dim, *, causal, rngs):
    return Rotation(self.frequencies(head_dim), head_dim, self.layout)

  def frequencies(self, head_dim: int) -> np.ndarray:
    """Return radians per position for every plane, float64.

    Raises:
      ValueError: the share is not an even number of channels.
    """
    turning = round(self.share * head_dim)
    if turning != self.share * head_dim or turning % 2:
      raise ValueError(
        f"share={self.share:g} of a head's {head_dim} channels must be even, as they turn in pairs"
      )
    base = self.base
    if self.scaling == "ntk" and turning > 2:
      base *= self.factor ** (turning / (turning - 2))
    omega = frequencies(turning, base)
    return omega / self.factor if self.scaling == "linear" else omega


class Rotation(Relation):
  """Channels are points in planes, two for each, that turn `omega` radians per position."""

  def __init__(self, omega: np.ndarray, head_dim: int, layout: str):
    self.omega = tuple(omega.tolist())
    self.turning = 2 * len(omega)
    self.layout = layout
    self.terms = ("rotated",) if self.turning == head_dim else ("rotated", "unrotated")

  def qk_and_bias(self, q, k, span):
    turned = self.turned(q, k, span)
    query, key = span.keep("rotated", axis=2) * turned[0], turned[1]
    if "unrotated" in self.terms:
      still = span.keep("unrotated", axis=2) * q[..., self.turning :]
      query = jnp.concatenate([query, still], axis=-1)
      key = jnp.concatenate([key, k[..., self.turning :]], axis=-1)
    return scaled(query), key, None

  def turned(self, q: Array, k: Array, span: Span) -> tuple[Array, Array]:
    """Return the turning channels of q [B,Q,H,D] and k [B,K,H,D], turned by their positions."""
    return self.turn(q, span.query), self.turn(k, span.key)

  def turn(self, x: Array, positions: Array, length: Array | float = 1.0) -> Array:
    """Turn x [B,L,H,D] at positions [1 or B,L]; planes are times `length` [1 or B,L,1,M]."""
    sin, cos = (length * wave[:, :, None] for wave in sinusoids(positions, np.array(self.omega)))
    wide = x[..., : self.turning].astype(jnp.float32)
    if self.layout == "half":
      a, b = jnp.split(wide, 2, axis=-1)
      turned = jnp.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)
    else:
      a, b = wide[..., 0::2], wide[..., 1::2]
      turned = jnp.stack([a * cos - b * sin, b * cos + a * sin], axis=-1).reshape(wide.shape)
    return turned.astype(x.dtype)


@dataclasses.dataclass(frozen=True)
class XPos(Encoding):
  """RoPE that decays with distance, fast planes first (Sun et al. 2022, algorithm 1).

  e_mn = Σ_t ζ_t^((m−n)/scale_base) Re(q_t k̄_t e^{i(m−n)θ_t}) / √d, ζ_t = (2t/d + γ) / (1 + γ),
  θ_t = base^(−2t/d). It would grow for keys ahead, so there is none in an encoder. The authors'
  code counts the exponent from the middle of the text, which must not change while keys are
  cached; keys here are cached before positions touch them, so any middle will do.
  """

  causal_only: ClassVar[bool] = True
  base: Base = 10000.0
  scale_base: Positive = 512.0
  gamma: Positive = 0.4

  def relation(self, num_heads, head_dim, *, causal, rngs):
    return Decay(self, head_dim)


class Decay(Rotation):
  """A rotation whose planes shrink with distance: ζ^((m−n)/scale_base) on the score."""

  def __init__(self, encoding: XPos, head_dim: int):
    super().__init__(frequencies(head_dim, encoding.base), head_dim, "interleaved")
    zeta = (np.arange(0, 1, 2 / head_dim) + encoding.gamma) / (1 + encoding.gamma)
    self.rate = tuple(np.maximum(np.log(zeta) / encoding.scale_base, -FASTEST).tolist())

  def score(self, q, k, span):
    known = span.consecutive or span.max_position is not None
    steepest, farthest = -min(self.rate), span.farthest if known else REACH
    # A factor for each query and one for each key do not overflow within so many positions.
    if q.shape[1] == 1 or steepest * farthest <= 2 * STEEP:
      return super().score(q, k, span)
    return self.by_plane(q, k, span)

  def by_plane(self, q: Array, k: Array, span: Span) -> Array:
    """Return logits [B,H,Q,K], summed plane by plane: the factor of each pair is at most 1."""
    distance = jnp.maximum(-span.offset, 0).astype(jnp.float32)[:, None]

    def planes(x: Array) -> Array:  # [M,B,L,H,2]
      return jnp.moveaxis(x.astype(jnp.float32).reshape(*x.shape[:-1], -1, 2), -2, 0)

    @jax.checkpoint
    def of_plane(rate: Array, q: Array, k: Array) -> Array:
      return jnp.exp(rate * distance) * jnp.einsum("bqhc,bkhc->bhqk", q, k)

    query = planes(span.keep("rotated", axis=2) * scaled(self.turn(q, span.query)))
    given = jnp.asarray(self.rate, jnp.float32), query, planes(self.turn(k, span.key))
    shape = len(q), q.shape[2], q.shape[1], k.shape[1]
    total, _ = jax.lax.scan(
      lambda total, plane: (total + of_plane(*plane), None), jnp.zeros(shape), given
    )
    return total.astype(q.dtype)

  def turned(self, q, k, span):
    # Counted from the middle of the queries, factors stay small at any position, and in no logit
    # is the middle seen. Keys that are ahead of all queries are masked, but might overflow.
    last = span.query.max(-1, keepdims=True)
    middle = (span.query.min(-1, keepdims=True) + last) // 2
    rate = jnp.asarray(self.rate, jnp.float32)

    def length(positions: Array, sign: int) -> Array:
      return jnp.exp(sign * rate * (positions - middle)[:, :, None, None])

    key = jnp.minimum(span.key, last)
    return self.turn(q, span.query, length(span.query, 1)), self.turn(k, key, length(key, -1))
