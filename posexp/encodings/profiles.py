"""Learned profiles of distance that each query mixes: Inkling's positions."""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp
from flax import nnx
from jax import Array

from posexp.config.checks import Count, Positive
from posexp.encodings.base import Columns, Encoding, Matrix, Relation
from posexp.encodings.rngs import Rngs
from posexp.kernels.gradients import add_bias, matmul
from posexp.kernels.lookup import by_key


@dataclasses.dataclass(frozen=True)
class Inkling(Encoding):
  """Profiles of distance, whose mixture each query chooses (Inkling 2, Hugging Face 5.24.0).

  e_ij = q·k/√d + ρ_ih·P[:, Δ] for distances Δ = i − j below `extent`, else q·k/√d alone. The heads
  of a layer share the `rank` profiles P, and ρ_i = clip(g ⊙ W x_i): a vector longer than `clip` is
  shortened to it. W and P start from N(0, 0.02), g at 1. The first Inkling has neither clip nor
  g (`clip=null scale=false`); x-transformers has a bias beside W instead (`bias`).

  An encoder has profiles of 2·extent − 1 offsets. `model.logits_by=inkling` multiplies ρ, too.
  """

  alternative = ("extent", 64)
  rank: Count = 16
  extent: Count = 1024
  clip: Positive | None = 8.0
  scale: bool = True
  bias: bool = False

  def relation(self, num_heads, head_dim, *, causal, rngs):
    return Profiled(self, causal=causal, rngs=rngs)

  def columns(self, features, num_heads, head_dim, *, causal, rngs):
    return Columns(query=Mixture(self, features, num_heads, rngs=rngs))


class Mixture(nnx.Module):
  """The weights ρ of profiles for each query and head, float32 [B,Q,H,rank]."""

  def __init__(self, inkling: Inkling, features: int, num_heads: int, *, rngs: Rngs):
    shape, self.clip = (num_heads, inkling.rank), inkling.clip
    init = nnx.initializers.normal(0.02)
    self.kernel = Matrix(init(rngs.encoding(), (features, num_heads * inkling.rank)))
    self.bias = nnx.Param(jnp.zeros(num_heads * inkling.rank)) if inkling.bias else None
    self.scale = nnx.Param(jnp.ones(shape)) if inkling.scale else None
    self.shape = shape

  def __call__(self, x: Array) -> Array:
    weights = matmul(x.astype(jnp.float32), self.kernel[...])
    if self.bias is not None:
      weights = add_bias(weights, self.bias[...])
    weights = weights.reshape(*x.shape[:2], *self.shape)
    if self.scale is not None:
      weights = weights * self.scale[...]
    if self.clip is None:
      return weights
    square = jnp.square(weights).sum(-1, keepdims=True)
    # The root has no gradient at 0, where nothing is clipped.
    length = jnp.sqrt(jnp.where(square > 0, square, 1.0))
    return weights * jnp.where(square > 0, jnp.minimum(self.clip / (length + 1e-6), 1.0), 1.0)


class Profiled(Relation):
  """q·k / √d + a mixture of profiles of the offset."""

  terms = ("content", "profiles")

  def __init__(self, inkling: Inkling, *, causal: bool, rngs: Rngs):
    self.extent, self.causal = inkling.extent, causal
    width = inkling.extent if causal else 2 * inkling.extent - 1
    init = nnx.initializers.normal(0.02)
    self.profiles = nnx.Param(init(rngs.encoding(), (inkling.rank, width)))

  def qk_and_bias(self, q, k, span):
    query, key, _ = super().qk_and_bias(q, k, span)
    far = min(self.extent, span.farthest + 1)  # beyond it there is nothing
    behind = self.profiles[...][:, :far]  # of distances 0, 1, 2, …
    ahead = self.profiles[...][:, self.extent : self.extent + far - 1]  # of 1, 2, …
    rows = jnp.concatenate([behind[:, ::-1], ahead], axis=1)
    rows = jnp.pad(rows, [(0, 0), (1, 2 * far - rows.shape[1])])  # −far … far
    by_offset = jnp.einsum("bqhm,mr->bhqr", span.query_columns, rows)
    bias = by_key(by_offset, span.offset, span.consecutive)
    return query, key, span.keep("profiles") * bias
