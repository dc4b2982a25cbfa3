"""Positions that count chosen keys instead of all tokens: CoPE."""

from __future__ import annotations

import dataclasses
from typing import Annotated, ClassVar

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array

from posexp.config.checks import at_least
from posexp.encodings.base import Encoding, Relation, Span
from posexp.kernels.gradients import matmul
from posexp.kernels.lookup import looked_up


@dataclasses.dataclass(frozen=True)
class CoPE(Encoding):
  """Contextual position encoding (Golovneva et al. 2024, eq. 3 to 6).

  e_ij = q_i·k_j/√d + q_i·p[n_ij], n_ij = Σ_{t=j}^{i} g_it, g_it = σ(q_i·k_t/√d): a query counts
  only those keys that its gates let through, such as words, verbs or sentences. Between two whole
  numbers, rows of p are interpolated; beyond the last of `rows`, the last one is used. p is shared
  by heads, starts from 0, and its product is not scaled, as in the authors' code. Causal only.
  """

  alternative = ("rows", 16)
  causal_only: ClassVar[bool] = True
  rows: Annotated[int, at_least(2)] = 64

  def relation(self, num_heads, head_dim, *, causal, rngs):
    return Counted(self.rows, head_dim)


class Counted(Relation):
  """q·k + q·p, with p the vector of a key's position: the sum of the gates from it to the query."""

  terms = ("content", "position")

  def __init__(self, rows: int, head_dim: int):
    self.rows = nnx.Param(jnp.zeros((rows, head_dim)))

  def score(self, q, k, span):
    every = span.replace(term_scale=None)  # gates need q·k even if its term is off
    logits = super().score(q, k, every)
    rows = self.rows[...][: k.shape[1] + 1].astype(q.dtype)  # there are no more gates than keys
    by_row = matmul(q.swapaxes(1, 2), rows.T)
    place = self.place(logits, span)
    below = jnp.floor(place)
    share = (place - below).astype(q.dtype)
    row = below.astype(jnp.int32)
    lower, upper = (
      looked_up(by_row, index) for index in (row, jnp.minimum(row + 1, len(rows) - 1))
    )
    position = lower + share * (upper - lower)
    return span.keep("content") * logits + span.keep("position") * position

  def place(self, logits: Array, span: Span) -> Array:
    """Return the distance of each key in gates, at most the last row: float32 [B,H,Q,K]."""
    gates = jnp.where(span.visible[:, None], jax.nn.sigmoid(logits.astype(jnp.float32)), 0)
    count = jax.lax.cumsum(gates, axis=3, reverse=True)
    return jnp.minimum(count, len(self.rows[...]) - 1)
