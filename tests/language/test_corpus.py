"""Corpora of language models: the exact text of each split, and its tokens."""

import gzip
import hashlib
import io
import itertools
import json
import random
import re
from types import SimpleNamespace

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

from posexp.data import side_by_side, sources
from posexp.data.splits import SPLITS
from posexp.errors import UserError
from posexp.language import corpus, documents, parts, vocabulary
from posexp.language.task import LanguageModeling
from posexp.language.vocabulary import END, Vocabulary

TEXT = "".join(
  f" Line {i} of naïve 漢字 \U0001f600,\r it 's <unk> \x85\t\u2028\ufeff \r\n" for i in range(200)
)
ROWS = [f"  Document {i}: naïve 漢字,\r\n\ttwice [END] " for i in range(200)]
KINDS = ["byte", "char", "word", "bpe"]


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
  monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
  monkeypatch.chdir(tmp_path)


def prepare(tmp_path, run="run", **given):
  return corpus.prepare(LanguageModeling(**given), tmp_path / run)


def write(path, content):
  content = content.encode() if isinstance(content, str) else content
  path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)


def content(text):
  return text.source.content.tobytes()


def table(rows):
  sink = io.BytesIO()
  pyarrow.parquet.write_table(pyarrow.table({"said": rows}), sink)
  return sink.getvalue()


@pytest.mark.parametrize("kind", KINDS)
def test_tokens_stand_for_the_exact_bytes_of_each_split(tmp_path, monkeypatch, kind):
  write(tmp_path / "corpus", TEXT)
  with monkeypatch.context() as patch:
    patch.setattr(parts, "PIECE", 64)  # as if the text were long
    patch.setattr(corpus, "BATCH", 7)
    texts, opened, notes = prepare(tmp_path, train="corpus", tokenizer=kind)
    without_blanks = [*parts.pieces("é漢a".encode() * 90)]
  assert len(without_blanks) > 1
  assert "".join(piece.decode() for piece in without_blanks) == "é漢a" * 90
  assert b"".join(content(texts[split]) for split in SPLITS) == TEXT.encode()
  for split, text in texts.items():
    assert text.tokens[0] == END
    assert text.tokens[1:].min() > END
    assert text.tokens.max() < opened.size
    said = content(text).decode()
    assert text.tokens[1:].tolist() == opened.encode(said)
    assert (text.source.bytes, text.source.chars) == (len(said.encode()), len(said))
    assert text.source.words == len(said.encode().split()) + said.count("\n")
    assert len(text.source.starts) - 1 == 1
    if kind != "word":  # which knows where lines end, but not where this split is cut
      assert opened.decode(text.tokens.tolist()) == content(text)
    share = 0.9 if split == "train" else 0.05
    assert text.source.bytes == pytest.approx(share * len(TEXT.encode()), abs=4)
  assert notes[:2] == [
    "the test split is the last twentieth of the training text",
    "the validation split is the last but one twentieth of the training text",
  ]


@pytest.mark.parametrize(
  ("kind", "size"), [("byte", None), ("char", None), ("bpe", 300), ("bpe", 257)]
)
def test_any_text_is_given_back(kind, size):
  draw = random.Random(kind)
  alphabet = "abc  \t\n\r\0é漢\U0001f600\u2028\u00a0\u0301[END]Ġ"
  texts = ["".join(draw.choices(alphabet, k=draw.randint(0, 60))) for _ in range(200)]
  texts += ["", "[END]", alphabet]
  found = Vocabulary.opened(vocabulary.trained(kind, [alphabet.encode() * 9], size))
  for text in texts:
    ids = found.encode(text)
    assert END not in ids
    assert found.decode(ids) == text.encode()
    if kind == "byte" or size == 257:  # the smallest vocabulary of a BPE is that of bytes
      assert (len(ids), found.size) == (len(text.encode()), 257)


def test_words_are_those_of_wikitext():
  text = " = A = \n \n a <unk> , a b\n"
  found = Vocabulary.opened(vocabulary.trained("word", [text.encode()], None))
  assert found.size == 1 + 2 + 5  # END, the end of a line, <unk>, and = , A a b
  ids = found.encode(text)
  assert len(ids) == len(text.split()) + text.count("\n")
  assert found.decode(ids) == b" = A = \n \n a <unk> , a b \n"
  assert found.encode("new") == found.encode("<unk>") == [vocabulary.UNKNOWN]
  small = Vocabulary.opened(vocabulary.trained("word", [text.encode()], 5))
  assert small.size == 5
  assert small.decode(small.encode("a = b")) == b" a = <unk>"


def test_what_words_do_not_give_back_is_said(tmp_path):
  files = {split: f"{split}.txt" for split in SPLITS}
  for split, text in zip(SPLITS, (" a b \n", " b <unk> \n", " a a cé \n"), strict=True):
    write(tmp_path / f"{split}.txt", text)
  texts, _, notes = prepare(tmp_path, tokenizer="word", **files)
  assert [text.unspelled for text in texts.values()] == [0, 0, len("cé".encode())]
  assert len(notes) == 2
  assert "are <unk> (1 of test)" in notes[0]
  assert "the words of test do not give back the exact text" in notes[1]


