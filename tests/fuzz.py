"""What random tests share: chance, commands typed in this process, and what a folder holds.

    POSEXP_FUZZ=3600 POSEXP_SEED=1 python -m pytest tests/data/test_hostile_data.py

goes on for so many seconds in each of the random tests, with that seed, and not for a few rounds.
"""

import contextlib
import hashlib
import importlib
import io
import itertools
import os
import random
import sys
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import order

SEED = int(os.environ.get("POSEXP_SEED", "0"))


def rounds(count: int) -> Iterator[random.Random]:
  """A source of chance for each of so many rounds, or for as long as POSEXP_FUZZ says."""
  seconds = os.environ.get("POSEXP_FUZZ")
  end = time.monotonic() + float(seconds or 0)
  for number in itertools.count() if seconds else range(count):
    if seconds and number and time.monotonic() > end:
      return
    yield random.Random(f"{SEED}/{number}")


def typed(command: str, *argv: str | Path, given: bytes = b"") -> order.Typed:
  """Types a command in this process; standard input is `given`, and a traceback is in `err`."""
  words = [str(word) for word in argv]
  if command == "train":
    try:
      return order.command(*words)
    except Exception:
      return order.Typed(-1, "", traceback.format_exc())
  main = importlib.import_module(f"posexp.{command}").main
  out, err = io.TextIOWrapper(io.BytesIO(), "utf-8"), io.StringIO()
  with (
    mock.patch.object(sys, "argv", [command, *words]),
    mock.patch.object(sys, "stdin", io.TextIOWrapper(io.BytesIO(given))),
    contextlib.redirect_stdout(out),
    contextlib.redirect_stderr(err),
  ):
    try:
      main()
      status = 0
    except SystemExit as end:
      status = end.code or 0
    except Exception:
      status = -1
      err.write(traceback.format_exc())
  out.flush()
  return order.Typed(status, out.buffer.getvalue().decode(), err.getvalue())


def contents(folder: Path, but: tuple[str, ...] = ()) -> dict[str, str]:
  """A digest of every file in a folder, by its path, but of those that match a pattern."""
  return {
    str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
    for path in sorted(folder.rglob("*"))
    if path.is_file() and not any(path.relative_to(folder).match(pattern) for pattern in but)
  }
