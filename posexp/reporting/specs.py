"""Charts in Vega-Lite: one spec is drawn by a browser, which answers a reader, and into files.

A spec holds its data, and fills the width of the element that it is drawn in. Its parameter
`picked` is the name of the group that is highlighted, which is none in a file, and `wide` are the
pixels of its width.
"""

from __future__ import annotations

from collections.abc import Sequence

from posexp.plotting import GRAY
from posexp.reporting.charts import NOT_LEARNED, Chart, Point, place
from posexp.reporting.lines import lines_spec
from posexp.reporting.results import Results
from posexp.reporting.sentences import outcome
from posexp.reporting.text import one_line
from posexp.reporting.vega import (
  FEW,
  NAME,
  PALE,
  PICKED,
  Spec,
  channels,
  data_row,
  ends_of_axis,
  of_score,
  plain,
  row_labels,
  tooltip,
)

ROWS = 40  # groups in a chart with a row for each
CELL = 21  # pixels of a row of a heat map
MAP = {"scheme": "yellowgreenblue"}


def spec(chart: Chart, results: Results | None = None) -> Spec:
  """Return a chart as a Vega-Lite spec; that of several tasks belongs to no results."""
  base = results.baseline if results is not None else None
  if chart.kind in ("names", "differences"):
    found = _rows(chart, results)
  elif is_map(chart):
    found = _map(chart)
  else:
    level = base.estimate.mean if base is not None and chart.kind == "numbers" else None
    found = lines_spec(chart, None if level is None else level * chart.y.factor)
  return {"width": "container", "autosize": {"type": "fit-x", "contains": "padding"}} | {
    "params": [{"name": "picked", "value": ""}, {"name": "wide", "expr": "width"}],
    **found,
  }


def is_map(chart: Chart) -> bool:
  """Return whether a chart is a heat map: groups by tasks, or many of them by parts."""
  many = len({point.series for point in chart.points}) > FEW
  return chart.kind in ("lengths", "tasks", "context map") or (chart.kind == "parts" and many)


def _rows(chart: Chart, results: Results) -> Spec:
  """Draw a row for each group, the best on top: its seeds, their mean and its interval."""
  base = results.baseline
  points = chart.points[:ROWS] + [each for each in chart.points[ROWS:] if each.group is base]
  names, axis, step = row_labels([one_line(point.series) for point in points])
  rows = [_of_group(point, chart, results) for point in points]
  rows = [row | {"row": name} for row, name in zip(rows, names, strict=True)]
  level = next((row["mean"] for row in rows if row["base"]), None)
  encodings = [point.group.runs[0].encoding for point in points]
  color, shape, _ = channels([row["group"] for row in rows], encodings)
  low, high = ends_of_axis(rows)
  if chart.kind == "names" and chart.y.metric.percent:
    low, high = max(low, -1.0), min(high, 101.0)
  x: Spec = {"field": "mean", "type": "quantitative", "title": _title(chart, results)}
  x |= {"scale": {"domain": [low, high], "zero": False, "nice": False}}
  y = {"field": "row", "type": "nominal", "sort": names, "title": None, "axis": axis}
  fill = {"condition": {"test": "datum.told", **color}, "value": "transparent"}
  every = {"y": y, "opacity": PICKED}
  layers = [
    {"mark": {"type": "circle", "size": 12, "color": GRAY, "yOffset": -6},
     "transform": [{"flatten": ["each"]}],
     "encoding": every | {"x": x | {"field": "each"}}},
    {"mark": {"type": "rule", "strokeWidth": 1.6, "clip": True},
     "encoding": every | {"x": x | {"field": "low"}, "x2": {"field": "high"}, "color": color}},
    {"mark": {"type": "point", "size": 55, "opacity": 1, "strokeWidth": 1.5},
     "encoding": every | {"x": x, "stroke": color, "fill": fill, "shape": shape,
                          "tooltip": tooltip()}},
  ]  # fmt: skip
  if level is not None:
    line = {"type": "rule", "strokeDash": [4, 3]}
    layers.insert(0, {"mark": line, "encoding": {"x": {"datum": level}}})
  return {"height": {"step": step}, "data": {"values": rows}, "layer": layers}


def _of_group(point: Point, chart: Chart, results: Results) -> Spec:
  """Return the data of a row: `told` is whether its point is filled, `each` are its seeds."""
  base = point.group is results.baseline
  row = data_row(point, chart.y) | {"base": base}
  if chart.kind == "names":
    return row | {"told": True, "each": [plain(chart.y.factor * seed) for seed in point.seeds]}
  told = base or outcome(point.group, results) in ("better", "worse")
  return row | {"told": told, "each": []} | ({"mean": 0.0, "shown": "the baseline"} if base else {})


