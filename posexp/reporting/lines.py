"""Charts with a line for each group: its means, their intervals, and its name at its end."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from posexp.plotting import GRAY
from posexp.reporting.charts import Chart, place
from posexp.reporting.results import COSTS
from posexp.reporting.text import one_line, short
from posexp.reporting.vega import (
  FEW,
  LINES,
  PICKED,
  Spec,
  channels,
  data_row,
  distinct,
  encoding_of,
  ends_of_axis,
  of_score,
  tooltip,
)

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
  rows = [data_row(point, chart.y) for point in chart.points]
  rows = [row for row in rows if row["group"] in names and row["mean"] is not None]
  if chart.kind == "curves":
    rows = [row | {"x": place(row["x"])} for row in rows]
  rows.sort(key=lambda row: 0.0 if chart.kind == "parts" else row["x"])
  color, shape, dash = channels(names, encodings)
  x = _x_axis(chart, rows)
  y: Spec = {"field": "mean", "type": "quantitative", "title": of_score(chart.y)}
  y |= {"scale": _y_scale(chart, rows)}
  height = max(HEIGHT, LINE * len(names) + 40)
  layers = _behind(chart, x, y, level) + _marks(chart, len(names), x, y, (color, shape, dash))
  if len(names) > 1:
    layers += _ends(rows, names, y, height, color, shape)
  return {"height": height, "data": {"values": rows}, "layer": layers}


def _marks(chart: Chart, count: int, x: Spec, y: Spec, looks: Sequence[Spec]) -> list[Spec]:
  """Return the marks of so many lines, which need no line where x has no order."""
  color, shape, dash = looks
  faint = 0.14 if count <= FEW else 0.0
  hidden = [{"test": "picked == datum.group", "value": 0.25}]
  hidden += [{"test": "picked == ''", "value": faint}]
  every = {"x": x, "color": color}
  if chart.kind == "parts":
    every |= {"xOffset": {"field": "group", "sort": None}}
  ends = every | {"y": y | {"field": "low"}, "y2": {"field": "high"}}
  seen = every | {"y": y, "opacity": PICKED}
  size = 18 if chart.kind == "steps" else 45
  about = {"shape": shape, "tooltip": tooltip(("x", short(chart.x, 56)))}
  band = {
    "mark": {"type": "area", "clip": True},
    "encoding": ends | {"opacity": {"condition": hidden, "value": 0}},
  }
  bar = {
    "mark": {"type": "rule", "strokeWidth": 1.2, "clip": True},
    "encoding": ends | {"opacity": PICKED},
  }
  line = {"mark": {"type": "line", "strokeWidth": 1.6}, "encoding": seen | {"strokeDash": dash}}
  dot = {"mark": {"type": "point", "filled": True, "size": size}, "encoding": seen | about}
  if chart.kind in ("steps", "contexts", "curves"):
    return [band, line, dot]
  return [bar, dot] if chart.kind == "parts" else [bar, line, dot]


def _behind(chart: Chart, x: Spec, y: Spec, level: float | None) -> list[Spec]:
  """Return what stands behind lines: the lengths of training, the baseline, and chance."""
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
  """Return the scale of a score: within what a share can be, and logarithmic for a loss that falls
  by decades.
  """
  means = [row["mean"] for row in rows]
  least, most, percent = min(means), max(means), chart.y.metric.percent
  found = {"zero": False, "nice": False}
  if chart.kind == "steps" and not percent and least > 0 and most > DECADES * least:
    return found | {"type": "log", "domain": [0.8 * least, 1.2 * most]}
  low, high = ends_of_axis(rows)
  return found | {"domain": [max(low, -2.0), min(high, 102.0)] if percent else [low, high]}


def _x_axis(chart: Chart, rows: Sequence[Spec]) -> Spec:
  """Return the channel of x, logarithmic where lengths, rates or costs span decades."""
  found = {"field": "x", "title": short(chart.x, 56)}
  if chart.kind == "parts":
    angle = {"labelAngle": 0, "labelOverlap": True, "labelLimit": 90}
    return found | {"type": "nominal", "sort": None, "axis": angle}
  values = sorted({row["x"] for row in rows})
  axis: Spec = {"grid": False}
  if len(values) <= LINES and chart.kind != "steps":
    axis["values"] = values
  if chart.x in COSTS:
    axis = axis | {"format": ".3~s", "tickCount": 5}
    axis.pop("values", None)
  elif chart.kind == "numbers":
    axis["labelExpr"] = "datum.value"  # a format would be rounded to how far ticks are apart
  return found | {"type": "quantitative", "axis": axis, "scale": scale(chart, values)}


def scale(chart: Chart, values: Sequence[float]) -> Spec:
  """Return the scale of x for ascending values: logarithmic for costs, lengths and learning rates,
  and where values span decades or stand more evenly so; 0 then has a place of its own.
  """
  positive = [value for value in values if value > 0]
  rate = chart.x.endswith("learning_rate") or chart.x in COSTS
  wide = bool(positive) and (positive[-1] >= 10 * positive[0] or rate)
  if positive == [*values] and len(values) > 2:  # they stand more evenly on a logarithmic axis
    plain, logs = np.diff(values), np.diff(np.log(values))
    wide |= np.ptp(logs) / np.mean(logs) < min(0.5, np.ptp(plain) / np.mean(plain))
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
  rows: Sequence[Spec],
  names: Sequence[str],
  y: Spec,
  height: int,
  color: Spec,
  shape: Spec,
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
  every = {"y": y, "x": {"value": "width"}, "opacity": PICKED, "tooltip": tooltip()}
  dot = {"type": "point", "filled": True, "size": 45, "xOffset": 9}
  text = {"type": "text", "align": "left", "xOffset": 17}
  return [
    {"data": {"values": labels}, "mark": dot, "encoding": every | {"color": color, "shape": shape}},
    {"data": {"values": labels}, "mark": text, "encoding": every | {"text": {"field": "text"}}},
  ]


def apart(places: np.ndarray, least: float, most: float) -> np.ndarray:
  """Return ascending places moved as little as it takes to be `least` apart and within 0 to `most`,
  if there is room for all.
  """
  found = places.astype(float)
  for at in range(1, len(found)):
    found[at] = max(found[at], found[at - 1] + least)
  limit = most
  for at in reversed(range(len(found))):
    found[at] = min(found[at], limit)
    limit = found[at] - least
  return found
