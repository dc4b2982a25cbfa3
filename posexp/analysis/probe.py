"""Measurements of an encoding on the parts of a stack, the same for every encoding.

Nothing here knows an encoding by name, so a new one gets its card and figures without more code.

Shapes: N draws, H heads, O offsets, L positions, F model width. Offsets are key − query.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import Array

from posexp.config.checks import as_typed
from posexp.encodings import name_of
from posexp.encodings.base import Encoding, Relation, TokenEmbedding, capped
from posexp.encodings.rngs import Rngs, abstract_model
from posexp.encodings.span import Span
from posexp.errors import UserError
from posexp.models.backbones import Backbone, NetworkSize
from posexp.models.block import MultiHeadAttention, ToAllHeads, repeated
from posexp.models.size import Size
from posexp.models.transformer import Stack
from posexp.training.step import keys

DRAWS = 64
LEAST = 1e-8  # weight whose logarithm is shown
VOCABULARY = 64  # words of an untrained stack
WIDTHS = (32, 128, 512)
BASES = (100.0, 10_000.0, 1_000_000.0)


class ProbeModel(NamedTuple):
  """A stack to examine: untrained, or that of a run."""

  encoding: Encoding
  stack: Stack


def builder(encoding: Encoding, size: Size, causal: bool) -> Callable[[Rngs], Stack]:
  """Return a function that builds an untrained stack."""
  return lambda rngs: Stack(VOCABULARY, encoding, size, causal=causal, rngs=rngs)


@functools.cache
def refusal(encoding: Encoding, size: Size, causal: bool) -> str | None:
  """Return why this encoding cannot have an encoder, or a decoder; None if it can."""
  try:
    abstract_model(builder(encoding, size, causal))
  except ValueError as error:
    return str(error)
  return None


def untrained(encoding: Encoding, size: Size, causal: bool | None = None) -> ProbeModel:
  """Return a stack with the weights that training starts from.

  It is a decoder if `causal` is True, an encoder if False. None means an encoder, or a decoder if
  the encoding allows no encoder.

  Raises:
    UserError: the encoding allows neither.
  """
  if causal is None:
    causal = bool(refusal(encoding, size, causal=False))
    if causal and (why := refusal(encoding, size, causal=True)):
      raise UserError(as_typed(why, {name_of(encoding): encoding, "model": size}))
  return ProbeModel(encoding, builder(encoding, size, causal)(Rngs(**keys(0))))


def perturbed(stack: Stack, seed: int = 0) -> Stack:
  """Add noise to all weights of a stack, since many tables start at zero."""
  draw = np.random.default_rng(seed)
  graphdef, params, others = nnx.split(stack, nnx.Param, ...)

  def noisy(x: Array) -> Array:  # by NumPy, which compiles nothing
    noise = draw.normal(size=x.shape).astype(x.dtype)
    return jnp.asarray(np.asarray(x) + x.dtype.type(0.1) * noise)

  return nnx.merge(graphdef, jax.tree.map(noisy, params), others)


def available(encoding: Encoding, length: int) -> int:
  """Return `length`, or the number of the encoding's positions if these are fewer."""
  return length if encoding.limit is None else min(length, encoding.limit)


class Profile(NamedTuple):
  """The logits of one layer's relation by offset, for random queries and keys.

  All keys of a draw are the same vector, so that only offsets make logits differ. The vectors are
  the layer's own projections of inputs from N(0, 1), like those that a norm gives. For a relation
  that computes weights without a softmax, the logarithms of the weights take the place of logits.
  """

  offsets: np.ndarray  # int [O]
  logits: np.ndarray  # [N,H,O], query and key drawn independently
  same: np.ndarray  # [N,H,O], query equal to the key
  terms: dict[str, np.ndarray]  # as `logits`, with this term alone
  softmax: bool  # of these logits, weights are
  sinks: np.ndarray | None = None  # [1 or N,H], beside the logits

  @property
  def spread(self) -> float:
    """The largest difference that an offset makes to a logit."""
    both = (relative_to_zero(drawn, self.offsets) for drawn in (self.logits, self.same))
    return max(float(np.abs(drawn).max()) for drawn in both)


