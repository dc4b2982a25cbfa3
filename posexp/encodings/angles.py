"""Angles of positions where frequencies are trained, or differ between queries.

A frequency is an integer here, in 2^−32 turns per position. Its product with a position overflows
by whole turns, which change no angle, so that angles are exactly linear in positions. In float32
the product would be off by 4e-4 at position 5000.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from posexp.encodings.sinusoids import REACH

TURN = 2.0**32  # steps of a whole turn
FINE = 2**13  # parts of a step; times a position below REACH they do not overflow
MOST = 2**31 - 128  # steps: the largest float32 that fits into int32


class Turns(NamedTuple):
  """Frequencies [..., M] as integers, and what gradients need of those that are trained."""

  steps: Array  # int32, in 2^−32 turns per position
  parts: Array  # int32, in 2^−45 turns per position, from 0 to 2^13 − 1
  slope: Array | None = None  # float32: 0, with the gradient of the frequency in radians


def turns(omega: np.ndarray) -> Turns:
  """Return frequencies of float64 radians per position as integers."""
  parts = np.floor(omega / (2 * np.pi) % 1 * (TURN * FINE)).astype(np.int64)
  steps = (parts // FINE).astype(np.uint32).view(np.int32)
  return Turns(jnp.asarray(steps), jnp.asarray((parts % FINE).astype(np.int32)))


def scaled_up(found: Turns, omega: Array, change: Array) -> Turns:
  """Multiply frequencies, float32 `omega` radians, by exp(change), whose gradient they carry."""
  shift = omega * jnp.expm1(change)
  kept = jax.lax.stop_gradient(shift)
  turned = kept / (2 * np.pi)
  steps = jnp.clip((turned - jnp.round(turned)) * TURN, -MOST, MOST).astype(jnp.int32)
  return Turns(found.steps + steps, found.parts, shift - kept)


def angles(positions: Array, found: Turns) -> Array:
  """Return the angles of positions int [...], float32 radians from −π to π; NaN beyond ±REACH."""
  steps = positions * found.steps + (positions * found.parts) // FINE
  angle = steps.astype(jnp.float32) * (2 * np.pi / TURN)
  if found.slope is not None:
    angle = angle + positions.astype(jnp.float32) * found.slope
  return jnp.where(jnp.abs(positions) < REACH, angle, jnp.nan)
