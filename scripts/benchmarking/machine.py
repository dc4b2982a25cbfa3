"""What measurements are made on."""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import platform
from pathlib import Path

PACKAGES = ("posexp", "jax", "jaxlib", "flax", "optax", "numpy")


def threads() -> int:
  """How many cores this process may use."""
  if hasattr(os, "sched_getaffinity"):
    return len(os.sched_getaffinity(0))
  return os.cpu_count() or 1


def device() -> str:
  """The devices, as one would name them."""
  import jax

  devices = jax.local_devices()
  kind = devices[0].device_kind
  if devices[0].platform != "cpu":
    return f"{len(devices)} × {kind}"
  with contextlib.suppress(OSError):
    for line in Path("/proc/cpuinfo").read_text().splitlines():
      if line.startswith("model name"):
        kind = line.partition(":")[2].strip()
        break
  return f"CPU: {kind}, {threads()} cores"


def versions() -> str:
  """Of Python and of what the times depend on."""
  found = [f"Python {platform.python_version()}"]
  found += [f"{name} {importlib.metadata.version(name)}" for name in PACKAGES]
  return ", ".join(found)


def load() -> str:
  """What else the machine does: the mean number of processes that ran in the last minute."""
  with contextlib.suppress(OSError, AttributeError):
    return f"{os.getloadavg()[0]:.1f}"
  return "unknown"
