"""The attention of a trained model: all of its weights, and by offset on a split."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import Array

from posexp.encodings.base import Relation
from posexp.models.positions import Positions
from posexp.models.transformer import Stack


class Seen(NamedTuple):
  """The attention of one layer."""

  weights: Array  # [B,H,Q,K]
  visible: Array  # bool [B,Q,K]: the keys that each query may look at


def watch(stack: Stack) -> tuple[list[Seen], list[Seen]]:
  """Make a stack record its attention; return lists, by layer, of self-attention and of
  cross-attention.

  This changes the stack: from then on it computes attention by the reference form, and each call
  appends its attention to the lists.
  """
  own: list[Seen] = []
  cross: list[Seen] = []

  def watched(relation: Relation, seen: list[Seen], q, k, v, span, dropout):
    weights = relation.weights(q, k, span)
    # The batch may share weights and mask.
    (batch, keys, heads, _), queries = v.shape, weights.shape[2]
    weights = jnp.broadcast_to(weights, (batch, heads, queries, keys))
    seen.append(Seen(weights, jnp.broadcast_to(span.visible, (batch, queries, keys))))
    return type(relation).attend(relation, q, k, v, span, dropout)

  # Figures alone look at weights; an argument for them would pass through every layer of a model.
  for block in stack.blocks:
    for part, seen in ((block.attention, own), (block.cross, cross)):
      if part is not None:
        part.form = "reference"
        part.relation.attend = functools.partial(watched, part.relation, seen)
  return own, cross


def seen_by(
  model: nnx.Module, batch: dict[str, Array], carry: Any, positions: Positions
) -> tuple[list[Seen], Any]:
  """Return the attention of each layer of a model's first stack in evaluation, and the next carry.

  An encoder reads a batch's `tokens` and `mask`; a causal stack reads what its model reads, after
  the carry.
  """
  model = nnx.clone(model)
  stack = model.stacks[0]
  seen, _ = watch(stack)
  if stack.causal:
    return seen, model.predict(batch, carry)[1]
  stack(batch["tokens"], batch["mask"], positions=positions.evaluating(batch["mask"]))
  return seen, carry


class AttentionByOffset(NamedTuple):
  """Attention on real sequences, by layer, head and offset of the key from the query."""

  offsets: np.ndarray  # int [O], in tokens
  mass: np.ndarray  # [layers,H,O]: share of a query's attention, averaged over queries
  uniform: np.ndarray  # [layers,O]: the same if all visible keys had equal weights
  examples: int
  length: int  # tokens of a sequence, or of a segment: keys before it are in a memory
  in_memory: np.ndarray  # [layers,H]: share of a query's attention, averaged over queries


def by_offset(
  model: nnx.Module, positions: Positions, batches: list[dict[str, Any]], most: int
) -> AttentionByOffset:
  """Measure a model on batches of equal length, one after another; only the last `most` count."""

  @nnx.jit
  def look(model: Any, batch: dict[str, Array], carry: Any):
    seen, carry = seen_by(model, batch, carry, positions)
    real = batch["mask"] & (batch["weight"] > 0)[:, None]
    mass = jnp.stack([each.weights for each in seen]).astype(jnp.float32)
    visible = jnp.stack([each.visible & real[:, :, None] for each in seen]).astype(jnp.float32)
    equal = visible / jnp.maximum(visible.sum(-1, keepdims=True), 1)
    sums = {
      "mass": (mass * visible[:, :, None]).sum(1),  # [layers,H,Q,K]
      "uniform": equal.sum(1),  # [layers,Q,K]
      "queries": real.sum(),
      "examples": (batch["weight"] > 0).sum(),
    }
    return sums, carry

  found, carry = [], model.initial_carry(len(batches[0]["mask"]))
  for batch in batches:
    sums, carry = look(model, batch, carry)
    found.append(jax.device_get(sums))
  sums = {name: sum(each[name] for each in found[-most:]) for name in found[0]}
  length, keys = sums["uniform"].shape[1:]
  memory, queries = keys - length, sums["queries"]
  offsets = np.arange(1 - keys, length)
  mass, uniform = (
    np.stack([np.trace(sums[name], memory + offset, -2, -1) for offset in offsets], axis=-1)
    for name in ("mass", "uniform")
  )
  in_memory = sums["mass"][..., :memory].sum((-2, -1)) / queries
  examples = int(sums["examples"])
  return AttentionByOffset(offsets, mass / queries, uniform / queries, examples, length, in_memory)
