"""The results as tables: the ranked groups and their costs to be read, groups and runs as data."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pandas as pd

from posexp.reporting import scores, sentences
from posexp.reporting.grouping import Difference, Group
from posexp.reporting.results import Results, costs
from posexp.reporting.significance import Estimate
from posexp.reporting.text import (
  Table,
  aligned,
  latex_table,
  markdown,
  markdown_table,
  p_number,
  short,
  wrapped,
)

NAME = 36  # letters of a group's name in a terminal
MISSING = "—"


def score_table(results: Results) -> Table:
  """A row for each group, the best first."""
  heads = ["", "n", "mean", "sd", "95 % interval"]
  if results.tests:
    heads += [f"against {results.baseline.label}", "p (Holm)" if results.tests > 1 else "p"]
  return heads, [_score_row(group, results) for group in results.groups]


def _score_row(group: Group, results: Results) -> list[str]:
  found, number = group.estimate, results.score.number
  if found is None:
    cells = [group.label, "0", MISSING, MISSING, MISSING]
  else:
    cells = [
      group.label,
      str(found.n),
      number(found.mean) + (" mixed" if group.mixed else ""),
      MISSING if found.sd is None else number(found.sd),
      MISSING if found.low is None else f"{number(found.low)} to {number(found.high)}",
    ]
  if not results.tests:
    return cells
  if group is results.baseline:
    return [*cells, "baseline", ""]
  against = group.difference
  if against is None or against.estimate is None:
    return [*cells, MISSING, MISSING]
  half = against.estimate.half
  difference = number(against.estimate.mean, "+") + ("" if half is None else f" ± {number(half)}")
  p = MISSING if against.holm is None else p_number(against.holm)
  return [*cells, difference, f"{p} *" if against.significant else p]


def cost_table(results: Results) -> Table | None:
  """What the groups cost, as far as anything is known."""
  names = results.costs
  if not names:
    return None
  rows = [
    [group.label, *(_cost(group.costs.get(name)) for name in names)]
    for group in results.groups
    if group.estimate is not None
  ]
  return ["", *names.values()], rows


def _cost(value: float | None) -> str:
  if value is None:
    return MISSING
  return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def terminal(results: Results) -> Iterator[str]:
  """All results of a task in lines of 100 columns."""
  yield short(results.title, 1000)
  yield from wrapped(sentences.answer(results))
  yield ""
  yield from _aligned(score_table(results))
  if differences := sentences.differences(results):
    yield ""
    for sentence in differences:
      yield from wrapped(sentence)
  if found := cost_table(results):
    yield ""
    yield from _aligned(found)
  yield ""
  yield from wrapped(sentences.method(results))
  for note in sentences.notes(results):
    yield from wrapped(f"note: {note}", "      ")


def _aligned(table: Table) -> list[str]:
  heads, rows = table
  return aligned(
    ([short(each, NAME) for each in heads], [[short(r[0], NAME), *r[1:]] for r in rows])
  )


def markdown_report(tasks: Sequence[Results], notes: Sequence[str]) -> str:
  """The results of all tasks as a Markdown document."""
  parts = []
  for results in tasks:
    parts.append(f"## {markdown(results.title)}")
    parts.append(markdown(sentences.answer(results)))
    parts.append(markdown_table(score_table(results)))
    parts.append("\n".join(f"- {markdown(each)}" for each in sentences.differences(results)))
    if found := cost_table(results):
      parts.append(markdown_table(found))
    parts.append(markdown(sentences.method(results)))
    parts.append("\n".join(f"- Note: {markdown(each)}" for each in sentences.notes(results)))
  parts.append("\n".join(f"- Note: {markdown(each)}" for each in notes))
  return "\n\n".join(part for part in parts if part) + "\n"


def latex_report(tasks: Sequence[Results]) -> str:
  """A booktabs table for each task; the best mean is bold."""
  parts = ["% needs \\usepackage{booktabs}"]
  for results in tasks:
    about = [results.title, *sentences.differences(results), sentences.method(results)]
    table = score_table(results)
    best = None if results.groups[0].estimate is None else (0, table[0].index("mean"))
    parts.append(latex_table(table, [*about, *sentences.notes(results)], bold=best))
  return "\n\n".join(parts) + "\n"


def group_data(tasks: Sequence[Results]) -> pd.DataFrame:
  """A row for each group. Scores are as summary.json has them, shares from 0 to 1."""
  rows = []
  for results in tasks:
    for group in results.groups:
      found = group.estimate or Estimate(0)
      against = group.difference or Difference(None)
      compared = against.estimate or Estimate(0)
      row = {"task": results.task, "metric": results.score.key, "group": group.label}
      row |= {**group.values, **found._asdict(), "mixed": bool(group.mixed)}
      row |= {
        "baseline": results.baseline and results.baseline.label,
        "shared_seeds": against.n,
        "difference": compared.mean,
        "difference_low": compared.low,
        "difference_high": compared.high,
        "p": against.p,
        "p_holm": against.holm,
        "seeds_needed": against.needed,
      }
      rows.append(row | group.costs)
  return _frame(rows)


def run_data(tasks: Sequence[Results]) -> pd.DataFrame:
  """A row for each run, with all its scores, whether it counts and what it cost."""
  rows = []
  for results in tasks:
    keys = scores.measured(results.runs)
    for group in results.groups:
      counted = {run.path for run in group.counted.values()}
      for run in group.runs:
        row = {"task": results.task, "group": group.label, "path": str(run.path)}
        row |= {"seed": run.seed, "state": run.state, "counted": run.path in counted}
        row |= dict(group.values) | {key: run.score(key) for key in keys}
        rows.append(row | costs(run))
  return _frame(rows)


def _frame(rows: list[dict[str, Any]]) -> pd.DataFrame:
  """Rows with the same columns; what is not known is missing."""
  return pd.DataFrame(rows).convert_dtypes()
