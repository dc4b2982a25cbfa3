"""The charts of a report as SVG."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Sequence

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter

from posexp.plotting import BLUE, GRAY, band, drawn, fit_fonts, legend_label, line_style, log2_axis
from posexp.reporting import heat_maps
from posexp.reporting.charts import Chart, Point, charts
from posexp.reporting.grouping import Group, as_typed
from posexp.reporting.results import COSTS, Results
from posexp.reporting.text import short

MOST = 10  # groups in a figure with a color for each
TICKS = 16  # values that an axis names; of more it names some that are round
LETTER = 0.022  # of the width of an axis
SIZE = (4.4, 3.1)  # inches: what a phone shows without making it smaller
LINE = 26  # letters of a group's name in a line beside its row
PLAIN = {"legend.fontsize": 8}
MARKERS = "os^Dv<>PX*"  # more than there are colors, so that ten groups look different
CAPTION = (
  "Means over seeds with 95 % intervals, as bars or as bands; gray: single seeds; dashed: the "
  f"baseline. Of more than {heat_maps.ROWS} groups the best have a row, of more than {MOST} the "
  "best and the baseline a color."
)


def shown(results: Results) -> list[Group]:
  """Return the groups that figures show in colors, in the order of their scores."""
  groups = [group for group in results.groups if group.repeats]  # also what has not learned
  if results.baseline in groups[MOST:]:
    return [*groups[: MOST - 1], results.baseline]
  return groups[:MOST]


def figures(results: Results) -> Iterator[tuple[str, str]]:
  """Yield the title of each figure that there is for a task, and its SVG."""
  groups = shown(results)
  for chart in charts(results, groups):
    if len({point.x for point in chart.points}) > 1:
      yield chart.title, draw(chart, results.baseline)


def heat_map_name(task: str) -> str:
  """Return the name of the file with a task's heat map."""
  return f"lengths-{re.sub(r'[^0-9A-Za-z_.-]+', '-', task)}"


@matplotlib.rc_context(PLAIN)
def wide_figures(tasks: Sequence[Results]) -> dict[str, Figure]:
  """Draw the scores of tasks by length; return the figures by the names of their files.

  Each task has a heat map; several tasks also have all curves, and how far each group reaches.
  """
  grids = [found for results in tasks if (found := heat_maps.grid(results)) is not None]
  found = {heat_map_name(each.task): heat_maps.heat_map(each) for each in grids}
  if len(grids) > 1:
    found["lengths"] = heat_maps.small_multiples(grids)
  if (reach := heat_maps.reach_map(grids)) is not None:
    found["reach"] = reach
  return found


@matplotlib.rc_context(PLAIN)
def draw(chart: Chart, base: Group | None) -> str:
  """Return a chart as an SVG; curves of training alone need no baseline."""
  figure = Figure(figsize=SIZE, layout="constrained")
  axes = figure.subplots()
  of_score = f"{chart.y.title}{' (%)' if chart.y.metric.percent else ''}"
  if chart.kind == "names":
    axes.set_xlabel(of_score)
    _rows(axes, chart._replace(points=chart.points[: heat_maps.ROWS]), base)
    return svg(figure)
  axes.set_xlabel(short(chart.x, 56))
  axes.set_ylabel(of_score)
  names = list(dict.fromkeys(point.series for point in chart.points))[:MOST]
  places = list(dict.fromkeys(point.x for point in chart.points))
  for rank, name in enumerate(names):
    points = [point for point in chart.points if point.series == name]
    if chart.kind == "parts":  # side by side, or intervals would hide each other
      aside = 0.6 * ((rank + 0.5) / len(names) - 0.5)
      _line(axes, chart, [p._replace(x=places.index(p.x) + aside) for p in points], rank)
    else:
      _line(axes, chart, sorted(points, key=lambda point: point.x), rank)
  if chart.kind == "parts":
    axes.set_xticks(range(len(places)), [short(each, 24) for each in places])
  elif chart.kind == "numbers":
    _scale(axes, sorted(places), chart.x)
  elif chart.kind == "contexts":
    log2_axis(axes, sorted(places))
    for rank, length in enumerate(_trained_on(chart) & {*places}):
      label = "" if rank else "trained on"
      axes.axvline(length, color=GRAY, linestyle=":", linewidth=1, label=label)
  if chart.y.metric.percent:  # an interval may go beyond what a score can be
    low, high = axes.get_ylim()
    axes.set_ylim(max(low, -2), min(high, 102))
  if len(names) > 1:
    figure.set_figheight(SIZE[1] + 0.19 * len(names))
    figure.legend(loc="outside lower left", frameon=False)
  if chart.kind == "numbers" and base.label not in names:
    axes.axhline(chart.y.factor * base.estimate.mean, color="k", linestyle="--", linewidth=1)
  return svg(figure)


