"""Charts in Vega-Lite: one spec is drawn by a browser, which answers a reader, and into files.

A spec holds its data, and fills the width of the element that it is drawn in. Its parameter
`picked` is the name of the group that is highlighted and `hidden` those of groups that are not
shown, none of them in a file, and `wide` is its width in pixels.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from posexp.reporting.charts import Chart, Point, place
from posexp.reporting.palette import GRAY
from posexp.reporting.results import COSTS, Results
from posexp.reporting.sentences import outcome
from posexp.reporting.text import one_line, short
from posexp.reporting.vega import (
  FEW,
  HIDDEN,
  LINES,
  NAME,
  VISIBLE,
  Spec,
  channels,
  data_row,
  distinct,
  encoding_of,
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
  """Return a chart as a Vega-Lite spec; a chart of several tasks has no `results`."""
  base = results.baseline if results is not None else None
  if chart.kind in ("names", "differences"):
    chart_spec = _rows(chart, results)
  elif is_map(chart):
    chart_spec = _map(chart)
  else:
    level = base.estimate.mean if base is not None and chart.kind == "numbers" else None
    chart_spec = lines_spec(chart, None if level is None else level * chart.y.factor)
  return {"width": "container", "autosize": {"type": "fit-x", "contains": "padding"}} | {
    "params": [
      {"name": "picked", "value": ""},
      {"name": "hidden", "value": []},
      {"name": "wide", "expr": "width"},
    ],
    **chart_spec,
  }


def is_map(chart: Chart) -> bool:
  """Return whether a chart is a heat map: groups by tasks, or many of them by parts."""
  many = len({point.series for point in chart.points}) > FEW
  return chart.kind in ("lengths", "tasks", "context map") or (chart.kind == "parts" and many)


def _rows(chart: Chart, results: Results) -> Spec:
  """Draw a row for each group, the best on top: its seeds, their mean and its interval."""
  base = results.baseline
  points = chart.points[:ROWS] + [point for point in chart.points[ROWS:] if point.group is base]
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
  every = {"y": y, "opacity": VISIBLE}
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
    learned, every = len(group.learned(chart.y._replace(split="beyond"))), len(group.repeats)
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
  fits = [{"test": f"wide / {len(columns)} < {room}", "value": 0}, *VISIBLE["condition"]]
  color: Spec = {"field": "share", "type": "quantitative", "legend": None}
  color |= {"scale": MAP | {"domain": [0, 1], "reverse": not chart.y.metric.higher_is_better}}
  dark = "datum.share < 0.45" if color["scale"]["reverse"] else "datum.share > 0.55"
  layers = [
    {"mark": {"type": "rect", "stroke": "#ffffff", "strokeWidth": 0.5},
     "transform": [{"filter": "datum.mean != null"}],
     "encoding": {"color": color, "opacity": VISIBLE, "tooltip": tooltip(("x", chart.x))}},
    {"mark": "text",
     "encoding": {"text": {"field": "text"},
                  "color": {"condition": {"test": dark, "value": "#ffffff"}, "value": "#1b1b1f"},
                  "opacity": VISIBLE | {"condition": fits}}},
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
  """Return the values of the first and the last color for each column: 0 and 100 % for shares, else
  the least and the greatest; in columns of several tasks 0 and the longest tested length.
  """
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


END = 28  # letters of a name at the end of a line
HEIGHT = 250  # pixels of a chart of lines
LINE = 13  # pixels between two names at the ends of lines
LINEAR: Spec = {"zero": False, "nice": False, "padding": 8}
DECADES = 20  # times a loss falls, from which on its axis is logarithmic


def lines_spec(chart: Chart, level: float | None) -> Spec:
  """Draw a line for each series, with intervals as bars or as a band, and its name at its end.

  `level` is that of a dashed line, in the unit of the axis.
  """
  names = [*dict.fromkeys(point.series for point in chart.points)][:LINES]
  encodings = [encoding_of(chart.points, name) for name in names]
  names = [one_line(name) for name in names]
  rows = [_with_ends(data_row(point, chart.y), point, chart) for point in chart.points]
  rows = [row for row in rows if row["group"] in names and row["mean"] is not None]
  if chart.kind == "curves":
    rows = [row | {"x": place(row["x"])} for row in rows]
  rows.sort(key=lambda row: 0.0 if chart.kind == "parts" else row["x"])
  color, shape, dash = channels(names, encodings)
  x = _x_axis(chart, rows)
  y: Spec = {"field": "mean", "type": "quantitative", "title": of_score(chart.y)}
  y |= {"scale": (scaled := _y_scale(chart, rows))}
  if "type" in scaled:  # logarithmic: an interval that reaches 0 ends at the edge
    edge = scaled["domain"][0]
    rows = [row if row["low"] is None else row | {"low": max(row["low"], edge)} for row in rows]
  height = max(HEIGHT, LINE * len(names) + 40)
  layers = _behind(chart, x, y, level) + _marks(chart, len(names), x, y, (color, shape, dash))
  if len(names) > 1:
    layers += _ends(rows, names, y, height, color, shape)
  return {"height": height, "data": {"values": rows}, "layer": layers}


def _with_ends(row: Spec, point: Point, chart: Chart) -> Spec:
  """Return a row with its interval on the scale, or at the mean, so that bands have no gaps."""
  if point.found.sd == 0:
    return row | {"low": row["mean"], "high": row["mean"]}
  if row["low"] is None or not chart.y.metric.percent:
    return row
  return row | {"low": max(row["low"], 0.0), "high": min(row["high"], 100.0)}


def _marks(chart: Chart, count: int, x: Spec, y: Spec, looks: Sequence[Spec]) -> list[Spec]:
  """Return the marks of this many lines; where x has no order, points are not joined."""
  color, shape, dash = looks
  faint = 0.14 if count <= FEW else 0.0
  bands = [HIDDEN, {"test": "picked == datum.group", "value": 0.25}]
  bands += [{"test": "picked == ''", "value": faint}]
  every = {"x": x, "color": color}
  if chart.kind == "parts":
    every |= {"xOffset": {"field": "group", "sort": None}}
  ends = every | {"y": y | {"field": "low"}, "y2": {"field": "high"}}
  seen = every | {"y": y, "opacity": VISIBLE}
  size = 18 if chart.kind == "steps" else 45
  about = {"shape": shape, "tooltip": tooltip(("x", short(chart.x, 56)))}
  band = {
    "mark": {"type": "area", "clip": True},
    "encoding": ends | {"opacity": {"condition": bands, "value": 0}},
  }
  bar = {
    "mark": {"type": "rule", "strokeWidth": 1.2, "clip": True},
    "encoding": ends | {"opacity": VISIBLE},
  }
  line = {"mark": {"type": "line", "strokeWidth": 1.6}, "encoding": seen | {"strokeDash": dash}}
  dot = {"mark": {"type": "point", "filled": True, "size": size}, "encoding": seen | about}
  if chart.kind in ("steps", "contexts", "curves"):
    return [band, line, dot]
  return [bar, dot] if chart.kind == "parts" else [bar, line, dot]


def _behind(chart: Chart, x: Spec, y: Spec, level: float | None) -> list[Spec]:
  """Return the marks behind lines: the lengths of training, the baseline, and chance."""
  layers = []
  if chart.trained and chart.kind in ("curves", "contexts"):
    start = {key: value for key, value in x.items() if key != "field"}
    start |= {"datum": min(place(str(point.x)) for point in chart.points)}
    layers.append(
      {
        "mark": {"type": "rect", "color": GRAY, "opacity": 0.13},
        "data": {"values": [{}]},
        "encoding": {"x": start, "x2": {"datum": chart.trained}},
      }
    )
  if any(chart.chance):
    places = [place(p) for p in dict.fromkeys(str(point.x) for point in chart.points)]
    levels = [
      {"x": at, "mean": chart.y.factor * each, "group": "blind to order", "shown": "chance"}
      for at, each in zip(places, chart.chance, strict=True)
      if each is not None
    ]
    layers.append({"mark": {"type": "line", "color": GRAY, "strokeDash": [1, 3]},
                   "data": {"values": levels}, "encoding": {"x": x, "y": y}})  # fmt: skip
  if level is not None:
    layers.append({"mark": {"type": "rule", "strokeDash": [4, 3]},
                   "encoding": {"y": {"datum": level}}})  # fmt: skip
  return layers


def _y_scale(chart: Chart, rows: Sequence[Spec]) -> Spec:
  """Return the scale of a score: a share's own range, or logarithmic for losses over decades."""
  means = [row["mean"] for row in rows]
  least, most, percent = min(means), max(means), chart.y.metric.percent
  kind = {"zero": False, "nice": False}
  if chart.kind == "steps" and not percent and least > 0 and most > DECADES * least:
    return kind | {"type": "log", "domain": [0.8 * least, 1.2 * most]}
  low, high = ends_of_axis(rows)
  low = min([low, *(chart.y.factor * level for level in chart.chance if level is not None)])
  return kind | {"domain": [max(low, -2.0), min(high, 102.0)] if percent else [low, high]}


