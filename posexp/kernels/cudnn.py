"""cuDNN's kernel of attention: what it is given, so that it computes what a relation defines.

Shapes: B batch, Q queries, K keys, H heads, D width of a head.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from posexp.kernels.target import target


def attend(q: Array, k: Array, v: Array, bias: Array | None, visible: Array, causal: bool) -> Array:
  """The softmax of q [B,Q,H,E] · k [B,K,H,E] + bias [1 or B,H,Q,K], times v [B,K,H,D]: [B,Q,H,D].

  `visible` and `causal` are as in `arguments`. Without a GPU the same arguments go to what XLA
  makes of them.
  """
  implementation = "cudnn" if target().platform == "gpu" else "xla"
  given = arguments(q, k, v, bias, visible, causal)
  found = jax.nn.dot_product_attention(**given, scale=1.0, implementation=implementation)
  return found[:, : q.shape[1]]


def arguments(
  q: Array, k: Array, v: Array, bias: Array | None, visible: Array, causal: bool
) -> dict[str, Any]:
  """The arguments of `jax.nn.dot_product_attention`.

  `visible` is the number of keys of each sequence, int [1 or B], after which padding comes, or a
  mask, bool [1 or B,1 or Q,K]. With `causal`, query i sees keys 0 to i of these. Numbers and
  `causal` cost nothing. A mask gets a row for each query and is added to the bias by cuDNN, which
  computes a gradient of the sum, used or not.
  """
  queries, keys = q.shape[1], k.shape[1]
  lengths = mask = None
  if visible.ndim == 1:
    lengths = jnp.broadcast_to(visible, (len(q),))
  else:
    mask = broadcast(visible[:, None], queries, keys)
  if bias is not None:
    bias = broadcast(bias.astype(q.dtype), queries, keys)
  odd = queries % 2, keys % 2  # lengths that JAX refuses to train with
  narrow = v.shape[3] - q.shape[3]
  return {
    "query": filled(q, {1: odd[0], 3: narrow}),
    "key": filled(k, {1: odd[1], 3: narrow}),
    "value": filled(v, {1: odd[1]}),
    "bias": None if bias is None else filled(bias, {2: odd[0], 3: odd[1]}),
    "mask": None if mask is None else filled(mask, {2: odd[0], 3: odd[1]}),
    "key_value_seq_lengths": lengths,
    "is_causal": causal,
  }


def broadcast(x: Array, queries: int, keys: int) -> Array:
  """x [·,·,1 or Q,1 or K] for every query and key."""
  return jnp.broadcast_to(x, (*x.shape[:2], queries, keys))


def filled(x: Array, more: dict[int, int]) -> Array:
  """x with so many zeros at the end of its axes."""
  return jnp.pad(x, [(0, more.get(axis, 0)) for axis in range(x.ndim)])
