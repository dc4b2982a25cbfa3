"""The feed-forward network of a block, or several of which a router takes a few for each token."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array

from posexp.encodings.base import Encoding, Linear
from posexp.encodings.rngs import Rngs
from posexp.models import attention
from posexp.models.size import FEED_FORWARDS, Size


def drop(x: Array, rate: float, rngs: Rngs | None) -> Array:
  """Apply dropout; without `rngs`, as in evaluation, return x."""
  if rngs is None or rate == 0:
    return x
  return attention.Dropout(rate, rngs.dropout())(x)


class FeedForward(nnx.Module):
  """f(x W1 + b1) W2 + b2, or (f(x W3 + b3) · g(x W1 + b1)) W2 + b2 if it is gated (Shazeer 2020).

  g is the identity, except in gpt-oss: see `FEED_FORWARDS`.
  """

  def __init__(self, encoding: Encoding, size: Size, *, rngs: Rngs):
    self.unit = size.feed_forward
    d_model, d_ff, biased = size.d_model, size.d_ff, "feed_forward" in size.biased
    gated = FEED_FORWARDS[self.unit].gated
    self.up = encoding.linear(d_model, d_ff, bias=biased, rngs=rngs.fork())
    self.down = encoding.linear(d_ff, d_model, bias=biased, rngs=rngs.fork())
    self.gate = encoding.linear(d_model, d_ff, bias=biased, rngs=rngs.fork()) if gated else None
    self.dropout = size.dropout

  def __call__(self, x: Array, rngs: Rngs | None = None) -> Array:
    unit, up = FEED_FORWARDS[self.unit], self.up(x)
    hidden = unit.f(up) if self.gate is None else unit.f(self.gate(x)) * unit.g(up)
    return self.down(drop(hidden, self.dropout, rngs))


class Experts(nnx.Module):
  """Σ_e r_e(x) f_e(x) of the k experts f_e whose logits x W_R + b_R are the largest.

  r is the softmax of these k logits alone, in float32 (Mixtral, Jiang et al. 2024; gpt-oss, OpenAI
  2025). All experts are computed, and those not taken count 0. Each is a `FeedForward`, and what is
  theirs has a first axis of experts. No loss balances them.
  """

  def __init__(self, encoding: Encoding, size: Size, *, rngs: Rngs):
    biased = "feed_forward" in size.biased
    made = [FeedForward(encoding, size, rngs=rngs.fork()) for _ in range(size.experts)]
    graphs, states = zip(*map(nnx.split, made), strict=True)
    self.experts = nnx.merge(graphs[0], jax.tree.map(lambda *each: jnp.stack(each), *states))
    self.router = Linear(size.d_model, size.experts, bias=biased, rngs=rngs.fork())
    self.used = size.experts_used

  def weights(self, x: Array) -> Array:
    """Return the weight of each expert for x [...,F]: float32 [...,E], k of which are not 0."""
    logits = self.router(x).astype(jnp.float32)
    largest, taken = jax.lax.top_k(logits, self.used)
    places = jax.nn.one_hot(taken, logits.shape[-1])
    return jnp.einsum("...k,...ke->...e", jax.nn.softmax(largest), places)

  def __call__(self, x: Array, rngs: Rngs | None = None) -> Array:
    graph, state = nnx.split(self.experts)

    def of_one(state: nnx.State, weight: Array, key: Array | None) -> Array:
      return weight * nnx.merge(graph, state)(x, None if key is None else Rngs(dropout=key))

    weights = jnp.moveaxis(self.weights(x), -1, 0)[..., None].astype(x.dtype)
    still = rngs is None or not self.experts.dropout
    keys = None if still else jax.random.split(rngs.dropout(), len(weights))
    return jax.vmap(of_one)(state, weights, keys).sum(0)
