"""Count what a run enters before its first step: `scripts/first_step.py encoding=rpr rpr.k=4`.

These are the functions and methods with a name, and the files, that somebody passes through who
follows one command through the package.
"""

from __future__ import annotations

import inspect
import os
import sys
import tempfile
from collections import Counter
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

ROOT = f"{Path(__file__).resolve().parents[1] / 'posexp'}{os.sep}"


class FirstStep(BaseException):
  """Ends the command where its first step begins."""


def entered(argv: list[str]) -> list[CodeType]:
  """Return the code of the functions that the main thread enters before the first step."""
  found: dict[CodeType, None] = {}

  def note(frame: FrameType, event: str, _: Any) -> None:
    code = frame.f_code
    named = code.co_flags & inspect.CO_NEWLOCALS and not code.co_name.startswith("<")
    if event == "call" and named and code.co_filename.startswith(ROOT):
      found[code] = None

  from posexp.training import step

  def stop(*args: Any, **kwargs: Any) -> None:
    raise FirstStep

  step.Step.__call__ = stop
  from posexp.train import main

  sys.argv = ["posexp.train", *argv]
  sys.setprofile(note)
  try:
    main()
  except FirstStep:
    pass
  finally:
    sys.setprofile(None)
  return [*found]


def main() -> None:
  """Print how many functions and files there are, by room."""
  with tempfile.TemporaryDirectory() as runs:
    found = entered([*sys.argv[1:], f"runs={runs}", "tracker=none"])
  files = {code.co_filename.removeprefix(ROOT) for code in found}
  rooms = Counter(code.co_filename.removeprefix(ROOT).partition(os.sep)[0] for code in found)
  for code in found:
    print(f"{code.co_filename.removeprefix(ROOT)}:{code.co_firstlineno} {code.co_qualname}")
  print(f"\n{len(found)} functions in {len(files)} files: {dict(rooms.most_common())}")


if __name__ == "__main__":
  main()