def test_characters_that_training_lacks_are_counted_and_cost_their_bytes(tmp_path):
  files = {split: f"{split}.txt" for split in SPLITS}
  texts = ("abc é\n", "ab\n", "a漢b\U0001f600 漢\n")
  for split, text in zip(SPLITS, texts, strict=True):
    write(tmp_path / f"{split}.txt", text)
  found, opened, notes = prepare(tmp_path, tokenizer="char", **files)
  assert [text.unspelled for text in found.values()] == [0, 0, 3 + 4 + 3]
  assert notes == [
    "characters that are not in the vocabulary are <unk> (3 of test); bits per byte of test count "
    "8 bits for each of their bytes, and those of validation leave them out"
  ]
  assert opened.decode(found["test"].tokens.tolist()).decode() == "a\ufffdb\ufffd \ufffd\n"
  # The token of what is unknown is the last, so that others keep theirs, and stands only where
  # there is any.
  known = Vocabulary.opened(vocabulary.trained("char", [texts[0].encode()], None))
  assert (known.size, opened.size) == (1 + 6, 1 + 6 + 1)
  assert known.encode(texts[0]) == opened.encode(texts[0])
  with pytest.raises(UserError, match=r"the character '漢' \(U\+6F22\) is none of the 6"):
    known.encode("漢")


@pytest.mark.parametrize(
  ("text", "given", "note"),
  [
    ("今天,王伟追了小狗。\n今天,小狗追了王伟。\n" * 40, {"tokenizer": "word"}, "no blanks part"),
    ("".join(f"w{i} v{i} x{i} the\n" for i in range(99)), {"tokenizer": "word"}, r"\d\d% of the w"),
    ("the cat " * 99, {"tokenizer": "bpe", "vocab_size": 300}, r"=300: the BPE has 2\d\d tokens"),
    ("जीजा कुकौनिरु " * 99, {"tokenizer": "bpe", "vocab_size": 265}, None),
  ],
)  # fmt: skip
def test_a_vocabulary_that_does_not_suit_the_text_is_noted(tmp_path, text, given, note):
  write(tmp_path / "a.txt", text)
  task = LanguageModeling(train="a.txt", **given)
  *_, notes = corpus.prepare(task, tmp_path / "run")
  said = [each for each in notes if "task." in each]
  assert len(said) == (note is not None)
  assert all(re.search(note, each) for each in said)


@pytest.mark.parametrize("kind", ["jsonl", "jsonl.gz", "parquet"])
def test_rows_are_documents_split_by_content(tmp_path, kind):
  rows = [*ROWS, "", " \n", ROWS[0]]
  lines = "".join(json.dumps({"id": 1, "said": row}) + "\n" for row in rows)
  write(tmp_path / f"a.{kind}", table(rows) if kind == "parquet" else lines)
  texts, _, notes = prepare(tmp_path, train=f"a.{kind}", text="said")
  assert notes[0] == "2 documents are empty or blank and are left out"
  found = {}
  for split, text in texts.items():
    stream = bytes(np.where(text.tokens, text.tokens - 1, 0).astype(np.uint8))  # no text has a zero
    said = [part.decode() for part in stream.split(b"\0")[1:]]
    assert b"".join(part.encode() for part in said) == content(text)
    assert [bytes(each).decode() for each in text.source.texts()] == said
    assert len(text.source.starts) - 1 == len(said) == (text.tokens == END).sum()
    assert text.source.words == sum(len(part.split()) + part.count("\n") for part in said)
    found[split] = said
  assert sorted(itertools.chain(*found.values())) == sorted([*ROWS, ROWS[0]])
  for one, other in itertools.combinations(SPLITS, 2):
    assert not {*found[one]} & {*found[other]}
  assert found["train"] == [row for row in [*ROWS, ROWS[0]] if row in found["train"]]  # in order
  # More documents change no document's split.
  write(tmp_path / "b.parquet", table([f"new {i}" for i in range(100)] + rows))
  more, _, _ = prepare(tmp_path, train="b.parquet", text="said")
  assert {*found["test"]} <= {bytes(each).decode() for each in more["test"].source.texts()}


def test_one_document_is_cut_by_position_and_given_splits_are_kept(tmp_path):
  write(tmp_path / "a.parquet", table([TEXT]))
  write(tmp_path / "b.txt.gz", "other\r\n\r\ufeff")
  texts, _, notes = prepare(tmp_path, train="a.parquet", text="said", validation="b.txt.gz")
  assert content(texts["train"]) + content(texts["test"]) == TEXT.encode()
  assert content(texts["validation"]) == "other\r\n\r\ufeff".encode()
  assert texts["test"].source.bytes == pytest.approx(0.05 * len(TEXT.encode()), abs=4)
  assert notes == ["the test split is the last twentieth of the training text"]


