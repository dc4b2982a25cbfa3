"""The charts of a task, as points: the report draws them on a page, trackers in W&B."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from posexp.reporting import scores
from posexp.reporting.grouping import Group, label, number
from posexp.reporting.results import Results
from posexp.reporting.significance import Estimate, estimate
from posexp.runs.metrics import Score, declared, score


class Point(NamedTuple):
  """The point of one group of runs in a chart."""

  group: Group
  series: str  # the line that it belongs to
  x: float | str
  found: Estimate


class Chart(NamedTuple):
  """A score against something else. `kind` says what x is: "names" of groups, "parts" of a split,
  "numbers" of any size, "contexts" in tokens, or "steps" of training."""

  kind: str
  x: str  # title of the axis
  y: Score
  points: list[Point]

  @property
  def title(self) -> str:
    return f"{self.y.title} by {self.x}"


def charts(results: Results, groups: Sequence[Group] | None = None) -> Iterator[Chart]:
  """Return the charts of a task that have points. Those with a line for each group are of all
  groups that have a mean, or of these alone, which need no mean for curves of training.
  """
  every, of = results.ranked, results.score
  groups = every if groups is None else groups
  table = declared(run.summary for run in results.runs)
  found = [Chart("names", "group", of, [Point(g, g.label, g.label, g.estimate) for g in every])]
  found += [_against_option(results, key) for key in results.by]
  for key in dict.fromkeys((f"validation/{of.metric.name}", "validation/loss", "train/loss")):
    found.append(Chart("steps", "step", score(key, table), list(_by_step(groups, key))))
  for parts in scores.by_part(of, results.runs).values():
    found.append(_by_part(groups, parts))
  for cost in ("FLOPs/token", "seconds"):
    costly = [
      Point(g, g.label, g.costs[cost], g.estimate)
      for g in groups
      if g.estimate.n and cost in g.costs
    ]
    found.append(Chart("numbers", cost, of, costly))
  return (chart for chart in found if chart.points)


def _against_option(results: Results, key: str) -> Chart:
  """Return the score against a numeric option, with a line for each combination of the others."""
  points = []
  for group in results.ranked:
    value = number(group.values[key])
    if value is not None:
      others = {other: each for other, each in group.values.items() if other != key}
      points.append(Point(group, label(others, group.runs), value, group.estimate))
  return Chart("numbers", key, results.score, points)


def _by_step(groups: Sequence[Group], key: str) -> Iterator[Point]:
  for group in groups:
    steps, values = scores.curve(list(group.repeats.values()), key)
    for step, column in zip(steps.tolist(), values.T, strict=True):
      yield Point(group, group.label, step, estimate(column))


def _by_part(groups: Sequence[Group], parts: Sequence[Score]) -> Chart:
  """Return a score of the lengths, or the named groups, that a split consists of."""
  points = []
  context = parts[0].split == "context" and all(
    re.fullmatch("[1-9][0-9]{0,8}", p.part) for p in parts
  )
  for part in parts:
    for group in groups:
      values = [run.score(part.key) for run in group.counting(part)]
      if values and None not in values:
        x = int(part.part) if context else part.part
        points.append(Point(group, group.label, x, estimate(values, part.most)))
  whole = parts[0]._replace(part="")
  if context:
    return Chart("contexts", "tokens that are read before", whole._replace(split="test"), points)
  return Chart("parts", "length" if scores.lengths(parts) else "part", whole, points)
