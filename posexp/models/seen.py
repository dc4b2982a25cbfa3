"""What each layer sees: windows and chunks, terms that are switched off, and no padding beyond."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from posexp.encodings.span import Span, TermScale
from posexp.models.size import Size


def of_layer(span: Span, term_scale: TermScale | None, i: int, dtype: Any) -> Span:
  """Add layer i's factors of terms, of [layers,H] for each term, to the span."""
  if term_scale is None:
    return span
  return span.replace(term_scale={term: each[i].astype(dtype) for term, each in term_scale.items()})


def visible(real: Array, size: Size) -> Array:
  """Return which keys each query may see, bool [1 or B,1 or L,L], of real tokens bool [1 or B,L].

  With a window w (Kitaev & Klein 2018, section 4.2) it sees keys at most w places away; with
  relaxed ends, the first two and the last two tokens also see all tokens and are seen by all.
  """
  if size.window is None:
    return real[:, None]
  place = jnp.arange(real.shape[1])
  near = jnp.abs(place[:, None] - place)[None] <= size.window
  if size.window_ends == "relaxed":
    end = (place < 2) | (place >= real.sum(1, keepdims=True) - 2)
    near = near | end[:, :, None] | end[:, None]
  # Padding may be far from every real token, but each query must see a key.
  return (near | ~real[:, :, None]) & real[:, None]


class Kind(NamedTuple):
  """What layers must have in common for one span to serve them: see `Layer`."""

  shared: int  # the index of what they share
  window: int | None
  chunk: int | None


def limited(
  span: Span, kind: Kind, query: Array, key: Array, causal: bool, within: Array | None = None
) -> Span:
  """Limit a span to the window and the chunk of some layers.

  Tokens are counted by their places, int [Q] and [K], which are consecutive. Chunks begin with a
  document: `within` int [B,K] are the places of keys in theirs, of which queries are the last, if
  it does not begin at place 0.
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
  """Add outputs [B,L,F] for the tokens of mask bool [1 or B,L] that have no position.

  They are 0 for padding, and NaN for a token, which should not be there.
  """
  rest = mask[:, hidden.shape[1] :, None]
  if not rest.shape[1]:
    return hidden
  rest = jnp.where(rest, jnp.nan, jnp.zeros((), hidden.dtype))
  rest = jnp.broadcast_to(rest, (len(hidden), rest.shape[1], hidden.shape[2]))
  return jnp.concatenate([hidden, rest], axis=1)
