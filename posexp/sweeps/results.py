"""The last table of a sweep: what its runs measured, as means over seeds."""

from __future__ import annotations

import itertools
import json
import statistics
from collections.abc import Iterator, Sequence
from typing import Any

from posexp.config import plugins
from posexp.errors import near
from posexp.runs.metrics import Score, declared, score
from posexp.sweeps.sweep import DONE, Member, grouped


def results(runs: Sequence[Member]) -> Iterator[str]:
  """A table for the tasks that are measured in one way, with a row for each group of seeds.

  Cells are means over the seeds, ± their standard deviation.
  """
  tables: dict[tuple[str, ...], list[list[Member]]] = {}
  for group in grouped([member for member in runs if member.config]):
    if any(map(_done, group)):
      tables.setdefault(_metrics(group[0].config), []).append(group)
  for metrics, groups in tables.items():
    yield ""
    yield from _table(metrics, groups)
  folders = dict.fromkeys(
    near(group[0].path.parents[2]) for groups in tables.values() for group in groups
  )
  if folders:
    yield f"intervals and tests: python -m posexp.report {' '.join(folders)}"


def _done(member: Member) -> bool:
  return member.state == DONE and member.finished


def _table(metrics: Sequence[str], groups: Sequence[Sequence[Member]]) -> Iterator[str]:
  summaries = [
    [json.loads((m.path / "summary.json").read_text("utf-8")) for m in group if _done(m)]
    for group in groups
  ]
  known = declared(itertools.chain(*summaries))
  columns = [score(metric, known) for metric in metrics]
  width = max(len(group[0].group) for group in groups)
  titles = "".join(f"{column.title:>22}" for column in columns)
  yield f"{'':<{width}}{titles}{'n':>10}"
  for group, found in zip(groups, summaries, strict=True):
    cells = "".join(f"{_cell(found, column):>22}" for column in columns)
    count = f"{len(found)}" + (f" of {len(group)}" if len(found) < len(group) else "")
    yield f"{group[0].group:<{width}}{cells}{count:>10}"


def _cell(summaries: Sequence[dict[str, Any]], column: Score) -> str:
  values = [summary[column.key] for summary in summaries if column.key in summary]
  if not values:
    return "—"
  mean = column.number(statistics.fmean(values))
  return f"{mean} ± {column.number(statistics.stdev(values))}" if len(values) > 1 else mean


def _metrics(config: dict[str, Any]) -> tuple[str, ...]:
  from posexp.tasks import TASKS

  return plugins.table("task", TASKS)[config["task"]["kind"]].headline
