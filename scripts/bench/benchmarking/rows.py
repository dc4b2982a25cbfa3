"""What was measured of a case, as a row of a table."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path

from benchmarking.cases import SEARCHES, Case
from benchmarking.timing import Spent, middle, ratios

# `against` is the label of the baseline; `seconds` is of a call, the median with its quartiles;
# `ratio` is of seconds, taken round by round; `gflops` is of the plain Transformer; `first_s` is of
# a process that finds nothing compiled.
COLUMNS = (
  *("group", "pass", "model", "encoding", "options", "attention", "by", "label", "against"),
  *("dtype", "d_model", "heads", "layers", "d_ff", "vocabulary", "length", "batch", "beam"),
  *("seeds", "rounds", "seconds", "seconds_low", "seconds_high", "cpu_seconds", "steps_per_s"),
  *("rows_per_s", "tokens_per_s", "ratio", "ratio_low", "ratio_high", "cpu_ratio"),
  *("temporaries_mib", "gflops_compiled", "gflops", "mfu", "ceiling_gflops_per_s"),
  *("compile_s", "first_s", "parameters"),
)

TEXTS = {"group", "pass", "model", "encoding", "options", "attention", "by", "label", "against"}
TEXTS |= {"dtype", "equal", "reason", "part", "what"}

Row = dict[str, object]


def shape(case: Case) -> Row:
  """Return the columns that are known before anything is measured."""
  size = case.size
  return {
    "group": case.title,
    "pass": case.work,
    "model": case.model,
    "encoding": case.name,
    "options": case.options,
    "attention": size.attention,
    "by": case.way,
    "label": case.label,
    "dtype": size.dtype,
    "d_model": size.d_model,
    "heads": size.num_heads,
    "layers": 1 if case.work == "attention" else size.num_layers,
    "d_ff": size.d_ff,
    "vocabulary": case.vocabulary,
    "length": case.length,
    "batch": case.batch,
    "beam": case.beam if case.work in SEARCHES else None,
    "seeds": case.seeds,
    "gflops": case.flops and case.flops / 1e9,
  }


def row(
  case: Case,
  facts: dict[str, float | None],
  spent: list[Spent],
  baseline: tuple[Case, list[Spent]],
  ceiling: tuple[list[Spent], float],
) -> Row:
  """Return what the rounds measured of a case, its baseline, and a matrix product of so
  many FLOPs.
  """
  seconds, ratio = middle([each.wall for each in spent]), ratios(spent, baseline[1], "wall")
  peaks = [ceiling[1] / each.wall for each in ceiling[0]]
  shares = [(case.flops or 0) / each.wall / peak for each, peak in zip(spent, peaks, strict=True)]
  found = shape(case) | {
    "against": baseline[0].label,
    "rounds": len(spent),
    "seconds": seconds.median,
    "seconds_low": seconds.low,
    "seconds_high": seconds.high,
    "cpu_seconds": middle([each.cpu for each in spent]).median,
    "steps_per_s": case.seeds / seconds.median if case.work != "start" else None,
    "rows_per_s": case.rows / seconds.median if case.work != "start" else None,
    "tokens_per_s": case.tokens / seconds.median if case.work != "start" else None,
    "ratio": ratio.median,
    "ratio_low": ratio.low,
    "ratio_high": ratio.high,
    "cpu_ratio": ratios(spent, baseline[1], "cpu").median,
    "mfu": middle(shares).median if case.flops else None,
    "ceiling_gflops_per_s": middle(peaks).median / 1e9,
  }
  return {column: (found | facts).get(column) for column in COLUMNS}


def as_csv(rows: Sequence[Row], columns: Sequence[str] = COLUMNS) -> str:
  """CSV with a header; what is not known is empty."""
  out = io.StringIO()
  writer = csv.DictWriter(out, columns, lineterminator="\n")
  writer.writeheader()
  writer.writerows(rows)
  return out.getvalue()


def read(path: Path) -> list[Row]:
  """Return the rows of a file that `as_csv` made; none if it is not there."""

  def value(name: str, text: str) -> object:
    if name in TEXTS:
      return text
    return None if text == "" else int(text) if text.isdigit() else float(text)

  if not path.exists():
    return []
  with path.open(encoding="utf-8", newline="") as file:
    return [{name: value(name, row[name]) for name in row} for row in csv.DictReader(file)]
