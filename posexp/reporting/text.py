"""Lines, tables, numbers and lists, as reports write them.

All that comes from a run's folder passes through `one_line`, so that it can neither upset a
terminal nor leave the line that it stands in, and is quoted in tables and in Markdown.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence
from typing import Any, NamedTuple

from tabulate import tabulate

from posexp.config import nearest
from posexp.errors import printable

WIDTH = 100  # columns of a terminal
CELL = 200  # letters of a cell of a table
MISSING = "—"
FORMULA = re.compile(r"[=@\t\r]|[+-](?!(\d+\.?\d*|\.\d+)(e[+-]?\d+)?$)", re.IGNORECASE)
Table = tuple[list[str], list[list[str]]]  # headings and rows


class Section(NamedTuple):
  """A part of a report beside the results of tasks."""

  title: str
  table: Table
  notes: list[str]
  details: Table | None = None  # every trial, which a page shows when it is asked to
  figures: Sequence[Any] = ()  # Figures of posexp/reporting/figures.py


def one_line(text: str) -> str:
  """Return a text on one line, in which whatever could upset a terminal is a blank or a mark."""
  return " ".join(printable(text).split())


def markdown(text: str) -> str:
  """Return a text on one line, in which no tag, link, picture, code or cell of Markdown begins."""
  text = re.sub(r"<(?=[A-Za-z/!?])", "&lt;", one_line(text))
  return re.sub(r"^(?=\[)|(?<=\])(?=[(\[])|(?=[`|])", r"\\", text)


def cell(value: Any) -> Any:
  """Return a value for a CSV file: ' stands before a text that would be a formula."""
  return f"'{value}" if isinstance(value, str) and FORMULA.match(value) else value


def short(text: str, most: int) -> str:
  """Return a text on one line of at most so many letters."""
  text = one_line(text)
  return text if len(text) <= most else f"{text[: most - 1]}…"


def wrapped(text: str, first: str = "") -> str:
  """Return lines of at most 100 columns, though a path may be longer.

  `first` begins the first line, and the others are indented as far.
  """
  return textwrap.fill(
    one_line(text),
    WIDTH,
    initial_indent=first,
    subsequent_indent=" " * len(first),
    break_long_words=False,
    break_on_hyphens=False,
  )


def tabulated(table: Table, style: str, align: str = "right") -> str:
  """Return a table in one of tabulate's styles, quoted for its language by tabulate or here. The
  first column is aligned to the left.
  """
  quoted = markdown if style == "pipe" else str
  heads, *rows = ([quoted(short(cell, CELL)) for cell in row] for row in (table[0], *table[1]))
  columns = ["left", *[align] * (len(heads) - 1)]
  return tabulate(rows, heads, style, disable_numparse=True, colalign=columns)


def document(sections: Sequence[Section]) -> str:
  """Return parts of a report in Markdown, each followed by an empty line."""
  parts = []
  for section in sections:
    notes = "\n".join(wrapped(markdown(note), "- ") for note in section.notes)
    tables = [table for table in (section.table, section.details) if table and table[1]]
    first, *rest = [tabulated(table, "pipe") for table in tables] or [""]
    parts += [f"## {markdown(section.title)}", first, notes, *rest]
  return "".join(f"{part}\n\n" for part in parts if part)


def p_number(p: float | None) -> str:
  """Write p as tables have it: 0.457, < 0.001, or a dash where there is no test."""
  return MISSING if p is None else "< 0.001" if p < 0.001 else f"{p:.3f}"


def p_value(p: float) -> str:
  """Write p as papers do: p = 0.457, p < 0.001."""
  return "p < 0.001" if p < 0.001 else f"p = {p:.3f}"


def did_you_mean(asked: str, names: Sequence[str]) -> str:
  """Return the names that may be meant: of a section, with the same end, the nearest, or all."""
  same = [name for name in names if name.startswith(f"{asked}.")]
  end = re.split(r"[./]", asked)[-1]
  same += [name for name in names if re.split(r"[./]", name)[-1] == end]
  close = same[:3] or [name for name in [nearest(asked, names)] if name]
  there = f"there are {listed(names, 8)}" if names else "there is none"
  return f"did you mean {' or '.join(close)}?" if close else there


def listed(items: Sequence[str], most: int = 4) -> str:
  """Return the first of some items, and how many more there are."""
  shown = ", ".join(items[:most])
  return shown if len(items) <= most else f"{shown} and {len(items) - most} more"
