"""Sentences with their trees, drawn from a small grammar of English.

The grammar is ambiguous where English is: in where a prepositional phrase or a clause belongs, and
in what `and` joins. Words hint at the answer but do not decide it: one sees with a telescope more
often than a man has one. So even the grammar's own best trees are sometimes wrong, which bounds how
well any parser can do.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from posexp.parsing.cky import NEVER, Grammar
from posexp.parsing.trees import Phrase, Tree, parsed

LONGEST = 40  # words of a sentence at most
START = "S/root"

RULES, WORDS = Path(__file__).with_name("english.txt").read_text("utf-8").split("\n\n")


@functools.cache
def rules() -> dict[str, dict[tuple[str, ...], float]]:
  """Return the probability of the children that each symbol may have."""
  by_symbol = {}
  for left, text in _lines(RULES):
    options = [option.split() for option in text.split(" | ")]
    by_symbol[left] = _shares({tuple(right): int(weight) for weight, *right in options})
  return by_symbol


@functools.cache
def words() -> dict[str, dict[str, float]]:
  """Return the probability of each word, by symbol."""
  return {
    symbol: _shares({word: 1 / n for n, word in enumerate(text.split(), start=1)})
    for symbol, text in _lines(WORDS)
  }


def _lines(text: str) -> Iterator[Sequence[str]]:
  """Yield each symbol and the text after its colon; indented lines continue the one above."""
  lines = text.strip().replace("\n  ", " ").split("\n")
  return (line.split(": ") for line in lines if not line.startswith("#"))


def _shares(weights: dict[Any, float]) -> dict[Any, float]:
  total = sum(weights.values())
  return {key: weight / total for key, weight in weights.items()}


def label(symbol: str) -> str:
  """Return the part of a symbol that trees show; "" for a hidden symbol."""
  return "" if symbol.startswith("_") else symbol.partition("/")[0]


# Drawing


def draw(count: int, seed: int) -> list[Tree]:
  """Draw `count` different sentences with their trees."""
  random = np.random.default_rng(seed)
  drawn: dict[tuple[str, ...], Tree] = {}
  while len(drawn) < count:
    tree = _drawn(random)
    if tree is not None:
      drawn.setdefault(tree.words, tree)
  return list(drawn.values())


@functools.cache
def _choices() -> dict[str, tuple[np.ndarray, list]]:
  """Return, by symbol, cumulative probabilities and their options: children, or words."""
  tables = (rules() | words()).items()
  return {symbol: (np.cumsum([*shares.values()]), [*shares]) for symbol, shares in tables}


def _drawn(random: np.random.Generator) -> Tree | None:
  """Draw a tree; None if it gets too long."""
  choices, written, words = _choices(), [], 0
  todo = [START]  # symbols, or the end of a phrase
  while todo:
    each = todo.pop()
    if each == ")":
      written.append(each)
      continue
    sums, options = choices[each]
    at = np.searchsorted(sums, random.random() * sums[-1], side="right")
    chosen = options[min(int(at), len(options) - 1)]
    if isinstance(chosen, str):
      written.append(f"({label(each)} {chosen})")
      words += 1
      continue
    if label(each):
      written.append(f"({label(each)} ")
      todo.append(")")
    todo += reversed(chosen)
    if words + len(todo) > 3 * LONGEST:
      return None
  return next(parsed("", "".join(written)))[1] if words <= LONGEST else None


# The best that parsing can do


@functools.cache
def compiled() -> Grammar:
  """Split rules with more than two children, into symbols that know all that is still to come."""
  split_rules = {}
  for symbol, options in rules().items():
    for right, share in options.items():
      left, weight = symbol, math.log(share)
      while len(right) > 2:
        rest = "@ " + " ".join(right[1:])
        split_rules[left, (right[0], rest)] = weight
        left, right, weight = rest, right[1:], 0.0
      split_rules[left, right] = weight
  return Grammar.of(split_rules, START, float)


def best(tree: Tree, *, see_words: bool, see_tags: bool) -> tuple[Tree, float]:
  """Return the likeliest tree with a drawn tree's words, tags or both, and its log probability."""
  grammar = compiled()
  seen = np.full((len(tree.words), grammar.leaves), NEVER)
  for row, word, tag in zip(seen, tree.words, tree.tags, strict=True):
    for i, symbol in enumerate(grammar.symbols[: grammar.leaves]):
      share = words()[symbol].get(word, 0.0) if see_words else 1.0
      if share and (not see_tags or label(symbol) == tag):
        row[i] = math.log(share)
  nodes, score = grammar.parse(seen)
  phrases = (Phrase(i, j, label(symbol)) for i, j, symbol in nodes if symbol in rules())
  return Tree(tree.words, tree.tags, tuple(phrase for phrase in phrases if phrase.label)), score
