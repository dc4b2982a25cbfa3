"""The most probable tree of a sentence under `posexp.data.grammar`: the best that parsing can do.

Trees are found in a chart (CKY), [N,N+1,S] for N words and S symbols: cell (i, w) holds the log
probability of each symbol's best tree over w words from i on. Rules with more than two children are
split into several; chains of rules with one child are summed beforehand.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from posexp.data import grammar
from posexp.data.trees import Phrase, Tree

NEVER = -np.inf
REST = "@ "  # begins the symbol for the last children of a rule, which are not a phrase


class BinaryRules(NamedTuple):
  """R rules with two children, sorted by the symbol that they make."""

  left: np.ndarray  # int [R], the symbols that they make
  children: np.ndarray  # int [2,R]
  weight: np.ndarray  # [R], log probabilities

  def fill(self, chart: np.ndarray, best: np.ndarray, w: int, splits: Iterable[int]) -> None:
    """Update the cells of w words with the best trees of two parts from `best`, the first part of k
    words for each k of `splits`.
    """
    rows, found = len(best) - w + 1, None
    first, second = self.children
    for k in splits:
      sums = best[:rows, k].take(first, 1) + best[k : k + rows, w - k].take(second, 1)
      found = sums if found is None else np.maximum(found, sums, out=found)
    if found is not None:
      raised(chart[:rows, w], self.left, found + self.weight)

  def parts(self, best: np.ndarray, i: int, w: int, symbol: int) -> list[tuple[int, int, int]]:
    """Return the second and the first part, (i, w, symbol) each, of a symbol's best tree over w
    words from i on; [] for one word.
    """
    if w == 1:
      return []
    chosen = slice(*np.searchsorted(self.left, (symbol, symbol + 1)))
    first, second = self.children[:, chosen]
    k = np.arange(1, w)
    sums = best[i, k][:, first] + best[i + k, w - k][:, second] + self.weight[chosen]
    place, rule = np.unravel_index(sums.argmax(), sums.shape)
    part = int(place) + 1
    return [(i + part, w - part, int(second[rule])), (i, part, int(first[rule]))]


def raised(cells: np.ndarray, left: np.ndarray, values: np.ndarray) -> None:
  """Update cells [I,S] with the best values [I,R] of rules that make the sorted symbols `left`."""
  if len(left):
    starts = np.flatnonzero(np.diff(left, prepend=-1))
    made = left[starts]
    cells[:, made] = np.maximum(cells[:, made], np.maximum.reduceat(values, starts, axis=1))


class Compiled(NamedTuple):
  """The grammar as arrays, of S symbols."""

  symbols: tuple[str, ...]
  rules: BinaryRules
  chain: np.ndarray  # [S,S], the best log probability of the second symbol alone below the first
  below: np.ndarray  # int [S,S], the next symbol on the way there


@functools.cache
def compiled() -> Compiled:
  """Turn the grammar into rules with at most two children."""
  single: list[tuple[str, str, float]] = []
  double: dict[tuple[str, str, str], float] = {}
  for left, right, weight in grammar.rules():
    if len(right) == 1:
      single.append((left, right[0], weight))
    while len(right) > 2:
      rest = REST + " ".join(right[1:])
      double[left, right[0], rest] = weight
      left, right, weight = rest, right[1:], 0.0
    if len(right) == 2:
      double[left, *right] = weight
  names = {name for rule in (*double, *(rule[:2] for rule in single)) for name in rule}
  symbols = tuple(sorted(names))
  number = {symbol: i for i, symbol in enumerate(symbols)}
  ordered = sorted((number[left], number[a], number[b], w) for (left, a, b), w in double.items())
  left, first, second, weight = map(np.array, zip(*ordered, strict=True))
  rules = BinaryRules(left, np.stack([first, second]), weight)
  chain, below = _chains([(number[a], number[b], w) for a, b, w in single], len(symbols))
  return Compiled(symbols, rules, chain, below)


def _chains(single: list[tuple[int, int, float]], size: int) -> tuple[np.ndarray, np.ndarray]:
  chain = np.where(np.eye(size, dtype=bool), 0.0, NEVER)
  below = np.tile(np.arange(size), (size, 1))
  for left, right, weight in single:
    chain[left, right], below[left, right] = weight, right
  for middle in range(size):
    through = chain[:, middle, None] + chain[middle]
    better = through > chain
    chain = np.where(better, through, chain)
    below = np.where(better, below[:, middle, None], below)
  return chain, below


def best(
  words: Sequence[str], tags: Sequence[str], *, see_words: bool, see_tags: bool
) -> tuple[Tree, float]:
  """Return the most probable tree with these words, tags or both, and its log probability.

  Raises:
    ValueError: the grammar does not generate such a sentence.
  """
  g, n = compiled(), len(words)
  cells = np.full((n, n + 1, len(g.symbols)), NEVER)  # (i, w), without chains
  best = cells.copy()  # with chains
  for i, (word, tag) in enumerate(zip(words, tags, strict=True)):
    for symbol, shares in grammar.words().items():
      if not see_tags or grammar.label(symbol) == tag:
        share = shares.get(word, 0.0) if see_words else 1.0
        cells[i, 1, g.symbols.index(symbol)] = np.log(share) if share else NEVER
  for w in range(1, n + 1):
    g.rules.fill(cells, best, w, range(1, w))
    best[: n - w + 1, w] = (g.chain + cells[: n - w + 1, w][:, None]).max(2)
  score = float(best[0, n, g.symbols.index(grammar.START)])
  if score == NEVER:
    raise ValueError(f"the grammar gives no sentence {' '.join(words)!r}")
  return Tree(tuple(words), tuple(tags), _phrases(g, cells, best)), score


def _phrases(g: Compiled, cells: np.ndarray, best: np.ndarray) -> tuple[Phrase, ...]:
  """Return the phrases of the best tree, parents before their children."""
  found = []
  todo = [(0, len(cells), g.symbols.index(grammar.START))]
  while todo:
    i, w, symbol = todo.pop()
    last = int((g.chain[symbol] + cells[i, w]).argmax())
    while True:
      name = g.symbols[symbol]
      if grammar.label(name) and name not in grammar.words() and not name.startswith(REST):
        found.append(Phrase(i, i + w, grammar.label(name)))
      if symbol == last:
        break
      symbol = int(g.below[symbol, last])
    todo += g.rules.parts(best, i, w, last)
  return tuple(found)
