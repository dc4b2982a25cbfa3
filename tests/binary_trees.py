"""All binary trees over a few words, for what finds the best of them without looking at each."""

from __future__ import annotations

import functools


@functools.cache
def trees(i: int, j: int) -> tuple[frozenset[tuple[int, int]], ...]:
  """Those over the words i to j − 1, each the set of its half-open spans."""
  if j - i == 1:
    return (frozenset({(i, j)}),)
  return tuple(
    frozenset({(i, j)}) | left | right
    for split in range(i + 1, j)
    for left in trees(i, split)
    for right in trees(split, j)
  )
