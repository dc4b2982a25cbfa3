"""Treebanks as numbers: lexicon and batches, where trees come from, and the embedded grammar."""

import itertools
import math
from collections import Counter

import numpy as np
import pytest
from definitions import likeliest

from posexp.data.splits import EVALUATED
from posexp.errors import UserError
from posexp.parsing import grammar, trees
from posexp.parsing.encoded import INPUTS, UNKNOWN, UNKNOWN_TAG, Lexicon, Sentences
from posexp.parsing.sources import Craft, Files
from posexp.parsing.trees import Tree

DRAWN = grammar.draw(200, seed=1)


@pytest.fixture(scope="module")
def lexicon():
  return Lexicon.of(DRAWN)


# Numbers


def test_a_lexicon_counts_words_tags_and_chains(lexicon):
  words = Counter(word for tree in DRAWN for word in tree.words)
  assert {word: count for word, (count, _) in lexicon.words.items()} == words
  assert set(lexicon.tags) == {tag for tree in DRAWN for tag in tree.tags}
  assert lexicon.labels[0] == ""
  assert "S::VP" in lexicon.labels
  assert lexicon.tag("saw") in ("VBD", "NN")
  assert lexicon.tag("never seen") == lexicon.rare_tag
  assert Lexicon.opened(lexicon.json) == lexicon


@pytest.mark.parametrize("inputs", INPUTS)
def test_a_batch_holds_the_sentences_and_their_spans(lexicon, inputs):
  sentences = Sentences.of_trees(DRAWN, lexicon, inputs, train=True)
  rows = np.array([7, 0, 3])
  batch = sentences.batch(rows, 48, 5)
  assert batch["index"].tolist() == [7, 0, 3, -1, -1]
  assert batch["weight"].tolist() == [1, 1, 1, 0, 0]
  for row, i in enumerate(rows):
    tree = DRAWN[i]
    n = len(tree.words)
    ids = [
      (lexicon.word_ids[w], lexicon.tag_ids[t]) for w, t in zip(tree.words, tree.tags, strict=True)
    ]
    wanted = [[of_word[i] for i in INPUTS[inputs]] for of_word in ids]
    assert batch["tokens"][row, 1 : n + 1].tolist() == wanted
    assert not batch["tokens"][row, n + 2 :].any()
    assert batch["mask"][row].tolist() == [True] * (n + 2) + [False] * (46 - n)
    counts = [1 / (1 + lexicon.words[word][0]) for word in tree.words]
    wanted = np.zeros(48) if inputs == "tags" else np.pad(counts, (1, 47 - n))
    np.testing.assert_allclose(batch["rare"][row], wanted, rtol=1e-6)
    found = {
      (int(i), int(j) + 1): lexicon.labels[batch["gold"][row, i, j]]
      for i, j in np.argwhere(batch["gold"][row])
    }
    assert found == trees.chains(tree)
  assert len({tuple(row) for row in batch["tokens"][:3, 0].tolist()}) == 1  # START
  assert batch["mask"][3:].sum(1).tolist() == [1, 1]  # attention needs a key in every row


