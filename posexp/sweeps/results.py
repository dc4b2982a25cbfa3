"""The last table of a sweep: what its runs measured, as means over seeds."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from typing import Any

from tabulate import tabulate

from posexp.errors import near
from posexp.runs import read_summary
from posexp.runs.metrics import Score
from posexp.sweeps.sweep import DONE, Member, grouped


def results(runs: Sequence[Member]) -> Iterator[str]:
  """A table for the tasks that are measured in one way, with a row for each group of seeds.

  Cells are means over the seeds, ± their standard deviation.
  """
  tables: dict[tuple[Score, ...], list[list[str]]] = {}
  folders = {}
  for group in grouped(runs):
    finished = [member for member in group if member.state == DONE and member.finished]
    if not finished:
      continue
    columns = _columns(group[0].config)
    summaries = [read_summary(member.path) for member in finished]
    count = str(len(finished)) + (f" of {len(group)}" if len(finished) < len(group) else "")
    row = [group[0].group, *(_cell(column, summaries) for column in columns), count]
    tables.setdefault(columns, []).append(row)
    folders[near(group[0].path.parents[2])] = None
  for columns, rows in tables.items():
    heads = ["", *(column.title for column in columns), "n"]
    align = ["left"] + ["right"] * (len(heads) - 1)
    table = tabulate(rows, heads, "plain", colalign=align, disable_numparse=True)
    yield from ("", *table.splitlines())
  if folders:
    yield f"intervals and tests: python -m posexp.report {' '.join(folders)}"


def _columns(config: dict[str, Any]) -> tuple[Score, ...]:
  from posexp.tasks import make_task
  from posexp.tasks.contract import score_of

  task = make_task(config)
  return tuple(score_of(task, key) for key in task.headline)


def _cell(column: Score, summaries: Sequence[dict[str, Any]]) -> str:
  values = [summary[column.key] for summary in summaries if column.key in summary]
  cell = column.number(statistics.fmean(values)) if values else "—"
  return f"{cell} ± {column.number(statistics.stdev(values))}" if len(values) > 1 else cell
