"""Byte n-grams and bz2, by which language models are judged."""

import bz2

import numpy as np
import pytest

from posexp.language import byte_ngrams, corpus
from posexp.language.task import LanguageModeling

WORDS = ["the", "cat", "sat", "on", "a", "mat", "and", "a", "dog", "saw", "it"]


pytestmark = pytest.mark.usefixtures("own_cache")


def witten_bell(train, context, symbol):
  """p(symbol | context) by the formula, from lists; the oracle."""
  if context is None:
    return 1 / byte_ngrams.SYMBOLS
  n = len(context)
  after = [train[i + n] for i in range(len(train) - n) if train[i : i + n] == context]
  shorter = witten_bell(train, context[1:] if context else None, symbol)
  kinds = len(set(after))
  return (after.count(symbol) + kinds * shorter) / (len(after) + kinds) if after else shorter


@pytest.mark.parametrize(
  ("order", "at_once"), [*((order, byte_ngrams.AT_ONCE) for order in (0, 1, 2, 6)), (2, 7)]
)
def test_probabilities_are_those_of_the_formula(order, at_once, monkeypatch):
  monkeypatch.setattr(byte_ngrams, "AT_ONCE", at_once)
  draw = np.random.default_rng(order)
  train, scored = draw.integers(0, 4, 300), draw.integers(0, 5, 40)
  scored[3] = 256  # never seen, and the largest
  train[[0, 9]] = 256
  found = byte_ngrams.probabilities(train, scored, order)
  for i, symbol in enumerate(scored.tolist()):
    context = scored[max(i - order, 0) : i].tolist()
    assert found[i] == pytest.approx(witten_bell(train.tolist(), context, symbol), rel=1e-12)


def prepared(tmp_path, text):
  (tmp_path / "a.txt").write_text(text)
  task = LanguageModeling(train=str(tmp_path / "a.txt"))
  return corpus.prepare(task, tmp_path / "run")[0]


def test_bits_are_per_byte_of_each_held_out_split_and_are_cached(tmp_path, monkeypatch):
  draw = np.random.default_rng(0)
  texts = prepared(tmp_path, " ".join(draw.choice(WORDS, 4_000)))
  letters = np.mean([len(word) + 1 for word in WORDS])  # with the blank
  entropy = (np.log2(len(WORDS)) - 2 / len(WORDS)) / letters  # one word stands there twice
  found = byte_ngrams.baselines(texts)
  assert found.keys() == {"validation", "test"}
  for split, measured in found.items():
    content = texts[split].source.content.tobytes()
    assert measured["bz2/bits_per_byte"] == 8 * len(bz2.compress(content)) / len(content)
    assert entropy * 0.97 < measured["ngram/bits_per_byte"] < entropy * 1.1
  monkeypatch.setattr(byte_ngrams, "probabilities", None)
  assert byte_ngrams.baselines(texts) == found


def test_training_texts_beyond_what_memory_takes_are_cut(tmp_path, monkeypatch):
  texts = prepared(tmp_path, "aab " * 500 + "xyz " * 500)
  whole = byte_ngrams.baselines(texts)["test"]["ngram/bits_per_byte"]
  monkeypatch.setattr(byte_ngrams, "TRAINED_ON", 900)
  assert whole < 0.1 < 3 < byte_ngrams.baselines(texts)["test"]["ngram/bits_per_byte"]