def test_few_documents_leave_no_split_empty(tmp_path):
  write(tmp_path / "a.jsonl", "".join(json.dumps({"text": f"text {i}"}) + "\n" for i in range(3)))
  texts, _, notes = prepare(tmp_path, train="a.jsonl", text="text")
  assert [len(texts[split].source.starts) - 1 for split in SPLITS] == [1, 1, 1]
  kept = sorted(content(texts[split]) for split in SPLITS)
  assert kept == [b"text 0", b"text 1", b"text 2"]
  assert "the test split is one document, held out by content hash" in notes


def test_documents_that_stand_in_two_splits_are_counted(tmp_path):
  write(tmp_path / "a.parquet", table(ROWS))
  write(tmp_path / "b.parquet", table([ROWS[1], ROWS[1], ROWS[2], ROWS[0].upper(), "new"]))
  files = dict.fromkeys(("validation", "test"), "b.parquet")
  _, _, notes = prepare(tmp_path, train="a.parquet", text="said", **files)
  assert notes == [
    f"2 training documents also stand in the {split} split" for split in ("validation", "test")
  ]


SIZES = {  # documents, bytes and the first digits of sha256 of train, validation and test
  "imdb": "22541 29957116 ce4beba7, 1143 1512529 040a6625, 1218 1567313 68085675",
  "sympy": "726 14004578 c1c875bf, 47 818950 4d9adbbc, 39 1030592 43ea7a90",
}


@pytest.mark.parametrize("package", ["sympy", pytest.param("imdb", marks=pytest.mark.slow)])
def test_the_splits_of_a_package_are_the_same_for_ever(package):
  splits, notes, _ = documents.read(LanguageModeling(package=package))
  sizes = ((len(split.starts) - 1, len(split.content)) for split in splits.values())
  digests = (hashlib.sha256(split.content).hexdigest()[:8] for split in splits.values())
  found = (f"{n} {size} {digest}" for (n, size), digest in zip(sizes, digests, strict=True))
  assert (*splits, ", ".join(found)) == (*SPLITS, SIZES[package])
  assert notes[0] == "the test split is a twentieth of the documents, held out by content hash"


@pytest.mark.parametrize(
  ("there", "wrong", "flag"),
  [(False, "is missing", ""), (True, "has other files than", "--force-reinstall ")],
)
def test_a_package_that_is_another_one_is_one_sentence(there, wrong, flag, tmp_path, monkeypatch):
  given = sources.PACKAGES["sympy"]
  found = SimpleNamespace(submodule_search_locations=[str(tmp_path)]) if there else None
  monkeypatch.setattr(sources.importlib.util, "find_spec", lambda name: found)
  write(tmp_path / "module.py", "other")
  message = f"the package sympy {wrong}.*; type python -m pip install {flag}{given.requirement}$"
  with pytest.raises(UserError, match=message):
    documents.read(LanguageModeling(package="sympy"))


def test_a_prepared_corpus_is_read_again_and_a_damaged_one_is_made_again(tmp_path, monkeypatch):
  write(tmp_path / "a.txt", TEXT)
  given = {"train": "a.txt", "tokenizer": "bpe", "vocab_size": 300}
  first, _, notes = prepare(tmp_path, **given)
  with monkeypatch.context() as patch:
    for module in (documents, corpus):
      patch.setattr(module, "_write", lambda *args, **options: pytest.fail("written again"))
    again, _, same = prepare(tmp_path, **given)
  assert same == notes
  kept = [path for path in (tmp_path / "cache").rglob("*") if path.is_file()]
  assert len(kept) > 10
  for path in kept:
    before = path.read_bytes()
    path.unlink()
    path.write_bytes(before[:-1])
    again, _, same = prepare(tmp_path, **given)
    assert same == notes
    for split, text in again.items():
      np.testing.assert_array_equal(text.tokens, first[split].tokens)
      assert content(text) == content(first[split])


def test_a_large_text_has_the_same_tokens(tmp_path, monkeypatch):
  write(
    tmp_path / "train.txt", " ".join(f"{number} ways, Ωδή {number % 7}" for number in range(1_500))
  )
  given = {"train": "train.txt", "tokenizer": "bpe", "vocab_size": 300}
  small, opened, _ = prepare(tmp_path, **given)
  monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "large"))
  monkeypatch.setattr(corpus, "ALONE", 1)
  monkeypatch.setattr(corpus, "BATCH", 10_000)
  monkeypatch.setattr(side_by_side, "cores", lambda: 2)
  large, again, _ = prepare(tmp_path, "large", **given)
  assert again._table == opened._table
  for split in SPLITS:
    np.testing.assert_array_equal(large[split].tokens, small[split].tokens)
