"""An encoding in numbers: the vectors of some positions, and the table rows of their pairs."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from typing import Any

import numpy as np

from posexp.analysis import probe
from posexp.data import writing
from posexp.encodings import encoding as encoding_of
from posexp.encodings import name_of
from posexp.encodings.base import Encoding
from posexp.errors import UserError

MOST = 12  # rows and columns of a table that is printed
FIRST = 8  # columns of a wider table


def vectors(name: str, *, positions: int, width: int, **options: Any) -> np.ndarray:
  """Return the vectors that an encoding adds to, or multiplies by, the first words.

  `posexp.vectors("sinusoidal", positions=3, width=4, base=100)` are the untrained vectors
  p_0, p_1, p_2 of Vaswani et al. (2017, section 3.5), float64 [positions,width].

  Raises:
    UserError: there is no such encoding or option, it has fewer positions, `positions` is below 1,
      or its words have no vectors of positions.
  """
  if positions < 1:
    raise UserError(f"positions={positions}: give a whole number from 1 on")
  encoding = encoding_of(name, **options)
  if "input" not in encoding.acts_in:
    where = " and ".join(encoding.acts_in) or "nothing"
    raise UserError(f"{name} has no vectors of positions: it acts in {where}")
  if (most := probe.available(encoding, positions)) < positions:
    raise UserError(f"positions={positions}: {name} has {most}")
  try:
    return probe.position_vectors(probe.embedding(encoding, width), positions)
  except ValueError as error:
    raise UserError(f"{name}: {error}") from None


def tokens(text: str) -> list[str]:
  """Return the words and punctuation marks of a text, or its characters where no blanks part it."""
  parts = writing.words(text) if writing.parts_words([text]) else [*"".join(text.split())]
  if len(parts) < 2:
    raise UserError(f"text={text}: two words are needed; try text='the dog chased Wang Wei'")
  return parts


def of_pairs(encoding: Encoding, causal: bool, labels: Sequence[str]) -> list[str]:
  """Return lines that show which row of its tables each pair of positions looks up, if any does."""
  places = np.arange(len(labels))
  offsets = places - places[:, None]
  rows = encoding.rows_of(offsets, causal=causal)
  if rows is None:
    return []
  cells = ["" if causal and j > 0 else f"{r}" for r, j in zip(rows.flat, offsets.flat, strict=True)]
  return table(f"row of {name_of(encoding)}'s tables, query by key", cells, labels, labels)


def of_positions(vectors: np.ndarray, labels: Sequence[str]) -> list[str]:
  """Return lines with the vectors [L,F] of positions, of wide ones the first channels."""
  channels = vectors.shape[1]
  few = vectors if channels <= MOST else vectors[:, :FIRST]
  part = "" if channels <= MOST else f", the first {FIRST} of {channels} channels"
  heads = [str(channel) for channel in range(few.shape[1])]
  return table(f"vectors of positions{part}", [f"{x:.4f}" for x in few.ravel()], labels, heads)


def table(
  title: str, cells: Sequence[str], labels: Sequence[str], heads: Sequence[str]
) -> list[str]:
  """Return a title and aligned cells beside their labels; nothing if they are too many to print."""
  columns = len(heads)
  if max(len(labels), columns) > MOST:
    return []
  grid = [["", *heads]]
  grid += [[label, *cells[i * columns : (i + 1) * columns]] for i, label in enumerate(labels)]
  widths = [max(map(wide, column)) for column in zip(*grid, strict=True)]
  lines = (
    "  ".join(" " * (width - wide(cell)) + cell for cell, width in zip(row, widths, strict=True))
    for row in grid
  )
  return [title, *(line.rstrip() for line in lines)]


def wide(text: str) -> int:
  """Return the columns that a text takes on a terminal, two for a Chinese character."""
  return sum(1 + (unicodedata.east_asian_width(letter) in "WF") for letter in text)
