"""Dual triangle attention: one half of every head looks back, the other looks ahead."""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array

from posexp.encodings.base import Relation, capped
from posexp.encodings.bias import Biased
from posexp.encodings.rotation import Rotation
from posexp.encodings.span import Span
from posexp.kernels.gradients import softmax, weighted_sum


def halves(x: Array) -> Array:
  """Cut the channels of each head in two, [B,L,H,D] -> [B,L,2H,D/2]; head h becomes 2h, 2h + 1."""
  return x.reshape(*x.shape[:2], 2 * x.shape[2], -1)


class Triangles(Relation):
  """A relation whose heads are cut: the first half sees keys j ≤ i, the second j ≥ i.

  Each half has its own softmax, of the products of its channels over √(D/2) (arXiv 2604.18603).
  Positions enter before the cut. Both halves have the same bias.
  """

  def __init__(self, whole: Relation, head_dim: int):
    """Cut the heads of a `whole` relation.

    Raises:
      ValueError: they cannot be cut.
    """
    if type(whole) not in (Relation, Rotation, Biased):
      raise ValueError(
        "triangles=true cuts heads whose logits are products of queries and keys, plus a bias: "
        "rope without maps, lengths, key_shift and values; alibi, t5, kerple, fire and sandwich; "
        "none, and positions that are added to words"
      )
    turns = isinstance(whole, Rotation)
    if turns and whole.layout == "half":
      raise ValueError("triangles=true would cut planes of layout=half; take layout=interleaved")
    if head_dim % (4 if turns else 2):
      raise ValueError(f"triangles=true cannot cut a head's {head_dim} channels, or planes, in two")
    self.whole, self.terms, self.cap = whole, whole.terms, whole.cap

  def qk_and_bias(self, q, k, span):
    query, key, bias = self.whole.qk_and_bias(q, k, span)
    return halves(query * 2**0.5), halves(key), None if bias is None else bias.repeat(2, axis=1)

  def both(self, q: Array, k: Array, span: Span) -> Array:
    """Return the weights of all halves, float32 [B,2H,Q,K]."""
    logits = capped(self.score(q, k, span).astype(jnp.float32), self.cap)
    sides = jnp.stack([span.offset <= 0, span.offset >= 0], axis=1) & span.visible[:, None]
    return softmax(logits, jnp.tile(sides, (1, q.shape[2], 1, 1)))

  def weights(self, q, k, span):
    """Return the means of both halves of each head, [B,H,Q,K]."""
    return self.both(q, k, span).reshape(len(k), q.shape[2], 2, q.shape[1], -1).mean(2)

  def attend(self, q, k, v, span, dropout):
    weights = dropout(self.both(q, k, span)).astype(v.dtype)
    return weighted_sum(weights, halves(v)).reshape(len(v), -1, *v.shape[2:])
