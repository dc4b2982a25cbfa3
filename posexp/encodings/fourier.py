"""Planes that turn by fixed mixtures of frequencies: FoPE."""

from __future__ import annotations

import dataclasses
from typing import Annotated, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from posexp.config.checks import Base, Positive, at_least
from posexp.encodings.base import Encoding, Setting
from posexp.encodings.rotation import Rotation
from posexp.encodings.sinusoids import frequencies, sinusoids


@dataclasses.dataclass(frozen=True)
class FoPE(Encoding):
  """Fourier position embedding: each plane mixes several frequencies (Hua et al. 2025).

  Of RoPE's frequencies the K that turn at least once in `trained_length` positions are kept. In
  plane t below D' = min(K, d/4), Σ_m S_hmt sin(ω_m p) and Σ_m C_hmt cos(ω_m p) stand for sin and
  cos. S and C are ones on their diagonals (every ⌈K/D'⌉-th row, if K is larger) and normal numbers,
  `gain` times Glorot's. They are drawn for each head, the same in all layers and runs, and are not
  trained. In all other planes sin and cos are 1.

  Warning: this is no rotation, and logits depend on more than offsets. A plane in which sin and cos
  are 1 is turned by 45° and √2 times as long, so that its part of q·k is doubled, although it is
  meant to have the frequency 0; and at most half of the planes move.
  """

  alternative = ("trained_length", 64)
  relative: ClassVar[bool] = False
  recurrent: ClassVar[bool] = True
  trained_length: Annotated[int, at_least(7)] = 512  # 2π is below it: the fastest plane is kept
  gain: Positive = 0.3
  base: Base = 10000.0

  def relation(self, num_heads, head_dim, *, causal, rngs):
    return Series(self, num_heads, head_dim)


class Series(Rotation):
  """Planes whose sines and cosines are sums of several, the others with 1 for both."""

  def __init__(self, fope: FoPE, num_heads: int, head_dim: int):
    omega = frequencies(head_dim, fope.base)
    super().__init__(omega, head_dim, "half")
    kept = int((omega >= 2 * np.pi / fope.trained_length).sum())
    planes = min(kept, head_dim // 4)
    if not planes:
      raise ValueError(f"heads of {head_dim} channels have no plane to move; it takes 4 channels")
    self.kept = kept
    step = -(-kept // planes)
    diagonal = np.zeros((kept, planes), np.float32)
    columns = np.eye(kept)[:, ::step][:, :planes]
    diagonal[:, : columns.shape[1]] = columns
    draw, spread = np.random.default_rng(0), fope.gain * (2 / (kept + planes)) ** 0.5
    drawn = diagonal + spread * draw.normal(size=(2, num_heads, kept, planes))
    self.sines, self.cosines = (Setting(jnp.asarray(table, jnp.float32)) for table in drawn)

  def spectra(self, shared=None):
    return {}  # no plane has one frequency

  def waves(self, positions, span):
    parts = sinusoids(positions, np.array(self.omega[: self.kept]))
    mixed = zip(parts, (self.sines, self.cosines), strict=True)
    return tuple(self.mixture(wave, by[...]) for wave, by in mixed)

  def mixture(self, wave: Array, by: Array) -> Array:
    """Return sums of waves [1 or B,L,K] by numbers [H,K,M'], and 1: [1 or B,L,H,M]."""
    mixed = jnp.einsum("blk,hkm->blhm", wave, by, precision=jax.lax.Precision.HIGHEST)
    rest = len(self.omega) - mixed.shape[-1]
    return jnp.pad(mixed, [(0, 0), (0, 0), (0, 0), (0, rest)], constant_values=1.0)
