"""The last line of a terminal, which says what a command is doing until there is more to say."""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import sys
import threading
import time
from collections.abc import Callable
from typing import TextIO

_lock = threading.RLock()
_gone = threading.Event()  # of the line that is shown
_gone.set()
_writes: dict[TextIO, Callable[[str], int]] = {}  # what the streams' own write is


def doing(what: str) -> None:
  """Show `what` on the last line of the terminal, with the seconds since then.

  The line is wiped as soon as anything else is printed, and by `doing("")`. It is shown on standard
  error, and not at all where that is no terminal.
  """
  global _gone
  stream = sys.__stderr__
  if stream is None or not stream.isatty() or os.environ.get("TERM") == "dumb":
    return
  with _lock:
    for each in {sys.__stdout__, stream} - {None, *_writes}:
      _writes[each], each.write = each.write, functools.partial(_after_wiping, each.write)
    _wipe()
    if what:
      _gone = threading.Event()
      _draw(what)
      threading.Thread(target=_count, args=(what, _gone), daemon=True).start()


def _after_wiping(write: Callable[[str], int], text: str) -> int:
  """Write a text to a stream once the line is wiped."""
  with _lock:
    _wipe()
    return write(text)


def _wipe() -> None:
  if not _gone.is_set():
    _gone.set()
    _draw("")


def _draw(text: str) -> None:
  """Put a text in place of the line; the next output replaces it."""
  width = shutil.get_terminal_size().columns - 1  # a longer line could not be wiped
  with contextlib.suppress(OSError):  # a terminal that is gone ends no training
    _writes[sys.__stderr__](f"\r\x1b[K{text[:width]}")
    sys.__stderr__.flush()


def _count(what: str, gone: threading.Event) -> None:
  """Add the seconds to the line until it is gone."""
  begun = time.monotonic()
  while not gone.wait(1.0):
    with _lock:
      if not gone.is_set():
        _draw(f"{what}, {time.monotonic() - begun:.0f} s")
