"""Agreement of trees with those of a treebank, as EVALB counts it with COLLINS.prm.

Words with a tag of punctuation are removed before spans are numbered; neither these words nor TOP
count as brackets; ADVP and PRT are equal; several phrases over the same words each count. F1 is
computed from sums over all sentences. A sentence of punctuation alone is skipped.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from posexp.parsing.trees import TOP, TRACE, Phrase, Tree, chains, ordered

PUNCTUATION = frozenset((",", ":", "``", "''", "."))  # tags
UNCOUNTED = PUNCTUATION | {TOP, TRACE}
EQUAL = {"PRT": "ADVP"}
ENDS = (10, 20, 30, 40)  # words of the longest sentences of each group but the last


class Counts(NamedTuple):
  """The counts of a sentence; all 0 if it is skipped."""

  matched: int = 0
  gold: int = 0  # brackets of the treebank
  predicted: int = 0
  matched_unlabeled: int = 0
  valid: int = 0  # 1: it is not skipped
  exact: int = 0  # 1: all brackets agree


def counts(gold: Iterable[Tree], predicted: Iterable[Tree]) -> np.ndarray:
  """Return `Counts` int [N,6] of predicted trees and the treebank's trees of the same sentences."""
  return np.array([_counts(*pair) for pair in zip(gold, predicted, strict=True)])


def _counts(gold: Tree, predicted: Tree) -> Counts:
  if all(tag in PUNCTUATION for tag in gold.tags):
    return Counts()
  wanted, ours = _brackets(gold), _brackets(predicted)
  matched = (Counter(wanted) & Counter(ours)).total()
  spans, others = (Counter(bracket[:2] for bracket in side) for side in (wanted, ours))
  exact = matched == len(wanted) == len(ours)
  return Counts(matched, len(wanted), len(ours), (spans & others).total(), 1, int(exact))


def _brackets(tree: Tree) -> list[Phrase]:
  """Return the phrases that count, with their places among words that are not punctuation."""
  place = [0, *itertools.accumulate(int(tag not in PUNCTUATION) for tag in tree.tags)]
  return [
    Phrase(place[start], place[end], EQUAL.get(label, label))
    for start, end, label in tree.phrases
    if label not in UNCOUNTED and place[start] < place[end]
  ]


def scores(counted: np.ndarray) -> dict[str, float]:
  """Return F1, recall, precision, exact match and F1 without labels, from `Counts` int [N,6]."""
  matched, gold, predicted, unlabeled, valid, exact = np.sum(counted, axis=0, dtype=int).tolist()
  return {
    "f1": 2 * matched / max(gold + predicted, 1),
    "recall": matched / max(gold, 1),
    "precision": matched / max(predicted, 1),
    "exact_match": exact / max(valid, 1),
    "unlabeled_f1": 2 * unlabeled / max(gold + predicted, 1),
  }


def by_length(lengths: np.ndarray, counted: np.ndarray) -> dict[str, Any]:
  """Return F1 and the number of sentences of 1-10 words, of 11-20 and so on, if there are any.

  Args:
    lengths: words of each sentence, including punctuation, int [N].
    counted: `Counts` int [N,6].
  """
  by_range: dict[str, Any] = {}
  group = np.searchsorted(ENDS, lengths)
  for number, (first, last) in enumerate(zip((0, *ENDS), (*ENDS, ""), strict=True)):
    if (chosen := group == number).any():
      name = f"{first + 1}-{last}"
      by_range[f"f1/{name}"] = scores(counted[chosen])["f1"]
      by_range[f"sentences/{name}"] = int(chosen.sum())
  return by_range


class Branching(NamedTuple):
  """A baseline that knows only that a language branches to the right."""

  root: str  # over all words
  inner: str  # over the words from each but the first to the last

  @classmethod
  def of(cls, trees: Iterable[Tree]) -> Branching:
    """Find the most frequent labels of whole sentences, and of phrases at their ends."""
    roots: Counter = Counter()
    ends: Counter = Counter()
    for tree in trees:
      last = _last(tree.tags)
      for (start, end), chain in chains(tree).items():
        if (start, end) == (0, len(tree.words)):
          roots[chain] += 1
        elif end == last and end - start > 1:
          ends[chain] += 1
    return cls(ordered(roots)[0], ordered(ends or roots)[0])

  def __call__(self, sentence: Tree) -> Tree:
    """Build a right-branching tree of a sentence, apart from a final mark of punctuation."""
    last = _last(sentence.tags)
    inner = (Phrase(start, last, self.inner) for start in range(1, last - 1))
    root = Phrase(0, len(sentence.words), self.root)
    return dataclasses.replace(sentence, phrases=(root, *inner))


def _last(tags: Sequence[str]) -> int:
  return len(tags) - (len(tags) > 1 and tags[-1] in PUNCTUATION)
