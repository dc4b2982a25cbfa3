"""Sinks, which take a share of attention, and the removal of a query's own value."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array

from posexp.encodings.base import Matrix, Relation
from posexp.encodings.rngs import Rngs
from posexp.kernels.gradients import matmul
from posexp.models.size import Size

SHORTEST = 1e-12  # a value to be removed; a shorter one has no direction


class Sink(nnx.Module):
  """The logit s_i of a query's sink: α_ij = e^e_ij / (e^s_i + Σ_k e^e_ik), so Σ_j α_ij = 1 − σ_i.

  A head has the same s_h for all tokens (gpt-oss, OpenAI 2025), or each token has its own, (x W)_h
  with the input x of queries (Inkling 2, Hugging Face 5.24.0). Nothing scales or caps it. Both
  start from N(0, 0.02); W decays.
  """

  def __init__(self, size: Size, *, rngs: Rngs):
    draws = nnx.initializers.normal(0.02)
    if size.sinks == "head":
      self.logit = nnx.Param(draws(rngs.params(), (size.num_heads,)))
    else:
      self.kernel = Matrix(draws(rngs.params(), (size.d_model, size.num_heads)))

  def __call__(self, x: Array) -> Array:
    """Return the logits of queries made of x [B,Q,F]: float32 [1 or B,Q,H]."""
    if hasattr(self, "kernel"):
      return matmul(x.astype(jnp.float32), self.kernel[...])
    logit = self.logit[...]
    return jnp.broadcast_to(logit, (1, x.shape[1], len(logit)))


def sink_of(size: Size, relation: Relation, rngs: Rngs) -> Sink:
  """Return the sink of a layer's self-attention, and note it in the relation.

  Raises:
    ValueError: the relation's weights are no softmax of logits.
  """
  check_softmax(relation, f"sinks={size.sinks}", "none")
  relation.sinks, relation.sums_to_one = True, False
  return Sink(size, rngs=rngs)


def check_softmax(relation: Relation, asked: str, neutral: str) -> None:
  """Raise ValueError if a relation's weights are not the softmax of its logits."""
  kind = type(relation)
  if kind.weights is not Relation.weights or kind.attend is not Relation.attend:
    raise ValueError(
      f"{asked} is for encodings whose weights are the softmax of logits; leave it at {neutral}"
    )


def without_own(found: Array, own: Array) -> Array:
  """Return y − (y·v̂) v̂ for outputs y and each query's own values v, [B,Q,H,D] (XSA, 2603.09078).

  What is left is orthogonal to v. It is computed in float32, and is 0 where it is nothing but the
  rounding of y, as at a token that sees only itself.
  """
  y, v = found.astype(jnp.float32), own.astype(jnp.float32)
  square = jnp.square(v).sum(-1, keepdims=True)
  v = v * jax.lax.rsqrt(jnp.maximum(square, SHORTEST**2))
  left = y - (y * v).sum(-1, keepdims=True) * v
  rounding = jnp.finfo(found.dtype).eps ** 2 * jnp.square(y).sum(-1, keepdims=True)
  exceeds = jnp.square(left).sum(-1, keepdims=True) > rounding
  return jnp.where(exceeds, left, 0.0).astype(found.dtype)
