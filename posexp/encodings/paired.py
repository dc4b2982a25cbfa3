"""Networks whose features come in pairs: complex numbers, or content and position.

F features are F/2 pairs, neighbors in memory, so that cutting them into heads leaves every pair
whole. A linear map that treats all pairs alike has 2×2 blocks, made of two matrices A and B:
[[A, B], [−B, A]] is complex multiplication, [[A, 0], [0, B]] keeps the two streams apart. The dot
product of two such vectors is Re⟨q, k⟩ for complex numbers, and content + position for streams.
"""

from __future__ import annotations

import jax.numpy as jnp
from flax import nnx
from jax import Array

from posexp.encodings.base import Linear, Matrix
from posexp.encodings.rngs import Rngs


def half(features: int) -> int:
  """Return the number of pairs.

  Raises:
    ValueError: features is odd.
  """
  if features % 2:
    raise ValueError(f"features come in pairs here, so a width of {features} must be even")
  return features // 2


def interleave(first: Array, second: Array) -> Array:
  """Interleave two arrays [..., M] into pairs of neighbors, [..., 2M]."""
  return jnp.stack(jnp.broadcast_arrays(first, second), axis=-1).reshape(*first.shape[:-1], -1)


class Paired(Linear):
  """A map of pairs, made of two matrices A, B [in/2, out/2]."""

  def __init__(self, in_features: int, out_features: int, *, bias: bool = True, rngs: Rngs):
    shape = (half(in_features), half(out_features))
    self.kernel_a = Matrix(self.init()(rngs.params(), shape))
    self.kernel_b = Matrix(self.init()(rngs.params(), shape))
    self.bias = nnx.Param(jnp.zeros(out_features)) if bias else None

  @staticmethod
  def init() -> nnx.Initializer:
    """Return the initializer of A and B."""
    return nnx.initializers.glorot_uniform()

  def blocks(self) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
    """Return the four blocks: a row per part of the input, a column per part of the output."""
    raise NotImplementedError

  def matrix(self) -> Array:
    (aa, ab), (ba, bb) = self.blocks()
    rows = jnp.stack([interleave(aa, ab), interleave(ba, bb)], axis=1)
    return rows.reshape(2 * aa.shape[0], 2 * aa.shape[1])
