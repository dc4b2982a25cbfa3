"""Weights of four bits, in MXFP4 (OCP Microscaling Formats 1.0, 2023), as gpt-oss is published.

A tensor [E,in,out] is in two: NAME_blocks uint8 [E,out,in/32,16], two numbers a byte, the first in
its low bits; and NAME_scales uint8 [E,out,in/32], one of each 32 numbers.
"""

from __future__ import annotations

import ml_dtypes
import numpy as np

BLOCKS, SCALES, BYTES = "_blocks", "_scales", 16
# E2M1: two bits of exponent with bias 1, one of mantissa, and the sign in front.
MAGNITUDES = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)
VALUES = np.concatenate([MAGNITUDES, -MAGNITUDES])


def shape_of(blocks: tuple[int, ...]) -> tuple[int, ...]:
  """Return the shape (E, in, out) of a tensor from that of its blocks; () if there are none."""
  if len(blocks) != 4 or blocks[-1] != BYTES:
    return ()
  return blocks[0], 2 * BYTES * blocks[2], blocks[1]


def unpacked(blocks: np.ndarray, scales: np.ndarray) -> np.ndarray:
  """Return bfloat16 [E,in,out]: the value of each four bits times 2^(scale − 127), exactly."""
  made = np.empty(shape_of(blocks.shape), ml_dtypes.bfloat16)
  for expert, (each, scale) in enumerate(zip(blocks, scales, strict=True)):  # to need less memory
    codes = np.stack([each & 15, each >> 4], axis=-1)
    numbers = np.ldexp(VALUES[codes], scale[..., None, None].astype(np.int32) - 127)
    made[expert] = numbers.reshape(len(each), -1).T
  return made
