"""The charts of a task, as points: reports and trackers draw them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from posexp.reporting.grouping import Group, label, number
from posexp.reporting.results import Results, curve
from posexp.reporting.significance import Estimate
from posexp.runs import Run, scores
from posexp.runs.lengths import REACHED, SPLITS
from posexp.runs.metrics import METRICS, Score, declared, score

DRAWN = ("parameters", "FLOPs/token", "seconds", "peak MiB")  # costs that have a chart
NOT_APPLICABLE = "not applicable"


class Point(NamedTuple):
  """The point of one group of runs in a chart."""

  group: Group
  series: str  # the line that it belongs to
  x: float | str
  found: Estimate
  seeds: Sequence[float] = ()  # the values of the seeds
  state: str = ""  # why there is no mean


class Chart(NamedTuple):
  """A chart of a score.

  `kind` says what the score is drawn against: "names" of groups; "differences", names again, with
  the difference to the baseline as the score; "parts" of a split; "numbers" of any size; "lengths"
  as a map, or "curves" as lines; "contexts" in tokens, or a "context map"; "steps" of training; or
  "tasks".
  """

  kind: str
  x: str  # title of the axis
  y: Score
  points: list[Point]
  trained: float = 0  # the longest length, or context, of training
  chance: Sequence[float | None] = ()  # by length: the level of a model that is blind to order

  @property
  def title(self) -> str:
    return f"{self.y.title} by {self.x}"


def charts(results: Results, groups: Sequence[Group] | None = None) -> Iterator[Chart]:
  """Return the charts of a task that have points.

  Charts by step and by part of a split show the given `groups`, by default those that have a mean.
  All other charts show every group that has a mean.
  """
  every, of = results.ranked, results.score
  groups = every if groups is None else groups
  table = declared(run.summary for run in results.runs)
  drawn = [_by_group(every, of)]
  for key in results.by:  # a line for each combination of the other options
    points = []
    for group in every:
      if (value := number(group.values[key])) is not None:
        others = {name: group.values[name] for name in group.values if name != key}
        points.append(_point(group, label(others, group.runs), value, of))
    drawn.append(Chart("numbers", key, of, points))
  for key in dict.fromkeys((f"validation/{of.metric.name}", "validation/loss", "train/loss")):
    points, shown = [], score(key, table)
    for group in groups:
      steps, values = curve(list(group.repeats.values()), key)
      for step, column in zip(steps.tolist(), values.T, strict=True):
        over_seeds = group.of(column, shown.most)
        points.append(Point(group, group.label, step, over_seeds, column.tolist()))
    drawn.append(Chart("steps", "step", shown, points))
  for parts in scores.by_part(of, results.runs).values():
    drawn.append(_by_part(groups, parts))
  for cost in DRAWN:
    costly = [
      _point(group, group.label, group.costs[cost], of)
      for group in every
      if group.estimate.n and cost in group.costs
    ]
    drawn.append(Chart("numbers", cost, of, costly))
  for other in scores.measured(results.runs).values():
    known = other.metric.name in table and not other.part and "/" not in other.split
    if known and other.key != of.key:
      drawn.append(_by_group(every, other))
  return (chart for chart in drawn if chart.points)


def differences(results: Results) -> Chart:
  """Return the differences of groups to the baseline, which has a point, too."""
  points = [
    Point(group, group.label, group.label, group.difference.estimate)
    for group in results.ranked
    if group.difference.estimate.n or group is results.baseline
  ]
  return Chart("differences", "group", results.score, points)


def lengths(results: Results) -> Chart | None:
  """Return the score by length within and beyond training, the farthest reaching group first.

  Return None if a split is not measured by length, or if the splits have a length in common, since
  what lies beyond training is then something else.
  """
  parts = scores.by_part(results.score, results.runs)
  if not all(split in parts and scores.lengths(parts[split]) for split in SPLITS):
    return None
  columns = [part for split in SPLITS for part in parts[split]]
  if len({score.part for score in columns}) < len(columns):
    return None
  groups = [group for group in results.groups if group.repeats]
  groups.sort(key=lambda group: _order(group, columns), reverse=True)
  points = [_cell(group, of, of.part) for group in groups for of in columns]
  levels = ([run.score(f"chance/{of.key}") for run in results.runs] for of in columns)
  chance = [next(filter(None, level), None) for level in levels]
  y, last = columns[0]._replace(split="", part=""), parts["test"][-1].part
  return Chart("lengths", "length", y, points, place(last), chance)


def reach(tasks: Iterable[Results]) -> Chart | None:
  """Return how far each group reaches in each task, the farthest reaching first; None unless
  several tasks have a `reach`. Groups of two tasks count as the same if they have the same label.
  """
  of = Score("beyond/reach", METRICS["reach"], "beyond")
  measured = [task for task in tasks if any(run.score(of.key) is not None for run in task.runs)]
  if len(measured) < 2:
    return None
  points = [
    _cell(group, of, each.task)._replace(series=group.label)
    for each in measured
    for group in each.groups
    if group.repeats
  ]
  labels = dict.fromkeys(point.series for point in points)
  far = {name: sum(p.found.mean or 0 for p in points if p.series == name) for name in labels}
  points.sort(key=lambda point: -far[point.series])
  return Chart("tasks", "task", of._replace(split=""), points)


def place(part: str) -> float:
  """Return where a length stands on an axis: at its number, a range in its middle."""
  return float(np.mean([*map(int, re.findall(r"\d+", part))]))


def _values(runs: Iterable[Run], of: Score) -> list[float]:
  """Return the values that runs have of a score."""
  return [value for run in runs if (value := run.score(of.key)) is not None]


def _point(group: Group, series: str, x: float | str, of: Score) -> Point:
  """Return the point of the score by which groups are ranked."""
  return Point(group, series, x, group.estimate, _values(group.repeats.values(), of))


def _cell(group: Group, of: Score, x: float | str) -> Point:
  """Return a point of a part of a score, with the reason if it has no mean."""
  values = _values(group.repeats.values(), of)
  state = "" if values else NOT_APPLICABLE
  return Point(group, group.label, x, group.of(values, of.most), values, state)


def _order(group: Group, columns: Sequence[Score]) -> tuple[int, float]:
  """Return how many lengths from the first on are reached, and the sum of the scores."""
  runs = group.repeats.values()
  means = np.mean([[run.score(column.key) or 0.0 for column in columns] for run in runs], axis=0)
  return int(np.cumprod(means >= REACHED).sum()), float(means.sum())


def _by_group(groups: Sequence[Group], of: Score) -> Chart:
  """Return the means of groups in any score that runs have as a whole."""
  points = [_cell(group, of, group.label) for group in groups]
  return Chart("names", "group", of, [point for point in points if point.found.n])


def _by_part(groups: Sequence[Group], parts: Sequence[Score]) -> Chart:
  """Return a score of the lengths, or the named groups, that a split consists of."""
  points = []
  context = parts[0].split == "context" and all(
    re.fullmatch("[1-9][0-9]{0,8}", p.part) for p in parts
  )
  runs: list[Run] = [run for group in groups for run in group.runs]
  for part in parts:
    for group in groups:
      values = [run.score(part.key) for run in group.repeats.values()]
      if values and None not in values:
        x = int(part.part) if context else part.part
        points.append(Point(group, group.label, x, group.of(values, part.most), values))
  whole = parts[0]._replace(part="")
  if context:
    trained = max((run.settings.get("task.segment", 0) for run in runs), default=0)
    y = whole._replace(split="test")
    return Chart("contexts", "tokens that are read before", y, points, trained)
  return Chart("parts", "length" if scores.lengths(parts) else "part", whole, points)
