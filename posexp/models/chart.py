"""Charts of binary trees over words: the best tree, and the sum over all of them (CKY).

A tree over n words has 2n − 1 spans, and its score is the sum of theirs. Spans are half-open, from
word i up to word j. In a chart they lie by width: entry [w,b,i] is of the span of sentence b from i
to i + w + 1, so that what is done for all spans of one width is done on contiguous rows.

Shapes: B sentences, N words of the longest one; charts [N,B,N], lengths int [B], each at least 1.
Entries that reach beyond N mean nothing, and those beyond a sentence are part of none of its trees.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

# The score of what is impossible: with −∞ the gradient of a logsumexp would be NaN.
NEVER = -1e9


def by_width(square: Array) -> Array:
  """What [B,N,N] says of words i to j inclusive, as a chart."""
  batch, size, _ = square.shape
  # Row i, moved by i to the left: entry (i, i + w) of N columns is entry (i, w) of N + 1.
  flat = jnp.pad(square.reshape(batch, -1), ((0, 0), (0, size)))
  return flat.reshape(batch, size, size + 1)[..., :size].transpose(2, 0, 1)


def of_differences(f: Callable[..., Array], fenceposts: Array, *squares: Array) -> Array:
  """The chart of f(fencepost j − fencepost i, what each square says of the words i to j − 1).

  f maps [B,N+1,F], of fenceposts [B,N+1,F], and [B,N+1], of squares [B,N,N], to [B,N+1]. It is
  computed for N + 1 spans at a time, and again in the backward pass.

  On a circle of N + 1 fenceposts, those that are d apart are N + 1 pairs: the spans of d words, and
  those of N + 1 − d, whose differences have the other sign. So no span is computed twice, and none
  that does not exist.
  """
  posts = fenceposts.shape[1]
  size = posts - 1
  half = (size + 1) // 2
  lane = jnp.arange(posts)

  def turned(x: Array, by: Array) -> Array:
    """x [B,N+1,...] with each entry `by` places earlier."""
    return jax.lax.dynamic_slice_in_dim(jnp.concatenate([x, x], axis=1), by, posts, axis=1)

  @jax.checkpoint
  def step(_: None, row: tuple[Array, list[tuple[Array, Array]]]) -> tuple[None, Any]:
    apart, of_squares = row
    is_short = lane < posts - apart
    difference = turned(fenceposts, apart) - fenceposts
    said = (jnp.where(is_short, short, turned(long, apart)) for short, long in of_squares)
    found = f(jnp.where(is_short[:, None], difference, -difference), *said)
    return None, (found[:, :size], turned(found, posts - apart)[:, :size])

  # As many lanes as there are fenceposts.
  charts = (jnp.pad(by_width(square), ((0, 0), (0, 0), (0, 1))) for square in squares)
  rows = jnp.arange(1, half + 1), [(chart[:half], chart[::-1][:half]) for chart in charts]
  _, (short, long) = jax.lax.scan(step, None, rows)
  return jnp.concatenate([short, long[: size - half][::-1]])


class Inside(NamedTuple):
  """What is known of the trees over every span: those by where it begins and where it ends.

  `begins` is a chart. In `ends` [2N,B,2N] entry [N−1−w,b,e] is of the span whose last word is e.
  So the left parts of a span's splits are a column of the one, from width 0 up, and the right parts
  one of the other, in this order.
  """

  begins: Array
  ends: Array

  def splits(self, i: Array, width: Array) -> Array:
    """The sums of both parts of each split of a span of each sentence, int [B] -> [N,B].

    The left part of the first split is one word. A split that does not exist has about NEVER.
    """
    row = jnp.arange(len(i))
    first = jnp.arange(len(self.begins))[:, None]
    size = len(self.begins)
    return self.begins[first, row, i] + self.ends[size - width + first, row, i + width]

  def whole(self, lengths: Array) -> Array:
    """What is known of whole sentences, [B]."""
    return self.begins[lengths - 1, jnp.arange(len(lengths)), 0]


def inside(scores: Array, reduce: Callable[[Array], Array]) -> Inside:
  """The scores of every span's trees reduced to one number, for one width after the other.

  `reduce` maps the sums of the two parts of each split [N,B,N] over their first axis.
  """
  size, batch, _ = scores.shape

  def step(tables: Inside, row: tuple[Array, Array]) -> tuple[Inside, None]:
    width, own = row
    begins, ends = tables
    start = size - width, 0, width
    # Rows of widths that come later still are NEVER.
    parts = reduce(begins + jax.lax.dynamic_slice(ends, start, scores.shape))
    found = (jnp.where(width == 0, 0, parts) + own)[None]
    begins = jax.lax.dynamic_update_slice(begins, found, (width, 0, 0))
    ends = jax.lax.dynamic_update_slice(ends, found, (size - 1 - width, 0, width))
    return Inside(begins, ends), None

  empty = (jnp.full(shape, NEVER) for shape in (scores.shape, (2 * size, batch, 2 * size)))
  return jax.lax.scan(step, Inside(*empty), (jnp.arange(size), scores))[0]


def best_trees(scores: Array, lengths: Array) -> Array:
  """The spans (i, j) of each sentence's best tree, int [B,2N−1,2].

  A span stands before its left part, and that before its right one; (0, 0) follow the last of them.
  No gradient flows through what is found: that of a tree's score is 1 for each of its spans.
  """
  size, batch, _ = scores.shape
  tables = inside(jax.lax.stop_gradient(scores), lambda sums: sums.max(0))
  row = jnp.arange(batch)

  def step(place: Array, spans: Array) -> Array:
    i, j = spans[:, place, 0], spans[:, place, 1]
    split = i + 1 + tables.splits(i, jnp.maximum(j - i - 1, 0)).argmax(0)
    # A part of m words has 2m − 1 spans, which come one after another. What is no span of two
    # words or more has no parts: they are written beyond the end, which drops them.
    inner = j - i > 1
    left = jnp.where(inner, place + 1, 2 * size)
    right = jnp.where(inner, place + 2 * (split - i), 2 * size)
    spans = spans.at[row, left].set(jnp.stack([i, split], axis=1), mode="drop")
    return spans.at[row, right].set(jnp.stack([split, j], axis=1), mode="drop")

  start = jnp.zeros((batch, 2 * size - 1, 2), jnp.int32).at[:, 0, 1].set(lengths)
  return jax.lax.fori_loop(0, 2 * size - 1, step, start)


def log_partition(scores: Array, lengths: Array) -> Array:
  """The logarithm of the sum of e^score over all trees, [B]; its gradient are spans' marginals."""
  return inside(scores, lambda sums: jax.nn.logsumexp(sums, axis=0)).whole(lengths)