def _title(chart: Chart, results: Results) -> str:
  """Return the title of the axis of scores, or of differences."""
  if chart.kind == "names":
    return of_score(chart.y)
  to = results.baseline.label if len(results.baseline.label) <= NAME else "the baseline"
  return f"difference to {one_line(to)} ({chart.y.unit})"


def _map(chart: Chart) -> Spec:
  """Draw a cell for each group and part in the color of its mean, with the mean in it."""
  shown = [*dict.fromkeys(point.series for point in chart.points)][:ROWS]
  points = [point for point in chart.points if point.series in shown]
  columns = [*dict.fromkeys(one_line(str(point.x)) for point in chart.points)]
  titles = []
  for series in shown:  # says how many of its seeds learned a task, if not all did
    group = next(point.group for point in points if point.series == series)
    learned, every = len(group.counting(chart.y._replace(split="beyond"))), len(group.repeats)
    some = chart.kind == "lengths" and learned < every
    titles.append(one_line(series) + f" ({learned} of {every})" * some)
  names, axis, step = row_labels(titles)
  rows = [data_row(point, chart.y) | {"row": names[shown.index(point.series)]} for point in points]
  ends, digits = _ends_of_colors(chart, rows), min(3, chart.y.metric.decimals)
  digits = 0 if chart.y.metric.percent else digits
  for row in rows:
    low, high = ends[row["x"]]
    if row["mean"] is not None:
      row["share"] = (row["mean"] - low) / ((high - low) or 1.0)
    row["text"] = "" if row["mean"] is None else f"{row['mean']:.{digits}f}"
  x: Spec = {"field": "x", "type": "nominal", "sort": None, "title": chart.x}
  x |= {"axis": {"labelAngle": 0, "labelOverlap": True, "domain": False, "ticks": False}}
  room = 7 * max(len(row["text"]) for row in rows)
  narrow = f"wide / {len(columns)} < {room}"
  color: Spec = {"field": "share", "type": "quantitative", "legend": None}
  color |= {"scale": MAP | {"domain": [0, 1], "reverse": not chart.y.metric.higher_is_better}}
  dark = "datum.share < 0.45" if color["scale"]["reverse"] else "datum.share > 0.55"
  layers = [
    {"mark": {"type": "rect", "stroke": "#ffffff", "strokeWidth": 0.5},
     "transform": [{"filter": "datum.mean != null"}],
     "encoding": {"color": color, "opacity": PICKED, "tooltip": tooltip(("x", chart.x))}},
    {"mark": {"type": "rect", "color": "#d4d4d4", "stroke": "#ffffff", "strokeWidth": 0.5},
     "transform": [{"filter": f"datum.shown == '{NOT_LEARNED}'"}],
     "encoding": {"opacity": PICKED, "tooltip": tooltip(("x", chart.x))}},
    {"mark": "text",
     "encoding": {"text": {"field": "text"},
                  "color": {"condition": {"test": dark, "value": "#ffffff"}, "value": "#1b1b1f"},
                  "opacity": {"condition": [{"test": narrow, "value": 0}, PALE], "value": 0.12}}},
  ]  # fmt: skip
  within = [column for column in columns if chart.trained and place(column) <= chart.trained]
  if within:
    end = x | {"field": "x", "bandPosition": 1}
    layers.append({
      "mark": {"type": "rule", "strokeWidth": 2}, "data": {"values": [{"x": within[-1]}]},
      "encoding": {"x": end, "y": {"value": 0}, "y2": {"value": "height"}},
    })  # fmt: skip
  y = {"field": "row", "type": "nominal", "sort": names, "title": None, "axis": axis}
  return {
    "height": {"step": max(CELL, step)},
    "data": {"values": rows},
    "encoding": {"x": x, "y": y},
    "layer": layers,
  }


def _ends_of_colors(chart: Chart, rows: Sequence[Spec]) -> dict[str, tuple[float, float]]:
  """Return the values of the first and the last color for each column: all shares, or else what
  there is; in columns of several tasks from 0 to the longest length that the task tests."""
  if chart.kind == "tasks":
    longest: dict[str, float] = {}
    for point in chart.points:
      tested = (key for run in point.group.runs for key in run.summary or {})
      lengths = [place(key) for key in tested if key.startswith("beyond/exact_match/")]
      task = one_line(str(point.x))
      longest[task] = max([longest.get(task, 1.0), *lengths])
    return {task: (0.0, length) for task, length in longest.items()}
  every = [row["mean"] for row in rows if row["mean"] is not None] or [0.0]
  ends = (0.0, 100.0) if chart.y.metric.percent else (min(every), max(every))
  return dict.fromkeys((row["x"] for row in rows), ends)
