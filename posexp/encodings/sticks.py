"""Attention that breaks a stick from the nearest key backward, without a softmax or positions."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp

from posexp.encodings.base import Encoding, Relation


@dataclasses.dataclass(frozen=True)
class StickBreaking(Encoding):
  """Stick-breaking attention (Tan et al. 2025): near keys are asked first.

  A_ij = β_ij Π_{t=j+1}^{i−1} (1 − β_it), β_ij = σ(q_i·k_j/√d): each key, from the nearest one back,
  takes its share of what is left of a stick of length 1. A query does not ask its own key, whose
  value gets what no key took, as in the authors' kernels. With `remainder=false` that is lost, and
  weights sum to less than 1. With `own_key` a query asks its own key, too, first of all.

  The order of keys is all that counts of positions. A key that is masked takes nothing. Causal
  only. The paper has no dropout of weights, after which they would not sum to 1.
  """

  alternative = ("own_key", True)
  causal_only: ClassVar[bool] = True
  own_key: bool = False
  remainder: bool = True

  def relation(self, num_heads, head_dim, *, causal, rngs):
    return Broken(self.own_key, self.remainder)


class Broken(Relation):
  """Weights σ(z_ij) Π (1 − σ(z_it)) over keys t from j to i, and the remainder of each query."""

  def __init__(self, own_key: bool, remainder: bool):
    self.own_key, self.remainder = own_key, remainder
    self.sums_to_one = remainder
    self.terms = ("content", "remainder") if remainder else ("content",)

  def weights(self, q, k, span):
    logits = self.score(q, k, span).astype(jnp.float32)
    seen, own = span.visible[:, None], (span.offset == 0)[:, None]
    asked = seen if self.own_key else seen & ~own
    logits = jnp.where(asked, logits, 0)  # no NaN in gradients of what is masked
    left = jnp.where(asked, jax.nn.softplus(logits), 0)  # −ln(1 − β)
    after = jax.lax.cumsum(left, axis=3, reverse=True)
    # ln β = z − softplus(z), and softplus(z) is part of the sum.
    weights = jnp.where(asked, jnp.exp(logits - after), 0)
    if not self.remainder:
      return weights
    rest = span.keep("remainder") * jnp.exp(-after[..., :1])
    return weights + jnp.where(seen & own, rest, 0)
