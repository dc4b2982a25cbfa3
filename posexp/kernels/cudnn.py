"""cuDNN's kernel of attention: what it is given, so that it computes what a relation defines.

Shapes: B batch, Q queries, K keys, H heads, D width of a head.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from posexp.encodings.span import Span
from posexp.kernels.target import target


def attend(q: Array, k: Array, v: Array, bias: Array | None, span: Span) -> Array:
  """The softmax of q [B,Q,H,E] · k [B,K,H,E] + bias, times v [B,K,H,D]: [B,Q,H,D].

  Without a GPU the same arguments go to what XLA makes of them.
  """
  arguments = given(q, k, v, bias, span)
  implementation = "cudnn" if target().platform == "gpu" else "xla"
  found = jax.nn.dot_product_attention(**arguments, scale=1.0, implementation=implementation)
  return found[:, : q.shape[1]]


def given(q: Array, k: Array, v: Array, bias: Array | None, span: Span) -> dict[str, Any]:
  """The arguments of `jax.nn.dot_product_attention`.

  How many keys a text has costs nothing, and neither does that none of them is ahead. Where that
  does not say which ones a query sees a mask is formed, a row for each query, which cuDNN adds to
  the bias; of the sum it computes a gradient, used or not.
  """
  batch, queries, keys = len(q), q.shape[1], k.shape[1]
  lengths = mask = None
  if span.padding_last and (span.own or not span.causal):
    lengths = jnp.broadcast_to(span.mask[:, 0].sum(-1, dtype=jnp.int32), (batch,))
  else:
    mask = broadcast(span.visible[:, None], queries, keys)
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
    "is_causal": mask is None and span.causal,
  }


def broadcast(x: Array, queries: int, keys: int) -> Array:
  """x [·,·,1 or Q,1 or K] for every query and key."""
  return jnp.broadcast_to(x, (*x.shape[:2], queries, keys))


def filled(x: Array, more: dict[int, int]) -> Array:
  """x with so many zeros at the end of its axes."""
  return jnp.pad(x, [(0, more.get(axis, 0)) for axis in range(x.ndim)])
