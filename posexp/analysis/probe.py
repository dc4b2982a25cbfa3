"""Numbers about an encoding, found by asking its parts: whatever it is, it is asked the same.

Nothing here knows an encoding by name, so that a new one has its card and its figures by existing.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import Array

from posexp.encodings.base import Encoding, Words
from posexp.encodings.span import Span
from posexp.models.positions import Positions
from posexp.models.transformer import Size, Stack
from posexp.training.step import keys, split

DRAWS = 64
WORDS = 64  # in the vocabulary of what is not trained


class Subject(NamedTuple):
  """A stack to be looked into: untrained, or that of a run."""

  encoding: Encoding
  size: Size
  causal: bool
  graphdef: Any
  state: tuple[Any, ...]  # parameters, and all that is none

  def stack(self, state: tuple[Any, ...] | None = None) -> Stack:
    """The stack with its own parameters, or with others."""
    return nnx.merge(self.graphdef, *(self.state if state is None else state))


def builder(encoding: Encoding, size: Size, causal: bool) -> Callable[..., Stack]:
  """A function of `rngs` that builds an untrained stack."""
  return lambda rngs: Stack(WORDS, encoding, size, causal=causal, rngs=rngs)


@functools.lru_cache
def refusal(encoding: Encoding, size: Size, causal: bool) -> str | None:
  """Why there is no encoder, or no decoder, with this encoding; None where there is one."""
  try:
    jax.eval_shape(lambda seeds: split(builder(encoding, size, causal), seeds)[1], keys(0))
  except ValueError as error:
    return str(error)
  return None


@functools.lru_cache(maxsize=4)
def untrained(encoding: Encoding, size: Size, causal: bool, seed: int = 0) -> Subject:
  """A stack as training would start with it, but for its words."""
  found = []

  def init(seeds):
    graphdef, *state = split(builder(encoding, size, causal), seeds)
    found.append(graphdef)
    return tuple(state)

  state = jax.jit(init)(keys(seed))
  return Subject(encoding, size, causal, found[0], state)


def moved(subject: Subject) -> Subject:
  """With all weights away from where they start, since many a table starts at zero."""
  draw = np.random.default_rng(0)
  leaves, tree = jax.tree.flatten(subject.state[0])
  leaves = [x + 0.1 * jnp.asarray(draw.normal(size=x.shape), x.dtype) for x in leaves]
  return subject._replace(state=(tree.unflatten(leaves), *subject.state[1:]))


def positions_in(encoding: Encoding, length: int) -> int:
  """`length`, or as many positions as there are."""
  return length if encoding.limit is None else min(length, encoding.limit)


class Profile(NamedTuple):
  """What one layer's relation makes of offsets, for random queries and keys.

  Every key of a draw is the same vector, so that offsets alone tell logits apart. The vectors
  are what the layer's own projections make of inputs from N(0, 1), as a norm gives them.
  """

  offsets: np.ndarray  # int [O]
  logits: np.ndarray  # [N,H,O], of queries and keys drawn apart
  alike: np.ndarray  # [N,H,O], of queries that are equal to the keys
  terms: dict[str, np.ndarray]  # as `logits`, with this term alone


def profile(subject: Subject, length: int, layer: int = 0) -> Profile:
  """Offsets back to −(length − 1), where there are positions, and as far ahead in an encoder."""
  if subject.encoding.limit is not None and not subject.causal:
    length = min(length, (subject.encoding.limit + 1) // 2)
  length = positions_in(subject.encoding, length)
  count = length if subject.causal else 2 * length - 1
  features, heads = subject.size.d_model, subject.size.num_heads

  def ask(state):
    stack = subject.stack(state)
    attention = stack.blocks[layer].attention
    relation = attention.relation
    one, other = jax.random.normal(jax.random.key(1), (2, DRAWS, 1, features))
    asked = getattr(relation, "of_stream", True)

    q = k = None
    if asked:
      q = attention.heads(attention.query(one))
      k = attention.heads(attention.key(other))
      k = jnp.broadcast_to(k, (DRAWS, count, *k.shape[2:]))
    at, to = jnp.full((1, 1), length - 1), jnp.arange(count)[None]
    there = jnp.ones((1, 1, count), bool)
    span = stack.ready(Span(at, to, there, reach=stack.reach), whole_only=True)

    def logits(q, k, span=span):
      found = relation.score(q, k, span)[:, :, 0]
      return jnp.broadcast_to(found, (DRAWS, heads, count))

    def alone(term):
      kept = {name: jnp.full(heads, float(name == term)) for name in relation.terms}
      return logits(q, k, span.replace(kept=kept))

    return (
      logits(q, k),
      logits(k if k is None else k[:, :1], k),
      {term: alone(term) for term in relation.terms},
    )

  found = jax.device_get(jax.jit(ask)(subject.state))
  offsets = np.arange(count) - (length - 1)
  return Profile(offsets, *found)


def relative_to_zero(logits: np.ndarray, offsets: np.ndarray) -> np.ndarray:
  """Logits less that at offset 0: softmax sees differences only."""
  zero = int(np.flatnonzero(offsets == 0)[0])
  return logits - logits[..., zero : zero + 1]


def position_vectors(
  embed: Callable[..., Array], length: int, word: int | None = None
) -> tuple[Array, Array]:
  """What an embedding makes of positions [length,F]: with all words 0, and with all words 1.

  Where it has no table of words of its own, both are those of one word.
  """
  found = []
  for value in (0.0, 1.0):
    of = nnx.clone(embed) if isinstance(embed, nnx.Module) else embed
    modules = [each for _, each in nnx.iter_modules(of)] if isinstance(of, nnx.Module) else []
    for each in modules:
      if isinstance(each, Words):
        each.table[...] = jnp.full_like(each.table[...], value / each.scale)
    tokens = jnp.full((1, length), word or 0)
    found.append(of(tokens, jnp.arange(length)[None], jnp.ones((1, length), bool))[0])
  return tuple(found)


def chosen(vectors: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
  """Of what `position_vectors` gives the one that shows: products with words 0 would be 0."""
  zero, one = (np.asarray(each, np.float64) for each in vectors)
  return zero if np.ptp(zero, axis=0).max() > 0 else one


def inner_products(vectors: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
  """Of vectors [L,F] the mean inner product at each offset 0 … L/2, and its 10th and 90th percent.

  In units of a vector's own mean square.
  """
  gram = vectors @ vectors.T / np.mean(np.sum(vectors**2, axis=1))
  diagonals = [np.diagonal(gram, offset) for offset in range(len(vectors) // 2 + 1)]
  low, high = np.array([np.quantile(each, (0.1, 0.9)) for each in diagonals]).T
  return np.array([each.mean() for each in diagonals]), low, high


def share_by_offset(scores: np.ndarray) -> float:
  """The share of the variance of scores [L,L] that a function of j − i alone explains."""
  total = np.sum((scores - scores.mean()) ** 2)
  offsets = range(-len(scores) + 1, len(scores))
  diagonals = [np.diagonal(scores, offset) for offset in offsets]
  left = sum(np.sum((each - each.mean()) ** 2) for each in diagonals)
  return float(1 - left / total) if total > 1e-9 * np.sum(scores**2) else float("nan")


class Shares(NamedTuple):
  """`share_by_offset` of p_i W_Q W_Kᵀ p_j: of all heads together, and of each head."""

  whole: float
  heads: list[float]


def shares(q: np.ndarray, k: np.ndarray, heads: int) -> Shares:
  """Of the queries and keys [L,F] of positions."""
  apart = [each.reshape(len(each), heads, -1).swapaxes(0, 1) for each in (q, k)]
  return Shares(
    share_by_offset(q @ k.T), [share_by_offset(a @ b.T) for a, b in zip(*apart, strict=True)]
  )


def shares_by_maps(
  vectors: np.ndarray, heads: int, trained: tuple[np.ndarray, np.ndarray] | None
) -> dict[str, list[Shares]]:
  """Shares for maps of several kinds, those that are drawn from five seeds."""
  features = vectors.shape[1]
  found = {"identity": [shares(vectors, vectors, heads)], "random": [], "tied orthogonal": []}
  for seed in range(5):
    draw = np.random.default_rng(seed)
    q, k = (vectors @ draw.normal(size=(features, features)) for _ in "qk")
    found["random"].append(shares(q, k, heads))
    turned = vectors @ np.linalg.qr(draw.normal(size=(features, features)))[0]
    found["tied orthogonal"].append(shares(turned, turned, heads))
  if trained is not None:
    found["trained"] = [shares(*trained, heads)]
  return found


def with_option(encoding: Encoding, **options) -> Encoding | None:
  """The encoding with other options, if it has these."""
  names = {field.name for field in dataclasses.fields(encoding)}
  return dataclasses.replace(encoding, **options) if options.keys() <= names else None


class OnText(NamedTuple):
  """What attention does on real text, by layer, head and how far the key is from the query."""

  offsets: np.ndarray  # int [O], in tokens
  mass: np.ndarray  # [layers,H,O]: of a query's attention, on average over queries
  uniform: np.ndarray  # [O]: the same, if every key that may be seen weighed alike
  logits: np.ndarray  # [layers,H,O]: their mean over pairs at that offset
  texts: int


def on_text(stack: Stack, positions: Positions, batches: list[dict[str, np.ndarray]]) -> OnText:
  """Runs an encoder on batches of equal length."""
  graphdef, *state = nnx.split(stack, nnx.Param, ...)

  @jax.jit
  def look(state, batch):
    merged = nnx.merge(graphdef, *state)
    seen: list[tuple[Array, Array]] = []
    for block in merged.blocks:
      block.attention.relation.attend = _watched(block.attention.relation, seen)
    merged(batch["tokens"], batch["mask"], positions=positions.evaluating(batch["mask"]))
    real = batch["mask"] & (batch["weight"] > 0)[:, None]
    pairs = (real[:, :, None] & real[:, None, :]).astype(jnp.float32)  # [B,Q,K]
    logits, weights = (jnp.stack(each).astype(jnp.float32) for each in zip(*seen, strict=True))
    logits = jnp.where(pairs[:, None] > 0, logits, 0)
    uniform = pairs / jnp.maximum(pairs.sum(-1, keepdims=True), 1)
    each = pairs[:, None]
    return (
      (weights * each).sum(1),
      (logits * each).sum(1),
      uniform.sum(0),
      pairs.sum(0),
      real.sum(),
      (batch["weight"] > 0).sum(),
    )

  sums = [jax.device_get(look(state, batch)) for batch in batches]
  weights, logits, uniform, pairs, queries, texts = (sum(each) for each in zip(*sums, strict=True))
  length = pairs.shape[-1]

  def by_offset(values: np.ndarray) -> np.ndarray:
    sums = [np.trace(values, d, -2, -1) for d in range(1 - length, length)]
    return np.stack(sums, axis=-1)

  counts = by_offset(pairs)
  with np.errstate(invalid="ignore", divide="ignore"):
    mean = by_offset(logits) / counts
  return OnText(
    np.arange(1 - length, length),
    by_offset(weights) / queries,
    by_offset(uniform) / queries,
    mean,
    int(texts),
  )


def _watched(relation, seen: list[tuple[Array, Array]]) -> Callable[..., Array]:
  plain = relation.attend

  def attend(q, k, v, span, dropout):
    shape = (v.shape[0], v.shape[2], span.query.shape[1], v.shape[1])
    score = jnp.broadcast_to(relation.score(q, k, span), shape)
    seen.append((score, jnp.broadcast_to(relation.weights(q, k, span), shape)))
    return plain(q, k, v, span, dropout)

  return attend
