"""A baseline parser: a probabilistic context-free grammar, estimated from the training trees.

Chains of phrases are one label, and a symbol also holds the label right above it (Johnson 1998).
Rules with more than two children are split, X -> a @a, @a -> b @b, @b -> c d, into new symbols that
know only X and the child before them. Probabilities are relative frequencies.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple, Self

import numpy as np

from posexp import storage
from posexp.data import trees
from posexp.data.best_trees import BinaryRules, raised
from posexp.data.trees import JOIN, Span, Tree, chains
from posexp.status import doing
from posexp.tasks import brackets

RECIPE = "parents, one sibling, relative frequencies; unknown words by shape and two letters"
LONGEST = 100  # words; the time of a chart grows with their third power
NEVER = np.float32(-np.inf)
ROOT = ("",)

Symbol = tuple[str, ...]  # (tag,), (label, parent) or (label, parent, sibling)
Rule = tuple[Symbol, tuple[Symbol, ...]]


def scores(
  train: Sequence[Tree],
  test: Sequence[Tree],
  otherwise: Callable[[Sequence[str], Sequence[str]], Tree],
  *,
  see_tags: bool,
) -> dict[str, float]:
  """Return `brackets.scores` of the most probable trees of a test split, cached by content.

  The grammar sees the gold tags of words, or only the words. Sentences that it does not generate,
  or of over `LONGEST` words, get the tree of `otherwise`.
  """
  lines = [list(map(trees.brackets, each)) for each in (train, test)]

  def compute() -> dict[str, float]:
    doing("parsing with a PCFG of the training trees")
    grammar, found = PCFG.of(train), []
    emissions = Emissions.of(train, [tag for (tag,) in grammar.symbols[: grammar.tags]])
    for tree in test:
      seen = emissions.of_tags(tree.tags) if see_tags else emissions.of_words(tree.words)
      spans = grammar.parse(seen) if len(seen) <= LONGEST else None
      side = tree.words, tree.tags
      found.append(otherwise(*side) if spans is None else trees.of_chains(*side, spans))
    return brackets.scores(brackets.counts(test, found))

  return storage.cached("baseline", compute, RECIPE, LONGEST, see_tags, lines)


def rules(tree: Tree) -> Iterator[Rule]:
  """Yield the rules that make a tree, with one or two children each."""
  labels = chains(tree)
  ordered = sorted(labels, key=lambda span: (span[0], -span[1]))
  parents: dict[Span, str] = {}
  children: dict[Span, list[Symbol]] = {span: [] for span in ordered}
  opened: list[Span] = []
  place = 0
  for i, tag in enumerate(tree.tags):
    while place < len(ordered) and ordered[place][0] == i:
      span = ordered[place]
      parents[span] = labels[opened[-1]].rpartition(JOIN)[2] if opened else ""
      if opened:
        children[opened[-1]].append((labels[span], parents[span]))
      opened.append(span)
      place += 1
    if opened:
      children[opened[-1]].append((tag,))
    while opened and opened[-1][1] == i + 1:
      opened.pop()
  for span, below in children.items():
    left: Symbol = (labels[span], parents[span])
    if not parents[span]:
      yield ROOT, (left,)
    while len(below) > 2:
      rest = (labels[span], parents[span], below[0][0])
      yield left, (below[0], rest)
      left, below = rest, below[1:]
    yield left, tuple(below)


class PCFG(NamedTuple):
  """A grammar of S symbols as arrays: tags come first, and rules are sorted by what they make."""

  symbols: list[Symbol]
  tags: int  # the number of symbols that are tags
  root: np.ndarray  # [S], the log probability that a symbol makes a sentence
  rules: BinaryRules
  single: tuple[np.ndarray, np.ndarray, np.ndarray]  # symbols over one tag, these tags, weights

  @classmethod
  def of(cls, given: Iterable[Tree]) -> Self:
    """Estimate the grammar of some trees."""
    counts = Counter(rule for tree in given for rule in rules(tree))
    totals: Counter = Counter()
    for (left, _), count in counts.items():
      totals[left] += count
    names = {symbol for left, right in counts for symbol in (left, *right)} - {ROOT}
    symbols = sorted(names, key=lambda symbol: (len(symbol) > 1, symbol))
    number = {symbol: i for i, symbol in enumerate(symbols)}
    root = np.full(len(symbols), NEVER)
    rows: dict[int, list[tuple]] = {1: [], 2: []}
    for (left, right), count in counts.items():
      weight = np.float32(np.log(count / totals[left]))
      if left == ROOT:
        root[number[right[0]]] = weight
      else:
        rows[len(right)].append((number[left], *(number[each] for each in right), weight))
    left, first, second, weight = _columns(rows[2], 4)
    tags = sum(len(symbol) == 1 for symbol in symbols)
    binary = BinaryRules(left, np.stack([first, second]), weight)
    return cls(symbols, tags, root, binary, _columns(rows[1], 3))

  def parse(self, seen: np.ndarray) -> dict[Span, str] | None:
    """Return the labels of the spans of the best tree; None if there is no tree.

    Args:
      seen: [N,T], the log probability of each of N words given each tag.
    """
    n = len(seen)
    best = np.full((n, n + 1, len(self.symbols)), NEVER)  # (i, w): of w words from i on
    best[:, 1, : self.tags] = seen
    left, tag, weight = self.single
    raised(best[:, 1], left, seen[:, tag] + weight)
    parts = self._possible((best[:, 1] > NEVER).any(0))
    for w in range(2, n + 1):
      for (first_is_tag, second_is_tag), rules in parts.items():
        # A tag covers one word.
        splits = {1} if first_is_tag else range(1, w)
        splits = set(splits) & {w - 1} if second_is_tag else splits
        rules.fill(best, best, w, splits)
    top = int((self.root + best[0, n]).argmax())
    return self._spans(best, top) if (self.root + best[0, n])[top] > NEVER else None

  def _possible(self, symbols: np.ndarray) -> dict[tuple[bool, bool], BinaryRules]:
    """Group the rules that `symbols`, bool [S], can lead to, by which children are tags."""
    made, (left, children, weight) = symbols, self.rules
    while True:
      chosen = made[children].all(0)
      more = made.copy()
      more[left[chosen]] = True
      if (more == made).all():
        break
      made = more
    kinds = (children < self.tags).T
    found = {}
    for kind in ((True, True), (True, False), (False, True), (False, False)):
      of_kind = chosen & (kinds == kind).all(1)
      if of_kind.any():
        found[kind] = BinaryRules(left[of_kind], children[:, of_kind], weight[of_kind])
    return found

  def _spans(self, best: np.ndarray, top: int) -> dict[Span, str]:
    found: dict[Span, str] = {}
    todo = [(0, len(best), top)]
    while todo:
      i, w, symbol = todo.pop()
      if len(self.symbols[symbol]) == 2:
        found[i, i + w] = self.symbols[symbol][0]
      todo += self.rules.parts(best, i, w, symbol)
    return found


def _columns(rows: list[tuple], count: int) -> tuple[np.ndarray, ...]:
  """Sort rows and turn their columns into arrays: the last of weights, the others of symbols."""
  columns = zip(*sorted(rows), strict=True) if rows else [()] * count
  *symbols, weights = columns
  return *(np.array(each, np.int64) for each in symbols), np.array(weights, np.float32)


class Emissions(NamedTuple):
  """Log probabilities of words given each of T tags."""

  number: dict[str, int]  # of each tag
  known: dict[str, np.ndarray]  # by word, [T]
  unknown: dict[tuple, np.ndarray]  # by `looks`, from words that occur once

  @classmethod
  def of(cls, given: Iterable[Tree], tags: Sequence[str]) -> Self:
    """Estimate relative frequencies in trees."""
    number = {tag: i for i, tag in enumerate(tags)}
    counts = Counter(pair for tree in given for pair in zip(tree.words, tree.tags, strict=True))
    totals, often = Counter(), Counter()
    for (word, tag), count in counts.items():
      totals[tag] += count
      often[word] += count
    known: dict[str, np.ndarray] = {}
    unknown: dict[tuple, np.ndarray] = {}
    for (word, tag), count in counts.items():
      share = count / totals[tag]
      known.setdefault(word, np.zeros(len(tags)))[number[tag]] = share
      for look in looks(word) if often[word] == 1 else ():
        unknown.setdefault(look, np.zeros(len(tags)))[number[tag]] += share
    with np.errstate(divide="ignore"):
      logs = [{key: np.log(each) for key, each in part.items()} for part in (known, unknown)]
    return cls(number, *logs)

  def of_tags(self, tags: Sequence[str]) -> np.ndarray:
    """Return [N,T] of words with these tags; a tag that no training tree has may be any."""
    found = np.full((len(tags), len(self.number)), NEVER)
    for row, tag in zip(found, tags, strict=True):
      row[self.number.get(tag, slice(None))] = 0
    return found

  def of_words(self, words: Sequence[str]) -> np.ndarray:
    """Return [N,T] of words; an unknown word gets the numbers of words that look like it."""
    anything = np.zeros(len(self.number))
    rows = []
    for word in words:
      alike = (self.unknown[look] for look in looks(word) if look in self.unknown)
      rows.append(self.known[word] if word in self.known else next(alike, anything))
    return np.array(rows, np.float32)


def looks(word: str) -> tuple[tuple, ...]:
  """Return features of a word's spelling, the most specific first."""
  shape = word[0].isupper(), any(each.isdigit() for each in word), "-" in word
  return (*shape, word[-2:].lower()), shape, ()