def _trained_on(chart: Chart) -> set[int]:
  """Return the segments of the language models in a chart."""
  runs = (run for point in chart.points for run in point.group.runs)
  return {run.settings.get("task.segment", 0) for run in runs}


def distinct(labels: Sequence[str]) -> list[str]:
  """Return the labels of groups for an axis, without the words that all labels have.

  They are cut if they still differ then.
  """
  words = [label.split() for label in labels]
  shared = set.intersection(*map(set, words))
  own = [
    " ".join(word for word in each if word not in shared) or label
    for label, each in zip(labels, words, strict=True)
  ]
  cut = [short(each, 2 * LINE) for each in own]
  return cut if len(set(cut)) == len(cut) else own


def svg(figure: Figure) -> str:
  """Return a figure as text."""
  fit_fonts(figure)
  return drawn(figure, "svg").decode()


def _rows(axes: Axes, chart: Chart, base: Group) -> None:
  """Draw a row for each group, the best on top: its seeds, their mean and its interval."""
  labels = distinct([point.x for point in chart.points])
  labels = ["\n".join(textwrap.wrap(each, LINE, break_on_hyphens=False)) for each in labels]
  mean, low, high = _ends(chart, chart.points)
  for row, point in enumerate(chart.points):
    found = [run.score(chart.y.key) for run in point.group.counted.values()]
    seeds = chart.y.factor * np.array([each for each in found if each is not None])
    axes.plot(seeds, np.full(len(seeds), row + 0.22), "o", color=GRAY, markersize=2.5, alpha=0.7)
  off = np.maximum([mean - low, high - mean], 0)
  axes.errorbar(mean, range(len(mean)), xerr=off, fmt="o", color=BLUE, markersize=4.5, capsize=2.5)
  axes.axvline(chart.y.factor * base.estimate.mean, color="k", linestyle="--", linewidth=1)
  axes.set_yticks(range(len(labels)), labels)
  axes.set_ylim(len(labels) - 0.5, -0.5)
  axes.figure.set_figheight(0.7 + sum(0.14 + 0.14 * len(each.split("\n")) for each in labels))


def _ends(chart: Chart, points: Sequence[Point]) -> np.ndarray:
  """Return means and both ends of their intervals [3,points], in the unit of the axis; of one seed
  all are equal.
  """
  found = np.array([point.found.ends for point in points])
  return chart.y.factor * np.where(np.isnan(found), found[:, :1], found).T


def _line(axes: Axes, chart: Chart, points: Sequence[Point], rank: int) -> None:
  """Draw the points of a series, with bars of their intervals, or a band along steps."""
  line = line_style(rank) | {"label": legend_label(short(points[0].series, 56))}
  if chart.kind == "parts":  # side by side: lines of equal scores would not lie on each other
    line["linestyle"] = "none"
  x = [point.x for point in points]
  y, low, high = _ends(chart, points)
  if chart.kind in ("steps", "contexts"):
    band(axes, x, y, low, high, **line)
  else:
    off, marker = np.maximum([y - low, high - y], 0), MARKERS[rank % len(MARKERS)]
    axes.errorbar(x, y, yerr=off, marker=marker, capsize=2.5, **line)


def _scale(axes: Axes, values: Sequence[float], title: str = "") -> None:
  """Make an axis logarithmic for learning rates, and where values span decades or stand more evenly
  so; 0 then has a place of its own. Few values are named, options as one types them.
  """
  positive = [value for value in values if value > 0]
  logarithmic = (
    values[0] >= 0
    and positive
    and (positive[-1] >= 10 * positive[0] or title.endswith("learning_rate") or _even(values))
  )
  if logarithmic:
    axes.set_xscale("symlog", linthresh=positive[0], linscale=0.5)
    axes.minorticks_off()
  shown = EngFormatter(sep="") if title in COSTS else lambda value: as_typed(float(f"{value:.12g}"))
  axes.xaxis.set_major_formatter(lambda value, _: shown(value))
  if len(values) <= TICKS:
    places = axes.xaxis.get_transform().transform(np.array(values, float))
    room = LETTER * (1 + max(len(shown(value)) for value in values)) * (places[-1] - places[0])
    named = [len(values) - 1]
    for at in reversed(range(len(values) - 1)):
      if places[named[0]] - places[at] >= room:
        named.insert(0, at)
    axes.set_xticks([values[at] for at in named])


def _even(values: Sequence[float]) -> bool:
  """Return whether three or more positive values stand more evenly on a logarithmic axis."""
  if len(values) < 3 or values[0] <= 0:
    return False
  plain, logs = np.diff(values), np.diff(np.log(values))
  return bool(np.ptp(logs) / logs.mean() < min(0.5, np.ptp(plain) / plain.mean()))
