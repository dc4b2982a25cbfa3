"""The gated delta rule: a state that fades and is overwritten, in place of a softmax.

Shapes: B batch, Q queries, K keys, H heads, D head width, F model width.
"""

from __future__ import annotations

import dataclasses
from typing import Annotated, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import Array

from posexp.config.checks import Count, Positive, at_most
from posexp.encodings.base import Columns, Encoding, Matrix, Relation
from posexp.encodings.rngs import Rngs
from posexp.encodings.span import Span
from posexp.kernels.gradients import add_bias, matmul


@dataclasses.dataclass(frozen=True)
class Delta(Encoding):
  """The gated delta rule (Yang, Kautz & Hatamizadeh 2025), as in Qwen3-Next.

  S' = a_t S_{t−1}, S_t = S' + k_t (β_t (v_t − S'ᵀ k_t))ᵀ and o_t = S_tᵀ q_t for each head: the
  state fades, and what it holds for k_t gives way to v_t. β_t = `beta`·σ(w_β·x_t), and
  a_t = exp(−exp(A) softplus(w_a·x_t + δ)). q, k and v are silu(conv(·)), with a causal convolution
  of `width` tokens for each channel; then q and k have length 1, and q is divided by √d. Attention
  returns rms(o) ⊙ w ⊙ silu(z). z is the layer's map of queries, and q a map of the encoding's own,
  since later tokens need it of every key. β up to 2 turns signs (OLMo-Hybrid).

  exp(A) starts from U(1, 16), as in Kimi Linear, and softplus(δ) is spread from 1e-3 to 1e-1, as in
  flash-linear-attention; taps from U(±1/√width), as PyTorch starts convolutions.

  It is a definition for short texts: a product of all pairs of keys and a triangular system for
  each head (section 3), also in each step over a cache, which keeps keys and not the state. Tokens
  that no query sees are left out. No weights are dropped.
  """

  alternative = ("beta", 2.0)
  causal_only: ClassVar[bool] = True
  keeps_state: ClassVar[bool] = True
  width: Count = 4
  beta: Annotated[Positive, at_most(2)] = 1.0

  def relation(self, num_heads, head_dim, *, causal, rngs):
    return Ruled(self.width, num_heads, head_dim, rngs)

  def columns(self, features, num_heads, head_dim, *, causal, rngs):
    return Columns(key=Writes(self.beta, features, num_heads, head_dim, rngs=rngs))


class Writes(nnx.Module):
  """Numbers of each key, float32: q before its convolution [B,K,H,D], β and ln a [B,K,H]."""

  def __init__(self, beta: float, features: int, num_heads: int, head_dim: int, *, rngs: Rngs):
    init = nnx.initializers.glorot_uniform()
    self.shape, self.most = (num_heads, head_dim), beta
    self.kernel_query = Matrix(init(rngs.encoding(), (features, num_heads * head_dim)))
    self.kernel_beta = Matrix(init(rngs.encoding(), (features, num_heads)))
    self.kernel_decay = Matrix(init(rngs.encoding(), (features, num_heads)))
    rate = jax.random.uniform(rngs.encoding(), (num_heads,), minval=1.0, maxval=16.0)
    low, high = np.log([1e-3, 1e-1])
    time = jnp.exp(jax.random.uniform(rngs.encoding(), (num_heads,), minval=low, maxval=high))
    self.log_rate, self.bias = nnx.Param(jnp.log(rate)), nnx.Param(jnp.log(jnp.expm1(time)))

  def __call__(self, x: Array) -> list[Array]:
    wide = x.astype(jnp.float32)
    query = matmul(wide, self.kernel_query[...]).reshape(*x.shape[:2], *self.shape)
    beta = self.most * jax.nn.sigmoid(matmul(wide, self.kernel_beta[...]))
    time = jax.nn.softplus(add_bias(matmul(wide, self.kernel_decay[...]), self.bias[...]))
    return [query, beta, -jnp.exp(self.log_rate[...]) * time]


class Ruled(Relation):
  """What a state that the delta rule has written holds for each query."""

  def __init__(self, width: int, num_heads: int, head_dim: int, rngs: Rngs):
    self.sums_to_one = None
    bound, shape = width**-0.5, (width, num_heads, 3 * head_dim)
    drawn = jax.random.uniform(rngs.encoding(), shape, minval=-bound, maxval=bound)
    self.taps = nnx.Param(drawn)  # of q, k and v; the current token first
    self.scale = nnx.Param(jnp.ones(head_dim))

  def weights(self, q, k, span):
    return self.read(k, None, span)

  def attend(self, q, k, v, span, dropout):
    outputs = self.read(k, v, span).swapaxes(1, 2)
    outputs = outputs * jax.lax.rsqrt(jnp.square(outputs).mean(-1, keepdims=True) + 1e-6)
    gate = jax.nn.silu(q.astype(jnp.float32))
    return (span.keep("content", axis=2) * self.scale[...] * gate * outputs).astype(v.dtype)

  def read(self, k: Array, v: Array | None, span: Span) -> Array:
    """Return o [B,H,Q,D] of k, v [B,K,H,D] before their convolution, or its weights [B,H,Q,K]."""
    query, beta, decay = span.key_columns
    before = nested(span)
    values = jnp.zeros_like(k) if v is None else v
    mixed = jnp.concatenate([query, *(x.astype(jnp.float32) for x in (k, values))], axis=-1)
    mixed = jax.nn.silu(convolved(mixed, self.taps[...], before))
    query, key, value = jnp.split(mixed, 3, axis=-1)
    given = None if v is None else value
    outputs = ruled(unit(query) * query.shape[-1] ** -0.5, unit(key), given, decay, beta, before)
    if span.self_attention:
      return outputs
    own = (span.visible & (span.offset == 0)).astype(jnp.float32)
    return jnp.einsum("bqk,bhkd->bhqd", jnp.broadcast_to(own, (len(k), *own.shape[1:])), outputs)


