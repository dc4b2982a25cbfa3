"""cuDNN's attention kernel, with the arguments that make it compute what a relation defines.

Shapes: B batch, Q queries, K keys, H heads, D width of a head.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from posexp.kernels.target import target


def attend(q: Array, k: Array, v: Array, bias: Array | None, visible: Array, causal: bool) -> Array:
  """Return softmax(q [B,Q,H,E] · k [B,K,H,E] + bias [1 or B,H,Q,K]) · v [B,K,H,D], [B,Q,H,D].

  `visible` and `causal` are as in `arguments`. Without a GPU, XLA implements the same call.
  """
  implementation = "cudnn" if target().platform == "gpu" else "xla"
  given = arguments(q, k, v, bias, visible, causal)
  attended = jax.nn.dot_product_attention(**given, scale=1.0, implementation=implementation)
  return attended[:, : q.shape[1]]


def arguments(
  q: Array, k: Array, v: Array, bias: Array | None, visible: Array, causal: bool
) -> dict[str, Any]:
  """Return the arguments of `jax.nn.dot_product_attention`.

  `visible` is the number of keys of each sequence before padding, int [1 or B], or a mask, bool
  [1 or B,1 or Q,K]. With `causal`, query i sees only keys 0 to i of these. Key counts and `causal`
  cost nothing. A mask gets one row per query; cuDNN adds it to the bias and always computes the
  gradient of the sum.
  """
  queries, keys = q.shape[1], k.shape[1]
  more_queries, more_keys = queries % 2, keys % 2  # JAX refuses to train with odd lengths

  def padded(x: Array, length: int, width: int = 0) -> Array:
    return jnp.pad(x, ((0, 0), (0, length), (0, 0), (0, width)))

  def pairs(x: Array) -> Array:
    whole = jnp.broadcast_to(x, (*x.shape[:2], queries, keys))
    return jnp.pad(whole, ((0, 0), (0, 0), (0, more_queries), (0, more_keys)))

  narrow, counted = v.shape[3] - q.shape[3], visible.ndim == 1
  return {
    "query": padded(q, more_queries, narrow),
    "key": padded(k, more_keys, narrow),
    "value": padded(v, more_keys),
    "bias": None if bias is None else pairs(bias.astype(q.dtype)),
    "mask": None if counted else pairs(visible[:, None]),
    "key_value_seq_lengths": jnp.broadcast_to(visible, (len(q),)) if counted else None,
    "is_causal": causal,
  }
