"""Functions with gradients written by hand, where those that JAX derives are slower.

On a CPU, a matrix product takes up to 2.5 times as long if its operands have the other memory
layout, and a sum over leading axes up to fifty times as long as the same sum by a product. Each
docstring gives the formula. Shapes are as in `posexp.encodings.base`.
"""

from __future__ import annotations

import functools
import math

import jax
import jax.numpy as jnp
from jax import Array

from posexp.kernels.target import target

LEAST = jnp.finfo(jnp.float32).min
CACHED = 2**18  # float32 numbers that fit in one core's cache


def total(x: Array, shape: tuple[int, ...]) -> Array:
  """Sum x [...,*shape] over its leading axes: [*shape], whose first size may be 1."""
  rows = x.reshape(-1, math.prod(shape))
  ones = jnp.ones(len(rows), x.dtype)
  return jnp.matmul(ones, rows, precision=jax.lax.Precision.HIGHEST).reshape(shape)


def across_rows(x: Array, y: Array) -> Array:
  """Return xᵀ y for x [R,M] and y [R,N]: [M,N], by the product that is fastest on a CPU."""
  if target().platform != "cpu":
    return x.T @ y
  if x.shape[1] > y.shape[1]:  # a tall result takes longer
    return jax.lax.optimization_barrier(across_rows(y, x)).T
  # Transposing before the product multiplies the time of a small model's step by 0.94 to 1.00, but
  # by 1.02 if its rows do not fit in the cache.
  transposed = x.T if x.size > CACHED else jax.lax.optimization_barrier(x.T)
  return transposed @ y


@jax.custom_vjp
def matmul(x: Array, kernel: Array) -> Array:
  """Return x [...,M] @ kernel [M,N]."""
  return x @ kernel


def matmul_backward(kept: tuple[Array, Array], grad: Array) -> tuple[Array, Array]:
  x, kernel = kept
  rows, grads = (each.reshape(-1, each.shape[-1]) for each in (x, grad))
  return (grads @ kernel.T).reshape(x.shape), across_rows(rows, grads)


matmul.defvjp(lambda x, kernel: (matmul(x, kernel), (x, kernel)), matmul_backward)


@jax.custom_vjp
def add_bias(x: Array, shared: Array) -> Array:
  """Return x [...,*S] + shared, which is [*S], [1,*S] or of the shape of x."""
  return x + shared


def add_bias_backward(kept: tuple[Array, Array], grad: Array) -> tuple[Array, Array]:
  like, shared = kept
  summed = grad if shared.size == grad.size else total(grad, shared.shape)
  return grad.astype(like.dtype), summed.reshape(shared.shape).astype(shared.dtype)


add_bias.defvjp(lambda x, shared: (add_bias(x, shared), (x[:0], shared)), add_bias_backward)


def scores(q: Array, k: Array) -> Array:
  """Return q [B,Q,H,D] · k [B,K,H,D]: [B,H,Q,K]. Either may have one row for the whole batch."""
  batch = max(len(q), len(k))
  return _scores(*(jnp.broadcast_to(operand, (batch, *operand.shape[1:])) for operand in (q, k)))


@jax.custom_vjp
def _scores(q: Array, k: Array) -> Array:
  return q.transpose(0, 2, 1, 3) @ k.transpose(0, 2, 3, 1)


@jax.custom_vjp
def weighted_sum(weights: Array, v: Array) -> Array:
  """Sum v [B,K,H,D] over keys with weights [B,H,Q,K]: [B,Q,H,D]."""
  return (weights @ v.transpose(0, 2, 1, 3)).transpose(0, 2, 1, 3)


def sum_by_key(weights: Array, x: Array) -> Array:
  """Sum x [B,Q,H,D] over queries with weights [B,H,Q,K]: [B,K,H,D]."""
  return (x.transpose(0, 2, 3, 1) @ weights).transpose(0, 3, 1, 2)


_scores.defvjp(
  lambda q, k: (_scores(q, k), (q, k)),
  lambda kept, grad: (weighted_sum(grad, kept[1]), sum_by_key(grad, kept[0])),
)
weighted_sum.defvjp(
  lambda weights, v: (weighted_sum(weights, v), (weights, v)),
  lambda kept, grad: (_scores(grad, kept[1]), sum_by_key(kept[0], grad)),
)


