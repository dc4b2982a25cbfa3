"""The software and the processor that trained a run, so that its numbers can be reproduced."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import subprocess
from pathlib import Path
from typing import Any

import posexp
from posexp import xla

# Their versions change a result's last digits.
PACKAGES = ("jax", "jaxlib", "flax", "optax", "numpy")


def versions() -> str:
  """Return the versions that decide a result: "posexp 0.2.0, jax 0.10.2, …, Python 3.11.7".

  In a checkout the version of posexp is followed by the commit, and by a plus if files differ from
  it: "posexp 0.2.0 (1a2b3c4d5e+)". "sums xla" are those of `posexp.xla`, in another order.
  """
  commit = _commit(Path(posexp.__file__).parents[1])
  parts = [f"posexp {posexp.__version__}{f' ({commit})' if commit else ''}"]
  parts += [f"{name} {importlib.metadata.version(name)}" for name in PACKAGES]
  parts += ["sums xla"] * (xla.SET in os.environ.get("XLA_FLAGS", ""))
  return ", ".join([*parts, f"Python {platform.python_version()}"])


def processor() -> str:
  """Return the name of this machine's processor, or its architecture if it has no name."""
  try:
    found = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
  except OSError:  # another system than Linux
    found = None
  return found[1].strip() if found else platform.processor() or platform.machine()


def machine() -> dict[str, Any]:
  """Return the facts of a summary that say what trains a run: the processor and the versions."""
  return {"processor": processor(), "cores": os.cpu_count(), "versions": versions()}


def _commit(checkout: Path) -> str | None:
  """Return the commit of a checkout of posexp; None for an installed package or without git."""
  if not (checkout / ".git").exists():
    return None
  describe = ["git", "-C", str(checkout), "describe", "--always", "--abbrev=10", "--exclude=*"]
  try:
    done = subprocess.run([*describe, "--dirty=+"], capture_output=True, text=True, timeout=5)
  except (OSError, subprocess.TimeoutExpired):
    return None
  return done.stdout.strip() or None
