"""Files written whole or not at all, and nowhere else; and the cache, in $XDG_CACHE_HOME/posexp or
~/.cache/posexp."""

import contextlib
import glob
import hashlib
import json
import os
import shutil
import socket
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TextIO

from posexp import reading
from posexp.errors import UserError
from posexp.status import doing

DAY = 86_400  # seconds


def write(path: Path, text: str) -> None:
  """Write a text file atomically: after a power failure all of it is there, or none.

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
  remove(temporary)  # which may be somebody's link
  try:
    yield temporary
    os.replace(temporary, path)
  finally:
    remove(temporary)


def temporary_for(path: Path) -> Path:
  """Return the path of a temporary file of this process, beside the `path` that it becomes.

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


def cache_folder() -> Path:
  """Return the folder of the cache."""
  return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "posexp"


def digest(*parts: Any) -> str:
  """Return the name of a cached value: a digest of all that it depends on."""
  return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]


def cached_file(name: str, *parts: Any) -> Path:
  """Return the file in which `cached` keeps the value for `parts`."""
  return cache_folder() / name / f"{digest(*parts)}.json"


def cached(name: str, compute: Callable[[], Any], *parts: Any) -> Any:
  """Return the cached JSON value for `parts`; compute and cache it if there is none.

  `parts` are all that the value depends on, and `name` is a folder of the cache. A damaged file is
  replaced. If the cache cannot be written, nothing is cached.
  """
  path = cached_file(name, *parts)
  with contextlib.suppress(UserError, ValueError):
    if (data := reading.read(path)) is not None:
      return reading.parse(data, most=sys.maxsize)
  doing(f"preparing the {name}, once")
  value = compute()
  with contextlib.suppress(OSError):
    write(path, json.dumps(value, ensure_ascii=False))
  return value


def unlinked(path: Path) -> Path:
  """Return a path after checking that no link leads from it to another place.

  Raises:
    UserError: it is a link, by which files could be written anywhere.
  """
  if path.is_symlink():
    raise UserError(f"{path}: a link, where the run has its own; remove the link")
  return path


def appending(path: Path) -> TextIO:
  """Open a text file for appending, through no link.

  Raises:
    UserError: a link is in its place, or what is no file.
    OSError: it cannot be opened.
  """
  reading.check(unlinked(path))
  flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | getattr(os, "O_NOFOLLOW", 0)  # not on Windows
  return open(os.open(path, flags, 0o666), "a", encoding="utf-8")
