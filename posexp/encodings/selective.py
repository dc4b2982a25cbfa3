"""Queries and keys turned by angles that depend on what was read: Selective RoPE."""

from __future__ import annotations

import dataclasses
import functools
from typing import ClassVar, Literal

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import Array

from posexp.config.checks import Base, Count, Whole
from posexp.encodings.base import Columns, Encoding, Matrix, scaled, whole
from posexp.encodings.rngs import Rngs
from posexp.encodings.rotation import Rotation, sum_of_planes
from posexp.encodings.sinusoids import even
from posexp.encodings.span import Span
from posexp.kernels.gradients import matmul

STEEPEST = 0.9 * np.pi  # the last angle of the temperature `rfa`


@dataclasses.dataclass(frozen=True)
class SelectiveRoPE(Encoding):
  """RoPE whose angles are read from the text (Movahedi et al. 2025).

  Planes of channels c and c + d/2 of q_i and k_j turn by τ_c Σ_t φ_t over the keys t up to i and j
  that the query sees. φ_t = conv(W₂ W₁ x̂)_t, with x̂ the layer's input, each head's share of which
  has length 1, W₁ of `rank`, and a causal convolution of `width` tokens for each plane. With
  `rank=null`, a matrix of each head reads its share of x̂, and its columns have trained lengths.
  With `width=0`, φ_t is W₂ W₁ (x̂_t − x̂_{t−1}). `bias` adds exp(b) to φ_t, b = 0 at the start, so
  that planes turn by RoPE's angles beside; `gate` multiplies the sum by σ(w·x̂_t + b).
  τ_c = base^(−2c/d), or with `temperature=rfa` √((1 − cos θ)/(1 + cos θ)), θ from 0 to 0.9 π, over
  its largest. Causal only. The authors' layers normalize q and k after the turn.
  """

  alternative = ("base", 100.0)
  causal_only: ClassVar[bool] = True
  rank: Count | None = 16
  width: Whole = 4
  bias: bool = False
  gate: bool = False
  temperature: Literal["decay", "rfa"] = "decay"
  base: Base = 500000.0

  def relation(self, num_heads, head_dim, *, causal, rngs):
    return Selective(self, num_heads, head_dim, rngs)

  def columns(self, features, num_heads, head_dim, *, causal, rngs):
    return Columns(key=Angles(self, features, num_heads, head_dim, rngs=rngs))


class Angles(nnx.Module):
  """Numbers of each key, float32: φ before the convolution [B,K,H,M] and the gate [B,K,H,1]."""

  def __init__(
    self, rope: SelectiveRoPE, features: int, num_heads: int, head_dim: int, *, rngs: Rngs
  ):
    self.num_heads, share = num_heads, whole(features, num_heads)
    planes, init = even(head_dim) // 2, nnx.initializers.lecun_normal()

    def drawn(*shape: int, kind: type[nnx.Param] = Matrix) -> nnx.Param:
      return kind(init(rngs.encoding(), shape))

    full = rope.rank is None
    self.kernel_in = None if full else drawn(features, rope.rank)
    self.kernel_out = None if full else drawn(rope.rank, num_heads * planes)
    self.directions = drawn(num_heads, share, planes, kind=nnx.Param) if full else None
    self.lengths = nnx.Param(norms(self.directions[...])) if full else None
    self.gate = drawn(features, num_heads) if rope.gate else None
    self.gate_bias = nnx.Param(jnp.zeros(num_heads)) if rope.gate else None

  def __call__(self, x: Array) -> list[Array]:
    parts = x.astype(jnp.float32).reshape(*x.shape[:2], self.num_heads, -1)
    parts = parts * jax.lax.rsqrt(jnp.square(parts).sum(-1, keepdims=True) + 1e-6)
    flat = parts.reshape(x.shape)
    if self.directions is None:
      phi = matmul(matmul(flat, self.kernel_in[...]), self.kernel_out[...])
      phi = phi.reshape(*parts.shape[:3], -1)
    else:
      lengths = self.lengths[...] / norms(self.directions[...])
      phi = jnp.einsum("blhf,hfm->blhm", parts, self.directions[...] * lengths[:, None])
    if self.gate is None:
      return [phi]
    gate = jax.nn.sigmoid(matmul(flat, self.gate[...]) + self.gate_bias[...])
    return [phi, gate[..., None]]


def norms(x: Array) -> Array:
  """Return the lengths of the columns of x [H,F,M]: [H,M]."""
  return jnp.sqrt(jnp.square(x).sum(1))


