"""The files of a benchmark: a table for readers, one for programs, and a figure."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from benchmarking import machine, rows, tables
from benchmarking.rows import Row
from posexp import storage
from posexp.errors import UserError

NAME = "benchmark"
LEGEND = """\
Ratios are of time, taken within each round: the median, with the quartiles in parentheses. *GFLOPs
compiled* are those that the compiler counts in the program of one call, the body of a loop once;
*plain* are those of the plain Transformer of the same widths, whatever the encoding. MFU is *plain*
a second, as a share of what a large product of matrices reached in the same rounds. *compile s* of
x-transformers is the time to the end of its first call."""


def about(command: str, notes: Sequence[str], peer) -> list[str]:
  """What was measured on what."""
  lines = [command, f"{machine.device()}; load of the machine {machine.load()}", machine.versions()]
  if peer is not None:
    lines.append(f"against {peer.about}")
  return [*lines, *notes]


def writable(folder: Path) -> None:
  """Raises UserError unless the folder is there or can be made."""
  try:
    folder.mkdir(parents=True, exist_ok=True)
  except OSError as error:
    raise UserError(f"--out {folder} cannot be written: {error.strerror}") from error


def write(folder: Path, found: Sequence[Row], about: Sequence[str]) -> None:
  """Both tables, of what was measured so far.

  Raises:
    UserError: the folder cannot be written.
  """
  command, *others = about
  parts = [
    "# What encodings cost",
    f"```\n{command}\n```",
    "\n".join(f"- {each}" for each in others),
    *map(tables.markdown, tables.tables(found)),
    LEGEND,
  ]
  keep(folder, {f"{NAME}.csv": rows.as_csv(found), f"{NAME}.md": "\n\n".join(parts) + "\n"})


def keep(folder: Path, texts: dict[str, str]) -> None:
  """Writes files.

  Raises:
    UserError: the folder cannot be written.
  """
  try:
    for name, text in texts.items():
      storage.write(folder / name, text)
  except OSError as error:
    raise UserError(f"--out {folder} cannot be written: {error.strerror}") from error


def draw(folder: Path, found: Sequence[Row]) -> list[str]:
  """Draws the figure, if there are several lengths; returns the names of all files."""
  from benchmarking import figure
  from posexp import plotting

  names = [f"{NAME}.md", f"{NAME}.csv"]
  drawn = figure.cost(found, machine.device())
  if drawn is not None:
    names += [path.name for path in plotting.save(drawn, folder, "cost-by-length")]
  return names
