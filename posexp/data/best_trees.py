"""The most probable tree of a sentence under `posexp.data.grammar`: how well one can parse at best.

A chart in numpy: cell (i, w) holds the log probability of the best tree of w words from i on, by
symbol. Rules of more than two children become several; chains of rules with one child are summed
up beforehand.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from posexp.data import grammar
from posexp.data.trees import Phrase, Tree

NEVER = -np.inf
REST = "@ "  # the symbol of the last children of a rule begins so: it is no phrase


class Compiled(NamedTuple):
  """The grammar as arrays; S symbols, R rules with two children, by the symbol on their left."""

  symbols: tuple[str, ...]
  left: np.ndarray  # int [R], in order
  children: np.ndarray  # int [R,2]
  weight: np.ndarray  # [R]
  starts: np.ndarray  # int [kinds], where rules of another symbol begin
  chain: np.ndarray  # [S,S], the best log probability of the second symbol alone below the first
  below: np.ndarray  # int [S,S], the next symbol on the way there


@functools.cache
def compiled() -> Compiled:
  """The grammar, with at most two children a rule."""
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
  starts = np.flatnonzero(np.diff(left, prepend=-1))
  chain, below = _chains([(number[a], number[b], w) for a, b, w in single], len(symbols))
  return Compiled(symbols, left, np.stack([first, second], 1), weight, starts, chain, below)


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
  """The most probable tree with these words, these tags, or both, and its log probability.

  Raises:
    ValueError: the grammar does not give such a sentence.
  """
  g, n = compiled(), len(words)
  cells = np.full((n, n + 1, len(g.symbols)), NEVER)  # (i, w), before chains are put above
  best = cells.copy()  # after
  for i, (word, tag) in enumerate(zip(words, tags, strict=True)):
    for symbol, shares in grammar.words().items():
      if not see_tags or grammar.label(symbol) == tag:
        share = shares.get(word, 0.0) if see_words else 1.0
        cells[i, 1, g.symbols.index(symbol)] = np.log(share) if share else NEVER
  for w in range(1, n + 1):
    rows = np.arange(n - w + 1)
    if w > 1:
      sums = _splits(g, best, rows[:, None], w, np.arange(len(g.left))).max(1)
      cells[rows[:, None], w, g.left[g.starts]] = np.maximum.reduceat(sums, g.starts, axis=1)
    best[rows, w] = (g.chain + cells[rows, w][:, None]).max(2)
  score = float(best[0, n, g.symbols.index(grammar.START)])
  if score == NEVER:
    raise ValueError(f"the grammar gives no sentence {' '.join(words)!r}")
  return Tree(tuple(words), tuple(tags), _phrases(g, cells, best)), score


def _splits(
  g: Compiled, best: np.ndarray, rows: np.ndarray, w: int, chosen: np.ndarray
) -> np.ndarray:
  """Of every way to part w words from each of `rows` [I,1] on in two: [I,w−1,chosen rules]."""
  first = np.arange(1, w)  # words of the first part
  left, right = g.children[chosen].T
  parts = best[rows, first][..., left], best[rows + first, w - first][..., right]
  return parts[0] + parts[1] + g.weight[chosen]


def _phrases(g: Compiled, cells: np.ndarray, best: np.ndarray) -> tuple[Phrase, ...]:
  """The phrases of the best tree, parents before their children."""
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
    if w == 1:
      continue
    chosen = np.flatnonzero(g.left == last)
    sums = _splits(g, best, np.array([[i]]), w, chosen)[0]
    place, rule = np.unravel_index(sums.argmax(), sums.shape)
    left, right = g.children[chosen[rule]].tolist()
    todo += [(i + int(place) + 1, w - int(place) - 1, right), (i, int(place) + 1, left)]
  return tuple(found)
