"""The lines that a command works on: texts that were typed, or standard input."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from posexp.data import files
from posexp.errors import UserError

WINDOW = 16  # batches of lines that are read at a time, and sorted by length


class Line(NamedTuple):
  """A line, with its name in messages."""

  name: str
  text: str


def given_lines(texts: Sequence[str]) -> Iterator[Line]:
  """Yield the texts; if there are none, the lines of standard input, without their line ends.

  Raises:
    UserError: a line is not UTF-8 or too long.
  """
  source = "text" if texts else "standard input, line"
  typed = [text.removeprefix("\ufeff") for text in texts]
  lines = typed or files.lines("standard input", sys.stdin.buffer)
  for number, line in enumerate(lines, start=1):
    files.utf8(line, f"{source} {number}")
    files.check_length(line, f"{source} {number}")
    yield Line(f"{source} {number}", line.removesuffix("\n").removesuffix("\r"))


def standard_input() -> str:
  """Return standard input without a byte order mark; UserError if it is not UTF-8."""
  try:
    return sys.stdin.buffer.read().decode("utf-8-sig")
  except UnicodeDecodeError:
    raise UserError("standard input: not valid UTF-8; is it text?") from None


def windows(texts: Sequence[str], batch: int) -> tuple[int, Iterator[list[Line]]]:
  """Return how many rows a batch needs, at most `batch`, and the lines of `given_lines` in windows.

  The first window is read now, before work that takes long. It is empty where lines are typed on a
  terminal: then each is a window, so that it is answered at once.
  """
  lines, typed = given_lines(texts), not texts and sys.stdin.isatty()
  size = 1 if typed else WINDOW * batch
  rest = iter(lambda: [*itertools.islice(lines, size)], [])
  first = [] if typed else next(rest, [])
  return max(1, min(batch, len(first))), itertools.chain([first], rest)
