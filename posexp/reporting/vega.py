"""The pieces of which charts in Vega-Lite are made: data, channels, labels, and how they look."""

from __future__ import annotations

import re
import textwrap
import zlib
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from posexp.reporting.charts import Point
from posexp.reporting.palette import COLORS, GRAY
from posexp.reporting.text import MISSING, one_line, short
from posexp.runs.metrics import Score

Spec = dict[str, Any]

BLUE, ORANGE, GREEN, PINK, SKY, RED, VIOLET, BROWN = COLORS

LINES = 20  # groups in a chart with a line for each
FEW = 4  # lines that have room for their intervals side by side
NAME = 26  # letters in a line of a group's name
WIDE = 1.6  # of the height, the part of the interval that decides how far an axis goes
FONT = "Helvetica Neue, Helvetica, Arial, Liberation Sans, DejaVu Sans, sans-serif"
CONFIG: Spec = {
  "font": FONT,
  "view": {"stroke": None},
  "axis": {"gridColor": "#e5e5e5", "tickColor": "#bbbbbb", "domainColor": "#bbbbbb",
           "titleFontWeight": "normal", "labelFontSize": 11, "titleFontSize": 11,
           "labelColor": "#1b1b1f", "titleColor": "#1b1b1f"},
  "axisX": {"labelOverlap": "greedy", "labelSeparation": 6},
  "axisY": {"labelLimit": 260},
  "text": {"fontSize": 10, "color": "#1b1b1f"},
  "rule": {"color": "#1b1b1f"},
  "title": {"anchor": "start", "fontSize": 12},
}  # fmt: skip
HIDDEN = {"test": "indexof(hidden, datum.group) >= 0", "value": 0}
PALE = {"test": "picked == '' || picked == datum.group", "value": 1}
PICKED = {"condition": PALE, "value": 0.25}
VISIBLE = {"condition": [HIDDEN, PALE], "value": 0.25}


def of_score(y: Score) -> str:
  """Return the title of an axis with values of a score."""
  return f"{y.title} (%)" if y.metric.percent else y.title


def data_row(point: Point, y: Score) -> Spec:
  """Return a point as data: in the unit of its axis, and as text for who hovers over it."""
  estimated, seeds = point.found, sorted(point.seeds, reverse=True)
  mean, low, high = (None if np.isnan(end) else plain(y.factor * end) for end in estimated.ends)
  shown = point.state or ("" if mean is None else y.number(estimated.mean))
  if low is not None:
    shown += f" ({y.number(estimated.low)} to {y.number(estimated.high)})"
  each = " ".join(map(y.number, seeds[:12])) + (" …" if len(seeds) > 12 else "")
  return {
    "group": one_line(point.series),
    "x": point.x if isinstance(point.x, float | int) else one_line(point.x),
    "mean": mean, "low": low, "high": high, "shown": shown, "seeds": each or MISSING,
  }  # fmt: skip


def plain(value: float) -> float:
  """Return a value with as many digits as a chart can show."""
  return float(f"{value:.6g}")


def tooltip(*others: tuple[str, str]) -> list[Spec]:
  named = (("group", "group"), *others, ("shown", "mean (95 %)"), ("seeds", "seeds"))
  return [{"field": field, "title": title} for field, title in named]


def channels(names: Sequence[str], encodings: Sequence[str]) -> tuple[Spec, ...]:
  """Return the channels of color, shape and dash of lines, the same for an encoding everywhere.

  Names take their looks in the order of the alphabet and of the numbers in them, so that a group
  looks the same in two figures that rank it differently, and the smaller number is darker.
  """
  order = sorted(range(len(names)), key=lambda at: _parts(names[at]))
  look_of = dict(zip(order, looks(encodings[at] for at in order), strict=True))
  columns = zip(*(look_of[at] for at in range(len(names))), strict=True)
  return tuple(
    {"field": "group", "type": "nominal", "legend": None}
    | {"scale": {"domain": list(names), "range": list(column)}}
    for column in columns
  )


def _parts(name: str) -> list[str | float]:
  """Return a name's texts and numbers in turn, by which names are sorted: k=4 before k=16."""
  parts = re.split(r"(\d+(?:\.\d+)?)", name)
  return [float(part) if at % 2 else part for at, part in enumerate(parts)]


def encoding_of(points: Sequence[Point], series: str) -> str:
  return next(point.group.runs[0].encoding for point in points if point.series == series)


def usual(labels: Sequence[str]) -> set[str]:
  """Return the values of options that more than half of some labels have."""
  often = Counter(word for label in labels for word in {*label.split()})
  return {word for word, count in often.items() if "=" in word and 2 * count > len(labels)}


def distinct(labels: Sequence[str], most: int = 2 * NAME) -> list[str]:
  """Return the labels of groups for an axis, shortened as far as they still differ.

  Words that all labels have are left out, and so are values of options that most labels have; what
  is left is cut to `most` letters.
  """
  words = [label.split() for label in labels]
  shared, often = set.intersection(*map(set, words)), usual(labels)
  for dropped in (shared | often, often, shared, set()):
    own = [" ".join(word for word in each if word not in dropped) for each in words]
    if all(own) and len({*own}) == len({*labels}):
      break
  cut = [short(name, most) for name in own]
  return cut if len(set(cut)) == len(cut) else own


