"""Vectors of words from files: what is read, refused, and what a model then starts from."""

import dataclasses
import gzip
import shutil

import numpy as np
import pytest

from posexp.config import resolve
from posexp.config.command_line import compose
from posexp.data.word_vectors import WordVectors
from posexp.encodings import encoding
from posexp.encodings.rngs import Rngs
from posexp.errors import UserError
from posexp.models.backbones import CNNSize
from posexp.models.classifier import ClassifierSpec
from posexp.models.size import Size
from posexp.runs import folder
from posexp.training.matching import facts
from posexp.training.setup import Setup
from posexp.training.step import parameters

WORDS = ("[PAD]", "[UNK]", "[CLS]", "film", "good", ".")
GLOVE = "good 1 -2 3e-1\nother 9 9 9\n. . 7 7 7\nfilm 0.5 0 0\ngood 8 8 8\n"
NUMBERS = {"good": [1, -2, 0.3], "film": [0.5, 0, 0]}


def write(path, text):
  path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
  return str(path)


@pytest.mark.parametrize("name", ["glove.txt", "glove.txt.gz"])
@pytest.mark.parametrize("header", ["", "5 3\n"])
def test_both_forms_are_read(tmp_path, name, header):
  path = write(tmp_path / name, header + GLOVE)
  found = WordVectors.read(path, WORDS, 3, "it")
  read = dict(zip((WORDS[row] for row in found.rows), found.values.tolist(), strict=True))
  assert read == {word: pytest.approx(values) for word, values in NUMBERS.items()}
  assert found.note == f"2 of 6 words start from their vectors in {path}"


@pytest.mark.parametrize(
  ("text", "message"),
  [
    ("good 1 2 3 4\n", r"line 1: a vector of 4 numbers, where model\.d_model=3 takes 3; choose"),
    ("2 2\ngood 1 2\n", "line 2: a vector of 2 numbers, where"),
    ("good 1 2 3\nfilm 1\n", "line 2: a vector of 1 numbers, where"),
    ("good 1 2 3\nfilm 1 x 3\n", "line 2: 'x' is no finite number"),
    ("good 1 nan 3\n", "line 1: 'nan' is no finite number"),
    ("good 1 1e39 3\n", "line 1: '1e39' is no finite number of 32 bits"),
    ("good 0 0 0\n", "the vectors of all words of the data are 0"),
    ("nobody 1 2 3\n", "it has none of the 6 words of the data; a line is a word in small "),
  ],
)
def test_what_cannot_be_read_is_one_sentence(tmp_path, text, message):
  path = write(tmp_path / "vectors", text)
  with pytest.raises(UserError, match=f"^model.vectors={path}.*{message}"):
    WordVectors.read(path, WORDS, 3, "model.d_model=3")


@pytest.mark.parametrize(
  ("name", "size"),
  [("learned", CNNSize(d_model=6, filters=4)), ("complex", Size(d_model=6, num_heads=1))],
)
def test_words_begin_with_them_and_all_others_as_large(tmp_path, name, size):
  width = 3 if name == "complex" else 6
  numbers = np.random.default_rng(0).normal(size=(2, width)) / 4
  rows = zip(NUMBERS, numbers, strict=True)
  lines = [f"{word} {' '.join(map(str, row))}\n" for word, row in rows]
  spec = ClassifierSpec(len(WORDS), 2, encoding(name), size)
  path = write(tmp_path / "vectors", "".join(lines))
  spec = dataclasses.replace(spec, vectors=spec.read_vectors(path, WORDS))
  model = spec.build(Rngs(params=0, encoding=1))
  tokens = np.array([[4, 3, 1, 5]])
  embedded = model.embed(tokens, np.zeros((1, 4), int), tokens > 0)[0]
  embedded = np.asarray(embedded) * getattr(size, "input_scale", 1)
  if name == "complex":  # at position 0 there is the amplitude alone
    assert not embedded[:, 1::2].any()
    embedded = embedded[:, ::2]
  np.testing.assert_allclose(embedded[:2], numbers, atol=0.1 if name == "learned" else 1e-6)
  assert facts(spec, 4, size)["parameters"] == parameters(spec)  # beside none's, of other widths
  assert 0.3 < np.std(embedded[2:]) / np.std(numbers) < 3


def test_another_width_names_what_would_have_to_change(tmp_path):
  path = write(tmp_path / "vectors", GLOVE)
  spec = ClassifierSpec(len(WORDS), 2, encoding("complex"), CNNSize(d_model=8))
  match = r"a vector of 3 numbers, where model\.d_model=8, for the first of 2 parts of a word"
  with pytest.raises(UserError, match=match):
    spec.read_vectors(path, WORDS)


def test_a_run_is_the_same_wherever_the_file_lies(tmp_path):
  def path(file, *options):
    config = resolve(compose(["model=cnn", f"model.vectors={file}", *options]))
    return folder(config, **Setup.of(config).data_digests())

  first = write(tmp_path / "first", GLOVE)
  second = shutil.copy(first, tmp_path / "second")
  assert path(first) == path(second)
  assert path(write(tmp_path / "third", GLOVE + "a 1 2 3\n")) != path(first)
  assert path("null") == folder(resolve(compose(["model=cnn"])))
  with pytest.raises(UserError, match="no such file"):
    path(tmp_path / "nowhere")
