"""Decoding: beam search over a key/value cache, compiled from the source to the hypothesis.

Greedy search is a beam of 1. All shapes are static: a row always has `beam` hypotheses, and a
finished one stays among them and continues with [PAD].

The hypotheses of a row share its cache, where each token that was read keeps its slot. A hypothesis
sees only the slots of its own tokens.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx, struct
from jax import Array

from posexp.data.tokenizer import PAD
from posexp.encodings.span import Span
from posexp.models.cache import Cache
from posexp.translation.encoded import BOS, EOS
from posexp.translation.model import Translator
from posexp.translation.search import Search

BLOCK = 64  # words in a block of `largest`
ROOM = 8  # slots of the first cache beyond the length of the source

Sources = tuple[tuple[Array, Array, Span], ...]  # keys, values and their span, for every layer


class Beams(struct.PyTreeNode):
  """The hypotheses of all rows, the best one of each row first."""

  step: Array  # int: the number of tokens of each unfinished hypothesis
  most: Array  # int [B,1]: the most tokens of a hypothesis
  tokens: Array  # int [B,K,1+T], [BOS] first
  score: Array  # Σ log p, float32 [B,K]; −∞ where there is no hypothesis
  length: Array  # int [B,K], [EOS] counted
  done: Array  # bool [B,K]
  seen: Array  # bool [B,K,S]: True where a slot of the cache has one of its tokens
  cache: Cache  # of B rows, K slots for each step

  @property
  def unfinished(self) -> Array:
    """True, bool [], while any hypothesis continues."""
    return ~(self.done | jnp.isneginf(self.score)).all()


@functools.lru_cache(maxsize=16)
def searcher(graphdef: nnx.GraphDef, search: Search) -> Callable[..., dict[str, Array]]:
  """Return the search (params, settings, batch) -> found of a model of this structure.

  It is compiled once per shape of a batch, and finds the best hypothesis for each row of source
  [B,S], source_mask [B,S] and weight [B]. tokens int32 [B,T] end with [EOS], unless cut, and [PAD]
  follows; length int32 [B] counts [EOS]; score float32 [B] is Σ log p without penalty; steps int32
  is the number of decoder passes. A row of weight 0 has no tokens.

  Every step reads the whole cache. So the cache first has room for a translation slightly longer
  than its source, and for the longest one only if needed.

  The search raises ValueError where the encoding has too few positions for the source.
  """

  @jax.jit
  def begin(params: Any, settings: Any, batch: dict[str, Array]) -> tuple[Beams, Sources]:
    return begun(nnx.merge(graphdef, params, settings), batch, search)

  @functools.partial(jax.jit, static_argnums=4)
  def advance(
    params: Any, settings: Any, beams: Beams, source: Sources, slots: int
  ) -> tuple[Beams, dict[str, Array], Array]:
    beams = advanced(nnx.merge(graphdef, params, settings), beams, source, slots, search)
    outputs = {
      "tokens": beams.tokens[:, 0, 1:],
      "length": beams.length[:, 0],
      "score": beams.score[:, 0],
      "steps": beams.step,
    }
    return beams, outputs, beams.unfinished

  def searched(params: Any, settings: Any, batch: dict[str, Array]) -> dict[str, Array]:
    beams, source = begin(params, settings, batch)
    most = beams.tokens.shape[2] - 1
    for slots in sorted({min(most, batch["source"].shape[1] + ROOM), most}):
      beams, outputs, unfinished = advance(params, settings, beams, source, slots)
      if not unfinished:
        break
    return outputs

  return searched


def begun(model: Translator, batch: dict[str, Array], search: Search) -> tuple[Beams, Sources]:
  """Return hypotheses without tokens, and the encoded source for every decoder layer."""
  mask, limit = batch["source_mask"], model.decoder.limit
  (rows, width), beam = mask.shape, search.beam
  size = search.most(width) if limit is None else min(search.most(width), limit)
  beams = Beams(
    step=jnp.zeros((), jnp.int32),
    most=jnp.minimum(search.most(mask.sum(1, keepdims=True)), size),
    tokens=jnp.full((rows, beam, 1 + size), PAD, jnp.int32).at[:, :, 0].set(BOS),
    score=jnp.full((rows, beam), -jnp.inf).at[:, 0].set(0),  # all start equal: one is enough
    length=jnp.zeros((rows, beam), jnp.int32),
    done=jnp.broadcast_to(batch["weight"][:, None] == 0, (rows, beam)),
    seen=jnp.zeros((rows, beam, 0), bool),
    cache=model.decoder.empty_cache(rows, 0, rolling=False),
  )
  return beams, model.encode(batch["source"], mask)


def advanced(model: Translator, beams: Beams, source: Sources, slots: int, search: Search) -> Beams:
  """Extend hypotheses until all are finished or have `slots` tokens."""
  rows, beam = beams.done.shape
  places = jnp.arange(slots * beam)

  def advance(beams: Beams) -> Beams:
    own = places == beams.cache.length + jnp.arange(beam)[:, None]
    seen = beams.seen | own
    hidden, cache = model.decoder.step(
      beams.tokens[:, :, beams.step], beams.cache, source=source, seen=seen
    )
    gain, token = continuations(model.reader.logits(hidden), beams.done, beam)
    score = beams.score[:, :, None] + gain
    length = jnp.where(beams.done, beams.length, beams.step + 1)
    rank = search.rank(score, length[:, :, None])
    _, best = jax.lax.top_k(rank.reshape(rows, -1), beam)
    token, score = (
      jnp.take_along_axis(values.reshape(rows, -1), best, axis=1) for values in (token, score)
    )
    parent = best // gain.shape[-1]
    tokens, length, done, seen = (
      jax.vmap(lambda of_row, chosen: of_row[chosen])(array, parent)
      for array in (beams.tokens, length, beams.done, seen)
    )
    tokens = tokens.at[:, :, beams.step + 1].set(token)
    done = done | (token == EOS) | (length >= beams.most)
    return Beams(beams.step + 1, beams.most, tokens, score, length, done, seen, cache)

  def copied(wide: Array, held: Array) -> Array:
    return jax.lax.dynamic_update_slice(wide, held, (0,) * held.ndim)

  held = beams.cache
  room = model.decoder.empty_cache(rows, len(places), places[None] // beam, rolling=False)
  parts = {name: getattr(held, name) for name in ("keys", "values", "columns")}
  parts = {name: jax.tree.map(copied, getattr(room, name), part) for name, part in parts.items()}
  beams = beams.replace(
    seen=copied(jnp.zeros((rows, beam, len(places)), bool), beams.seen),
    cache=room.replace(**parts, length=held.length),
  )
  return jax.lax.while_loop(lambda beams: beams.unfinished & (beams.step < slots), advance, beams)


def continuations(logits: Array, done: Array, beam: int) -> tuple[Array, Array]:
  """Return log p and token, [B,K,C], of the C ≤ `beam` best continuations by logits [B,K,V]."""
  total = jax.nn.logsumexp(logits, axis=-1, keepdims=True)
  best, token = largest(logits, min(beam, logits.shape[-1]), first=EOS)  # not [PAD], not [BOS]
  stay = jnp.where(jnp.arange(best.shape[-1]) == 0, 0, -jnp.inf)
  done = done[:, :, None]
  return jnp.where(done, stay, best - total), jnp.where(done, PAD, token)


def largest(x: Array, count: int, *, first: int) -> tuple[Array, Array]:
  """Return the largest values of x [...,V] from index `first` on, and their indices: [...,count].

  This is `jax.lax.top_k`, but only the blocks with the largest maxima are searched, which
  takes a third of the time on a CPU.
  """
  index = jnp.arange(x.shape[-1])
  blocks = x.shape[-1] // BLOCK
  if blocks <= count:
    return jax.lax.top_k(jnp.where(index < first, -jnp.inf, x), count)
  end = blocks * BLOCK
  divided, rest = x[..., :end].reshape(*x.shape[:-1], blocks, BLOCK), x[..., end:]
  maxima = divided.max(-1).at[..., 0].set(divided[..., 0, first:].max(-1))
  _, chosen = jax.lax.top_k(maxima, count)
  chosen = jnp.sort(chosen, axis=-1)  # equal values go by index, as in `top_k`
  near = jnp.take_along_axis(divided, chosen[..., None], axis=-2)
  near, of_near = (
    each.reshape(*x.shape[:-1], -1) for each in (near, index[:end].reshape(blocks, BLOCK)[chosen])
  )
  near = jnp.where(of_near < first, -jnp.inf, near)
  value, place = jax.lax.top_k(jnp.concatenate([near, rest], axis=-1), count)
  of_rest = jnp.broadcast_to(index[end:], rest.shape)
  return value, jnp.take_along_axis(jnp.concatenate([of_near, of_rest], axis=-1), place, axis=-1)
