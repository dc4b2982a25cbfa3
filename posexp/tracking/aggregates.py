"""Groups of runs that differ in their seeds alone, each as one run of W&B: means and intervals."""

from __future__ import annotations

import dataclasses
import hashlib
import json
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
from posexp.tracking.wandb_run import experiment, facts


@dataclasses.dataclass(frozen=True)
class Aggregate:
  """A group of runs, and what W&B gets of it."""

  path: Path  # the folder that holds its seeds
  runs: list[Run]  # by seed
  summary: dict[str, float]  # {"mean/test/accuracy": 0.9, "sd/test/accuracy": ...}
  charts: list[Chart]

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
  def content(self) -> str:
    """A digest of all that W&B gets."""
    parts = [self.facts, self.summary, self.charts, [preset(kind) for kind in X]]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def aggregates(named: Sequence[Run]) -> list[Aggregate]:
  """The groups of those `named` runs that have finished.

  A group has all its seeds, and in charts a label that differs from those of all other groups of
  the task, whichever of them were named. Runs in folders that were moved are in no group.
  """
  wanted = {run.path.absolute().parent: run for run in named if run.digest and run.summary}
  if not wanted:
    return []
  runs, _ = read_runs(sorted({_task_folder(path, run) for path, run in wanted.items()}))
  found = []
  for task in dict.fromkeys(run.task for run in runs):
    finished = [run for run in runs if run.task == task and run.summary]
    groups: dict[Path, list[Run]] = {}
    for run in finished:
      groups.setdefault(run.path.absolute().parent, []).append(run)
    headline = scores.headline(finished)
    identities = _identities([members[0] for members in groups.values()], finished)
    for (path, members), values in zip(groups.items(), identities, strict=True):
      if path in wanted:
        members.sort(key=lambda run: run.seed)
        found.append(_aggregate(path, members, values, headline))
  return found


def _task_folder(group: Path, run: Run) -> Path:
  """The folder of a group's task, or of the group where it is not kept as training keeps it."""
  kept = group.parent.name == run.encoding and group.parents[1].name == run.task
  return group.parents[1] if kept else group


def _identities(firsts: Sequence[Run], runs: Sequence[Run]) -> list[dict[str, str]]:
  """The options that tell each group from the others, given its first run; its folder, where
  options do not."""
  by = grouping.distinguishing(runs)
  found = [{key: grouping.value_of(run, key) for key in by} for run in firsts]
  labels = [grouping.label(values, [run]) for values, run in zip(found, firsts, strict=True)]
  for values, run, label in zip(found, firsts, labels, strict=True):
    if Counter(labels)[label] > 1:
      values["folder"] = run.digest or ""
  return found


def _aggregate(
  path: Path, runs: list[Run], values: dict[str, str], headline: Score | None
) -> Aggregate:
  keys = dict.fromkeys(key for run in runs for key in run.summary if "/" in key)
  columns = {key: [run.score(key) for run in runs] for key in keys}
  columns = {key: [each for each in found if each is not None] for key, found in columns.items()}
  estimates = {key: estimate(found) for key, found in columns.items() if found}
  summary = {
    f"{part}/{key}": value
    for key, found in estimates.items()
    for part, value in found._asdict().items()
    if value is not None
  }
  return Aggregate(
    path, runs, summary, _charts(runs, values, headline, estimates) if headline else []
  )


def _charts(
  runs: Sequence[Run], values: dict[str, str], headline: Score, estimates: dict[str, Estimate]
) -> list[Chart]:
  task, metric, y = runs[0].task, headline.metric, headline.title
  series = grouping.label(values, runs)
  found: list[Chart] = []
  if measured := estimates.get(headline.key):
    found.append(Chart("names", task, "encoding", y, [row(series, runs[0].encoding, measured)]))
    for key, value in values.items():
      if (number := grouping.number(value)) is not None:
        others = grouping.label({k: v for k, v in values.items() if k != key}, runs)
        found.append(Chart("numbers", task, key, y, [row(number, others, measured)]))
  for split, parts in scores.by_part(headline, runs).items():
    rows = [
      row(each.part, series, estimates[each.key], int(re.match(r"\d*", each.part)[0] or 0))
      for each in parts
    ]
    what = "length" if scores.lengths(parts) else "group"
    found.append(Chart("parts", task, what, f"{split} {metric.title}", rows))
  for key in dict.fromkeys((f"validation/{metric.name}", "validation/loss", "train/loss")):
    steps, columns = scores.curve(runs, key)
    if len(steps):
      rows = [
        row(step, series, estimate(column))
        for step, column in zip(steps.tolist(), columns.T, strict=True)
      ]
      y = score(key, {metric.name: metric} | METRICS).title
      found.append(Chart("steps", task, "step", y, rows))
  return found
