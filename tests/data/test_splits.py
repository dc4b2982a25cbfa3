"""Splits and folds by content, and which texts are equal."""

import hashlib
import itertools
import re
import unicodedata

import pytest

from posexp.data import splits
from posexp.errors import UserError
from posexp.translation.corpus import full


def rows(count, prefix="text"):
  return [(f"{prefix} {i}", str(i % 2)) for i in range(count)]


def arrange(given, **more):
  streams = {name: given[name].__iter__ for name in given}
  parts, notes = splits.arrange(streams, **more)
  return {name: list(part()) for name, part in parts.items()}, notes


def test_equal_texts_share_a_split_and_each_row_has_one():
  repeated = [("Same, text!", "0"), ("same   TEXT", "1"), ("same-text", "0")]
  for i in range(5):
    given = rows(300, f"n{i}") + [(f"{a} {i}", b) for a, b in repeated]
    parts, notes = arrange({"train": given})
    assert sorted(itertools.chain(*parts.values())) == sorted(given)
    assert len({split for split, part in parts.items() for a, _ in part if "ame" in a}) == 1
    assert len(notes) == 2


def test_folds_are_disjoint_cover_everything_and_hold_out_validation_alike():
  given = {"train": rows(500), "test": [*rows(100, "other"), ("TEXT: 1", "1")]}
  folds = [arrange(given, fold=(fold, 5))[0] for fold in range(5)]
  tests = [set(fold["test"]) for fold in folds]
  assert sum(map(len, tests)) == len(set().union(*tests)) == 601
  assert sum({("TEXT: 1", "1"), ("text 1", "1")} <= test for test in tests) == 1
  for fold in folds:
    assert 25 < len(fold["validation"]) < 75
    assert not set(fold["train"]) & set(fold["validation"])


def test_a_split_without_rows_is_an_error():
  with pytest.raises(UserError, match=r"test split has no rows; give more .* or set task\.test"):
    arrange({"train": rows(1)})
  with pytest.raises(UserError, match="train split has no rows, as 1 training texts have an empty"):
    arrange({"train": [("", "x")], "test": rows(1)}, keep=all)


PAIRED = {"rows": "pairs", "texts": "sources", "keep": full}


def test_what_is_held_out_of_pairs_is_as_in_classification():
  train = [*rows(500), ("Same, text!", "a"), ("same TEXT", "b"), ("", "x"), ("y", " ")]
  parts, notes = arrange({"train": train}, **PAIRED)
  assert parts == arrange({"train": train[:-2]})[0]
  assert list(parts) == ["train", "validation", "test"]
  assert 25 < len(parts["test"]) < 75
  assert notes == [
    "2 training pairs have an empty side and are dropped",
    "the test split is a tenth of the training pairs, held out by content hash",
    "the validation split is a tenth of the training pairs, held out by content hash",
  ]


def test_what_was_arranged_once_is_not_read_again(own_cache):
  train = [*rows(300), ("", "x")]
  first, notes = arrange({"train": train}, digest="d", **PAIRED)
  again, same = arrange({"train": train[:2]}, digest="d", **PAIRED)
  assert same == notes
  assert len(notes) == 3
  assert set(again["train"]) <= set(first["train"])
  given = dict.fromkeys(("train", "validation", "test"), train)
  assert arrange(given, digest="d", **PAIRED)[1] != notes


@pytest.mark.parametrize("text", ["It's 2_000 K.", "Ein Maß—für Ä_ü", "K\u212a I\u0130 \u00b2"])
def test_near_duplicates_are_those_of_the_same_letters_and_digits(text):
  letters = re.sub(r"[\W_]+", "", unicodedata.normalize("NFC", text.lower()))
  assert splits.key(text) == hashlib.sha256(letters.encode()).digest()


@pytest.mark.parametrize(
  ("one", "other", "equal"),
  [
    ("The  Cat\n", "the cat", True), ("cafe\u0301", "CAFÉ", True), ("\u1100\u1161", "가", True),
    ("3 + 4", "3 - 4", False), ("C", "C++", False), ("-5", "5", False), ("1.5", "15", False),
    ("( ( ) )", "( ) ( )", False), ("😀", "😂", False), ("x < y", "x > y", False),
    ("कि", "का", False), ("don't", "dont", False), ("→", "←", False), ("cote", "coté", False),
  ],
)  # fmt: skip
def test_texts_are_equal_but_for_case_blanks_and_how_accents_are_written(one, other, equal):
  assert (splits.exact_key(one) == splits.exact_key(other)) is equal
  given = {"train": [(one, "a")], "validation": [("z", "a")], "test": [(other, "a")]}
  parts, notes = arrange(given)
  assert parts == given
  assert notes == ["1 test text also stands in the training split"] * equal


@pytest.mark.parametrize(
  ("alphabet", "form"), [("()", "Is this balanced? {}"), ("😀😂😭", "{}"), ("+-*/", "1 {} 2")]
)
def test_texts_that_symbols_tell_apart_are_split_as_others_are(alphabet, form):
  texts = [form.format("".join(signs)) for signs in itertools.product(alphabet, repeat=8)][:900]
  given = [(text, "a") for text in [*texts, *texts[::3]]]
  parts, _ = arrange({"train": given})
  found = {split: {text for text, _ in part} for split, part in parts.items()}
  assert sum(map(len, found.values())) == len({*texts})
  assert all(0 < len(found[split]) <= 0.2 * len(texts) for split in ("validation", "test"))
  backwards, _ = arrange({"train": given[::-1]})
  assert {split: {text for text, _ in part} for split, part in backwards.items()} == found
