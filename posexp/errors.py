"""The exception that a user is meant to read, and words for messages."""

import os
import re
from pathlib import Path

# Control characters, marks that turn the direction of writing, and halves of surrogate pairs.
UNPRINTABLE = re.compile(r"[\0-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


class UserError(Exception):
  """A mistake in what the user typed or supplied.

  Its message is one sentence that says what is wrong, where, and what to do.
  The command line prints it alone, without a traceback, and exits with status 2. What it quotes of
  a file or an option can neither leave its line nor fill the screen.
  """

  def __init__(self, message: str):
    text = printable(message)
    super().__init__(text if len(text) <= 2_000 else f"{text[:1_500]} … {text[-400:]}")


def printable(text: str) -> str:
  """A text on one line: blanks for line ends and tabs, � for what could upset a terminal."""
  return UNPRINTABLE.sub(lambda found: " " if found[0].isspace() else "�", text)


def counted(number: int, what: str) -> str:
  """1 layer, 2 layers."""
  return f"{number} {what}{'s' * (number != 1)}"


def near(path: Path) -> str:
  """A path as short as the current directory allows."""
  relative = os.path.relpath(path)
  return str(path) if relative.startswith("..") else relative
