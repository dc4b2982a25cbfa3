"""Cached folders for files that are too large for memory."""

import functools
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from posexp import storage
from posexp.errors import UserError

Content = TypeVar("Content")


def kept(name: str, fill: Callable[[Path], None]) -> Path:
  """Return the folder cached under `name`; `fill` writes its files if it does not exist.

  The folder is complete or absent. If the cache cannot be written, the folder is a temporary one,
  removed when the process ends.

  Raises:
    UserError: there is no room for the folder anywhere.
  """
  for root in (storage.cache_folder, lambda: Path(_scratch().name)):
    try:
      return _kept(root() / name, fill)
    except OSError as error:
      failure = error
  raise UserError(
    f"{failure.filename or storage.cache_folder()}: cannot be written: {failure.strerror}; make "
    "room there or set XDG_CACHE_HOME to a folder that has it"
  )


def opened(name: str, fill: Callable[[Path], None], read: Callable[[Path], Content]) -> Content:
  """Return `read` of the folder cached under `name`, which is filled again if it is damaged.

  Raises:
    UserError: there is no room for the folder anywhere.
  """
  folder = kept(name, fill)
  try:
    return read(folder)
  except (OSError, ValueError, TypeError, KeyError, EOFError):  # damaged
    shutil.rmtree(folder, ignore_errors=True)
    return read(kept(name, fill))


def _kept(final: Path, fill: Callable[[Path], None]) -> Path:
  if not final.is_dir():
    try:
      with storage.replacing(final) as whole:
        whole.mkdir()
        fill(whole)
    except OSError:
      if not final.is_dir():  # another process may have been first, with the same content
        raise
  return final


@functools.cache
def _scratch() -> tempfile.TemporaryDirectory:
  return tempfile.TemporaryDirectory(prefix="posexp-")
