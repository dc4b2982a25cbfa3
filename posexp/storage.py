"""Files written whole or not at all, and read if they are files; and the cache, in
$XDG_CACHE_HOME/posexp or ~/.cache/posexp."""

import contextlib
import glob
import hashlib
import json
import os
import re
import shutil
import socket
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from posexp.errors import UserError, refused
from posexp.status import doing

DAY = 86_400  # seconds
DEPTH = 8  # levels of lists and mappings in what is read
SURROGATES = re.compile("[\ud800-\udfff]")  # letters that UTF-8 cannot hold


def write(path: Path, text: str) -> None:
  """Write a text file so that it is there whole or not at all, even after a power failure.

  Raises:
    OSError: it cannot be written; its `filename` is the path.
  """
  try:
    with replacing(path) as temporary, temporary.open("w", encoding="utf-8") as file:
      file.write(text)
      file.flush()
      os.fsync(file.fileno())
  except OSError as error:
    raise OSError(error.errno, error.strerror, str(path)) from error


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
  """Open a temporary file, which becomes `path` if nothing goes wrong while it is written."""
  path.parent.mkdir(parents=True, exist_ok=True)
  temporary = temporary_for(path)
  try:
    yield temporary
    os.replace(temporary, path)
  finally:
    remove(temporary)


def temporary_for(path: Path) -> Path:
  """Return where this process makes what becomes `path`, beside it.

  What a killed process left there more than a day ago is removed.
  """
  for left in path.parent.glob(f".{glob.escape(path.name)}.*.tmp"):
    if time.time() - left.lstat().st_mtime > DAY:
      remove(left)
  return path.with_name(f".{path.name}.{socket.gethostname()}.{os.getpid()}.tmp")


def discard(path: Path) -> None:
  """Remove a file or a folder in such a way that a kill leaves all of it or nothing.

  Raises:
    OSError: it cannot be removed.
  """
  trash = temporary_for(path)
  path.rename(trash)
  remove(trash)


def remove(path: Path) -> None:
  """Remove a file or a folder, if it is there and can be removed."""
  shutil.rmtree(path, ignore_errors=True)
  with contextlib.suppress(OSError):
    path.unlink()


def read(path: Path) -> bytes | None:
  """Return the content of a file; None if there is none.

  Raises:
    UserError: a folder, a pipe or a device is in its place, or it cannot be read.
  """
  try:
    check(path)
    return path.read_bytes()
  except (FileNotFoundError, NotADirectoryError):
    return None
  except OSError as error:
    raise refused(error) from error


def check(path: Path) -> None:
  """Raise UserError if a path is a folder, or a pipe or device, which could be read endlessly."""
  with contextlib.suppress(OSError):  # who opens it says so
    if not stat.S_ISREG(path.stat().st_mode):
      raise UserError(f"{path}: this is no file; move away what is in its place")


def parse(data: bytes) -> Any:
  """Return the value of JSON in UTF-8.

  Raises:
    ValueError: it is not JSON, or nested too deeply.
  """
  try:
    return json.loads(data.decode())
  except RecursionError as error:
    raise ValueError("nested too deeply") from error


def is_plain(value: Any, depth: int = DEPTH) -> bool:
  """Return whether a value consists of text, numbers, booleans, lists and mappings.

  They are nested in at most `depth` levels, their text has no surrogates, and a float can hold
  their numbers.
  """
  if isinstance(value, dict):
    return is_plain([*value], depth) and is_plain([*value.values()], depth)
  if isinstance(value, list):
    return depth > 0 and all(is_plain(part, depth - 1) for part in value)
  if isinstance(value, str):
    return not SURROGATES.search(value)
  if isinstance(value, int):
    return abs(value) < 2**1000
  return value is None or isinstance(value, float)


def is_number(value: Any) -> bool:
  """Return whether a value is an int or float, not a bool, that a float can hold."""
  return isinstance(value, float) or (type(value) is int and is_plain(value))


def cache_folder() -> Path:
  """Return the folder of the cache."""
  return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "posexp"


def digest(*parts: Any) -> str:
  """Return the name of a cached value: a digest of all that it depends on."""
  return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]


def cached(name: str, compute: Callable[[], Any], *parts: Any) -> Any:
  """Return the JSON value that is cached for `parts`, or else that of `compute()`, which is cached.

  `parts` are all that the value depends on, and `name` is a folder of the cache. A damaged file is
  replaced. If the cache cannot be written, nothing is cached.
  """
  path = cache_folder() / name / f"{digest(*parts)}.json"
  with contextlib.suppress(UserError, ValueError):
    if (data := read(path)) is not None:
      return parse(data)
  doing(f"preparing the {name}, once")
  value = compute()
  with contextlib.suppress(OSError):
    write(path, json.dumps(value, ensure_ascii=False))
  return value


def unlinked(path: Path) -> Path:
  """Return a path in a folder that may be somebody else's.

  Raises:
    UserError: it is a link, by which files could be written anywhere.
  """
  if path.is_symlink():
    raise UserError(f"{path}: a link, where the run has a folder of its own; remove the link")
  return path