def _x_axis(chart: Chart, rows: Sequence[Spec]) -> Spec:
  """Return the channel of x, logarithmic where lengths, rates or costs span decades."""
  channel = {"field": "x", "title": short(chart.x, 56)}
  if chart.kind == "parts":
    angle = {"labelAngle": 0, "labelOverlap": True, "labelLimit": 90}
    return channel | {"type": "nominal", "sort": None, "axis": angle}
  values = sorted({row["x"] for row in rows})
  axis: Spec = {"grid": False}
  if len(values) <= LINES and chart.kind != "steps":
    axis["values"] = values
  if chart.x in COSTS:
    axis = axis | {"format": ".3~s", "tickCount": 5}
    axis.pop("values", None)
  elif chart.kind == "numbers":
    axis["labelExpr"] = "datum.value"  # a format would be rounded to how far ticks are apart
  return channel | {"type": "quantitative", "axis": axis, "scale": scale(chart, values)}


def scale(chart: Chart, values: Sequence[float]) -> Spec:
  """Return the scale of x for ascending values.

  It is logarithmic for costs, lengths and learning rates, and for values that span decades or are
  more evenly spaced on a logarithmic axis; 0 then has a place of its own. It is linear for steps,
  and where values are negative.
  """
  positive = [value for value in values if value > 0]
  rate = chart.x.endswith("learning_rate") or chart.x in COSTS
  wide = bool(positive) and (positive[-1] >= 10 * positive[0] or rate)
  if positive == [*values] and len(values) > 2:  # they stand more evenly on a logarithmic axis
    plain, logs = np.diff(values), np.diff(np.log(values))
    wide |= bool(np.ptp(logs) / np.mean(logs) < min(0.5, np.ptp(plain) / np.mean(plain)))
  of_length = chart.kind in ("contexts", "curves")
  if chart.kind == "steps" or values[0] < 0 or not (wide or of_length):
    return LINEAR
  return _logarithmic(values, 2 if of_length else 10)


