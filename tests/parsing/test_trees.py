"""Trees: read from brackets, cleaned, taken apart and written; and counted as EVALB counts them."""

import gzip
import json
from pathlib import Path

import numpy as np
import pytest

from posexp.errors import UserError
from posexp.parsing import brackets, trees
from posexp.parsing.brackets import Branching
from posexp.parsing.trees import Phrase, Tree

PENN = """
( (S
    (NP-SBJ-1 (DT The) (NN cat) (RRC (-NONE- *T*-1)))
    (VP=2 (VBD sat)
      (S (NP (-NONE- *-1)) (VP (TO to) (VP (VB eat))))
      (PRT|ADVP (RP up)))
    (. .)))
"""
CLEANED = (
  "(TOP (S (NP (DT The) (NN cat)) (VP (VBD sat) (S (VP (TO to) (VP (VB eat)))) (PRT (RP up))) "
  "(. .)))"
)


def parsed(text, name="trees.mrg"):
  """The cleaned trees of a text."""
  return [trees.clean(tree) for _, tree in trees.parsed(name, text)]


def one(text):
  (tree,) = parsed(text)
  return tree


# Reading and cleaning


def test_traces_and_functions_go_and_escapes_stay():
  assert trees.brackets(one(PENN)) == CLEANED
  assert one("((NP (-LRB- -LRB-) (NN|NNS a)))").tags == ("-LRB-", "NN")
  assert trees.bare("-LRB-") == "-LRB-"
  assert trees.escaped("a(b)[c]{d}") == "a-LRB-b-RRB--LSB-c-RSB--LCB-d-RCB-"


@pytest.mark.parametrize("top", ["", "TOP", "ROOT", "S1", "VROOT", "TOP (ROOT"])
def test_the_bracket_around_a_sentence_goes_whatever_its_name(top):
  text = f"({top} (S (NP (NN a)) (. .)){')' * (1 + top.count('('))}"
  assert one(text) == one("(S (NP (NN a)) (. .))")


def test_several_children_under_the_top_keep_their_bracket():
  tree = one("( (NP (NN a)) (VP (VB b)))")
  assert trees.chains(tree) == {(0, 2): "TOP", (0, 1): "NP", (1, 2): "VP"}
  assert trees.brackets(tree) == "(TOP (NP (NN a)) (VP (VB b)))"
  # A second child of traces alone is none.
  assert trees.chains(one("( (NP (NN a)) (NP (-NONE- *)))")) == {(0, 1): "NP"}


def test_chains_stay_also_of_one_label_and_a_word_of_parts_is_one():
  tree = one("(TOP (S (NP (NP (CD 10 000)))))")
  assert trees.chains(tree) == {(0, 1): "S::NP::NP"}
  assert tree.words == ("10_000",)


def test_trees_of_several_lines_files_and_globs(tmp_path):
  (tmp_path / "b.mrg").write_text(PENN + "\n\n" + PENN)
  with gzip.open(tmp_path / "a.mrg.gz", "wt") as file:
    file.write(f"{CLEANED}\n( (S (-NONE- *)))\n{CLEANED}")  # the one of traces alone is no sentence
  names = trees.paths([str(tmp_path / "*.mrg*")])
  assert [Path(name).name for name in names] == ["a.mrg.gz", "b.mrg"]
  assert [trees.brackets(tree) for tree in trees.read(names)] == 4 * [CLEANED]
  with pytest.raises(UserError, match="no file has a name like that"):
    trees.paths(str(tmp_path / "*.tree"))


def test_a_folder_with_brackets_is_no_pattern(tmp_path):
  file = tmp_path / "sub" / "wsj [mini]" / "0.mrg"
  file.parent.mkdir(parents=True)
  file.touch()
  for pattern in ("sub/wsj [mini]/*.mrg", "sub/wsj */[01].mrg", "*/wsj [mini]/?.mrg"):
    assert trees.paths(str(tmp_path / pattern)) == [str(file)]


@pytest.mark.parametrize(
  ("text", "message"),
  [
    (
      "(S (NP (NN a)))\n(S (NP (NN b))\n(S (NP (NN c)))",
      "line 2: the tree that begins here lacks 1",
    ),
    ("(S (NP (NN a)))\n(S (NP (NN b))))", r"line 2: a \) that closes no \("),
    ("(S\n(NP))", r"line 2: \(NP\) has neither a word nor a phrase"),
    ("(S (NP ()))", r"line 1: \(\) has neither"),
    ("(S (NP a (NN b)))", "line 1: 'a' has no bracket of its own"),
    ("\nhello (S (NP (NN a)))", "line 2: 'hello' stands between trees; remove it"),
    ("(S (A::B (NN a)))", "line 1: the label A::B holds ::"),
    ("(S (NP (NN a)))\n( (NN a))", "line 2: a tree without a phrase"),
    ("( (NN a) (NN b))", "line 1: a tree without a phrase"),
    (" \n", "the file is empty"),
  ],
)
def test_mistakes_name_the_file_and_the_line(tmp_path, text, message):
  file = tmp_path / "trees.mrg"
  file.write_text(text)
  with pytest.raises(UserError, match=rf"^{file}(, |: ){message}"):
    list(trees.read([str(file)]))


