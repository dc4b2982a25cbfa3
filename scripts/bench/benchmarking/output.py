"""The files of a benchmark, and the machine that it ran on."""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import os
import platform
from collections.abc import Sequence
from pathlib import Path

import jax

from benchmarking import figure, rows
from benchmarking.rows import Row
from posexp import storage
from posexp.analysis import plotting
from posexp.errors import writing
from posexp.machine import cores

NAME, ABOUT = "benchmark", "about.json"
PACKAGES = ("posexp", "jax", "jaxlib", "flax", "optax", "numpy")


def device() -> str:
  """Return the devices and how many there are."""
  devices = jax.local_devices()
  kind = devices[0].device_kind
  if devices[0].platform != "cpu":
    return f"{len(devices)} × {kind}"
  with contextlib.suppress(OSError):
    for line in Path("/proc/cpuinfo").read_text().splitlines():
      if line.startswith("model name"):
        kind = line.partition(":")[2].strip()
        break
  return f"CPU: {kind}, {cores()} cores"


def versions() -> str:
  """Of Python and of what the times depend on."""
  found = [f"{name} {importlib.metadata.version(name)}" for name in PACKAGES]
  return ", ".join([f"Python {platform.python_version()}", *found])


def about(command: str, notes: Sequence[str], peer: str = "") -> list[str]:
  """Return what was measured, on which machine, with which versions."""
  load = "unknown"
  with contextlib.suppress(OSError, AttributeError):
    load = f"{os.getloadavg()[0]:.1f}"
  lines = [command, f"{device()}; load of the machine {load}", versions()]
  return [*lines, *([f"against {peer}"] if peer else []), *notes]


def check_writable(folder: Path) -> None:
  """Raise UserError unless the folder exists or can be made."""
  with writing("--out", folder):
    folder.mkdir(parents=True, exist_ok=True)


def write_rows(
  folder: Path,
  found: Sequence[Row],
  about: Sequence[str],
  name: str = NAME,
  columns: Sequence[str] = rows.COLUMNS,
) -> None:
  """Write what was measured so far, and beside it what no row says: the command, the machine, the
  versions; UserError if the folder cannot be written.
  """
  command, *others = about
  said = json.dumps({"command": command, "about": others}, indent=2, ensure_ascii=False)
  write(folder, {f"{name}.csv": rows.as_csv(found, columns), ABOUT: f"{said}\n"})


def write(folder: Path, texts: dict[str, str]) -> None:
  """Write files by name; UserError if the folder cannot be written."""
  with writing("--out", folder):
    for name, text in texts.items():
      storage.write(folder / name, text)


def draw(folder: Path, found: Sequence[Row]) -> list[str]:
  """Draw the figure, if there are several lengths; return the names of all files."""
  names = [f"{NAME}.csv", ABOUT]
  drawn = figure.cost(found, device())
  if drawn is not None:
    names += [path.name for path in plotting.save(drawn, folder, "cost-by-length")]
  return names
