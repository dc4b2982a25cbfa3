"""Groups of runs that differ in their seeds alone, each as one run of W&B: means and intervals."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from posexp.reporting import scores
from posexp.reporting.charts import Chart, charts
from posexp.reporting.results import results
from posexp.reporting.significance import estimate
from posexp.runs import Run, read_runs
from posexp.tracking.wandb_run import experiment, facts

COLUMNS = ["x", "place", "series", "mean", "low", "high", "n"]  # x stands in the order of place
Tables = dict[str, list[list[Any]]]  # the points that a group adds to each chart, by its name


@dataclasses.dataclass(frozen=True)
class Aggregate:
  """A group of runs, and what W&B gets of it."""

  path: Path  # the folder that holds its seeds
  runs: list[Run]  # by seed
  tables: Tables

  @property
  def config(self) -> dict[str, Any]:
    """The config of one of its runs."""
    return self.runs[0].config

  @property
  def facts(self) -> dict[str, Any]:
    """The config and facts that its runs share, with their seeds."""
    shared = experiment(self.config) | facts(self.runs[0].summary)
    shared.pop("seed")
    return shared | {"seeds": [run.seed for run in self.runs]}

  @property
  def summary(self) -> dict[str, float]:
    """{"mean/test/accuracy": 0.9, "sd/test/accuracy": ...}: an estimate of each metric."""
    found = {}
    for key in dict.fromkeys(key for run in self.runs for key in run.summary if "/" in key):
      values = [run.score(key) for run in self.runs if run.score(key) is not None]
      parts = estimate(values)._asdict() if values else {}
      found |= {f"{part}/{key}": value for part, value in parts.items() if value is not None}
    return found

  @property
  def content(self) -> str:
    """A digest of all that W&B gets."""
    parts = [self.facts, self.summary, self.tables]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def aggregates(named: Sequence[Run]) -> list[Aggregate]:
  """Return the groups of those `named` runs that have finished.

  A group has all its seeds, and in charts a label that differs from those of all other groups of
  the task, whichever of them were named. Runs in folders that were moved are in no group.
  """
  wanted = {run.path.absolute().parent: run for run in named if run.digest and run.summary}
  if not wanted:
    return []
  runs, _ = read_runs(sorted({_task_folder(path, run) for path, run in wanted.items()}))
  groups: dict[Path, list[Run]] = {}
  for run in sorted((run for run in runs if run.summary), key=lambda run: run.seed):
    groups.setdefault(run.path.absolute().parent, []).append(run)
  tables = _tables(runs)
  return [
    Aggregate(path, groups[path], tables.get(path, {})) for path in sorted(wanted) if path in groups
  ]


def _task_folder(group: Path, run: Run) -> Path:
  """Return the folder of a group's task, or of the group where it is not kept as training
  keeps it.
  """
  kept = group.parent.name == run.encoding and group.parents[1].name == run.task
  return group.parents[1] if kept else group


def table_name(task: str, chart: Chart) -> str:
  """Return the key of a chart's table in W&B, which allows these characters alone."""
  return re.sub(r"[^0-9A-Za-z]+", "_", f"{task} {chart.title}")


def _tables(runs: Sequence[Run]) -> dict[Path, Tables]:
  """Return the tables of all tasks, by the folder of the group that they are of; with folds, the
  first.
  """
  tables: dict[Path, Tables] = {}
  for task in results(runs) if scores.measured(runs) else ():
    for chart in charts(task):
      names = list(dict.fromkeys(point.x for point in chart.points))
      for group, series, x, found in chart.points:
        path = min(run.path.absolute().parent for run in group.repeats.values())
        rows = tables.setdefault(path, {}).setdefault(table_name(task.task, chart), [])
        # Of names of groups the place is the score: the same whatever groups there are.
        place = {"names": found.mean, "parts": names.index(x)}.get(chart.kind, x)
        rows.append([x, place, series, found.mean, found.low, found.high, found.n])
  return tables