def test_letters_are_those_of_the_words_and_of_long_ones_the_ends(lexicon):
  long = "telescopes" * 3
  tree = Tree((long, "café"), ("NN", "NN"), (trees.Phrase(0, 2, "NP"),))
  sentences = Sentences.of_trees([tree], lexicon, "characters", train=True)
  batch = sentences.batch(np.array([0]), 8, 2)
  letters = {i: letter for letter, i in lexicon.letter_ids.items()} | {UNKNOWN: "?"}
  read = ["".join(letters.get(i, "") for i in row) for row in batch["tokens"][0].tolist()]
  longest = max(map(len, lexicon.words))
  assert len(letters) - 1 == len(set("".join(lexicon.words)))
  assert read == ["", long[: longest - longest // 2] + long[-(longest // 2) :], "caf?"] + 5 * [""]
  assert batch["tokens"][0, :4, 0].tolist()[::3] == [1, 2]  # START and STOP
  assert not batch["rare"].any()
  assert batch["tokens"].max() < lexicon.rows("characters")


def test_what_training_never_saw_is_unknown_and_missed(lexicon):
  tree = trees.of_chains(Tree(("blorp", "saw"), ("XX", "VBD"), ()), {(0, 2): "S::S::S"})
  batch = Sentences.of_trees([tree], lexicon, "both", train=False).batch(np.array([0]), 8, 1)
  assert batch["tokens"][0, 1].tolist() == [UNKNOWN, UNKNOWN_TAG]
  assert batch["gold"][0, 0, 1] == -1
  assert not batch["rare"].any()


# Where trees come from


def written(path, given):
  path.parent.mkdir(parents=True, exist_ok=True)
  path.write_text("".join(f"{trees.brackets(tree)}\n" for tree in given))
  return str(path)


def test_files_are_split_and_long_sentences_dropped_and_counted(tmp_path):
  file = written(tmp_path / "all.mrg", DRAWN)
  task = Files(train=file, longest=10)
  data = task.prepare(tmp_path)
  found = Counter(tree.text for split in EVALUATED for tree in data.trees_of[split])
  assert max(found.values()) == 1
  short = [tree for tree in DRAWN if len(tree.words) <= 10 and tree.text not in found]
  assert data.sizes["train"] == len(short)
  dropped = len(DRAWN) - len(found) - len(short)
  assert f"{dropped:,} train sentences of over 10 words are dropped" in data.notes
  assert data.training_lengths[-1] == 16
  assert data.bucket_lengths[-1] >= data.longest
  for split in ("validation", "test"):
    index = np.concatenate([batch["index"] for batch in data.evaluation(split, 16)])
    assert sorted(index[index >= 0]) == list(range(data.sizes[split]))
  with pytest.raises(UserError, match=r"all training sentences have over 2 words; raise task\.lon"):
    Files(train=file, longest=2).prepare(tmp_path)
  # The lexicon is that of the folder.
  again = Files(train=file, longest=10, inputs="words").prepare(tmp_path)
  assert again.lexicon == data.lexicon


def test_files_may_be_several_and_are_known_by_their_content(tmp_path):
  one = written(tmp_path / "a.mrg", DRAWN[:100])
  two = written(tmp_path / "b.mrg", DRAWN[100:])
  listed = Files(train=(one, two))
  assert listed.data_digest() == Files(train=str(tmp_path / "?.mrg")).data_digest()
  assert listed.data_digest() != Files(train=one).data_digest()
  assert sum(map(len, listed.treebank()[0].values())) == 200


def test_a_long_sentence_gets_a_batch_of_few_rows(tmp_path):
  many = Tree(("x",) * 370, ("NN",) * 370, (trees.Phrase(0, 370, "NP"),))
  options = {"train": written(tmp_path / "train.mrg", DRAWN)}
  options["test"] = written(tmp_path / "test.mrg", [*DRAWN[:3], many])
  data = Files(**options).prepare(tmp_path)
  assert data.longest == 372
  rows = dict(zip(data.bucket_lengths.tolist(), data.rows_of(32).tolist(), strict=True))
  assert rows[376] == 8
  assert set(rows.values()) == {8, 32}
  shapes = [batch["tokens"].shape[1] for batch in itertools.islice(data.batches(32, seed=0), 20)]
  assert max(shapes) <= 48  # training knows nothing of it


def test_craft_is_read_by_the_ids_of_its_release(tmp_path):
  for number, name in enumerate(("train", "dev", "test")):
    ids = tmp_path / "articles" / "ids" / f"craft-ids-{name}.txt"
    ids.parent.mkdir(parents=True, exist_ok=True)
    ids.write_text(f"{number}\n{number + 5}\n")
    for article in (number, number + 5):
      penn = tmp_path / "structural-annotation" / "treebank" / "penn"
      written(penn / f"{article}.tree", DRAWN[10 * article : 10 * article + 10])
  given, _ = Craft(folder=str(tmp_path)).treebank()
  assert {split: len(found) for split, found in given.items()} == {
    "train": 20, "validation": 20, "test": 20,
  }  # fmt: skip
  with pytest.raises(UserError, match=r"there is no articles/ids/craft-ids-train\.txt"):
    Craft(folder=str(tmp_path / "articles")).paths()


# The grammar


def test_what_is_drawn_is_a_function_of_the_seed():
  assert grammar.draw(200, seed=1) == DRAWN
  assert grammar.draw(50, seed=2) != DRAWN[:50]
  assert len({tree.words for tree in DRAWN}) == 200
  assert max(len(tree.words) for tree in DRAWN) <= grammar.LONGEST


def test_rules_and_words_are_a_distribution():
  tables = grammar.rules() | grammar.words()
  np.testing.assert_allclose([sum(shares.values()) for shares in tables.values()], 1)
  used = {symbol for options in grammar.rules().values() for right in options for symbol in right}
  assert used | {grammar.START} == set(tables)


@pytest.mark.parametrize(("see_words", "see_tags"), [(True, True), (True, False), (False, True)])
def test_the_best_tree_is_as_probable_as_any(see_words, see_tags):
  rules = {
    left: {right: math.log(share) for right, share in options.items()}
    for left, options in grammar.rules().items()
  }
  for tree in [tree for tree in DRAWN if len(tree.words) <= 9][:12]:

    def word(symbol, i, tree=tree):
      share = grammar.words()[symbol].get(tree.words[i], 0) if see_words else 1
      fits = not see_tags or grammar.label(symbol) == tree.tags[i]
      return math.log(share) if fits and share else -math.inf

    _, score = grammar.best(tree, see_words=see_words, see_tags=see_tags)
    wanted = likeliest(rules, word, grammar.START, len(tree.words))
    assert math.isclose(score, wanted, rel_tol=1e-9)