@jax.custom_vjp
def softmax(logits: Array, visible: Array, sinks: Array | None = None) -> Array:
  """Return the softmax of logits [B,H,Q,K] over the `visible` keys, bool [B,1,1 or Q,K].

  A sink s [1 or B,H,Q,1] is one more logit, of no key: e^e_j / (e^s + Σ e^e_k). Without keys, all
  weights are then 0. The sink's derivative is −σ Σ g_j α_j, with σ its share.
  """
  return softmax_forward(logits, visible, sinks)[0]


def softmax_forward(logits: Array, visible: Array, sinks: Array | None) -> tuple[Array, tuple]:
  logits = jnp.where(visible, logits, LEAST)
  if sinks is None:
    weights = jax.nn.softmax(logits, axis=-1)
    return weights, (weights, None, None)
  most = jnp.maximum(logits.max(-1, keepdims=True), sinks)
  weights, sunk = jnp.exp(logits - most), jnp.exp(sinks - most)
  whole = weights.sum(-1, keepdims=True) + sunk
  return weights / whole, (weights / whole, sunk / whole, sinks)


def softmax_backward(kept: tuple, grad: Array) -> tuple[Array, None, Array | None]:
  weights, share, sinks = kept
  read = (weights * grad).sum(-1, keepdims=True)
  of_sinks = None if sinks is None else total(-share * read, sinks.shape)
  return weights * (grad - read), None, of_sinks


softmax.defvjp(softmax_forward, softmax_backward)


@functools.partial(jax.custom_vjp, nondiff_argnums=(3, 4))
def normalized(x: Array, scale: Array, bias: Array, parts: int, epsilon: float) -> Array:
  """Return (x − mean) / √(variance + epsilon) · scale + bias for `parts` interleaved vectors."""
  return normalized_forward(x, scale, bias, parts, epsilon)[0]


def mean(x: Array, parts: int) -> Array:
  """Return the mean of each of the interleaved vectors of x [...,F]: [...,parts]."""
  # Part by part: one sum for all parts side by side takes a CPU four times as long.
  return jnp.stack([x[..., part::parts].mean(-1) for part in range(parts)], -1)


def spread(x: Array, features: int) -> Array:
  """Repeat x [...,parts] for the features of each part: [...,features]; [...,1] for one part."""
  *_, parts = x.shape
  if parts == 1:
    return x
  # By `select`, since `tile` takes a CPU up to six times as long.
  of = jnp.arange(features) % parts
  return jnp.select([of == part for part in range(parts)], jnp.split(x, parts, -1))


def normalized_forward(x, scale, bias, parts, epsilon):
  x = x - spread(mean(x, parts), x.shape[-1])
  steepness = jax.lax.rsqrt(mean(x * x, parts) + epsilon)
  unit = x * spread(steepness, x.shape[-1])
  return unit * scale + bias, (unit, steepness, scale)


def normalized_backward(parts, epsilon, kept, grad):
  unit, steepness, scale = kept

  def shared(x: Array) -> Array:
    return spread(mean(x, parts), x.shape[-1])

  of_unit = grad * scale
  of_x = of_unit - shared(of_unit) - unit * shared(of_unit * unit)
  of_x = spread(steepness, grad.shape[-1]) * of_x
  return of_x, total(grad * unit, scale.shape), total(grad, scale.shape)


normalized.defvjp(normalized_forward, normalized_backward)


@jax.custom_vjp
def wave(phase: Array) -> tuple[Array, Array]:
  """Return cos and sin of phases [...,M].

  One array holds both: otherwise XLA would compute them again in every kernel that reads them.
  """
  both = jnp.concatenate([jnp.cos(phase), jnp.sin(phase)], -1).reshape(*phase.shape[:-1], 2, -1)
  return both[..., 0, :], both[..., 1, :]


def wave_forward(phase: Array) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
  waves = wave(phase)
  return waves, waves


wave.defvjp(wave_forward, lambda kept, grad: (grad[1] * kept[0] - grad[0] * kept[1],))
