"""Maps of distance, for a trained RoPE on distances beyond those of training.

A map is a function of the positions i of a query and j ≤ i of a key, int arrays that broadcast, and
of the options that its row of MAPS names. It returns the distance by which query and key are turned
instead of i − j. None of the papers has an encoder; here a key ahead has the distance that it would
have behind, with its sign.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax.numpy as jnp
from jax import Array


class Map(NamedTuple):
  """A map of distance, with the options that it needs."""

  distance: Callable[..., Array]
  needs: tuple[str, ...] = ()
  relative: bool = True  # whether i − j alone matters


def plain(i: Array, j: Array) -> Array:
  """Return i − j."""
  return i - j


def rerope(i: Array, j: Array, *, map_window: int) -> Array:
  """Return min(i − j, window) (Su 2023, ReRoPE)."""
  return jnp.minimum(i - j, map_window)


def self_extend(i: Array, j: Array, *, map_window: int, map_group: int) -> Array:
  """Return i − j below `window` w, else ⌊i/group⌋ − ⌊j/group⌋ + w − ⌊w/group⌋ (Jin et al. 2024)."""
  window, group = map_window, map_group
  return jnp.where(i - j < window, i - j, i // group - j // group + window - window // group)


def dual_chunk(i: Array, j: Array, *, trained_length: int, map_chunk: int) -> Array:
  """Return distances of chunks of s positions, all below the trained length c (An et al. 2024).

  Within a chunk they are i − j, of the next chunk min(i mod s + s, c − 1) − j mod s, and of farther
  ones c − 1 − j mod s.
  """
  size, last = map_chunk, trained_length - 1
  apart, i, j = i // size - j // size, i % size, j % size
  return jnp.select([apart == 0, apart == 1], [i - j, jnp.minimum(i + size, last) - j], last - j)


def string(i: Array, j: Array, *, map_shift: int, map_window: int) -> Array:
  """Return i − j below `shift`, else i − j − shift + window (An et al. 2025, STRING)."""
  return jnp.where(i - j < map_shift, i - j, i - j - map_shift + map_window)


MAPS = {
  "none": Map(plain),
  "rerope": Map(rerope, ("map_window",)),
  "self_extend": Map(self_extend, ("map_window", "map_group"), relative=False),
  "dual_chunk": Map(dual_chunk, ("trained_length", "map_chunk"), relative=False),
  "string": Map(string, ("map_shift", "map_window")),
}


def mapped(distance: Callable[[Array, Array], Array], query: Array, key: Array) -> Array:
  """Return mapped distances int [B,Q,K] from keys [B,K] to queries [B,Q], below 0 to keys ahead."""
  query, key = query[:, :, None], key[:, None]
  i, j = jnp.maximum(query, key), jnp.minimum(query, key)
  return jnp.sign(query - key) * distance(i, j)
