"""Files written whole or not at all, and the cache in $XDG_CACHE_HOME/posexp or ~/.cache/posexp."""

import contextlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any


def write(path: Path, text: str) -> None:
  """Writes a text file so that it is there whole or not at all, even after a power failure."""
  path.parent.mkdir(parents=True, exist_ok=True)
  temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
  with temporary.open("w", encoding="utf-8") as file:
    file.write(text)
    file.flush()
    os.fsync(file.fileno())
  os.replace(temporary, path)


def cache_folder() -> Path:
  """The folder of the cache."""
  return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "posexp"


def cached(name: str, compute: Callable[[], Any]) -> Any:
  """The JSON value cached under `name`, or else that of `compute()`, which is cached.

  A damaged cache is computed anew. Where the cache cannot be written, nothing is cached.
  """
  path = cache_folder() / name
  with contextlib.suppress(OSError, ValueError):
    return json.loads(path.read_text(encoding="utf-8"))
  value = compute()
  with contextlib.suppress(OSError):
    write(path, json.dumps(value, ensure_ascii=False))
  return value
