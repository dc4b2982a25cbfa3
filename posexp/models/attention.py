"""The forms of attention, and which keys each layer sees.

The forms are the definition, computed at once, in halves or in blocks of queries, and a GPU's
kernel. Blocked attention keeps nothing as large as queries times keys: each block attends to its
keys by the definition, and the backward pass computes it again (Chen et al. 2016, section 4). So it
is exact for every encoding, whatever its logits depend on.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from posexp.encodings.base import Relation
from posexp.encodings.span import Span
from posexp.kernels.random_bits import random_bits
from posexp.kernels.target import target
from posexp.models.size import Size

ROWS = 512  # queries in a block
LEAST_ROWS = 64  # in a block that has a window
# The most parts of a causal sequence. Blocks of a part see only keys up to its end: with four parts
# 5/8 of all keys. More parts take longer to compile. A part has at least two blocks; with one, XLA
# keeps what the backward pass should recompute.
PARTS = 4
# The length from which attention is blocked. On a CPU that is rarely faster, but from here on every
# layer would keep a gigabyte of weights for eight sequences.
LONG = {"cpu": 2048, "gpu": 4096}
# The length from which a CPU attends in two halves of the queries, of which the first sees only its
# own half of the keys. That spares a quarter of causal attention: at d_model 128 steps take 0.91 of
# the time, in the mean of three encodings at 128 to 1,024 tokens. Four parts are no faster.
HALVES_FROM = 128
IN_PARTS = ("halves", "blocked")
# What `auto` is where all that kernels need is there, and the length from which they are faster:
# on an H100 RoPE's attention takes 0.80 of the definition's time at 128 tokens, 0.33 at 8,192.
AUTO_FUSED = "auto, or fused"
FUSED_FROM = 128


def within_window(real: Array, size: Size) -> Array:
  """Return which keys each query may see, bool [1 or B,L,L], of real tokens bool [1 or B,L].

  With a window w (Kitaev & Klein 2018, section 4.2) it sees keys at most w places away; with
  relaxed ends, the first two and the last two tokens also see all tokens and are seen by all.
  """
  place = jnp.arange(real.shape[1])
  near = jnp.abs(place[:, None] - place)[None] <= size.window
  if size.window_ends == "relaxed":
    end = (place < 2) | (place >= real.sum(1, keepdims=True) - 2)
    near = near | end[:, :, None] | end[:, None]
  # Padding may be far from every real token, but each query must see a key.
  return (near | ~real[:, :, None]) & real[:, None]


class Kind(NamedTuple):
  """The properties of a layer on which its span depends: see `Layer`."""

  shared: int  # the index of what they share
  window: int | None
  chunk: int | None


def limited(
  span: Span, kind: Kind, query: Array, key: Array, causal: bool, within: Array | None = None
) -> Span:
  """Limit a span to the window and the chunk of some layers.

  Tokens are counted by their places, int [Q] and [K], which are consecutive. Chunks begin with a
  document. Unless that begins at place 0, `within` int [B,K] has the place of each key in its
  document; queries are the last keys.
  """
  mask, window, last = span.mask, kind.window, None
  if kind.chunk is not None and within is None:
    mask = mask & (key // kind.chunk == query[:, None] // kind.chunk)
  elif kind.chunk is not None:
    chunk = within // kind.chunk
    mask = mask & (chunk[:, None] == chunk[:, -len(query) :, None])
  if window is not None and span.causal and span.consecutive:
    last = window
  elif window is not None:
    back = query[:, None] - key
    near = back < window if causal else jnp.abs(back) <= window // 2
    mask = mask & near
  if mask is not span.mask and not causal:
    mask = mask | (span.mask & ~span.mask.swapaxes(1, 2))  # of padding, which must see a key, too
  plain = mask is span.mask and last is None
  return span.replace(mask=mask, last=last, padding_last=span.padding_last and plain)


def since_start(documents: Array) -> Array:
  """Count the tokens before each one in its document, for documents int [B,T]."""
  place = jnp.arange(documents.shape[1])
  starts = jnp.diff(documents, axis=1, prepend=-1) != 0
  return place - jax.lax.cummax(jnp.where(starts, place, 0), axis=1)


def filled_up(hidden: Array, mask: Array) -> Array:
  """Extend outputs [B,·,F] to all tokens of mask bool [1 or B,L]; the last ones have no position.

  The added outputs are 0 for padding, and NaN for a real token, which should not be there.
  """
  rest = mask[:, hidden.shape[1] :, None]
  if not rest.shape[1]:
    return hidden
  rest = jnp.where(rest, jnp.nan, jnp.zeros((), hidden.dtype))
  rest = jnp.broadcast_to(rest, (len(hidden), rest.shape[1], hidden.shape[2]))
  return jnp.concatenate([hidden, rest], axis=1)


def form_of(
  chosen: str,
  queries: int,
  keys: int,
  last: int | None = None,
  plain: bool = True,
  to_its_end: bool = False,
) -> str:
  """Return the form of attention: `reference` (its definition), `halves`, `blocked` or `fused`.

  Each query sees the `last` keys up to its own; None means all. `plain` means that lengths of texts
  say which keys are seen, without a mask; `to_its_end`, that queries are the keys, and none sees a
  later one.
  """
  if chosen not in ("auto", AUTO_FUSED):
    return "reference" if queries == 1 else chosen
  shorter = min(queries, keys)
  long = shorter >= LONG.get(target().platform, LONG["gpu"])
  narrow = last is not None and shorter >= 2 * (rows_of(last) + last)
  if chosen == AUTO_FUSED and shorter >= FUSED_FROM and plain and last is None:
    return "fused"
  if long or narrow:
    return "blocked"
  spared = to_its_end and last is None and shorter >= HALVES_FROM
  return "halves" if spared and target().platform == "cpu" else "reference"


def rows_of(last: int | None) -> int:
  """Return the number of queries in a block: with a window about as many as each of them sees."""
  return ROWS if last is None else min(max(last, LEAST_ROWS), ROWS)


def form_for(chosen: str, span: Span) -> str:
  """Return the form of attention for a span."""
  plain = span.padding_last and (span.self_attention or not span.causal)
  lengths = span.query.shape[1], span.key.shape[1]
  return form_of(chosen, *lengths, span.last, plain, seen_to_its_end(span))


def ready(span: Span, shared: Callable[[Span], Any] | None, chosen: str) -> Span:
  """Add the layers' shared value to a span or, for attention in parts, the function for it."""
  if form_for(chosen, span) in IN_PARTS:
    return span.replace(shared_fn=shared)
  return span if shared is None else span.replace(shared=shared(span))


