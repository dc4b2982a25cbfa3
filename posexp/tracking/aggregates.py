"""Groups of runs that differ in their seeds alone, each as one run of W&B: means and intervals."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from posexp.reporting import grouping, scores
from posexp.reporting.significance import Estimate, estimate
from posexp.runs import Run, read_runs
from posexp.runs.metrics import METRICS, Score, score
from posexp.tracking.charts import Chart, X, preset, row
from posexp.tracking.wandb_run import facts


@dataclasses.dataclass(frozen=True)
class Aggregate:
  """A group, and what W&B is told of it."""

  path: Path  # the folder of its seeds
  first: Path  # and that of one of them
  task: str
  encoding: str
  digest: str
  facts: dict[str, Any]  # beside the config
  summary: dict[str, float]  # {"mean/test/accuracy": 0.9, "sd/test/accuracy": ...}
  charts: list[Chart]

  @property
  def content(self) -> str:
    """Another for whatever else W&B would be told."""
    presets = [preset(kind) for kind in X]
    told = [self.facts, self.summary, self.charts, presets]
    return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()


def aggregates(named: Sequence[Run]) -> list[Aggregate]:
  """One for every group with a finished run among those that were `named`.

  All seeds of a group are in it, and its name in charts tells it from all groups of its task,
  whichever of them were named. Runs that are not where training keeps them are in none.
  """
  wanted = {run.path.absolute().parent: run for run in named if run.digest and run.summary}
  if not wanted:
    return []
  around, _ = read_runs(sorted({_task_folder(path, run) for path, run in wanted.items()}))
  found = []
  for task in dict.fromkeys(run.task for run in around):
    finished = [run for run in around if run.task == task and run.summary]
    groups: dict[Path, list[Run]] = {}
    for run in finished:
      groups.setdefault(run.path.absolute().parent, []).append(run)
    metric = scores.headline(finished)
    named_by = _values([runs[0] for runs in groups.values()], grouping.distinguishing(finished))
    for (path, runs), values in zip(groups.items(), named_by, strict=True):
      if path in wanted:
        found.append(_aggregate(path, sorted(runs, key=lambda run: run.seed), values, metric))
  return found


def _task_folder(group: Path, run: Run) -> Path:
  """The folder of a group's task, or of the group where it is not kept as training keeps it."""
  kept = group.parent.name == run.encoding and group.parents[1].name == run.task
  return group.parents[1] if kept else group


def _values(runs: Sequence[Run], by: Sequence[str]) -> list[dict[str, str]]:
  """What tells each of some runs from the others; the folder, where options do not."""
  found = [{key: grouping.value_of(run, key) for key in by} for run in runs]
  labels = Counter(grouping.label(values, [run]) for values, run in zip(found, runs, strict=True))
  return [
    values | {"folder": run.digest or ""} if labels[grouping.label(values, [run])] > 1 else values
    for values, run in zip(found, runs, strict=True)
  ]


def _aggregate(
  path: Path, runs: list[Run], values: dict[str, str], metric: Score | None
) -> Aggregate:
  first = runs[0]
  estimates = {name: found for name in _measured(runs) if (found := _estimate(runs, name))}
  summary: dict[str, float] = {}
  for name, found in estimates.items():
    parts = found._asdict()
    summary |= {f"{part}/{name}": parts[part] for part in parts if parts[part] is not None}
  return Aggregate(
    path,
    first.path,
    first.task,
    first.encoding,
    first.digest or "",
    facts(first.summary) | {"seeds": [run.seed for run in runs]},
    summary,
    _charts(runs, values, metric, estimates) if metric else [],
  )


def _measured(runs: Sequence[Run]) -> list[str]:
  """The metrics in the summaries."""
  return list(dict.fromkeys(key for run in runs for key in run.summary or {} if "/" in key))


def _estimate(runs: Sequence[Run], name: str) -> Estimate | None:
  values = [score for run in runs if (score := run.score(name)) is not None]
  return estimate(values) if values else None


def _charts(
  runs: Sequence[Run], values: dict[str, str], metric: Score, estimates: dict[str, Estimate]
) -> list[Chart]:
  task, of, y = runs[0].task, metric.metric, metric.title
  series = grouping.label(values, runs)
  found: list[Chart] = []
  if measured := estimates.get(metric.key):
    found.append(Chart("names", task, "encoding", y, [row(series, runs[0].encoding, measured)]))
    for key, value in values.items():
      if (number := _number(value)) is not None:
        rest = grouping.label({k: v for k, v in values.items() if k != key}, runs)
        found.append(Chart("numbers", task, key, y, [row(number, rest, measured)]))
  for split, parts in scores.by_part(metric, runs).items():
    lengths = scores.lengths(parts)
    rows = [
      row(part.part, series, estimates[part.key], _first(part.part) if lengths else 0)
      for part in parts
    ]
    what = "length" if lengths else "group"
    found.append(Chart("parts", task, what, f"{split} {of.title}", rows))
  for name in dict.fromkeys((f"validation/{of.name}", "validation/loss", "train/loss")):
    if rows := [row(step, series, each) for step, each in curve(runs, name).items()]:
      found.append(Chart("steps", task, "step", score(name, {of.name: of} | METRICS).title, rows))
  return found


def curve(runs: Sequence[Run], metric: str) -> dict[int, Estimate]:
  """The estimates of a metric at the steps at which all runs have it."""
  columns = []
  for run in runs:
    given = {each["step"]: each[metric] for each in run.history if metric in each}
    columns.append({step: v for step, v in given.items() if _finite(v)})
  steps = sorted(set.intersection(*map(set, columns)))
  return {step: estimate([each[step] for each in columns]) for step in steps}


def _first(part: str) -> int:
  """The number with which the name of a length begins."""
  return int(re.match(r"\d+", part).group())


def _number(text: str) -> float | None:
  try:
    value = float(text)
  except ValueError:
    return None
  return value if math.isfinite(value) else None


def _finite(value: Any) -> bool:
  return isinstance(value, int | float) and math.isfinite(value)
