"""The PCFG of a treebank: its rules, its best trees and its guesses of unknown words."""

import functools
from collections import Counter
from math import log

import numpy as np
import pytest

from posexp.data import grammar, trees
from posexp.tasks import pcfg
from posexp.tasks.brackets import Branching
from posexp.tasks.pcfg import PCFG, Emissions, rules

pytestmark = pytest.mark.usefixtures("home")  # where scores are kept

TREE = (
  "(TOP (S (NP (DT the) (JJ old) (JJ red) (NN dog)) (VP (VBD saw) (S (VP (TO to) (VB go)))) (. .)))"
)


def read(*lines):
  return [trees.clean(tree) for _, tree in trees.parsed("here", lines)]


def test_rules_know_the_parent_and_one_sibling():
  below = {
    ("",): [(("S", ""),)],
    ("S", ""): [(("NP", "S"), ("S", "", "NP"))],
    ("S", "", "NP"): [(("VP", "S"), (".",))],
    ("NP", "S"): [(("DT",), ("NP", "S", "DT"))],
    ("NP", "S", "DT"): [(("JJ",), ("NP", "S", "JJ"))],
    ("NP", "S", "JJ"): [(("JJ",), ("NN",))],
    ("VP", "S"): [(("VBD",), ("S::VP", "VP"))],
    ("S::VP", "VP"): [(("TO",), ("VB",))],
  }
  expected = Counter((left, right) for left, each in below.items() for right in each)
  assert Counter(rules(*read(TREE))) == expected


@pytest.fixture(scope="module")
def given():
  return grammar.draw(150, seed=0)


@pytest.fixture(scope="module")
def weights(given):
  counts = Counter(rule for tree in given for rule in rules(tree))
  totals = Counter()
  for (left, _), count in counts.items():
    totals[left] += count
  return {(left, right): log(count / totals[left]) for (left, right), count in counts.items()}


def most_probable(tags, weights):
  """The highest log probability of a tree over some tags, from the top down."""
  below = {}
  for (left, right), weight in weights.items():
    below.setdefault(left, []).append((right, weight))

  @functools.cache
  def best(symbol, i, j):
    if len(symbol) == 1 and symbol != ("",):
      return 0.0 if j - i == 1 and tags[i] == symbol[0] else -np.inf
    found = [-np.inf]
    for right, weight in below[symbol]:
      if len(right) == 1:
        found.append(weight + best(right[0], i, j))
      else:
        splits = range(i + 1, j)
        found += [weight + best(right[0], i, k) + best(right[1], k, j) for k in splits]
    return max(found)

  return best(("",), 0, len(tags))


def test_the_best_tree_is_as_probable_as_any(given, weights):
  found = PCFG.of(given)
  emissions = Emissions.of(given, [tag for (tag,) in found.symbols[: found.tags]])
  sentences = [tree for tree in given if 4 <= len(tree.words) <= 9][:12]
  assert len(sentences) == 12
  for tree in sentences:
    spans = found.parse(emissions.of_tags(tree.tags))
    parsed = trees.of_chains(tree.words, tree.tags, spans)
    probability = sum(weights[rule] for rule in rules(parsed))
    assert probability == pytest.approx(most_probable(tree.tags, weights), abs=1e-4)
    assert probability > sum(weights[rule] for rule in rules(tree)) - 1e-4


def test_words_alone_are_parsed_too(given):
  measured = [
    pcfg.scores(given, given[:40], Branching.of(given), see_tags=see_tags)["f1"]
    for see_tags in (True, False)
  ]
  assert min(measured) > 0.8
  assert measured[0] != measured[1]


def test_unknown_words_are_what_words_look_like_that_stand_there_once():
  line = "(S (NP (NNP Anna) (NNP Emma)) (VP (VBD walked) (RB slowly) (RB quickly) (CD 12)))"
  emissions = Emissions.of(read(line), ["CD", "NNP", "RB", "VBD"])
  found = np.exp(emissions.of_words(["Anna", "badly", "Ilma", "37", "Xerxes", "the"]))
  names = found.argmax(1).tolist()
  assert names[:5] == [1, 2, 1, 0, 1]
  np.testing.assert_allclose(found[0], [0, 0.5, 0, 0])
  np.testing.assert_allclose(found[1], [0, 0, 1, 0])  # both adverbs end in -ly
  np.testing.assert_allclose(found[5], [0, 0, 1, 1])  # small letters, no digit: an adverb or a verb


def test_what_the_grammar_does_not_give_has_another_tree(given, monkeypatch):
  found = PCFG.of(given)
  tags = [tag for (tag,) in found.symbols[: found.tags]]
  emissions = Emissions.of(given, tags)
  assert found.parse(emissions.of_tags(("DT",) * 3)) is None
  (tree,) = read("(S (DT a) (DT b) (DT c))")
  perfect = pcfg.scores(given, [tree], lambda *_: tree, see_tags=True)
  assert perfect["exact_match"] == 1
  assert found.parse(emissions.of_tags(("NEVER", *given[0].tags[1:]))) is not None  # may be any tag
  monkeypatch.setattr(pcfg, "LONGEST", 1)
  assert pcfg.scores(given, given[:9], lambda *_: tree, see_tags=True)["exact_match"] == 0
