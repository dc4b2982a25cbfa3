"""Rows as tables: for a terminal and in Markdown, the cheapest first."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from benchmarking.cases import APART, SEARCHES, TOGETHER, Case

if TYPE_CHECKING:
  from benchmarking.rows import Row

WORKS = {
  "attention": "attention alone, forward and backward",
  "forward": "forward pass",
  "step": "training step",
  "decode": "greedy search",
  "beam": "beam search",
  "seeds": "training step of several seeds",
  "start": "from the start of a process to its first step, compiled before",
}
SHAPE = ("pass", "model", "dtype", "d_model", "heads", "layers", "d_ff", "length", "batch")
Table = tuple[str, list[str], list[list[str]]]  # title, headings and rows


def number(value: object) -> str:
  """A figure of any size, in three digits or more; what is not known is a dash."""
  if value is None:
    return "—"
  return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def ratio(row: Row) -> str:
  """A ratio with its quartiles."""
  return f"{row['ratio']:.2f} ({row['ratio_low']:.2f} to {row['ratio_high']:.2f})"


def line(row: Row) -> str:
  """A measurement in a line."""
  rate = (
    f"{number(row['tokens_per_s'])} tokens/s"
    if row["gflops"] or row["beam"]
    else (f"{number(row['seconds'])} s")
  )
  return (
    f"  {row['label']}: {rate}, {ratio(row)} × {row['against']}, "
    f"by CPU time {row['cpu_ratio']:.2f} ×"
  )


def title(case: Case) -> str:
  """What the cases of a group have in common."""
  size, work = case.size, WORKS[case.work]
  if case.work == "beam":
    work += f" of {case.beam}"
  text = f"{work}, {case.model}, L={case.length}, B={case.batch}, {size.dtype}"
  if case.work == "attention":
    return f"{text}, {size.num_heads} heads × {size.d_model // size.num_heads}"
  return (
    f"{text}, d_model {size.d_model}, {size.num_heads} heads, {size.num_layers} layers, "
    f"d_ff {size.d_ff}"
  )


def tables(rows: Sequence[Row]) -> Iterator[Table]:
  """A table for each group, then what seeds and peers come to."""
  plain = [row for row in rows if row["pass"] != "seeds"]
  for _, found in itertools.groupby(plain, lambda row: row["group"]):
    yield ranked(list(found))
  if found := list(against_peers([row for row in plain if row["pass"] != "attention"])):
    heads = ["", "tokens/s", "best of the peer's", "ours to it"]
    yield "Against x-transformers, in its fastest way", heads, found
  if found := list(by_seeds(rows)):
    heads = ["", "B × L", "seeds", "s in turn", "s in one program", "times as fast", "by CPU time"]
    yield f"{WORKS['seeds']}: in one program (vmap) against one after another", heads, found


def ranked(rows: list[Row]) -> Table:
  """One group."""
  first = rows[0]
  work = first["pass"]
  heads = [first["pass"], f"× {first['against']}", "by CPU time", "tokens/s"]
  extra = {"steps_per_s": "steps/s", "temporaries_mib": "temporaries MiB"}
  if work not in SEARCHES:
    extra |= {"gflops_compiled": "GFLOPs compiled", "gflops": "plain", "mfu": "MFU"}
  extra["compile_s"] = "compile s"
  if work == "start":
    heads, extra = [*heads[:3], "s"], {"first_s": "s, nothing compiled"}
  lines = []
  for row in sorted(rows, key=lambda row: row["ratio"]):
    rate = row["seconds"] if work == "start" else row["tokens_per_s"]
    cells = [row["label"], ratio(row), f"{row['cpu_ratio']:.2f}", number(rate)]
    for name in extra:
      share = name == "mfu" and row[name] is not None
      cells.append(f"{row[name]:.0%}" if share else number(row[name]))
    lines.append(cells)
  return first["group"], [*heads, *extra.values()], lines


def against_peers(rows: Sequence[Row]) -> Iterator[list[str]]:
  """Our tokens a second to those of the peer's fastest way, for each encoding and shape.

  Both are held against the same rows of the same rounds, of which their ratio is made.
  """
  key = (*SHAPE, "encoding")
  ours = {}
  theirs: dict[tuple, list[Row]] = {}
  for row in rows:
    of = tuple(row[name] for name in key)
    if row["by"] == "posexp":
      if of not in ours or row["ratio"] < ours[of]["ratio"]:
        ours[of] = row
    else:
      theirs.setdefault(of, []).append(row)
  for of, found in theirs.items():
    own, best = ours[of], min(found, key=lambda row: row["ratio"])
    times, cpu = (best[name] / own[name] for name in ("ratio", "cpu_ratio"))
    yield [
      f"{own['pass']}, {own['model']}, L={own['length']}: {own['label']}",
      number(own["tokens_per_s"]),
      f"{number(best['tokens_per_s'])} ({best['by'].removeprefix('x-transformers ')})",
      f"{times:.2f} × (by CPU time {cpu:.2f})",
    ]


def by_seeds(rows: Sequence[Row]) -> Iterator[list[str]]:
  """How much faster seeds are in one program."""
  found = {(*(row[n] for n in (*SHAPE, "encoding", "seeds")), row["by"]): row for row in rows}
  for of, apart in found.items():
    together = found.get((*of[:-1], TOGETHER))
    if of[-1] != APART or together is None:
      continue
    yield [
      f"{apart['encoding']}, d_model {apart['d_model']}, {apart['layers']} layers",
      f"{apart['batch']} × {apart['length']}",
      str(apart["seeds"]),
      number(apart["seconds"]),
      number(together["seconds"]),
      f"{1 / together['ratio']:.2f}",
      f"{1 / together['cpu_ratio']:.2f}",
    ]


def terminal(table: Table) -> str:
  """Aligned columns."""
  name, heads, rows = table
  widths = [max(map(len, column)) for column in zip(heads, *rows, strict=True)]
  lines = [name]
  for cells in (heads, *rows):
    first, *others = zip(cells, widths, strict=True)
    parts = [f"{first[0]:<{first[1]}}", *(f"{cell:>{width}}" for cell, width in others)]
    lines.append("  ".join(parts).rstrip())
  return "\n".join(lines)


def markdown(table: Table) -> str:
  """A heading and a table."""
  name, heads, rows = table
  rule = ["---", *["---:"] * (len(heads) - 1)]
  lines = [f"| {' | '.join(cells)} |" for cells in (heads, rule, *rows)]
  return "\n".join([f"## {name}", "", *lines])
