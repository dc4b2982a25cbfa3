"""Cached folders for files that are too large for memory."""

import functools
import json
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from posexp import storage
from posexp.errors import UserError

Content = TypeVar("Content")

ABOUT = "about.json"
SCRATCH = functools.cache(lambda: tempfile.TemporaryDirectory(prefix="posexp-"))  # for a process


def kept(name: str, fill: Callable[[Path], None]) -> Path:
  """Return the folder cached under `name`; `fill` writes its files if it does not exist.

  The folder is complete or absent. If the cache cannot be written, the folder is a temporary one,
  removed when the process ends.

  Raises:
    UserError: there is no room for the folder anywhere.
  """
  for root in (storage.cache_folder, lambda: Path(SCRATCH().name)):
    final = root() / name
    try:
      if not final.is_dir():
        with storage.replacing(final) as whole:
          whole.mkdir()
          fill(whole)
      return final
    except OSError as error:
      if final.is_dir():  # another process was first, with the same content
        return final
      failure = error
  raise UserError(
    f"{failure.filename or storage.cache_folder()}: cannot be written: {failure.strerror}; make "
    "room there or set XDG_CACHE_HOME to a folder that has it"
  )


def opened(name: str, fill: Callable[[Path], Any], read: Callable[[Path, Any], Content]) -> Content:
  """Read the folder cached under `name`; `fill` makes it if it is missing or damaged, and returns
  the JSON value that `read` gets beside it.

  Raises:
    UserError: there is no room for the folder anywhere.
  """

  def write(folder: Path) -> None:
    about = fill(folder)
    sizes = {path.name: path.stat().st_size for path in folder.iterdir()}
    (folder / ABOUT).write_text(json.dumps([about, sizes]))

  def whole() -> Content:
    folder = kept(name, write)
    about, sizes = json.loads((folder / ABOUT).read_text())
    if any((folder / file).stat().st_size != size for file, size in sizes.items()):
      raise ValueError("other sizes than written")
    return read(folder, about)

  try:
    return whole()
  except (OSError, ValueError, TypeError, KeyError, EOFError):  # damaged
    shutil.rmtree(storage.cache_folder() / name, ignore_errors=True)
    return whole()
