"""How reports are written: lines and tables for a terminal, Markdown and LaTeX.

All that comes from a run's folder passes through `one_line`, so that it can neither upset a
terminal nor leave the line, the cell or the comment that it stands in.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence

from tabulate import tabulate

from posexp.config import nearest

WIDTH = 100  # columns of a terminal
Table = tuple[list[str], list[list[str]]]  # headings and rows


def one_line(text: str) -> str:
  """A text on one line, in which whatever could upset a terminal is a blank or a mark."""
  return "".join(each if each.isprintable() else "�" for each in " ".join(text.split()))


def short(text: str, most: int) -> str:
  """A text on one line of at most so many letters."""
  text = one_line(text)
  return text if len(text) <= most else f"{text[: most - 1]}…"


def wrapped(text: str, indent: str = "", first: str = "") -> list[str]:
  """Lines of at most 100 columns; a path may be longer."""
  return textwrap.wrap(
    one_line(text),
    WIDTH,
    initial_indent=first,
    subsequent_indent=indent,
    break_long_words=False,
    break_on_hyphens=False,
  )


def aligned(table: Table, align: str = "right") -> list[str]:
  """The lines of a table; its first column is aligned to the left."""
  heads, rows = table
  columns = ["left", *[align] * (len(heads) - 1)]
  # Headings are a row here: tabulate would pad them.
  text = tabulate([heads, *rows], tablefmt="plain", disable_numparse=True, colalign=columns)
  return [line.rstrip() for line in text.split("\n")]


def markdown_table(table: Table) -> str:
  """A table in Markdown."""
  heads, *rows = ([markdown(cell) for cell in row] for row in (table[0], *table[1]))
  columns = ["left", *["right"] * (len(heads) - 1)]
  return tabulate(rows, heads, "pipe", disable_numparse=True, colalign=columns)


def markdown(text: str) -> str:
  """A text with the signs quoted that mean something in Markdown."""
  return re.sub(r"([\\`*_|<>\[\]#])", r"\\\1", one_line(text))


def latex_table(table: Table, comments: Sequence[str], bold: tuple[int, int] | None = None) -> str:
  """A booktabs table below some comments; the cell in (row, column) `bold` is set in bold."""
  heads, *rows = ([one_line(cell) for cell in row] for row in (table[0], *table[1]))
  if bold is not None:
    row, column = bold
    rows[row][column] = f"\x02{rows[row][column]}\x03"  # tabulate would quote \textbf{…}
  columns = ["left", *["right"] * (len(heads) - 1)]
  body = tabulate(rows, heads, "latex_booktabs", disable_numparse=True, colalign=columns)
  body = re.sub(r"(?<=[\s\x02])-(?=\d)", "$-$", body)
  for sign, command in {"—": "---", "±": r"$\pm$", "\x02": r"\textbf{", "\x03": "}"}.items():
    body = body.replace(sign, command)
  return "\n".join([*(f"% {one_line(each)}" for each in comments), body])


def p_number(p: float) -> str:
  """Three decimals, two digits where these say too little: 0.457, 0.0031, < 0.001."""
  return "< 0.001" if p < 0.001 else (f"{p:.3f}" if p >= 0.0095 else f"{p:.2g}")


def p_value(p: float) -> str:
  """As papers write it: p = 0.457, p < 0.001."""
  number = p_number(p)
  return f"p {number}" if number.startswith("<") else f"p = {number}"


def counted(count: int, what: str) -> str:
  """1 run, 2 runs."""
  return f"{count:,} {what}{'' if count == 1 else 's'}"


def did_you_mean(asked: str, names: Sequence[str], same: Sequence[str] = ()) -> str:
  """The names that may have been meant: those of the `same` ending, or the nearest, or all."""
  close = same[:3] or [each for each in [nearest(asked, names)] if each]
  return f"did you mean {' or '.join(close)}?" if close else f"there are {listed(names, 8)}"


def listed(items: Sequence[str], most: int = 4) -> str:
  """The first of some items, and how many more there are."""
  shown = ", ".join(items[:most])
  return shown if len(items) <= most else f"{shown} and {len(items) - most} more"
