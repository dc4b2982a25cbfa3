"""What a trained model attends to: on a split, by offset, and while it writes a translation."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import tokenizers
from flax import nnx
from jax import Array

from posexp.analysis.line_translation import padded_length
from posexp.data.tokenizer import BOS, PAD
from posexp.encodings.base import Relation
from posexp.models.positions import Positions
from posexp.models.transformer import Stack
from posexp.training.restore import TrainedModel


def watch(stack: Stack) -> tuple[list[Array], list[Array]]:
  """The weights [B,H,Q,K] of self-attention and of cross-attention, a list by layer of each.

  They are filled when the stack, which is changed, computes attention: by its definition.
  """
  stack.size = dataclasses.replace(stack.size, attention="reference")
  own: list[Array] = []
  cross: list[Array] = []

  def watched(relation: Relation, seen: list[Array], q, k, v, span, dropout):
    weights = relation.weights(q, k, span)
    # They may be the same for the whole batch.
    seen.append(jnp.broadcast_to(weights, (len(v), v.shape[2], *weights.shape[2:])))
    return type(relation).attend(relation, q, k, v, span, dropout)

  for block in stack.blocks:
    for part, seen in ((block.attention, own), (block.cross, cross)):
      if part is not None:
        part.relation.attend = functools.partial(watched, part.relation, seen)
  return own, cross


class ByOffset(NamedTuple):
  """Attention on real sequences, by layer, head and how far the key is from the query."""

  offsets: np.ndarray  # int [O], in tokens
  mass: np.ndarray  # [layers,H,O]: of a query's attention, on average over queries
  uniform: np.ndarray  # [O]: the same, if every visible key weighed alike
  examples: int


def by_offset(stack: Stack, positions: Positions, batches: list[dict[str, Any]]) -> ByOffset:
  """Runs an encoder on batches of equal length, with `tokens`, `mask` and `weight`."""

  @nnx.jit
  def look(stack: Stack, batch: dict[str, Array]):
    stack = nnx.clone(stack)
    seen, _ = watch(stack)
    stack(batch["tokens"], batch["mask"], positions=positions.evaluating(batch["mask"]))
    real = batch["mask"] & (batch["weight"] > 0)[:, None]
    pairs = (real[:, :, None] & real[:, None, :]).astype(jnp.float32)  # [B,Q,K]
    return {
      "mass": (jnp.stack(seen).astype(jnp.float32) * pairs[:, None]).sum(1),  # [layers,H,Q,K]
      "uniform": (pairs / jnp.maximum(pairs.sum(-1, keepdims=True), 1)).sum(0),  # [Q,K]
      "queries": real.sum(),
      "examples": (batch["weight"] > 0).sum(),
    }

  found = [jax.device_get(look(stack, batch)) for batch in batches]
  sums = {name: sum(each[name] for each in found) for name in found[0]}
  length = len(sums["uniform"])
  offsets = np.arange(1 - length, length)
  mass, uniform = (
    np.stack([np.trace(sums[name], offset, -2, -1) for offset in offsets], axis=-1)
    for name in ("mass", "uniform")
  )
  queries = sums["queries"]
  return ByOffset(offsets, mass / queries, uniform / queries, int(sums["examples"]))


class Map(NamedTuple):
  """The weights of one kind of attention in a translation; a row is a query's, and sums to 1."""

  name: str  # "cross", "encoder" or "decoder"
  weights: np.ndarray  # [layers,H,Q,K]
  queries: list[str]  # Q tokens; in the decoder those that are written
  keys: list[str]  # K tokens


def of_translation(
  trained: TrainedModel, source: Sequence[int], target: Sequence[int]
) -> list[Map]:
  """One pass over a translation and its source, tokens as a `LineTranslator` gives them."""
  batch = pair(source, target, trained.spec.encoding.limit)
  state = trained.snapshot.state
  seen = weights(trained.snapshot.graphdef)(state.params, state.settings, batch)
  first, second = trained.tokenizers
  texts, written = token_names(first, source), token_names(second, target)
  read = token_names(second, [BOS, *target[:-1]])
  axes = {"encoder": (texts, texts), "decoder": (written, read), "cross": (written, texts)}
  return [
    Map(name, found[:, :, : len(queries), : len(keys)], queries, keys)
    for (name, (queries, keys)), found in zip(axes.items(), jax.device_get(seen), strict=True)
  ]


def pair(source: Sequence[int], target: Sequence[int], limit: int | None = None) -> dict[str, Any]:
  """The batch of a source and its translation, both of which end with [EOS] or were cut."""

  def row(tokens: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
    length = padded_length(len(tokens), limit)
    padded = np.full((1, length), PAD, np.int32)
    padded[0, : len(tokens)] = tokens
    return padded, np.arange(length)[None] < len(tokens)

  batch = {"target": row([BOS, *target[:-1]])[0], "weight": np.ones(1, np.float32)}
  batch["source"], batch["source_mask"] = row(source)
  batch["labels"], batch["mask"] = row(target)
  return batch


@functools.lru_cache(maxsize=4)
def weights(graphdef: nnx.GraphDef) -> Callable[..., tuple[Array, Array, Array]]:
  """(params, settings, a batch of one pair) -> the weights of each `Map`, padding included."""

  @jax.jit
  def look(params: Any, settings: Any, batch: dict[str, Array]) -> tuple[Array, Array, Array]:
    model = nnx.merge(graphdef, params, settings)
    (encoder, _), (decoder, cross) = map(watch, model.stacks)
    model(batch)
    return tuple(jnp.stack([each[0] for each in seen]) for seen in (encoder, decoder, cross))

  return look


def token_names(tokenizer: str, tokens: Sequence[int]) -> list[str]:
  """The text of each token, from a tokenizer's JSON; ␣ stands where a word begins."""
  opened, decoder = tokenizers.Tokenizer.from_str(tokenizer), tokenizers.decoders.ByteLevel()
  return [decoder.decode([opened.id_to_token(each)]).replace(" ", "␣") for each in tokens]
