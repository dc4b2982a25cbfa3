"""Whether the files that a task of one's own reads are part of the identity of its runs."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import site
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import posexp
from posexp import storage
from posexp.config.plugins import CONFIGS
from posexp.tasks.contract import Task

EVENTS = ("open", "sqlite3.connect")  # of Python's, when a file is opened
# Code and options, which other parts of a run's identity are of, and locks.
NO_DATA = (".py", ".pyc", ".so", ".lock", ".yaml")
SYSTEM = ("/proc", "/sys", "/dev", "/etc", "/usr")
_listening: list[dict[Path, bool]] = []


@contextlib.contextmanager
def opened() -> Iterator[dict[Path, bool]]:
  """Collect the files that Python opens in it, and whether they were there to be read."""
  _listen()
  found: dict[Path, bool] = {}
  _listening.append(found)
  try:
    yield found
  finally:
    _listening.pop()


@functools.cache  # Python knows no way to end it
def _listen() -> None:
  def hear(event: str, given: tuple[Any, ...]) -> None:
    if _listening and event in EVENTS and isinstance(given[0], str | bytes | os.PathLike):
      made = event == "open" and isinstance(given[2], int) and given[2] & (os.O_WRONLY | os.O_CREAT)
      with contextlib.suppress(OSError, ValueError):
        _listening[-1].setdefault(Path(os.path.realpath(os.fsdecode(given[0]))), not made)

  sys.addaudithook(hear)


def unnamed(task: Task, loaded: dict[Path, bool]) -> list[Path]:
  """Return the files that a task reads and whose content is not in its `data_digest`.

  `loaded` are those that were opened as its class was imported. What is read by code that is no
  Python is not seen.

  Raises:
    UserError: the data are missing or broken.
  """
  with opened() as named:
    digest = task.data_digest()
  with tempfile.TemporaryDirectory() as folder, opened() as read:
    task.prepare(Path(folder))
    if digest is None:
      read = loaded | read
    # What is of Python, its packages, posexp, the system or a cache.
    elsewhere: list[Any] = [storage.cache_folder().parent, Path.home() / ".cache", folder]
    elsewhere += [os.environ.get("HF_HOME"), *site.getsitepackages(), site.getusersitepackages()]
    elsewhere += [sysconfig.get_paths()["stdlib"], sys.prefix, *SYSTEM]
    elsewhere += [Path(posexp.__file__).parent, CONFIGS]
    folders = [Path(each).resolve() for each in elsewhere if each]
    return sorted(
      path
      for path, there in read.items()
      if there and path not in named and path.suffix not in NO_DATA and path.is_file()
      if not any(path.is_relative_to(each) for each in folders)
    )


def remedy(task: Task, paths: list[Path]) -> str:
  """Return the method that gives a task the digest of files, with its options for their names."""
  options = {}
  for field in dataclasses.fields(cast(Any, task)):
    if isinstance(value := getattr(task, field.name), str | Path):
      options[Path(value).resolve()] = f"self.{field.name}"
  names = [options.get(path, repr(os.path.relpath(path))) for path in paths]
  return (
    "  def data_digest(self):\n"
    "    import hashlib, pathlib\n\n"
    f"    files = [{', '.join(names)}]\n"
    '    read = b"".join(pathlib.Path(file).read_bytes() for file in files)\n'
    "    return hashlib.sha256(read).hexdigest()"
  )