def profile(model: ProbeModel, length: int, layer: int = 0) -> Profile:
  """Measure logits at offsets back to −(length − 1), and ahead in an encoder, within the limit and
  the layer's window.

  The query stands at the last position in a decoder, in the middle in an encoder.
  """
  encoding, stack = model
  if encoding.limit is not None and not stack.causal:
    length = min(length, (encoding.limit + 1) // 2)
  length = available(encoding, length)
  if (window := stack.kinds[layer].window) is not None:
    length = min(length, window if stack.causal else window // 2 + 1)
  count = length if stack.causal else 2 * length - 1
  heads = stack.size.num_heads
  softmax = type(stack.blocks[layer].attention.relation).weights is Relation.weights

  @nnx.jit
  def ask(stack: Stack):
    attention = stack.blocks[layer].attention
    relation = attention.relation
    one, other = jax.random.normal(jax.random.key(1), (2, DRAWS, 1, stack.size.d_model))
    own = repeated(attention.keys_values(other)[0], heads)
    k = jnp.broadcast_to(own, (DRAWS, count, *own.shape[2:]))
    at, to = jnp.full((1, 1), length - 1), jnp.arange(count)[None]
    span = Span(at, to, jnp.ones((1, 1, count), bool), max_position=stack.max_position)
    span = stack.ready(span, layer=layer, whole_only=True)
    keys = jnp.broadcast_to(other, (DRAWS, count, stack.size.d_model))
    columns = attention.key_columns and attention.key_columns(keys)
    q, span = attention.asked(one, columns, span)
    same = None
    if relation.uses_hidden:
      factor = 1 if attention.factor is None else attention.factor(span)
      same = (own * factor).astype(own.dtype)

    def logits(q: Array | None, only: str | None = None) -> Array:
      scale = {term: jnp.full(heads, float(only in (None, term))) for term in relation.terms}
      here = span.replace(term_scale=scale)
      measured = relation.score(q, k, here) if softmax else relation.weights(q, k, here)
      if softmax and only is None:
        measured = capped(measured, relation.cap)
      measured = measured[:, :, 0] if softmax else jnp.log(jnp.maximum(measured[:, :, 0], LEAST))
      return jnp.broadcast_to(measured, (DRAWS, heads, count))

    sinks = span.sinks if span.sinks is None else span.sinks[:, 0]
    return (logits(q), logits(same), {term: logits(q, term) for term in relation.terms}), sinks

  measured, sinks = jax.device_get(ask(stack))
  return Profile(np.arange(count) - (length - 1), *measured, softmax, sinks)


def relative_to_zero(logits: np.ndarray, offsets: np.ndarray) -> np.ndarray:
  """Subtract the logit at offset 0 from logits [...,O]: softmax depends on differences only."""
  return logits - logits[..., offsets == 0]


def position_vectors(embed: Callable[..., Array], length: int, word: int = 1) -> np.ndarray:
  """Return the vectors [L,F] that an embedding gives to positions, apart from words, in float64.

  Word vectors are set to 0 or, if that leaves nothing since positions multiply them, to 1. An
  embedding without a table of words shows the positions of `word`.
  """
  tokens, positions = jnp.full((1, length, 1), word), jnp.arange(length)[None]
  for value in (0.0, 1.0):
    blank = nnx.clone(embed)
    for _, module in nnx.iter_modules(blank):
      if isinstance(module, TokenEmbedding):
        module.table[...] = jnp.full_like(module.table[...], value / module.scale)
    ask = nnx.jit(lambda embed: embed(tokens, positions, jnp.ones((1, length), bool))[0])
    position_rows = np.asarray(ask(blank), np.float64)
    if np.ptp(position_rows, axis=0).max() > 0:
      break
  return position_rows


def embedding(encoding: Encoding, width: int) -> Callable[..., Array]:
  """Return an embedding with the weights that training starts from."""
  rngs = Rngs(params=0, encoding=1)
  return encoding.embed(VOCABULARY, width, scale=width**0.5, causal=encoding.causal_only, rngs=rngs)


def network(encoding: Encoding, size: NetworkSize) -> Backbone:
  """Return a network without attention, with the weights that training starts from."""
  return Backbone(VOCABULARY, encoding, size, rngs=Rngs(**keys(0)))


def variants(encoding: Encoding, width: int, length: int) -> dict[str, dict[str, np.ndarray]]:
  """Return position vectors of untrained embeddings of several widths and, if any, bases.

  The keys are what is varied, then its value.
  """

  def vectors(width: int, **options: float) -> np.ndarray:
    return position_vectors(embedding(dataclasses.replace(encoding, **options), width), length)

  by_title = {"by width": {f"d = {each}": vectors(each) for each in WIDTHS}}
  if hasattr(encoding, "base"):
    bases = {f"base = {base:g}": vectors(width, base=base) for base in BASES}
    by_title[f"by base, d = {width}"] = bases
  return by_title


def inner_products(vectors: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
  """Return mean, 10th and 90th percentile of inner products of vectors [L,F] at offsets 0 … L/2.

  They are in units of the vectors' mean square.
  """
  gram = vectors @ vectors.T / np.mean(np.sum(vectors**2, axis=1))
  diagonals = [np.diagonal(gram, offset) for offset in range(len(vectors) // 2 + 1)]
  low, high = np.array([np.quantile(diagonal, (0.1, 0.9)) for diagonal in diagonals]).T
  return np.array([diagonal.mean() for diagonal in diagonals]), low, high


def share_by_offset(scores: np.ndarray) -> float:
  """Return the share of the variance of scores [L,L] that a function of j − i alone explains."""
  total = np.sum((scores - scores.mean()) ** 2)
  diagonals = [np.diagonal(scores, offset) for offset in range(1 - len(scores), len(scores))]
  left = sum(np.sum((diagonal - diagonal.mean()) ** 2) for diagonal in diagonals)
  return float(1 - left / total) if total > 1e-9 * np.sum(scores**2) else float("nan")


class Shares(NamedTuple):
  """`share_by_offset` of p_i W_Q W_Kᵀ p_j: of all heads together, and of each head."""

  whole: float
  heads: list[float]


def shares_by_maps(vectors: np.ndarray, layer: MultiHeadAttention) -> dict[str, Shares]:
  """Return the shares of positions [L,F] for W_Q, W_K of several kinds, among them a layer's."""
  width, draw = vectors.shape[1], np.random.default_rng(0)
  rotated = vectors @ np.linalg.qr(draw.normal(size=(width, width)))[0]
  kinds = {
    "identity": (vectors, vectors),
    "random": [vectors @ draw.normal(size=(width, width)) for _ in "qk"],
    "tied orthogonal": (rotated, rotated),
  }
  if layer.query is not None:
    inputs = vectors.astype(np.float32)
    maps = (layer.query, layer.num_heads), (layer.key, layer.kv_heads)
    kinds["layer 0"] = [
      np.asarray(ToAllHeads(linear, own, layer.num_heads)(inputs[None])[0], np.float64)
      for linear, own in maps
    ]
  shares = {}
  for kind, (q, k) in kinds.items():
    heads = zip(*(np.array_split(each, layer.num_heads, axis=1) for each in (q, k)), strict=True)
    shares[kind] = Shares(share_by_offset(q @ k.T), [share_by_offset(a @ b.T) for a, b in heads])
  return shares


def tables(stack: Stack) -> dict[str, np.ndarray]:
  """Return trained tables of vectors [..., rows, D], of the first layer's relation or shared."""
  by_name, head_dim = {}, stack.size.width_of_head
  for label, module in (("", stack.relation), ("shared ", stack.shared)):
    if isinstance(module, nnx.Module):
      for path, leaf in nnx.to_flat_state(nnx.state(module, nnx.Param)):
        name, value = "/".join(map(str, path)), np.asarray(leaf[...], np.float64)
        rows = value.ndim >= 2 and value.shape[-1] == head_dim and value.shape[-2] > 4
        if rows and "kernel" not in name:
          by_name[label + name] = value
  return by_name