def unit(x: Array) -> Array:
  """Return x [...,D] at length 1, with a finite gradient where it is 0."""
  return x * jax.lax.rsqrt(jnp.square(x).sum(-1, keepdims=True) + 1e-6)


def nested(span: Span) -> Array:
  """Return which keys each key sees before itself, bool [1 or B,K,K].

  A key sees an earlier key if a query sees both. All queries that see a key agree on this, since
  they see the tokens that it saw: its document or, in a beam, its own hypothesis. Keys are in the
  order of their positions.
  """
  seen = (span.mask if span.mask.shape[1] == 1 else span.visible).astype(jnp.float32)
  both = jnp.einsum("bqj,bqt->bjt", seen, seen) > 0
  return both & jnp.tri(both.shape[1], k=-1, dtype=bool)


def convolved(x: Array, taps: Array, before: Array) -> Array:
  """Return Σ_n w_n ⊙ x_n for x [B,K,H,E] and taps [n,H,E], with x_n the n-th key before each."""
  total = x * taps[0]
  count = jax.lax.cumsum(before.astype(jnp.int32), axis=2, reverse=True)
  for n, tap in enumerate(taps[1:], 1):
    nth = (before & (count == n)).astype(x.dtype)
    nth = jnp.broadcast_to(nth, (len(x), *nth.shape[1:]))
    total = total + tap * jnp.einsum("bjt,bthe->bjhe", nth, x)
  return total


def ruled(q: Array, k: Array, v: Array | None, decay: Array, beta: Array, before: Array) -> Array:
  """Return o [B,H,K,D] of q, k, v [B,K,H,D], ln a and β [B,K,H], or its weights of v [B,H,K,K].

  With u_t = β_t (v_t − S'ᵀk_t) and Γ_jt = Π_{t<s≤j} a_s, u_j + β_j Σ_{t<j} Γ_jt (k_j·k_t) u_t =
  β_j v_j, and o_j = Σ_{t≤j} Γ_jt (q_j·k_t) u_t. `before` bool [1 or B,K,K] says which keys are
  before each one. Products of decays are sums of logarithms, which only fall.
  """
  eye = jnp.eye(k.shape[1], dtype=bool)
  passed = jnp.where((before | eye)[:, None], decay.swapaxes(1, 2)[:, :, None], 0)
  passed = jnp.pad(passed[..., 1:], [(0, 0)] * 3 + [(0, 1)])
  faded = jnp.exp(jax.lax.cumsum(passed, axis=3, reverse=True))
  strength = beta.swapaxes(1, 2)[..., None]
  alike, asked = (jnp.einsum("bjhd,bthd->bhjt", x, k) for x in (k, q))
  solved = inverse(strength * jnp.where(before[:, None], faded * alike, 0))
  written = solved @ (strength * (eye if v is None else v.swapaxes(1, 2)))
  return jnp.where((before | eye)[:, None], faded * asked, 0) @ written


def inverse(x: Array) -> Array:
  """Return (1 + x)⁻¹ for x [...,K,K] that is 0 on and above its diagonal.

  From the inverses of blocks on the diagonal, at first of one key, come those of twice the size:
  [[A, 0], [C, B]]⁻¹ = [[A⁻¹, 0], [−B⁻¹ C A⁻¹, B⁻¹]]. A solver of XLA takes tens of times as long
  on a CPU, and now and then waits for itself for ever.
  """
  *outer, count = x.shape[:-1]
  whole = 1 << (count - 1).bit_length()
  x = jnp.pad(x, [(0, 0)] * len(outer) + [(0, whole - count)] * 2)
  inverted, size = jnp.ones((*outer, whole, 1, 1), x.dtype), 1
  while size < whole:
    parts = x.reshape(*outer, whole // (2 * size), 2, size, whole // (2 * size), 2, size)
    low = jnp.moveaxis(jnp.diagonal(parts[..., 1, :, :, 0, :], 0, -4, -2), -1, -3)
    first, last = inverted[..., ::2, :, :], inverted[..., 1::2, :, :]
    low = -last @ low @ first
    top = jnp.concatenate([first, jnp.zeros_like(low)], axis=-1)
    inverted = jnp.concatenate([top, jnp.concatenate([low, last], axis=-1)], axis=-2)
    size *= 2
  return inverted[..., 0, :count, :count]
