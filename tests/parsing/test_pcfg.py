"""The PCFG of a treebank: its rules, its best trees and its guesses of unknown words."""

from collections import Counter
from math import log

import numpy as np
import pytest
from definitions import likeliest

from posexp.parsing import grammar, pcfg, trees
from posexp.parsing.brackets import Branching
from posexp.parsing.pcfg import Emissions, estimate, parse, rules

pytestmark = pytest.mark.usefixtures("home")  # where scores are kept

TREE = (
  "(TOP (S (NP (DT the) (JJ old) (JJ red) (NN dog)) (VP (VBD saw) (S (VP (TO to) (VB go)))) (. .)))"
)


def read(*lines):
  return [trees.clean(tree) for _, tree in trees.parsed("here", "\n".join(lines))]


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


def test_the_best_tree_is_as_probable_as_any(given):
  counts = Counter(rule for tree in given for rule in rules(tree))
  weights = {}
  for (left, right), count in counts.items():
    total = sum(each for (other, _), each in counts.items() if other == left)
    weights.setdefault(left, {})[right] = log(count / total)
  found = estimate(given)
  emissions = Emissions.of(given, [tag for (tag,) in found.symbols[: found.leaves]])
  sentences = [tree for tree in given if 4 <= len(tree.words) <= 9][:12]
  assert len(sentences) == 12
  for tree in sentences:
    parsed = trees.of_chains(tree, parse(found, emissions.of_tags(tree.tags)))
    probability = sum(weights[left][right] for left, right in rules(parsed))
    word = lambda tag, i, tags=tree.tags: 0.0 if tag == (tags[i],) else -np.inf  # noqa: E731
    best = likeliest(weights, word, ("",), len(tree.tags))
    assert probability == pytest.approx(best, abs=1e-4)
    assert probability > sum(weights[left][right] for left, right in rules(tree)) - 1e-4


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
  found = estimate(given)
  tags = [tag for (tag,) in found.symbols[: found.leaves]]
  emissions = Emissions.of(given, tags)
  assert parse(found, emissions.of_tags(("DT",) * 3)) is None
  (tree,) = read("(S (DT a) (DT b) (DT c))")
  perfect = pcfg.scores(given, [tree], lambda _: tree, see_tags=True)
  assert perfect["exact_match"] == 1
  assert (
    parse(found, emissions.of_tags(("NEVER", *given[0].tags[1:]))) is not None
  )  # may be any tag
  monkeypatch.setattr(pcfg, "LONGEST", 1)
  assert pcfg.scores(given, given[:9], lambda _: tree, see_tags=True)["exact_match"] == 0
