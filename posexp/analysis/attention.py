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

Seen = list[tuple[Array, Array]]  # by layer, logits and weights, each [B,H,Q,K]


def watch(stack: Stack) -> tuple[Seen, Seen]:
  """Lists to which self-attention and cross-attention add what they compute, layer by layer.

  The stack, which is changed, is made to compute attention by its definition.
  """
  stack.size = dataclasses.replace(stack.size, attention="reference")
  own: Seen = []
  cross: Seen = []

  def watched(relation: Relation, seen: Seen, q, k, v, span, dropout):
    found = relation.score(q, k, span), relation.weights(q, k, span)
    shape = len(v), v.shape[2]  # either may be the same for all of the batch
    seen.append(tuple(jnp.broadcast_to(each, (*shape, *each.shape[2:])) for each in found))
    return type(relation).attend(relation, q, k, v, span, dropout)

  for block in stack.blocks:
    for part, seen in ((block.attention, own), (block.cross, cross)):
      if part is not None:
        part.relation.attend = functools.partial(watched, part.relation, seen)
  return own, cross


class ByOffset(NamedTuple):
  """Attention on real text, by layer, head and how far the key is from the query."""

  offsets: np.ndarray  # int [O], in tokens
  mass: np.ndarray  # [layers,H,O]: of a query's attention, on average over queries
  uniform: np.ndarray  # [O]: the same, if every visible key weighed alike
  logits: np.ndarray  # [layers,H,O]: their mean over pairs at that offset
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
    logits, weights = (jnp.stack(each).astype(jnp.float32) for each in zip(*seen, strict=True))
    return {
      "weights": (weights * pairs[:, None]).sum(1),  # [layers,H,Q,K]
      "logits": jnp.where(pairs[:, None] > 0, logits, 0).sum(1),
      "uniform": (pairs / jnp.maximum(pairs.sum(-1, keepdims=True), 1)).sum(0),  # [Q,K]
      "pairs": pairs.sum(0),
      "queries": real.sum(),
      "examples": (batch["weight"] > 0).sum(),
    }

  found = [jax.device_get(look(stack, batch)) for batch in batches]
  sums = {name: sum(each[name] for each in found) for name in found[0]}
  length = sums["pairs"].shape[-1]
  offsets = np.arange(1 - length, length)
  weights, logits, uniform, pairs = (
    np.stack([np.trace(sums[name], offset, -2, -1) for offset in offsets], axis=-1)
    for name in ("weights", "logits", "uniform", "pairs")
  )
  mean = np.divide(logits, pairs, out=np.full_like(logits, np.nan), where=pairs > 0)
  queries = sums["queries"]
  return ByOffset(offsets, weights / queries, uniform / queries, mean, int(sums["examples"]))


class Maps(NamedTuple):
  """Attention weights in one translation; a row is a query's, and sums to 1."""

  source: list[str]  # S tokens, [EOS] last
  read: list[str]  # T tokens that the decoder reads, [BOS] first
  written: list[str]  # the T tokens that it writes at these
  encoder: np.ndarray  # [layers,H,S,S]
  decoder: np.ndarray  # [layers,H,T,T]
  cross: np.ndarray  # [layers,H,T,S]


def of_translation(trained: TrainedModel, source: Sequence[int], target: Sequence[int]) -> Maps:
  """One pass over a translation and its source, tokens as a `LineTranslator` gives them."""
  batch = pair(source, target, trained.spec.encoding.limit)
  state = trained.snapshot.state
  seen = weights(trained.snapshot.graphdef)(state.params, state.settings, batch)
  encoder, decoder, cross = jax.device_get(seen)
  first, second = trained.tokenizers
  s, t = len(source), len(target)
  return Maps(
    token_names(first, source),
    token_names(second, [BOS, *target[:-1]]),
    token_names(second, target),
    encoder[:, :, :s, :s],
    decoder[:, :, :t, :t],
    cross[:, :, :t, :s],
  )


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
  """(params, settings, a batch of one pair) -> the weights of `Maps`, padding included."""

  @jax.jit
  def look(params: Any, settings: Any, batch: dict[str, Array]) -> tuple[Array, Array, Array]:
    model = nnx.merge(graphdef, params, settings)
    (encoder, _), (decoder, cross) = map(watch, model.stacks)
    model(batch)
    return tuple(jnp.stack([each[0] for _, each in seen]) for seen in (encoder, decoder, cross))

  return look


def token_names(tokenizer: str, tokens: Sequence[int]) -> list[str]:
  """The text of each token, from a tokenizer's JSON; ␣ stands where a word begins."""
  opened, decoder = tokenizers.Tokenizer.from_str(tokenizer), tokenizers.decoders.ByteLevel()
  return [decoder.decode([opened.id_to_token(each)]).replace(" ", "␣") for each in tokens]
