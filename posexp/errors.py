"""The exception that a user is meant to read, and words for messages."""

import os
from pathlib import Path


class UserError(Exception):
  """A mistake in what the user typed or supplied.

  Its message is one sentence that says what is wrong, where, and what to do.
  The command line prints it alone, without a traceback, and exits with status 2.
  """


def counted(number: int, what: str) -> str:
  """1 layer, 2 layers."""
  return f"{number} {what}{'s' * (number != 1)}"


def near(path: Path) -> str:
  """A path as short as the current directory allows."""
  relative = os.path.relpath(path)
  return str(path) if relative.startswith("..") else relative
