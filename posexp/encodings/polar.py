"""Queries and keys in polar coordinates: lengths of content, angles of positions."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import Array

from posexp.config.checks import Base
from posexp.encodings.base import Encoding, Relation
from posexp.encodings.rngs import Rngs
from posexp.encodings.sinusoids import sinusoids
from posexp.encodings.span import Span


@dataclasses.dataclass(frozen=True)
class PoPE(Encoding):
  """Polar coordinates: contents are lengths and positions are angles (Gopalakrishnan et al. 2025).

  e_ij = Σ_c μ(q_c) μ(k_c) cos((j − i) base^(−c/d) + δ_hc) / √d, μ = softplus, c = 0 … d − 1. The
  phases δ are trained for each head and clipped to −2π … 0, with no gradient beyond; they start at
  0 or, with `start=uniform`, anywhere there. All layers share them, as in x-transformers.

  Three things differ from RoPE, and each can be left out: `lengths=signed` keeps q and k as they
  are, so that products may be negative; with `frequencies=pairs` two neighbors have one frequency,
  that of RoPE; `phases` are of each `layer`, or there are `none`.
  """

  alternative = ("base", 100.0)
  base: Base = 10000.0
  lengths: Literal["softplus", "signed"] = "softplus"
  frequencies: Literal["channels", "pairs"] = "channels"
  phases: Literal["model", "layer", "none"] = "model"
  start: Literal["zero", "uniform"] = "zero"

  def __post_init__(self):
    super().__post_init__()
    if self.phases == "none" and self.start != "zero":
      raise ValueError("start has no effect with phases=none; leave it at zero")

  def relation(self, num_heads, head_dim, *, causal, rngs):
    own = self.phases == "layer"
    return Polar(self, head_dim, Phases(self, num_heads, head_dim, rngs) if own else None)

  def shared(self, num_heads, head_dim, *, causal, rngs, embed=None):
    return Phases(self, num_heads, head_dim, rngs) if self.phases == "model" else None


class Phases(nnx.Module):
  """Trained phases δ of each head and channel, float32 [H,D], clipped to −2π … 0."""

  def __init__(self, pope: PoPE, num_heads: int, head_dim: int, rngs: Rngs):
    shape = num_heads, head_dim
    uniform = pope.start == "uniform"
    drawn = jax.random.uniform(rngs.encoding(), shape) if uniform else jnp.zeros(shape)
    self.delta = nnx.Param(-2 * np.pi * drawn)

  def __call__(self, span: Span) -> Array:
    return clipped(self.delta[...])


def clipped(delta: Array) -> Array:
  """Clip phases to −2π … 0, ends included: there the gradient is 1, beyond them 0."""
  inside = jnp.clip(delta, -2 * np.pi, 0)
  # `jnp.clip` would halve the gradient at 0, where phases start.
  return jnp.where(delta == inside, delta, jax.lax.stop_gradient(inside))


class Polar(Relation):
  """Lengths of q and k at angles of their positions, in 2 D channels."""

  terms = ("polar",)
  supports_fused = False  # kernels want keys as wide as values

  def __init__(self, pope: PoPE, head_dim: int, phases: Callable[[Span], Array] | None):
    self.pope, self.phases = pope, phases
    channel = np.arange(head_dim, dtype=np.float64)
    channel = channel if pope.frequencies == "channels" else channel // 2 * 2
    self.omega = tuple((pope.base ** (-channel / head_dim)).tolist())

  def qk_and_bias(self, q, k, span):
    sin, cos = self.waves(span.query)
    query = self.at(q, sin, cos) * q.shape[-1] ** -0.5
    sin, cos = self.waves(span.key)
    if self.pope.phases != "none":
      delta = span.shared if self.phases is None else self.phases(span)
      s, c = jnp.sin(delta), jnp.cos(delta)
      sin, cos = sin * c + cos * s, cos * c - sin * s
    return span.keep("polar", axis=2) * query, self.at(k, sin, cos), None

  def waves(self, positions: Array) -> tuple[Array, Array]:
    """Return sin and cos of the angles at positions [1 or B,L]: [1 or B,L,1,D]."""
    sin, cos = sinusoids(positions, np.array(self.omega))
    return sin[:, :, None], cos[:, :, None]

  def at(self, x: Array, sin: Array, cos: Array) -> Array:
    """Return the lengths of x [B,L,H,D] at these angles, [B,L,H,2D]."""
    wide = x.astype(jnp.float32)
    length = jax.nn.softplus(wide) if self.pope.lengths == "softplus" else wide
    return jnp.concatenate([length * cos, length * sin], axis=-1).astype(x.dtype)
