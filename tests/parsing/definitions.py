"""Best trees by their definition, for what finds them without looking at each."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping


@functools.cache
def trees(i: int, j: int) -> tuple[frozenset[tuple[int, int]], ...]:
  """All binary trees over the words i to j − 1, each the set of its half-open spans."""
  if j - i == 1:
    return (frozenset({(i, j)}),)
  return tuple(
    frozenset({(i, j)}) | left | right
    for split in range(i + 1, j)
    for left in trees(i, split)
    for right in trees(split, j)
  )


def likeliest(rules: Mapping, word: Callable, start, count: int) -> float:
  """The highest log probability of a tree over some words, rule by rule, from the top down.

  `rules` gives the log probability of the children of each symbol; `word(symbol, i)` that of word i
  for a symbol without rules.
  """

  @functools.cache
  def one(symbol, i, j):
    if symbol not in rules:
      return word(symbol, i) if j == i + 1 else -math.inf
    return max(weight + several(right, i, j) for right, weight in rules[symbol].items())

  @functools.cache
  def several(symbols, i, j):
    if len(symbols) == 1:
      return one(symbols[0], i, j)
    ends = range(i + 1, j - len(symbols) + 2)
    parts = (one(symbols[0], i, k) + several(symbols[1:], k, j) for k in ends)
    return max(parts, default=-math.inf)

  return one(start, 0, count)