class Selective(Rotation):
  """Planes that turn by sums of angles over the keys that a query sees."""

  def __init__(self, rope: SelectiveRoPE, num_heads: int, head_dim: int, rngs: Rngs):
    c = np.arange(even(head_dim) // 2)
    tau = rope.base ** (-2 * c / head_dim)
    if rope.temperature == "rfa":
      theta = np.linspace(0, STEEPEST, len(c))
      tau = np.tan(theta / 2)
      tau = tau / tau.max()
    super().__init__(tau, head_dim, "half")
    shape = num_heads, len(c)
    self.shape, bound = shape, max(rope.width, 1) ** -0.5  # as PyTorch starts convolutions
    draw = functools.partial(jax.random.uniform, minval=-bound, maxval=bound)
    drawn = draw(rngs.encoding(), (rope.width, *shape)) if rope.width else None
    self.taps = None if drawn is None else nnx.Param(drawn)
    self.offset = nnx.Param(jnp.zeros(shape)) if rope.bias else None

  def spectra(self, shared=None):
    return {}  # no plane has a frequency

  def numbers(self) -> tuple[Array, Array]:
    """Return the taps of the convolution [S,H,M], the newest last, and the bias [H,M]."""
    zeros = jnp.zeros(self.shape)
    taps = jnp.stack([zeros - 1, zeros + 1]) if self.taps is None else self.taps[...]
    return taps, zeros if self.offset is None else jnp.exp(self.offset[...])

  def score(self, q, k, span):
    if span.mask.shape[1] == 1 and span.last is None:
      return super().score(q, k, span)
    return span.keep("rotated") * self.by_plane(q, k, span)

  def turned(self, q, k, span):
    phi, gate = of_keys(span)
    taps, more = (x[..., None] for x in self.numbers())  # [...,H,M,1]
    steps = angle_steps(phi, gate, taps, more, span.mask[:, None])
    sums = (jnp.cumsum(steps, axis=-1) * self.tau()[:, None]).transpose(0, 3, 1, 2)
    asked = sums
    if not span.self_attention:
      count = (span.offset <= 0).sum(-1)[..., None, None]  # keys that are not ahead
      sums_before = jnp.pad(sums, [(0, 0), (1, 0), (0, 0), (0, 0)])
      asked = jnp.take_along_axis(sums_before, count, axis=1)
    query, key = ((jnp.sin(x), jnp.cos(x)) for x in (asked, sums))
    return self.turn(q, query), self.turn(k, key)

  def tau(self) -> Array:
    """Return the temperature of each plane, float32 [M]."""
    return jnp.asarray(self.omega, jnp.float32)

  def by_plane(self, q: Array, k: Array, span: Span) -> Array:
    """Return logits [B,H,Q,K] where queries differ in the keys that they see."""
    phi, gate = of_keys(span)
    seen = (span.visible & (span.offset <= 0))[:, None]

    def of_plane(
      query: Array, key: Array, phi: Array, taps: Array, more: Array, tau: Array
    ) -> Array:
      steps = angle_steps(phi[:, :, None], gate, taps[..., None, None], more[:, None, None], seen)
      angle = tau * (jax.lax.cumsum(steps, axis=3, reverse=True) - steps)
      quarter = jnp.stack([key[..., 1], -key[..., 0]], axis=-1)  # turned back by 90°
      straight, across = (jnp.einsum("bqhc,bkhc->bhqk", query, x) for x in (key, quarter))
      return jnp.cos(angle) * straight + jnp.sin(angle) * across

    taps, more = (jnp.moveaxis(x, -1, 0) for x in self.numbers())
    given = self.planes(scaled(q)), self.planes(k), jnp.moveaxis(phi, 2, 0), taps, more, self.tau()
    shape = len(q), q.shape[2], q.shape[1], k.shape[1]
    return sum_of_planes(of_plane, given, shape).astype(q.dtype)


def of_keys(span: Span) -> tuple[Array, Array | float]:
  """Return φ before the convolution [B,H,M,K] and gates [B,H,1,K] of the keys of a span."""
  phi, *gate = (x.transpose(0, 2, 3, 1) for x in span.key_columns)
  return phi, gate[0] if gate else 1.0


def angle_steps(phi: Array, gate: Array | float, taps: Array, more: Array, seen: Array) -> Array:
  """Return φ of each key, [B,H,R,K], over the keys that are seen in each of R rows; 0 for others.

  All arguments have these axes, or are broadcast to them; `taps` have one more in front.
  """
  keys = jnp.arange(seen.shape[-1])
  last = jax.lax.cummax(jnp.where(seen, keys, -1), axis=3)
  before = jnp.pad(last[..., :-1], [(0, 0), (0, 0), (0, 0), (1, 0)], constant_values=-1)
  place, total = jnp.broadcast_to(keys, seen.shape), 0.0
  for tap in taps[::-1]:
    there, index = jnp.broadcast_arrays(phi, jnp.maximum(place, 0))
    steps = jnp.take_along_axis(there, index, axis=3)
    total = total + tap * jnp.where(place >= 0, steps, 0)
    earlier = jnp.take_along_axis(before, jnp.maximum(place, 0), axis=3)
    place = jnp.where(place >= 0, earlier, -1)
  return jnp.where(seen, (total + more) * gate, 0)
