"""A product of reflections, one of each token, between a key and a query: PaTH attention."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import ClassVar, Literal

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array

from posexp.config.checks import Count
from posexp.encodings.base import Columns, Encoding, Matrix, Relation, scaled
from posexp.encodings.columns import neighbors, sums_between
from posexp.encodings.rngs import Rngs
from posexp.kernels.gradients import add_bias, matmul


@dataclasses.dataclass(frozen=True)
class PaTH(Encoding):
  """Queries are reflected by every token between a key and them (Yang et al. 2025, PaTH).

  e_ij = q_iᵀ H_i H_{i−1} … H_{j+1} k_j/√d, H_t = I − β_t w_t w_tᵀ, β_t = 2σ(u·x_t + b). w_t is
  silu(conv(W₂ W₁ x)_t) at length 1, with W₁ of `rank` and a causal convolution of `width` tokens
  for each channel. Tokens that the query does not see are left out of all of this. With
  `gates=paper`, the sum of FoX's forget gates is added to e_ij, and over √d with `gates=library`,
  as the authors' library has it.

  It is a definition for short texts: keys are read one after another, from the last one back.
  """

  alternative = ("gates", "paper")
  causal_only: ClassVar[bool] = True
  rank: Count = 32
  width: Count = 3
  gates: Literal["none", "paper", "library"] = "none"

  def relation(self, num_heads, head_dim, *, causal, rngs):
    return Reflecting(self, num_heads, head_dim, rngs)

  def columns(self, features, num_heads, head_dim, *, causal, rngs):
    return Columns(key=Reflections(self, features, num_heads, head_dim, rngs=rngs))


class Reflections(nnx.Module):
  """Numbers of each key, float32: W₂ W₁ x [B,K,H,D], β [B,K,H] and, with gates, ln f [B,K,H]."""

  def __init__(self, path: PaTH, features: int, num_heads: int, head_dim: int, *, rngs: Rngs):
    init = nnx.initializers.lecun_normal()

    def drawn(*shape: int) -> Matrix:
      return Matrix(init(rngs.encoding(), shape))

    self.shape = num_heads, head_dim
    self.kernel_in = drawn(features, path.rank)
    self.kernel_out = drawn(path.rank, num_heads * head_dim)
    self.beta, self.beta_bias = drawn(features, num_heads), nnx.Param(jnp.zeros(num_heads))
    gated = path.gates != "none"
    self.gate = drawn(features, num_heads) if gated else None
    self.gate_bias = nnx.Param(jnp.zeros(num_heads)) if gated else None

  def __call__(self, x: Array) -> list[Array]:
    wide = x.astype(jnp.float32)
    direction = matmul(matmul(wide, self.kernel_in[...]), self.kernel_out[...])
    numbers = [direction.reshape(*x.shape[:2], *self.shape)]
    numbers.append(2 * jax.nn.sigmoid(add_bias(matmul(wide, self.beta[...]), self.beta_bias[...])))
    if self.gate is None:
      return numbers
    gate = add_bias(matmul(wide, self.gate[...]), self.gate_bias[...])
    return [*numbers, jax.nn.log_sigmoid(gate)]


class Reflecting(Relation):
  """q reflected by the tokens behind a key · k / √d + a sum of gates."""

  def __init__(self, path: PaTH, num_heads: int, head_dim: int, rngs: Rngs):
    self.gates = path.gates
    self.terms = ("content", "gates") if path.gates != "none" else ("content",)
    bound = path.width**-0.5  # as PyTorch starts convolutions
    shape = path.width, num_heads, head_dim
    drawn = jax.random.uniform(rngs.encoding(), shape, minval=-bound, maxval=bound)
    self.taps = nnx.Param(drawn)  # the newest last

  def score(self, q, k, span):
    direction, beta, *gates = span.key_columns
    passed = span.visible & (span.offset <= 0)
    alike = span.mask.shape[1] == 1 and span.last is None  # earlier keys are those of all queries
    normals = self.normals(direction, span.mask if alike else passed)
    logits = span.keep("content") * reflected(scaled(q), k, beta, passed, *normals)
    if gates:
      over = q.shape[-1] ** -0.5 if self.gates == "library" else 1.0
      logits = logits + span.keep("gates") * over * sums_between(*gates, span)
    return logits.astype(q.dtype)

  def normals(self, direction: Array, seen: Array) -> tuple[Callable[[Array], Array], Array]:
    """Return a function from places to w, [width,B,1 or Q] -> [B,1 or Q,H,D], and all keys' places.

    The places of a key are the indices of the keys that its convolution reads. `direction` is W₂ W₁
    x [B,K,H,D], and `seen` bool [1 or B,1 or Q,K].
    """
    taps = self.taps[...][::-1]

    def normal(places: Array) -> Array:
      near = jax.vmap(jax.vmap(lambda x, at: x[at]), (None, 0))(direction, places)
      near = jnp.where(places[..., None, None] < 0, 0, near)
      w = jax.nn.silu(jnp.einsum("sbrhd,shd->brhd", near, taps))
      return w * jax.lax.rsqrt(jnp.square(w).sum(-1, keepdims=True) + 1e-6)

    seen = jnp.broadcast_to(seen, (len(direction), *seen.shape[1:]))
    return normal, neighbors(seen, len(taps))


def reflected(
  q: Array, k: Array, beta: Array, passed: Array, normal: Callable[[Array], Array], of_key: Array
) -> Array:
  """Return logits float32 [B,H,Q,K] of queries reflected by every key that they have passed.

  q is [B,Q,H,D], k [B,K,H,D], `beta` [B,K,H] and `passed` bool [B,Q,K]. `normal` computes the
  vector w of a key, [B,1 or Q,H,D], from the entry of that key in the array `of_key` [...,K].
  """

  def step(query: Array, given: tuple[Array, Array, Array, Array]) -> tuple[Array, Array]:
    key, strength, seen, each = given
    logits = jnp.einsum("bqhd,bhd->bhq", query, key)
    w = normal(each)
    turn = (strength[:, None, :, None] * (query * w).sum(-1, keepdims=True)) * w
    return jnp.where(seen[:, :, None, None], query - turn, query), logits

  count = k.shape[1]
  size = math.isqrt(count)  # of a chunk, after which queries are kept for the backward pass
  more = -count % size

  def chunks(x: Array) -> Array:  # keys first
    whole = jnp.pad(x, [(0, more), *[(0, 0)] * (x.ndim - 1)])
    return whole.reshape(-1, size, *whole.shape[1:])

  keys, strengths = k.astype(jnp.float32).swapaxes(0, 1), beta.swapaxes(0, 1)
  given = keys, strengths, jnp.moveaxis(passed, 2, 0), jnp.moveaxis(of_key, -1, 0)
  chunk = jax.checkpoint(lambda query, some: jax.lax.scan(step, query, some, reverse=True))
  start, chunked = q.astype(jnp.float32), jax.tree.map(chunks, given)
  logits = jax.lax.scan(chunk, start, chunked, reverse=True)[1]
  return jnp.moveaxis(logits.reshape(-1, *logits.shape[2:])[:count], 0, -1)