def test_nesting_knows_no_limit():
  deep = 20_000  # twenty times what Python would recurse
  tree = one("(S " * deep + "(NN a)" + ")" * deep)
  assert len(tree.phrases) == deep
  assert one(trees.brackets(tree)) == tree
  assert trees.of_chains(tree, trees.chains(tree)) == tree


# Taking apart and writing


def drawn(seed):
  """A random tree."""
  random = np.random.default_rng(seed)
  labels = ["S", "NP", "VP", "PRT", "ADVP", "X"]
  n = int(random.integers(1, 15))
  tags = random.choice(["NN", "VB", ",", ".", "''"], n).tolist()
  spans, todo = {}, [(0, n)]
  while todo:
    start, end = todo.pop()
    if (start, end) == (0, n) or random.random() < 0.7:
      spans[start, end] = "::".join(random.choice(labels, random.integers(1, 4)))
    if end - start > 1:
      middle = int(random.integers(start + 1, end))
      todo += [(start, middle), (middle, end)]
  words = tuple(f"w{i}" for i in range(n))
  return trees.of_chains(Tree(words, tuple(tags), ()), spans), spans


def test_what_is_taken_apart_or_written_is_the_same_tree_again(monkeypatch):
  for tree, spans in map(drawn, range(20)):
    assert trees.chains(tree) == spans
    assert one(trees.brackets(tree)) == tree
    for width in (1, 80):
      monkeypatch.setattr(trees, "WIDTH", width)
      assert one(trees.indented(tree)) == tree


def test_an_indented_tree_is_read_at_a_glance(monkeypatch):
  monkeypatch.setattr(trees, "WIDTH", 30)
  assert trees.indented(one(PENN)).splitlines() == [
    "(TOP",
    "  (S",
    "    (NP (DT The) (NN cat))",
    "    (VP",
    "      (VBD sat)",
    "      (S",
    "        (VP",
    "          (TO to)",
    "          (VP (VB eat))))",
    "      (PRT (RP up)))",
    "    (. .)))",
  ]


# Counting

STORED = json.loads((Path(__file__).parent / "evalb.json").read_text())


@pytest.mark.parametrize("case", STORED["cases"])
def test_counts_are_those_of_evalb(case):
  """Against the numbers of the C program, with COLLINS.prm; without labels, with LABELED 0."""
  gold = parsed("\n".join(STORED["gold"]))
  predicted = parsed("\n".join(case["predicted"]))
  found = brackets.counts(gold, predicted)
  assert found[:, :3].tolist() == case["brackets"]  # matched, gold, predicted of each sentence
  for name, value in brackets.scores(found).items():
    assert f"{100 * value:.2f}" == case[name]
  assert found[:, 4].sum() == case["sentences"]


def test_f1_by_length_covers_all_sentences():
  gold = parsed("\n".join(STORED["gold"]))
  predicted = parsed("\n".join(STORED["cases"][1]["predicted"]))
  found = brackets.counts(gold, predicted)
  lengths = np.array([len(tree.words) for tree in gold])
  groups = brackets.by_length(lengths, found)
  assert groups["sentences/1-10"] + groups["sentences/11-20"] == len(gold)
  assert groups["f1/11-20"] == brackets.scores(found[lengths > 10])["f1"]
  assert [*brackets.by_length(np.array([41]), found[:1])] == ["f1/41-", "sentences/41-"]


def test_no_brackets_at_all_score_nothing():
  tree = Tree((".",), (".",), (Phrase(0, 1, "X"),))
  assert set(brackets.scores(brackets.counts([tree], [tree])).values()) == {0}


def test_right_branching_takes_its_labels_from_the_trees():
  known = Branching.of(parsed(PENN))
  assert known == ("S", "VP")
  tree = known(Tree(("a", "b", "c", "."), ("NN", "NN", "NN", "."), ()))
  assert trees.chains(tree) == {(0, 4): "S", (1, 3): "VP"}
  assert trees.chains(known(Tree(("a",), ("NN",), ()))) == {(0, 1): "S"}
