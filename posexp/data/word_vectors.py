"""Pretrained word vectors: text files of word2vec and GloVe, also gzipped.

A line is a word and its numbers, separated by single blanks; the first line of word2vec has the
numbers of words and of dimensions. A word may contain blanks.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import math
from collections.abc import Iterator, Sequence

import numpy as np

from posexp.config.checks import FLOAT32
from posexp.data import files
from posexp.errors import UserError

WIDEST = 100_000  # numbers and blanks of a line


@dataclasses.dataclass(frozen=True)
class WordVectors:
  """The vectors of those words of a vocabulary that a file has."""

  rows: np.ndarray = dataclasses.field(compare=False)  # int [N]: ids of the words
  values: np.ndarray = dataclasses.field(compare=False)  # float32 [N,D]
  note: str  # a sentence on how many words were found
  sha256: str  # of the arrays, compared in their place

  @classmethod
  def read(cls, path: str, words: Sequence[str], width: int, taker: str) -> WordVectors:
    """Read the vectors of `words`, the vocabulary in the order of its ids.

    `width` is the width that `taker` needs, which an error names.

    Raises:
      UserError: the file cannot be read, a line has another width or anything but numbers, or no
        word is found.
    """
    return _read(path, files.version(path), tuple(words), width, taker)

  @property
  def scale(self) -> float:
    """The root mean square of all numbers."""
    return float(np.sqrt(np.mean(np.square(self.values, dtype=np.float64))))


@functools.lru_cache(maxsize=2)
def _read(
  path: str, version: object, words: tuple[str, ...], width: int, taker: str
) -> WordVectors:
  numbers = {word: number for number, word in enumerate(words)}
  vectors: dict[int, np.ndarray] = {}
  for count, (place, fields) in enumerate(_lines(path)):
    if len(fields) <= width or (count == 0 and len(fields) > width + 1):
      raise UserError(
        f"model.vectors={path}, {place}: a vector of {len(fields) - 1} numbers, where {taker} "
        f"takes {width}; choose another model.d_model or another file"
      )
    number = numbers.get(" ".join(fields[:-width]))
    if number is not None and number not in vectors:
      vectors[number] = _vector(path, place, fields[-width:])
  if not vectors:
    raise UserError(
      f"model.vectors={path}: it has none of the {len(words):,} words of the data; a line is a "
      "word in small letters and its numbers, with a blank before each"
    )
  rows = np.array(sorted(vectors))
  values = np.stack([vectors[number] for number in rows])
  if not values.any():  # by which all others are scaled
    raise UserError(f"model.vectors={path}: the vectors of all words of the data are 0")
  digest = hashlib.sha256(rows.astype("<i8").tobytes() + values.tobytes())
  note = f"{len(rows):,} of {len(words):,} words start from their vectors in {path}"
  return WordVectors(rows, values, note, digest.hexdigest())


def _lines(path: str) -> Iterator[tuple[str, list[str]]]:
  """Yield place and fields of each line that is not empty, without word2vec's first line."""
  with files.opened(path) as file:
    for number, line in enumerate(files.lines(path, file), start=1):
      if (count := line.count(" ")) > WIDEST:
        raise UserError(
          f"model.vectors={path}, line {number}: a vector of {count:,} numbers, where models take "
          f"at most {WIDEST:,}; give another file"
        )
      fields = line.rstrip().split(" ")
      header = number == 1 and len(fields) == 2 and all(field.isdecimal() for field in fields)
      if not header and len(fields) > 1:
        yield f"line {number}", fields


def _vector(path: str, place: str, fields: Sequence[str]) -> np.ndarray:
  values = []
  for field in fields:
    try:
      values.append(float(field))
    except ValueError:
      values.append(math.nan)
    if not abs(values[-1]) <= FLOAT32:
      raise UserError(f"model.vectors={path}, {place}: {field!r} is no finite number of 32 bits")
  return np.array(values, np.float32)