def other_scale(chart: Chart) -> Spec | None:
  """Return the scale of x that a reader can choose instead; None if values allow no other."""
  values = sorted({float(point.x) for point in chart.points})
  if "type" in scale(chart, values):
    return LINEAR
  return None if values[0] < 0 or values[-1] == 0 else _logarithmic(values, 10)


def _logarithmic(values: Sequence[float], base: int) -> Spec:
  """Return a logarithmic scale for ascending values; 0 has a place of its own on it."""
  if values[0] == 0:
    least = next(value for value in values if value > 0)
    return {"type": "symlog", "constant": least, "nice": False, "padding": 8}
  return {"type": "log", "base": base, "nice": False, "padding": 8}


def _ends(
  rows: Sequence[Spec], names: Sequence[str], y: Spec, height: int, color: Spec, shape: Spec
) -> list[Spec]:
  """Return the names at the ends of lines, with their markers, moved apart where ends are near."""
  to, back = (np.log, np.exp) if y["scale"].get("type") == "log" else (np.array, np.array)
  low, high = to(y["scale"]["domain"])
  called = dict(zip(names, distinct(names, END), strict=True))
  last = {row["group"]: row for row in rows}  # the rightmost: rows are in the order of x
  order = sorted((name for name in names if name in last), key=lambda name: last[name]["mean"])
  share = (to([last[name]["mean"] for name in order]) - low) / (high - low)
  at = back(low + apart(share * height, LINE, height) / height * (high - low))
  labels = [
    last[name] | {"mean": mean, "text": called[name]}
    for name, mean in zip(order, at.tolist(), strict=True)
  ]
  every = {"y": y, "x": {"value": "width"}, "opacity": VISIBLE, "tooltip": tooltip()}
  dot = {"type": "point", "filled": True, "size": 45, "xOffset": 9}
  text = {"type": "text", "align": "left", "xOffset": 17}
  return [
    {"data": {"values": labels}, "mark": dot, "encoding": every | {"color": color, "shape": shape}},
    {"data": {"values": labels}, "mark": text, "encoding": every | {"text": {"field": "text"}}},
  ]


def apart(places: np.ndarray, least: float, most: float) -> np.ndarray:
  """Move ascending places as little as needed until they are `least` apart, and within 0 to `most`
  if there is room for all.
  """
  moved = places.astype(float)
  for at in range(1, len(moved)):
    moved[at] = max(moved[at], moved[at - 1] + least)
  limit = most
  for at in reversed(range(len(moved))):
    moved[at] = min(moved[at], limit)
    limit = moved[at] - least
  return moved