def for_layer(
  chosen: str,
  relation: Relation,
  head_dim: int,
  dtype: str,
  dropout: float,
  max_position: int | None,
) -> str:
  """Return a layer's choice of a form, for `form_of`.

  `auto` is AUTO_FUSED where kernels can be used, unless logits have terms beside the content: a
  kernel rounds these, and their gradients, to bfloat16. It is the definition where weights come
  from a state.

  Raises:
    ValueError: the relation cannot be computed in the chosen form.
  """
  needed = (
    (not relation.sinks, "sinks=none: its kernels have none"),
    (relation.supports_fused, "an encoding that its kernels know, so leave it at auto"),
    (chosen != "fused" or target().platform == "gpu", "a GPU, and here is none"),
    (dtype == "bfloat16", "dtype=bfloat16"),
    (dropout == 0, "dropout=0: its kernels do not drop weights"),
    (max_position is None, "positions that are consecutive"),
    (head_dim % 8 == 0 and head_dim <= 128, f"heads of 8, 16, … 128 channels, not {head_dim}"),
  )
  lacks = next((needs for fits, needs in needed if not fits), None)
  if chosen == "fused" and lacks:
    raise ValueError(f"attention=fused needs {lacks}")
  if chosen == "auto" and relation.sums_to_one is None:  # each part would find all states again
    return "reference"
  if chosen == "auto" and relation.terms == ("content",) and lacks is None:
    # Last, since JAX takes the devices that it is asked for, and a sweep leaves them to workers.
    return AUTO_FUSED if target().platform == "gpu" else chosen
  return chosen


class Dropout(NamedTuple):
  """Dropout: each number is 0 with probability `rate`, rounded to a multiple of 2^-32."""

  rate: float
  key: Array

  def __call__(self, x: Array) -> Array:
    dropped = jnp.uint32(min(round(self.rate * 2**32), 2**32 - 1))
    return jnp.where(random_bits(self.key, x.shape) >= dropped, x / (1 - self.rate), 0)


