"""Folders of files that are too large for memory: filled once, whole or not at all, and kept."""

import functools
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

from posexp import storage
from posexp.errors import UserError


def kept(name: str, fill: Callable[[Path], None]) -> Path:
  """The folder kept under `name`, or a new one that `fill` has filled, kept from then on.

  Where the cache cannot be written, the folder is a temporary one that lasts as long as the
  process.

  Raises:
    UserError: there is no room for it anywhere.
  """
  failure = None
  for root in (storage.cache_folder, _scratch):
    try:
      return _kept(root() / name, fill)
    except OSError as error:
      failure = error
  raise UserError(
    f"{failure.filename or storage.cache_folder()}: cannot be written: {failure.strerror}; make "
    "room there or set XDG_CACHE_HOME to a folder that has it"
  )


def _kept(final: Path, fill: Callable[[Path], None]) -> Path:
  if final.is_dir():
    return final
  final.parent.mkdir(parents=True, exist_ok=True)
  with tempfile.TemporaryDirectory(prefix=f"{final.name}.", dir=final.parent) as temporary:
    whole = Path(temporary) / "whole"
    whole.mkdir()
    fill(whole)
    try:
      os.rename(whole, final)
    except OSError:
      if not final.is_dir():  # where another process was first, it has kept the same
        raise
  return final


@functools.cache
def _scratch() -> Path:
  return Path(_temporary().name)


@functools.cache
def _temporary() -> tempfile.TemporaryDirectory:
  return tempfile.TemporaryDirectory(prefix="posexp-")  # removed when the process ends
