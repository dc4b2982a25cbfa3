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
from posexp.parsing import brackets, trees
from posexp.parsing.cky import NEVER, Grammar
from posexp.parsing.trees import JOIN, Span, Tree, chains
from posexp.status import doing

RECIPE = "parents, one sibling, relative frequencies; unknown words by shape and two letters"
LONGEST = 100  # words; the time of a chart grows with their third power
ROOT = ("",)

Symbol = tuple[str, ...]  # (tag,), (label, parent) or (label, parent, sibling)
Rule = tuple[Symbol, tuple[Symbol, ...]]


def scores(
  train: Sequence[Tree],
  test: Sequence[Tree],
  otherwise: Callable[[Tree], Tree],
  *,
  see_tags: bool,
) -> dict[str, float]:
  """Return `brackets.scores` of the most probable trees of a test split, cached by content.

  The grammar sees the gold tags of words, or only the words. Sentences that it does not generate,
  or of over `LONGEST` words, get the tree of `otherwise`.
  """
  lines = [list(map(trees.brackets, split)) for split in (train, test)]

  def compute() -> dict[str, float]:
    doing("parsing with a PCFG of the training trees")
    grammar, parsed = estimate(train), []
    emissions = Emissions.of(train, [tag for (tag,) in grammar.symbols[: grammar.leaves]])
    for tree in test:
      seen = emissions.of_tags(tree.tags) if see_tags else emissions.of_words(tree.words)
      spans = parse(grammar, seen) if len(seen) <= LONGEST else None
      parsed.append(otherwise(tree) if spans is None else trees.of_chains(tree, spans))
    return brackets.scores(brackets.counts(test, parsed))

  return storage.cached("baseline", compute, RECIPE, LONGEST, see_tags, lines)


def rules(tree: Tree) -> Iterator[Rule]:
  """Yield the rules that make a tree, with one or two children each."""
  coming = [*chains(tree).items()][::-1]
  opened: list[tuple[int, Symbol, list[Symbol]]] = [(0, ROOT, [])]  # end, symbol, children
  for i, tag in enumerate(tree.tags):
    while coming and coming[-1][0][0] == i:
      (_, end), label = coming.pop()
      _, above, beside = opened[-1]
      symbol = label, above[0].rpartition(JOIN)[2]
      beside.append(symbol)
      opened.append((end, symbol, []))
    opened[-1][2].append((tag,))
    while opened[-1][0] == i + 1:
      _, symbol, below = opened.pop()
      left = symbol
      while len(below) > 2:
        rest = (*symbol, below[0][0])
        yield left, (below[0], rest)
        left, below = rest, below[1:]
      yield left, tuple(below)
  yield ROOT, tuple(opened[0][2])


def estimate(given: Iterable[Tree]) -> Grammar:
  """Estimate the grammar of some trees."""
  made = [rule for tree in given for rule in rules(tree)]
  totals = Counter(left for left, _ in made)
  weights = {rule: np.log(count / totals[rule[0]]) for rule, count in Counter(made).items()}
  return Grammar.of(weights, ROOT, np.float32)


def parse(grammar: Grammar, seen: np.ndarray) -> dict[Span, str] | None:
  """Return the labels of the spans of the best tree; None if there is no tree.

  Args:
    seen: [N,T], the log probability of each of N words given each tag.
  """
  best = grammar.parse(seen)
  return best and {(i, j): name[0] for i, j, name in best[0] if len(name) == 2}


class Emissions(NamedTuple):
  """Log probabilities of words given each of T tags."""

  number: dict[str, int]  # of each tag
  logs: dict[str | tuple, np.ndarray]  # [T], by word, and by `looks` of words that occur once

  @classmethod
  def of(cls, given: Iterable[Tree], tags: Sequence[str]) -> Self:
    """Estimate relative frequencies in trees."""
    number = {tag: i for i, tag in enumerate(tags)}
    pairs = [pair for tree in given for pair in zip(tree.words, tree.tags, strict=True)]
    totals, often = Counter(tag for _, tag in pairs), Counter(word for word, _ in pairs)
    shares: dict[str | tuple, np.ndarray] = {}
    for (word, tag), count in Counter(pairs).items():
      for key in (word, *looks(word)) if often[word] == 1 else (word,):
        shares.setdefault(key, np.zeros(len(tags)))[number[tag]] += count / totals[tag]
    with np.errstate(divide="ignore"):
      return cls(number, {key: np.log(share) for key, share in shares.items()})

  def of_tags(self, tags: Sequence[str]) -> np.ndarray:
    """Return [N,T] of words with these tags; a tag that is in no training tree may be any tag."""
    logs = np.full((len(tags), len(self.number)), NEVER)
    for row, tag in zip(logs, tags, strict=True):
      row[self.number.get(tag, slice(None))] = 0
    return logs

  def of_words(self, words: Sequence[str]) -> np.ndarray:
    """Return [N,T] of words; an unknown word gets the numbers of words that look like it."""
    anything = np.zeros(len(self.number))
    keys = [(word, *looks(word)) for word in words]
    known = (next((self.logs[key] for key in each if key in self.logs), anything) for each in keys)
    return np.array([*known], np.float32)


def looks(word: str) -> tuple[tuple, ...]:
  """Return features of a word's spelling, the most specific first."""
  shape = word[0].isupper(), any(letter.isdigit() for letter in word), "-" in word
  return (*shape, word[-2:].lower()), shape, ()
