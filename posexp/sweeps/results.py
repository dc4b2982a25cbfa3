"""The last table of a sweep: what its runs measured, as means over seeds."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator, Sequence
from typing import Any

from posexp.errors import near
from posexp.runs.metrics import Score
from posexp.sweeps.sweep import DONE, Member, grouped


def results(runs: Sequence[Member]) -> Iterator[str]:
  """A table for the tasks that are measured in one way, with a row for each group of seeds.

  Cells are means over the seeds, ± their standard deviation.
  """
  tables: dict[tuple[Score, ...], list[list[Member]]] = {}
  for group in grouped(runs):
    if any(map(_finished, group)):
      tables.setdefault(_columns(group[0].config), []).append(group)
  for columns, groups in tables.items():
    width = max(len(group[0].group) for group in groups)
    titles = "".join(f"{column.title:>22}" for column in columns)
    yield from ("", f"{'':<{width}}{titles}{'n':>10}")
    for group in groups:
      yield f"{group[0].group:<{width}}{_row(columns, group)}"
  folders = dict.fromkeys(near(m.path.parents[2]) for rows in tables.values() for m, *_ in rows)
  if folders:
    yield f"intervals and tests: python -m posexp.report {' '.join(folders)}"


def _columns(config: dict[str, Any]) -> tuple[Score, ...]:
  from posexp.tasks import make_task
  from posexp.tasks.contract import score_of

  task = make_task(config)
  return tuple(score_of(task, key) for key in task.headline)


def _row(columns: Sequence[Score], group: Sequence[Member]) -> str:
  found = [
    json.loads((m.path / "summary.json").read_text("utf-8")) for m in filter(_finished, group)
  ]
  cells = []
  for column in columns:
    values = [summary[column.key] for summary in found if column.key in summary]
    cell = column.number(statistics.fmean(values)) if values else "—"
    if len(values) > 1:
      cell += f" ± {column.number(statistics.stdev(values))}"
    cells.append(f"{cell:>22}")
  count = f"{len(found)} of {len(group)}" if len(found) < len(group) else f"{len(found)}"
  return f"{''.join(cells)}{count:>10}"


def _finished(member: Member) -> bool:
  return member.state == DONE and member.finished
