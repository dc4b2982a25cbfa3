"""The exception that a user is meant to read, and words for messages."""

import contextlib
import errno
import importlib.util
import os
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

# Control characters, marks that turn the direction of writing, and halves of surrogate pairs.
UNPRINTABLE = re.compile(r"[\0-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
LONG_WORD = re.compile(r"\S{300,}")  # longer than the folders and the options that one pastes
AGAIN = "and the same command goes on"
WAYS_OUT = {  # of what the operating system refuses
  errno.ENOSPC: f"make room there, {AGAIN}",
  errno.EDQUOT: f"make room within the quota, {AGAIN}",
  errno.EFBIG: f"raise the limit on the size of files (ulimit -f), {AGAIN}",
  errno.ENOMEM: f"free some memory, {AGAIN}",
  errno.EMFILE: f"raise the limit on open files (ulimit -n 4096), {AGAIN}",
  errno.ENFILE: f"close other programs, {AGAIN}",
  errno.EROFS: "choose a place that can be written",
  errno.EACCES: "change its permissions, or choose another place",
  errno.EPERM: "change its permissions, or choose another place",
  errno.ENAMETOOLONG: "choose a shorter name",
  errno.EISDIR: "move that folder away",
}


class UserError(Exception):
  """A mistake in the user's command line or data.

  Its message is one sentence that says what is wrong, where, and what to do. The command line
  prints it alone, without a traceback, and exits with status 2. In the message, control characters
  are replaced, and long words and long texts are shortened.
  """

  def __init__(self, message: str):
    text = LONG_WORD.sub(lambda found: f"{found[0][:100]}…{found[0][-20:]}", printable(message))
    super().__init__(text if len(text) <= 2_000 else f"{text[:1_500]} … {text[-400:]}")


class Unsuited(UserError):
  """Options that do not go together, though each is right; a sweep leaves such a run out."""


class NotFinite(UserError):
  """A result that is not a finite number, as after too high a learning rate."""


def printable(text: str) -> str:
  """Return a text on one line: blanks for line ends and tabs, � for what could upset a terminal."""
  return UNPRINTABLE.sub(lambda found: " " if found[0].isspace() else "�", text)


def refused(error: OSError | UserError) -> UserError:
  """Return a UserError for what the system refuses, such as writing to a full disk."""
  if isinstance(error, UserError):
    return error
  name = error.filename2 or error.filename
  where = f"{near(Path(os.fsdecode(name)))}: " if isinstance(name, str | bytes) else ""
  if error.errno == errno.ENOENT and not where:
    where = "the current directory: "  # which is asked for by no name
  return UserError(f"{where}{_reason(error)}")


def check_installed(what: str, extra: str, *modules: str) -> None:
  """Raise UserError if a module that `what` needs is missing, and how to install it."""
  for name in modules:
    if importlib.util.find_spec(name) is None:
      raise UserError(
        f"{what} needs the package {name}: type python -m pip install 'posexp[{extra}]'"
      )


@contextlib.contextmanager
def writing(what: str, path: Path) -> Iterator[None]:
  """Turn an OSError into a UserError: "`what` `path` cannot be written", why, and the way out.

  `what` is the option that the path was given by, or what a folder is for.
  """
  try:
    yield
  except OSError as error:
    name = Path(error.filename2 or error.filename or path).name
    file = f" ({name})" if name != path.name else ""
    raise UserError(f"{what} {path} cannot be written: {_reason(error)}{file}") from error


def _reason(error: OSError) -> str:
  """Return the system's reason for a refusal, and the way out if one is known."""
  said = error.strerror or str(error) or type(error).__name__
  name = error.filename2 or error.filename
  if error.errno in (errno.ENOTDIR, errno.EEXIST) and isinstance(name, str | bytes):
    said = no_folder(Path(os.fsdecode(name))) or said
  return "; ".join(filter(None, [said, WAYS_OUT.get(error.errno)]))


def no_folder(path: Path) -> str:
  """Return why there can be no folder at a path, if a file is in the way."""
  file = next((folder for folder in (path, *path.parents) if os.path.exists(folder)), path)
  in_the_way = os.path.exists(file) and not os.path.isdir(file)
  return f"{near(file)} is a file; name a folder" if in_the_way else ""


def counted(number: int, what: str) -> str:
  """Return a number with its noun: "1 layer", "2 layers"."""
  return f"{number} {what}{'s' * (number != 1)}"


def pasted(path: Path) -> str:
  """Return a path as `near` does, quoted for a shell, and with ./ before a leading dash."""
  shown = near(path)
  return shlex.quote(f"./{shown}" if shown.startswith("-") else shown)


def lasting(seconds: float) -> str:
  """Return a duration in words: "90 s", "12 min", "2.5 h"."""
  if seconds < 100:
    return f"{seconds:.0f} s"
  return f"{seconds / 60:.0f} min" if seconds < 6_000 else f"{seconds / 3_600:.1f} h"


def near(path: Path) -> str:
  """Return a path as short as the current directory allows, to be shown."""
  try:
    relative = os.path.relpath(path)
  except OSError:  # the current directory is gone
    relative = ".."
  return printable(str(path) if relative.startswith("..") else relative)
