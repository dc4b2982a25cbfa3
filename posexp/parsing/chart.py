"""Charts of binary trees over words: the best tree, and the sum over all of them (CKY).

A tree over n words has 2n − 1 spans, and its score is the sum of theirs. Spans are half-open, from
word i up to word j. A chart holds them by width: entry [w,b,i] is the span of sentence b from i to
i + w + 1, so that all spans of one width are contiguous rows.

Shapes: B sentences, N words of the longest one; charts [N,B,N], lengths int [B], each at least 1.
Entries that reach beyond N are undefined; those beyond a sentence belong to none of its trees.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

# The score of an impossible span: with −∞, the gradient of a logsumexp would be NaN.
NEVER = -1e9


def by_width(square: Array) -> Array:
  """Turn [B,N,N], indexed by words i to j inclusive, into a chart."""
  batch, size, _ = square.shape
  # Moves row i left by i places: entry (i, i + w) of N columns is entry (i, w) of N + 1.
  flat = jnp.pad(square.reshape(batch, -1), ((0, 0), (0, size)))
  return flat.reshape(batch, size, size + 1)[..., :size].transpose(2, 0, 1)


def of_differences(f: Callable[..., Array], fenceposts: Array, *squares: Array) -> Array:
  """Return the chart of f(fencepost j − fencepost i, each square's entry for words i to j − 1).

  f maps differences [B,N+1,F] of fenceposts [B,N+1,F], and entries [B,N+1] of each square [B,N,N],
  to [B,N+1]. It runs on N + 1 spans at a time, and again in the backward pass.

  On a circle of N + 1 fenceposts, N + 1 pairs are d apart: the spans of d words, and those of
  N + 1 − d words, whose differences have the other sign. So each span is computed exactly once.
  """
  posts = fenceposts.shape[1]
  size = posts - 1
  half = (size + 1) // 2
  lane = jnp.arange(posts)

  def turned(x: Array, by: Array) -> Array:
    """Rotate x [B,N+1,...] so that each entry is `by` places earlier."""
    return jax.lax.dynamic_slice_in_dim(jnp.concatenate([x, x], axis=1), by, posts, axis=1)

  @jax.checkpoint
  def step(_: None, row: tuple[Array, list[tuple[Array, Array]]]) -> tuple[None, Any]:
    apart, of_squares = row
    is_short = lane < posts - apart
    difference = turned(fenceposts, apart) - fenceposts
    said = (jnp.where(is_short, short, turned(long, apart)) for short, long in of_squares)
    values = f(jnp.where(is_short[:, None], difference, -difference), *said)
    return None, (values[:, :size], turned(values, posts - apart)[:, :size])

  # Pads charts to one column per fencepost.
  charts = (jnp.pad(by_width(square), ((0, 0), (0, 0), (0, 1))) for square in squares)
  rows = jnp.arange(1, half + 1), [(chart[:half], chart[::-1][:half]) for chart in charts]
  _, (short, long) = jax.lax.scan(step, None, rows)
  return jnp.concatenate([short, long[: size - half][::-1]])


class Inside(NamedTuple):
  """A number for the trees over every span, held by the span's first word and by its last.

  `begins` is a chart. In `ends` [2N,B,2N], entry [N−1−w,b,e] is the span whose last word is e. So
  the left parts of a span's splits are a column of `begins`, from width 0 up, and the right parts,
  in the same order, a column of `ends`.
  """

  begins: Array
  ends: Array

  def splits(self, i: Array, width: Array) -> Array:
    """Return the sum of both parts of each split of one span per sentence, int [B] -> [N,B].

    The left part of the first split is one word. Splits that do not exist get about NEVER.
    """
    row = jnp.arange(len(i))
    first = jnp.arange(len(self.begins))[:, None]
    size = len(self.begins)
    return self.begins[first, row, i] + self.ends[size - width + first, row, i + width]

  def whole(self, lengths: Array) -> Array:
    """Return the numbers of whole sentences, [B]."""
    return self.begins[lengths - 1, jnp.arange(len(lengths)), 0]


def inside(scores: Array, reduce: Callable[[Array], Array]) -> Inside:
  """Reduce the scores of every span's trees to one number, one width after another.

  `reduce` takes the sums of both parts of each split, [N,B,N], and reduces their first axis.
  """
  size, batch, _ = scores.shape

  def step(tables: Inside, row: tuple[Array, Array]) -> tuple[Inside, None]:
    width, own = row
    begins, ends = tables
    start = size - width, 0, width
    # Rows of later widths are still NEVER.
    parts = reduce(begins + jax.lax.dynamic_slice(ends, start, scores.shape))
    numbers = (jnp.where(width == 0, 0, parts) + own)[None]
    begins = jax.lax.dynamic_update_slice(begins, numbers, (width, 0, 0))
    ends = jax.lax.dynamic_update_slice(ends, numbers, (size - 1 - width, 0, width))
    return Inside(begins, ends), None

  empty = (jnp.full(shape, NEVER) for shape in (scores.shape, (2 * size, batch, 2 * size)))
  return jax.lax.scan(step, Inside(*empty), (jnp.arange(size), scores))[0]


def best_trees(scores: Array, lengths: Array) -> Array:
  """Return the spans (i, j) of each sentence's best tree, int [B,2N−1,2].

  A span precedes its left part, which precedes its right part; (0, 0) fills the rest. Gradients do
  not flow through the search: the gradient of a tree's score is 1 for each of its spans.
  """
  size, batch, _ = scores.shape
  tables = inside(jax.lax.stop_gradient(scores), lambda sums: sums.max(0))
  row = jnp.arange(batch)

  def step(place: Array, spans: Array) -> Array:
    i, j = spans[:, place, 0], spans[:, place, 1]
    split = i + 1 + tables.splits(i, jnp.maximum(j - i - 1, 0)).argmax(0)
    # A part of m words has 2m − 1 spans in a row. Entries without parts (words and filling) write
    # theirs beyond the end, where they are dropped.
    inner = j - i > 1
    left = jnp.where(inner, place + 1, 2 * size)
    right = jnp.where(inner, place + 2 * (split - i), 2 * size)
    spans = spans.at[row, left].set(jnp.stack([i, split], axis=1), mode="drop")
    return spans.at[row, right].set(jnp.stack([split, j], axis=1), mode="drop")

  start = jnp.zeros((batch, 2 * size - 1, 2), jnp.int32).at[:, 0, 1].set(lengths)
  return jax.lax.fori_loop(0, 2 * size - 1, step, start)


def log_partition(scores: Array, lengths: Array) -> Array:
  """Return log Σ e^score over all trees, [B]; its gradient is the marginals of spans."""
  return inside(scores, lambda sums: jax.nn.logsumexp(sums, axis=0)).whole(lengths)
