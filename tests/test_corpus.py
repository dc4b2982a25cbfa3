"""Corpora of language models: the exact text of each split, and its tokens."""

import types

import pytest

from posexp.data import corpus
from posexp.data.corpus import END

TEXT = "".join(f" Line {i} of naïve 漢字 \U0001f600, it 's <unk> \n" for i in range(200))
FIELDS = ["package", "hub", "subset", "revision", "train", "validation", "test", "text"]


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
  monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
  monkeypatch.chdir(tmp_path)


def options(**given):
  defaults = dict.fromkeys(FIELDS) | {"name": "own", "tokenizer": "byte", "vocab_size": None}
  return types.SimpleNamespace(**defaults | given)


def prepare(tmp_path, **given):
  task = options(**given)
  corpus.check_options(task)
  folder = tmp_path / "run"
  folder.mkdir(exist_ok=True)
  return corpus.prepare(task, folder)


def content(text):
  return text.source.content.tobytes()


@pytest.mark.parametrize("kind", ["byte", "char", "word", "bpe"])
def test_tokens_stand_for_the_exact_bytes_of_each_split(tmp_path, kind):
  (tmp_path / "a.txt").write_bytes(TEXT.encode())
  texts, opened, notes = prepare(tmp_path, train="a.txt", tokenizer=kind)
  whole = b"".join(content(texts[split]) for split in ("train", "validation", "test"))
  assert whole == TEXT.encode()
  for text in texts.values():
    assert text.tokens[0] == END
    assert not (text.tokens[1:] == END).any()
    assert text.tokens.max() < opened.size
    assert opened.decode(text.tokens.tolist()) == content(text) or kind == "word"
    said = content(text).decode()
    assert (text.bytes, text.chars) == (len(said.encode()), len(said))
    assert text.words == len(said.split()) + said.count("\n")
    assert text.documents == 1
  assert notes[0] == "the test split is the last twentieth of the training text"
