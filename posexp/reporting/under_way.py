"""Sweeps that are under way: what has ended, what is left, and how far each run has come."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from posexp.errors import counted, lasting
from posexp.reporting.text import MISSING, Section
from posexp.runs import Run
from posexp.runs.metrics import Score, score
from posexp.runs.plans import Plan, plans

if TYPE_CHECKING:
  from posexp.reporting.figures import Figure

LAST = 5  # evaluations of a run that are shown
FILES = ("metrics.jsonl", "summary.json")  # of a run, whose dates say when something happened


def sentence(plan: Plan) -> str:
  """Return how far a sweep has come."""
  files = [[file for file in map(run.joinpath, FILES) if file.exists()] for run in plan.runs]
  done = sum(FILES[1] in (file.name for file in those) for those in files)
  begun, whole = sum(map(bool, files)) - done, len(plan.runs) + plan.more
  last = max((file.stat().st_mtime for those in files for file in those), default=plan.begun)
  text = f"A sweep of {counted(whole, 'run')}: {done} done, {begun} begun, "
  text += f"{whole - done - begun} not begun"
  if done > plan.done:
    seconds = (last - plan.begun) / (done - plan.done) * (whole - done)
    text += f"; about {lasting(seconds)} left"
  return f"{text}; the last news is {lasting(max(0.0, time.time() - last))} old."


def sections(paths: Sequence[Path], runs: Sequence[Run]) -> list[Section]:
  """Return the sections of a report on sweeps under way in some folders, and on the runs that have
  begun, with their scores so far; none if no sweep has left runs.
  """
  if not (said := [*map(sentence, plans(paths))]):
    return []
  begun = [run for run in runs if run.summary is None and run.history]
  heads = ["", "state", "step", "so far"]
  rows = [
    [_name(run), "failed" if run.failure else "begun", f"{run.step:,}", so_far(run)]
    for run in begun
  ]
  return [Section("under way", (heads, rows), said, figures=[*_curves(begun)])]


def _name(run: Run) -> str:
  return f"{run.task}/{run.encoding}/{run.digest} seed={run.seed}{' (trial)' * bool(run.trial)}"


def _evaluations(run: Run) -> tuple[Score | None, dict[int, float]]:
  """Return the score that chooses the checkpoint, and its values so far by their steps."""
  keys = (key for row in run.history for key in row if key.startswith("validation/"))
  if (first := next(keys, None)) is None:
    return None, {}
  of = score(first)
  return of, {row["step"]: row[of.key] for row in run.history if of.key in row}


def so_far(run: Run) -> str:
  """Return the score that chooses the checkpoint, of the last few evaluations, in words."""
  of, values = _evaluations(run)
  if of is None:
    return MISSING
  numbers = [*map(of.number, values.values())]
  return f"{of.title} {'… ' * (len(numbers) > LAST)}{' '.join(numbers[-LAST:])}"


def _curves(runs: Sequence[Run]) -> Iterator[Figure]:
  """Yield a figure for each task, with the evaluations of each run so far."""
  from posexp.reporting.charts import Chart, Point  # slow to import
  from posexp.reporting.figures import Figure
  from posexp.reporting.grouping import Group
  from posexp.reporting.significance import estimate

  charts: dict[str, Chart] = {}
  for run in runs:
    of, values = _evaluations(run)
    if len(values) < 2:
      continue
    group = Group({}, _name(run), [run], {}, {}, estimate([]))
    chart = charts.setdefault(run.task, Chart("steps", "step", of, []))
    chart.points.extend(
      Point(group, group.label, step, estimate([value]), [value]) for step, value in values.items()
    )
  for task, chart in charts.items():
    says = "A line for each run that has begun and not ended."
    yield Figure(f"under way, {task}", [chart], says)
