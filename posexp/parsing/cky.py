"""The most probable tree under a grammar with probabilities, found in a chart (CKY).

A chart is [N,N+1,S] for N words and S symbols: cell (i, w) holds the log probability of each
symbol's best tree over w words from i on. Symbols that no rule makes stand for single words.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Self

import numpy as np

NEVER = -np.inf

Symbol = Any  # a string or a tuple of strings
Node = tuple[int, int, Symbol]  # of a tree: the words from i up to j, and the symbol over them


class Rules(NamedTuple):
  """R rules with one child or two, sorted by the symbol that they make."""

  left: np.ndarray  # int [R], the symbols that they make
  children: np.ndarray  # int [1,R] or [2,R]
  weight: np.ndarray  # [R], log probabilities

  def where(self, chosen: np.ndarray) -> Rules:
    """Return some of the rules, by bool [R] or a slice."""
    return Rules(self.left[chosen], self.children[:, chosen], self.weight[chosen])

  def made_by(self, symbol: int) -> Rules:
    """Return the rules that make a symbol."""
    return self.where(slice(*np.searchsorted(self.left, (symbol, symbol + 1))))

  def improve(self, cells: np.ndarray, parts: Iterable[Sequence[np.ndarray]]) -> bool:
    """Raise cells [I,S] to the best log probability that the rules give; return whether any rose.

    Each of `parts` is a way to divide the words: the cells [I,S] of the first and of the second
    child. A chain of rules has one child, over all of the words.
    """
    sums = (functools.reduce(np.add, map(np.take, part, self.children, (1, 1))) for part in parts)
    if not len(self.left) or (best := next(sums, None)) is None:
      return False
    for other in sums:
      np.maximum(best, other, out=best)
    starts = np.flatnonzero(np.diff(self.left, prepend=-1))
    best = np.maximum.reduceat(best + self.weight, starts, axis=1)
    before = cells[:, self.left[starts]]
    cells[:, self.left[starts]] = np.maximum(before, best)
    return bool((best > before).any())


class Grammar(NamedTuple):
  """A grammar of S symbols as arrays; symbols of single words come first."""

  symbols: list[Symbol]
  leaves: int  # the number of symbols of single words
  start: int  # the symbol of a sentence
  single: Rules
  double: Rules

  @classmethod
  def of(
    cls, rules: Mapping[tuple[Symbol, tuple[Symbol, ...]], float], start: Symbol, dtype: Any
  ) -> Self:
    """Build a grammar from the log probability of each rule (symbol, one or two children)."""
    made = {left for left, _ in rules}
    names = made.union(*(right for _, right in rules))
    symbols = sorted(names, key=lambda symbol: (symbol in made, symbol))
    number = {symbol: i for i, symbol in enumerate(symbols)}
    tables = []
    for children in (1, 2):
      rows = sorted(
        (number[left], *(number[each] for each in right), weight)
        for (left, right), weight in rules.items()
        if len(right) == children
      )
      left, *right, weight = np.array(rows).reshape(-1, 2 + children).T
      tables.append(Rules(left.astype(int), np.array(right, int), weight.astype(dtype)))
    return cls(symbols, len(names) - len(made), number[start], *tables)

  def parse(self, seen: np.ndarray) -> tuple[list[Node], float] | None:
    """Return the best tree, parents before their children, and its log probability; None if there
    is no tree.

    Args:
      seen: [N,leaves], the log probability of each of N words given each symbol of single words.
    """
    n = len(seen)
    chart = np.full((n, n + 1, len(self.symbols)), NEVER, self.double.weight.dtype)
    chart[:, 1, : self.leaves] = seen
    single, double = self._possible((chart[:, 1] > NEVER).any(0))
    longer = double.children >= self.leaves  # than a single word
    kinds = {
      kind: double.where((kind == longer.T).all(1))
      for kind in itertools.product((False, True), repeat=2)
    }
    for w in range(1, n + 1):
      rows = n - w + 1
      cells = chart[:rows, w]
      for (first, second), rules in kinds.items():
        splits = [k for k in range(1, w) if (first or k == 1) and (second or k == w - 1)]
        rules.improve(cells, ((chart[:rows, k], chart[k : k + rows, w - k]) for k in splits))
      while single.improve(cells, [(cells,)]):  # as long as chains of rules get better
        pass
    score = float(chart[0, n, self.start])
    return (self._nodes(chart), score) if score > NEVER else None

  def _possible(self, made: np.ndarray) -> tuple[Rules, Rules]:
    """Return the rules that some symbols, bool [S], can lead to."""
    count = 0
    while count < (count := made.sum()):
      chosen = [made[rules.children].all(0) for rules in (self.single, self.double)]
      made[np.concatenate([self.single.left[chosen[0]], self.double.left[chosen[1]]])] = True
    return self.single.where(chosen[0]), self.double.where(chosen[1])

  def _nodes(self, chart: np.ndarray) -> list[Node]:
    """Return the best tree of a whole sentence, parents before their children."""
    nodes = []
    todo = [(0, len(chart), self.start)]
    while todo:
      i, w, symbol = todo.pop()
      nodes.append((i, i + w, self.symbols[symbol]))
      if symbol < self.leaves:
        continue
      (child,), weight = self.single.made_by(symbol)[1:]
      alone = chart[i, w, child] + weight
      if (alone == chart[i, w, symbol]).any():
        todo.append((i, w, int(child[alone.argmax()])))
        continue
      (first, second), weight = self.double.made_by(symbol)[1:]
      k = np.arange(1, w)
      sums = chart[i, k][:, first] + chart[i + k, w - k][:, second] + weight
      place, rule = np.unravel_index(sums.argmax(), sums.shape)
      k = int(place) + 1
      todo += [(i + k, w - k, int(second[rule])), (i, k, int(first[rule]))]
    return nodes