def row_labels(labels: Sequence[str]) -> tuple[list[str], Spec, int]:
  """Return labels in lines, the axis that shows them so, and the pixels that a row needs."""
  lines = [textwrap.wrap(label, NAME, break_on_hyphens=False) or [""] for label in distinct(labels)]
  axis = {"labelExpr": "split(datum.label, '\\n')", "domain": False, "ticks": False, "grid": False}
  axis |= {"labelPadding": 6}
  return ["\n".join(line) for line in lines], axis, 9 + 12 * max(map(len, lines))


def ends_of_axis(rows: Sequence[Spec]) -> tuple[float, float]:
  """Return the ends of an axis that holds all values, and intervals of the usual length.

  A longer one ends at the edge, if it goes further than WIDE ranges of the values beyond them.
  """
  values = [
    each for row in rows for each in (row["mean"], *row.get("each", ())) if each is not None
  ]
  least, most = min(values), max(values)
  ends = [(row["low"], row["high"]) for row in rows if row["low"] is not None]
  usual = float(np.median([high - low for low, high in ends])) if ends else 0.0
  beyond = max(WIDE * ((most - least) or abs(least) or 1.0), usual)
  low = max(min([least, *(low for low, _ in ends)]), least - beyond)
  high = min(max([most, *(high for _, high in ends)]), most + beyond)
  room = 0.04 * (high - low) or 1.0
  return low - room, high + room


FAMILIES: dict[str, dict[str, str]] = {  # marker -> encoding -> color
  "cross": {"none": GRAY},
  "circle": {  # vectors of positions, at the input
    "sinusoidal": BLUE, "learned": ORANGE, "index": GREEN, "binary": PINK, "clock": SKY,
    "normalized": RED, "complex": VIOLET, "fope": BROWN,
  },
  "square": {  # vectors of distances, in attention
    "rpr": RED, "transformer_xl": PINK, "deberta": VIOLET, "tupe": BROWN, "split": GREEN,
    "by_layer": BLUE,
  },
  "triangle-up": {  # biases of the logits
    "alibi": SKY, "t5": VIOLET, "kerple": BROWN, "fire": ORANGE, "sandwich": GREEN, "dape": PINK,
    "inkling": RED, "cope": BLUE,
  },
  "diamond": {  # rotations and other maps of queries and keys
    "rope": GREEN, "xpos": ORANGE, "pope": VIOLET, "selective_rope": RED, "path": BLUE,
    "grape": PINK,
  },
  "triangle-down": {"fox": BLUE, "stick_breaking": ORANGE, "delta": RED},  # what forgets
}  # fmt: skip
SPARE = ("triangle-left", "triangle-right")  # markers of all other encodings, such as plugins'
DASHES = ([1, 0], [6, 3], [2, 2], [8, 3, 2, 3])  # lengths of lines and gaps, in pixels
DARKEST, LIGHTEST = -0.2, 0.55  # of the shades of one encoding with several values of its options
UNORDERED = {"by_layer"}  # its patterns, unlike numbers, have no order that shades could show


class Look(NamedTuple):
  """How an encoding is drawn."""

  color: str  # "#0072B2"
  shape: str  # the name of a marker, as Vega has it
  dash: list[int]


def look(encoding: str) -> Look:
  """Return how an encoding is drawn; a name that posexp does not know always gets the same look."""
  for shape, colors in FAMILIES.items():
    if encoding in colors:
      return Look(colors[encoding], shape, DASHES[0])
  color, lap = zlib.crc32(encoding.encode()) % len(COLORS), zlib.crc32(encoding.encode()[::-1]) % 2
  return Look(COLORS[color], SPARE[lap], DASHES[0])


def looks(encodings: Iterable[str]) -> list[Look]:
  """Return the looks of lines in their order.

  Several lines of one encoding get shades of its color, from dark to light, and different dashes;
  several patterns of layers get a color each, as they have no order, and from the ninth on another
  marker.
  """
  every = list(encodings)
  chosen = []
  for place, encoding in enumerate(every):
    color, shape, _ = look(encoding)
    rank, count = every[:place].count(encoding), every.count(encoding)
    if encoding in UNORDERED:
      lap, turn = divmod(rank, len(COLORS))
      color, shape = COLORS[turn], (shape, *SPARE)[lap % 3]
    else:
      lap = rank
      share = DARKEST + (LIGHTEST - DARKEST) * rank / (count - 1) if count > 1 else 0.0
      color = _mixed(color, share)
    chosen.append(Look(color, shape, DASHES[lap % len(DASHES)]))
  return chosen


def _mixed(color: str, share: float) -> str:
  """Return a color mixed with so much white, or black if the share is negative."""
  end = 255 if share > 0 else 0
  parts = [int(color[at : at + 2], 16) for at in (1, 3, 5)]
  return "#" + "".join(f"{round(part + abs(share) * (end - part)):02x}" for part in parts)
