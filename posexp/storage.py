"""What is kept on disk between runs, in $XDG_CACHE_HOME/posexp or ~/.cache/posexp."""

import contextlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any


def folder() -> Path:
  """The folder of all that is kept."""
  return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "posexp"


def write(path: Path, text: str) -> None:
  """Writes a whole file or none: a reader never meets half of one."""
  path.parent.mkdir(parents=True, exist_ok=True)
  temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
  temporary.write_text(text, encoding="utf-8")
  os.replace(temporary, path)


def kept(name: str, compute: Callable[[], Any]) -> Any:
  """The JSON value kept under `name`, or that of `compute()`, which is kept from then on.

  A cache that cannot be read is computed anew, one that cannot be written is done without.
  """
  path = folder() / name
  with contextlib.suppress(OSError, ValueError):
    return json.loads(path.read_text(encoding="utf-8"))
  value = compute()
  with contextlib.suppress(OSError):
    write(path, json.dumps(value, ensure_ascii=False))
  return value