class Part(NamedTuple):
  """The queries from `first` to `end`, computed in blocks of `rows`."""

  first: int
  end: int
  rows: int  # of a block
  kept: bool = False  # for the backward pass, which otherwise computes it again


def attend(
  relation: Relation,
  q: Array | None,
  k: Array,
  v: Array,
  span: Span,
  dropout: Dropout | None = None,
  form: str = "reference",
) -> Array:
  """Compute attention of q [B,Q,H,D] to k, v [B,K,H,D] in a form of `form_of`: [B,Q,H,D]."""
  if form == "fused":
    return relation.fused(q, k, v, span)
  if form in IN_PARTS:
    return in_parts(relation, q, k, v, span, dropout, parts(span, form))
  drop: Any = dropout or (lambda weights: weights)
  return relation.attend(q, k, v, span, drop)


def in_parts(
  relation: Relation,
  q: Array | None,
  k: Array,
  v: Array,
  span: Span,
  dropout: Dropout | None,
  chosen: Sequence[Part],
) -> Array:
  """Compute attention one part after another, and each in blocks of queries: [B,Q,H,D]."""
  masks = span.mask if span.mask.shape[1] > 1 else None  # one row per query
  q_length = span.query.shape[1]
  span = span.replace(max_position=span.farthest + 1)

  def part(first: int, end: int, rows: int, kept: bool) -> Array:
    keys = end if seen_to_its_end(span) else k.shape[1]
    width = keys if span.last is None else min(rows + span.last - 1, keys)

    def of_block(block: tuple) -> Array:
      number, query, q, mask, columns, sinks = block
      mask = span.mask if mask is None else mask
      # In a window, queries are the last of the keys.
      begin = jnp.maximum(number + k.shape[1] - q_length + rows - width, 0)

      def seen(x: Array, axis: int = 1) -> Array:
        x = jax.lax.slice_in_dim(x, 0, keys, axis=axis)
        return x if width == keys else jax.lax.dynamic_slice_in_dim(x, begin, width, axis)

      here = span.replace(query=query, key=seen(span.key), mask=seen(mask, 2), self_attention=False)
      of_keys = jax.tree.map(seen, span.key_columns)
      here = here.replace(key_columns=of_keys, query_columns=columns, sinks=sinks)
      if span.shared_fn is not None:
        here = here.replace(shared=span.shared_fn(here))
      drop = dropout and dropout._replace(key=jax.random.fold_in(dropout.key, number))
      return attend(relation, q, seen(k), seen(v), here, drop)

    def blocks(x: Array) -> Array:
      return x[:, first:end].reshape(len(x), -1, rows, *x.shape[2:]).swapaxes(0, 1)

    of_queries = jax.tree.map(blocks, (span.query, q, masks, span.query_columns, span.sinks))
    given = (jnp.arange(first, end, rows), *of_queries)
    if kept or width < keys:  # so little that it can all be kept
      blocked = jax.vmap(of_block)(given)
    else:
      blocked = jax.lax.map(jax.checkpoint(of_block, prevent_cse=False), given)
    return blocked.swapaxes(0, 1).reshape(len(v), end - first, *v.shape[2:])

  return jnp.concatenate([part(*each) for each in chosen], axis=1)


def seen_to_its_end(span: Span) -> bool:
  """Return True if it is known at trace time that no query sees a later key."""
  return span.causal and span.self_attention


def parts(span: Span, form: str) -> list[Part]:
  """Return the parts of attention in halves, or in blocks.

  In blocks, the queries that are left over and do not fill a block are the last part.
  """
  queries, rows = span.query.shape[1], rows_of(span.last)
  if form == "halves":
    half = queries // 2
    return [Part(0, half, half, True), Part(half, queries, queries - half, True)]
  blocks = queries // rows
  count = max(1, min(PARTS, blocks // 2)) if seen_to_its_end(span) and span.last is None else 1
  ends = [rows * (blocks * part // count) for part in range(count + 1)]
  pairs = [*itertools.pairwise(ends), (ends[-1], queries)]
  return [Part(first, end, min(rows, end - first)) for first, end in pairs if first < end]
