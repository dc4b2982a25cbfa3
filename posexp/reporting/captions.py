"""The sentence under a figure, which says what to see in it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from posexp.reporting import specs, vega
from posexp.reporting.charts import Chart, Point, place
from posexp.reporting.results import COSTS, Results
from posexp.reporting.sentences import outcome
from posexp.reporting.text import listed, one_line
from posexp.runs.identity import spelled
from posexp.runs.lengths import REACHED

REACH = (
  f"The longest length up to which exact match is at least {REACHED:.0%}, the farthest reaching "
  "group first. The darker a cell, the nearer to the longest length that the task tests."
)


def says(charts: Sequence[Chart], results: Results) -> str:
  """Return what to see in the charts of a figure."""
  return " ".join(part for chart in charts for part in _said(chart, results))


def _said(chart: Chart, results: Results) -> list[str]:
  if chart.kind == "names":
    return _names(chart, results)
  if chart.kind == "differences":
    return _differences(results)
  if chart.kind == "lengths":
    return _lengths(chart)
  if chart.kind == "curves":
    return ["Gray ground: the lengths of training; names stand in the order in which lines end."]
  if chart.kind == "context map":
    return []
  if chart.kind == "parts":
    return _parts(chart)
  if chart.kind == "steps":
    return [_ends_at(chart, chart.points), "Means over seeds."]
  if chart.kind == "contexts":
    longest = max(point.x for point in chart.points)
    at = [point for point in chart.points if point.x == longest]
    return [f"At {longest:,} tokens: {_ends_at(chart, at)}", "Gray ground: as in training."]
  return _numbers(chart, results)


def _best(chart: Chart, points: Sequence[Point]) -> Point:
  sign = 1 if chart.y.metric.higher_is_better else -1
  return max(points, key=lambda point: sign * point.found.mean)


def _named(chart: Chart, point: Point) -> str:
  unit = " %" if chart.y.metric.percent else ""
  return f"{one_line(point.series)} ({chart.y.number(point.found.mean)}{unit})"


def _ends_at(chart: Chart, points: Sequence[Point]) -> str:
  """Return which series is the best at its end, and which is the worst."""
  last = [*{point.series: point for point in points if point.found.n}.values()]
  best = _best(chart, last)
  flipped = chart._replace(
    y=chart.y._replace(
      metric=chart.y.metric._replace(higher_is_better=not chart.y.metric.higher_is_better)
    )
  )
  worst = _best(flipped, last)
  if len(last) == 1:
    return f"{_named(chart, best)} at its end."
  if best.found.mean == worst.found.mean:
    return f"All end at {chart.y.number(best.found.mean)}."
  return f"{_named(chart, best)} ends best, {_named(chart, worst)} worst."


def _names(chart: Chart, results: Results) -> list[str]:
  cut = f"the first {specs.ROWS} of {len(chart.points):,} groups; "
  cut = cut if len(chart.points) > specs.ROWS else ""
  base = f", the dashed line is {_base(results)}" if results.baseline else ""
  left = vega.usual([one_line(point.series) for point in chart.points])
  names = [f"Names leave out {listed(sorted(left))}, which most have."] if left else []
  return [f"Scores: {cut}means with 95 % intervals, small dots are seeds{base}.", *names]


def _base(results: Results) -> str:
  """Return the name of the baseline, where it is short."""
  label = one_line(results.baseline.label)
  return label if len(label) <= vega.NAME else "the baseline"


def _differences(results: Results) -> list[str]:
  base = results.baseline
  kinds = Counter(outcome(group, results) for group in results.ranked if group is not base)
  told = ", ".join(f"{kinds[kind]} {kind}" for kind in ("better", "worse") if kinds[kind])
  side = "right" if results.score.metric.higher_is_better else "left"
  text = (
    f"Differences to {_base(results)}, with their own 95 % intervals: {side} of the line is better"
  )
  open_ones = kinds["not told apart"] + kinds["not tested"]
  hollow = f"; hollow: {open_ones} that cannot be told apart from it" if open_ones else ""
  return [f"{text}; filled: {told or 'none is told apart'}{hollow}."]


def _lengths(chart: Chart) -> list[str]:
  far: dict[str, float] = {}
  ended = set()
  for point in sorted(chart.points, key=lambda point: place(str(point.x))):
    if point.found.mean is None or point.found.mean < REACHED:
      ended.add(point.series)
    elif point.series not in ended:
      far[point.series] = place(str(point.x))
  text = "Right of the line, inputs are longer than in training."
  most = max(far.values(), default=0)
  first = [name for name, length in far.items() if length == most]
  some = f"at least {chart.y.number(REACHED).removesuffix('.00')} % up to length {most:g}"
  verb = "reach" if len(first) > 1 else "reaches"
  who = " and ".join(first) if len(first) < 3 else listed(first, 3)
  best = f"{who} {verb} farthest: {some}." if far else "No group reaches that far."
  gray = any(point.state for point in chart.points)
  states = "Gray: no seed learned the task; empty: not applicable." if gray else ""
  return [best, text, states] if states else [best, text]


def _parts(chart: Chart) -> list[str]:
  spread: dict[str, list[float]] = {}
  for point in chart.points:
    spread.setdefault(str(point.x), []).append(point.found.mean)
  widest = max(spread, key=lambda part: max(spread[part]) - min(spread[part]))
  apart = chart.y.number(max(spread[widest]) - min(spread[widest]))
  if max(spread[widest]) == min(spread[widest]):
    return ["All groups are equal."]
  return [f"Groups are farthest apart at {one_line(widest)}: by {apart} {chart.y.unit}."]


def _numbers(chart: Chart, results: Results) -> list[str]:
  best = _best(chart, chart.points)
  at = f"{best.x:,.0f}" if chart.x in COSTS else spelled(float(f"{best.x:.12g}"))
  text = f"Best at {at}: {_named(chart, best)}."
  if chart.x in COSTS:
    least = min(chart.points, key=lambda point: point.x)
    more = float(best.x) / (float(least.x) or 1.0)
    text = f"{_named(chart, best)} is best"
    same = least.series == best.series
    text += " and the cheapest." if same else (
      f" and takes {more:.2f} times the {chart.x} of {_named(chart, least)}, the cheapest."
    )  # fmt: skip
  base = results.baseline
  return [text, f"Dashed: {_base(results)}."] if base is not None else [text]
