"""The last lines of a terminal, which say what a command is doing until there is more to say."""

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

PATIENCE = 5.0  # seconds without a word, where there is no terminal
_lock = threading.RLock()
_now = ""  # what the command is doing
_gone = threading.Event()  # of the lines that are shown
_gone.set()
_writes: dict[TextIO, Callable[[str], int]] = {}  # what the streams' own write is


def terminal() -> bool:
  """Return whether there is a terminal, on standard error, whose last lines can be wiped."""
  stream = sys.__stderr__
  return stream is not None and stream.isatty() and os.environ.get("TERM") != "dumb"


def begin(what: str) -> None:
  """Show `what` as `doing` does; without a terminal, name a long step once."""
  doing(what)
  if not terminal():
    timer = threading.Timer(PATIENCE, _say)
    timer.daemon = True
    timer.start()


def _say() -> None:
  """Print the current step of the command, unless it has ended."""
  if _now:
    with contextlib.suppress(OSError):
      print(f"posexp: {_now} ...", file=sys.stderr, flush=True)


def doing(what: str) -> None:
  """Show `what` with the seconds that it has taken so far; "" ends it."""
  global _now
  _now = what
  show(what)
  if what and terminal():
    threading.Thread(target=_count, args=(what, _gone), daemon=True).start()


def show(text: str) -> None:
  """Show some lines at the end of the terminal, as far as they have room there.

  They are wiped as soon as anything else is printed. Where there is no terminal, nothing is shown.
  """
  global _gone
  if not terminal():
    return
  with _lock:
    for each in {sys.__stdout__, sys.__stderr__} - {None, *_writes}:
      _writes[each] = each.write
      setattr(each, "write", functools.partial(_after_wiping, each.write))  # noqa: B010
    _wipe()
    if text:
      _gone = threading.Event()
      _draw(text)


def _after_wiping(write: Callable[[str], int], text: str) -> int:
  """Write a text to a stream once the lines are wiped."""
  with _lock:
    _wipe()
    return write(text)


def _wipe() -> None:
  if not _gone.is_set():
    _gone.set()
    _draw("")


def _draw(text: str) -> None:
  """Put a text in place of the lines; the next output begins where they begin."""
  columns, rows = shutil.get_terminal_size()
  lines = [line[: columns - 1] for line in text.split("\n")]  # longer ones could not be wiped
  if len(lines) >= rows:
    lines[rows - 2 :] = ["..."]
  back = f"\r\x1b[{len(lines) - 1}A" if len(lines) > 1 else ""
  with contextlib.suppress(OSError):  # a terminal that is gone ends no training
    _writes[sys.__stderr__]("\r\x1b[J" + "\n".join(lines) + back)
    sys.__stderr__.flush()


def _count(what: str, gone: threading.Event) -> None:
  """Add the seconds to a line until it is gone."""
  begun = time.monotonic()
  while not gone.wait(1.0):
    with _lock:
      if not gone.is_set():
        _draw(f"{what}, {time.monotonic() - begun:.0f} s")
