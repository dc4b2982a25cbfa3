"""Texts in parts: pieces that words are not cut by, and parts that overlap."""

from __future__ import annotations

import codecs
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

PIECE = 1 << 14  # bytes that are tokenized at a time; words are not cut unless they are longer
CONTEXT = 2048  # bytes on either side with which a part of a text is tokenized
SEAM = 256  # characters on either side of a cut in which two parts must agree
FEW = 4  # tokens by which that is seen
TOGETHER = 16  # parts that are tokenized at once


def pieces(document: bytes | memoryview, size: int | None = None) -> Iterator[bytes]:
  """Yield a document in pieces of whole characters, of at most `size` bytes each (`PIECE`).

  A piece ends before a blank, or before the end of a line, if it has one: words stay whole.
  """
  start, view, size = 0, memoryview(document), size or PIECE
  while start < len(view):
    piece = bytes(view[start : start + size])
    if start + len(piece) < len(view):
      cut = piece.rfind(b" ", 1)
      cut = cut if cut > 0 else piece.rfind(b"\n", 1)
      piece = piece[: cut if cut > 0 else codecs.utf_8_decode(piece)[1]]  # or whole characters
    yield piece
    start += len(piece)


class Part(NamedTuple):
  """A part of a text, with the texts before and behind it."""

  text: str
  first: int  # of its own characters
  end: int


def overlapping(document: bytes, size: int) -> Iterator[Part]:
  """Yield a text in parts of about `size` bytes, each with the texts before and behind it."""
  start = 0
  for piece in pieces(document, size):
    end = start + len(piece)
    before = document[_boundary(document, start - CONTEXT) : start].decode()
    behind = document[end : _boundary(document, end + CONTEXT)].decode()
    own = piece.decode()
    # A blank at the end of a text may be said to start behind it.
    yield Part(before + own + behind, len(before), len(before) + len(own) + (not behind))
    start = end


def _boundary(document: bytes, at: int) -> int:
  """Return where the character of a byte begins."""
  at = max(at, 0)
  while at < len(document) and document[at] & 0xC0 == 0x80:
    at -= 1
  return at


def around(
  ids: np.ndarray, starts: np.ndarray, place: int, length: int
) -> tuple[np.ndarray, np.ndarray] | None:
  """Return the tokens around a place in a text of this length, and how far from it they start.

  Nothing is known of tokens so long that few start on a side.
  """
  before, behind = min(SEAM, place), min(SEAM, length - place)
  near = (starts >= place - before) & (starts < place + behind)
  away = starts[near] - place
  few = [(away < 0).sum() < FEW and before == SEAM, (away >= 0).sum() < FEW and behind == SEAM]
  return None if any(few) else (ids[near], away)
