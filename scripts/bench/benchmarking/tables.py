"""Rows as tables, the cheapest first."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from tabulate import tabulate

from benchmarking.cases import IN_TURN, PASSES, SEARCHES, VMAP, WAYS
from benchmarking.rows import Row

SHAPE = ("pass", "model", "dtype", "d_model", "heads", "layers", "d_ff", "length", "batch")


class Table(NamedTuple):
  title: str
  heads: list[str]
  rows: list[list[str]]

  def format(self, style: str) -> str:
    """Return the table in a style of tabulate; all columns but the first are aligned on the
    right.
    """
    align = ["left", *["right"] * (len(self.heads) - 1)]
    return tabulate(self.rows, self.heads, style, disable_numparse=True, colalign=align)

  def terminal(self) -> str:
    return f"{self.title}\n{self.format('plain')}"


def number(value: object) -> str:
  """Return a figure of any size, in three digits or more; what is not known is a dash."""
  if value is None:
    return "—"
  return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def ratio(row: Row) -> str:
  """Return a ratio with its quartiles."""
  return f"{row['ratio']:.2f} ({row['ratio_low']:.2f} to {row['ratio_high']:.2f})"


def line(row: Row) -> str:
  """Return a measurement in a line."""
  rate = f"{number(row['seconds'])} s"
  if row["gflops"] or row["beam"]:
    rate = f"{number(row['tokens_per_s'])} tokens/s"
  cpu = f"by CPU time {row['cpu_ratio']:.2f} ×"
  return f"  {row['label']}: {rate}, {ratio(row)} × {row['against']}, {cpu}"


def tables(rows: Sequence[Row]) -> Iterator[Table]:
  """Yield a table for each group, then the comparisons with the peer and of seeds."""
  plain = [row for row in rows if row["pass"] not in WAYS]
  for _, found in itertools.groupby(plain, lambda row: row["group"]):
    yield ranked(list(found))
  if found := list(against_peer([row for row in plain if row["pass"] != "attention"])):
    heads = ["", "tokens/s", "best of the peer's", "ours to it"]
    yield Table("Against a peer, in its fastest way", heads, found)
  if found := list(by_seeds(rows)):
    heads = ["", "B × L", "seeds", "s in turn", "s in one program", "times as fast", "by CPU time"]
    title = f"{PASSES['seeds']}: in one program (vmap) against one after another"
    yield Table(title, heads, found)


def ranked(rows: list[Row]) -> Table:
  """One group."""
  first = rows[0]
  heads = [first["pass"], f"× {first['against']}", "by CPU time"]
  if first["pass"] == "start":
    columns = {"seconds": "s", "first_s": "s, nothing compiled"}
  else:
    columns = {"tokens_per_s": "tokens/s"}
    if first["pass"] in SEARCHES:
      columns["rows_per_s"] = "sentences/s"
    else:
      columns |= {"steps_per_s": "steps/s", "temporaries_mib": "temporaries MiB"}
      columns |= {"gflops_compiled": "GFLOPs compiled", "gflops": "plain", "mfu": "MFU"}
    columns["compile_s"] = "compile s"
  lines = []
  for row in sorted(rows, key=lambda row: row["ratio"]):
    cells = [row["label"], ratio(row), f"{row['cpu_ratio']:.2f}"]
    for name in columns:
      share = name == "mfu" and row[name] is not None
      cells.append(f"{row[name]:.0%}" if share else number(row[name]))
    lines.append(cells)
  return Table(first["group"], [*heads, *columns.values()], lines)


def against_peer(rows: Sequence[Row]) -> Iterator[list[str]]:
  """Our tokens a second and those of the peer's fastest way, for each encoding and shape.

  Their ratio is that of their ratios to the same baseline in the same rounds.
  """
  ours: dict[tuple, Row] = {}
  theirs: dict[tuple, Row] = {}
  for row in rows:
    key = tuple(row[name] for name in (*SHAPE, "encoding"))
    side = ours if row["by"] == "posexp" else theirs
    side[key] = min(side.get(key, row), row, key=lambda row: row["ratio"])
  for key, best in theirs.items():
    own = ours[key]
    times, cpu = (best[name] / own[name] for name in ("ratio", "cpu_ratio"))
    yield [
      f"{own['pass']}, {own['model']}, L={own['length']}: {own['label']}",
      number(own["tokens_per_s"]),
      f"{number(best['tokens_per_s'])} ({best['by']})",
      f"{times:.2f} × (by CPU time {cpu:.2f})",
    ]


def by_seeds(rows: Sequence[Row]) -> Iterator[list[str]]:
  """Yield how much faster seeds are in one program."""
  keys = (*SHAPE, "encoding", "seeds")
  vmapped = {tuple(row[name] for name in keys): row for row in rows if row["by"] == VMAP}
  for row in rows:
    together = vmapped.get(tuple(row[name] for name in keys))
    if row["by"] != IN_TURN or together is None:
      continue
    yield [
      f"{row['encoding']}, d_model {row['d_model']}, {row['layers']} layers",
      f"{row['batch']} × {row['length']}",
      str(row["seeds"]),
      number(row["seconds"]),
      number(together["seconds"]),
      f"{row['ratio'] / together['ratio']:.2f}",
      f"{row['cpu_ratio'] / together['cpu_ratio']:.2f}",
    ]
