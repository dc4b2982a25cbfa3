"""Figures of a report as SVG for a page, in colors that the page gives them."""

from __future__ import annotations

import io
import math
import re
from collections.abc import Iterator, Sequence
from html import escape
from typing import NamedTuple

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from posexp.plotting import COLORS
from posexp.reporting import scores
from posexp.reporting.grouping import label
from posexp.reporting.intervals import Estimate, estimate
from posexp.reporting.results import COSTS, Row, Section
from posexp.runs import metrics
from posexp.runs.metrics import Score

MOST = 10  # groups in a figure
SIZE = (4.4, 3.1)  # inches: what a phone shows without making it smaller
INK, RULE = "#1a1a1b", "#e5e5e6"  # told apart from all other colors, to be replaced
DASHES = ("-", "--", ":")
MARKERS = "os^Dv<>P"
VARIABLES = {INK: "currentColor", RULE: "var(--rule)"} | {
  color.lower(): f"var(--c{index})" for index, color in enumerate(COLORS)
}
RC = {
  "text.color": INK,
  "axes.edgecolor": INK,
  "axes.labelcolor": INK,
  "xtick.color": INK,
  "ytick.color": INK,
  "grid.color": RULE,
  "axes.facecolor": "none",
  "figure.facecolor": "none",
  "font.size": 9,
  "legend.fontsize": 8,
}


class Drawn(NamedTuple):
  """A figure, and what stands below it."""

  title: str
  svg: str
  caption: str


BARS = "Means; bars are 95 % intervals over seeds, where there are two or more."


def shown(section: Section) -> list[Row]:
  """The groups that figures show: all, or the first ones, the baseline and the last."""
  rows = [row for row in section.rows if row.score is not None and not row.group.mixed]
  if len(rows) <= MOST:
    return rows
  chosen = rows[: MOST - 2]
  ends = [row for row in (section.baseline, rows[-1]) if row is not None and row not in chosen]
  return [*chosen, *{id(row): row for row in ends}.values()]


def style(rank: int) -> dict[str, str]:
  """The line of the group with that place among those shown."""
  return {
    "color": COLORS[rank % len(COLORS)],
    "linestyle": DASHES[rank // len(COLORS) % len(DASHES)],
    "marker": MARKERS[rank % len(MARKERS)],
  }


def figures(section: Section) -> Iterator[Drawn]:
  """All figures that there are for a section."""
  rows = shown(section)
  everything = sum(row.score is not None and not row.group.mixed for row in section.rows)
  few = f" Of {everything} groups {len(rows)} are drawn." if len(rows) < everything else ""
  of = section.metric.metric
  table = metrics.declared(run.summary for run in section.runs)
  with matplotlib.rc_context(RC):
    for key in section.by:
      if drawn := against_option(section, key):
        yield drawn
    for name in dict.fromkeys((f"validation/{of.name}", "validation/loss")):
      if drawn := curves(rows, metrics.score(name, table), few):
        yield drawn
    for split, parts in scores.by_part(section.metric, section.runs).items():
      yield by_part(rows, split, parts, few)
    for cost in ("flops_per_token", "seconds"):
      if drawn := against_cost(rows, section.metric, cost, few):
        yield drawn


def curves(rows: Sequence[Row], metric: Score, few: str) -> Drawn | None:
  """A metric by step: the mean over seeds, and the standard deviation around it."""
  figure, axes = _figure()
  bands = False
  for rank, row in enumerate(rows):
    steps, values = scores.curve(list(row.group.counted.values()), metric.key)
    if not len(steps):
      continue
    values = metric.factor * values
    look = style(rank) | {"marker": "." if len(steps) < 30 else None}
    axes.plot(steps, values.mean(0), label=row.label, linewidth=1.4, **look)
    if len(values) > 1:
      mean, sd = values.mean(0), values.std(0, ddof=1)
      axes.fill_between(steps, mean - sd, mean + sd, color=look["color"], alpha=0.18, linewidth=0)
      bands = True
  if not axes.lines:
    return None
  axes.set_xlabel("step")
  axes.set_ylabel(_axis(metric))
  band = "; bands are ± one standard deviation over seeds" if bands else ""
  return _drawn(figure, f"Learning curves, {metric.title}", f"Means{band}.{few}")


def against_option(section: Section, key: str) -> Drawn | None:
  """The score against a numeric option, with a line for each combination of the others."""
  lines: dict[str, list[tuple[float, Row]]] = {}
  for row in section.rows:
    value = _float(row.group.values[key])
    if value is not None and row.score is not None and not row.group.mixed:
      rest = {k: v for k, v in row.group.values.items() if k != key}
      lines.setdefault(label(rest, row.group.runs), []).append((value, row))
  lines = {name: sorted(points, key=lambda each: each[0]) for name, points in lines.items()}
  lines = dict(sorted(lines.items(), key=lambda each: -len(each[1]))[:MOST])
  values = sorted({value for points in lines.values() for value, _ in points})
  if len(values) < 2:
    return None
  figure, axes = _figure()
  for rank, (name, points) in enumerate(lines.items()):
    _bars(axes, [v for v, _ in points], [r for _, r in points], section.metric, name, rank)
  base = section.baseline
  if base is not None and _float(base.group.values[key]) is None and base.score is not None:
    level = section.metric.factor * base.score.mean
    axes.axhline(level, color=INK, linestyle="--", linewidth=1, label=base.label)
  _scale(axes, values, ticks=len(values) <= 8)
  axes.set_xlabel(key)
  axes.set_ylabel(_axis(section.metric))
  return _drawn(
    figure,
    f"{section.metric.title.capitalize()} against {key}",
    BARS,
  )


def by_part(rows: Sequence[Row], split: str, parts: Sequence[Score], few: str) -> Drawn:
  """A metric of the lengths, or the groups, that a split consists of."""
  figure, axes = _figure()
  lengths, metric = scores.lengths(parts), parts[0]
  for rank, row in enumerate(rows):
    points = {}
    for place, part in enumerate(parts):
      values = [run.score(part.key) for run in row.group.counted.values()]
      if values and None not in values:
        points[place] = estimate(values)
    # Side by side, or intervals would hide each other.
    aside = 0.0 if lengths else 0.5 * (rank - (len(rows) - 1) / 2) / max(len(rows), 1)
    look = style(rank) | ({} if lengths else {"linestyle": "none"})
    _errors(axes, [p + aside for p in points], list(points.values()), metric, row.label, look)
  axes.set_xticks(range(len(parts)), [each.part for each in parts])
  axes.set_xlabel("length" if lengths else "group")
  axes.set_ylabel(_axis(metric))
  what = "length" if lengths else "group"
  name = metric.metric.title
  caption = f"{BARS} Measured on {split}.{few}"
  return _drawn(figure, f"{name[:1].upper()}{name[1:]} by {what}, {split}", caption)


def against_cost(rows: Sequence[Row], metric: Score, cost: str, few: str) -> Drawn | None:
  """The score against what it cost."""
  rows = [(rank, row) for rank, row in enumerate(rows) if cost in row.costs]
  if len(rows) < 2:
    return None
  figure, axes = _figure()
  for rank, row in rows:
    look = style(rank) | {"linestyle": "none"}
    _errors(axes, [row.costs[cost]], [row.score], metric, row.label, look)
  _scale(axes, sorted({row.costs[cost] for _, row in rows}), ticks=False)
  axes.set_xlabel({"seconds": "seconds of training"}.get(cost, COSTS[cost]))
  axes.set_ylabel(_axis(metric))
  caption = f"{BARS}{few}"
  return _drawn(figure, f"{metric.title.capitalize()} against {COSTS[cost]}", caption)


def _figure() -> tuple[Figure, Axes]:
  figure = Figure(figsize=SIZE, layout="constrained")
  return figure, figure.subplots()


def _axis(metric: Score) -> str:
  return f"{metric.metric.title}{' (%)' if metric.metric.percent else ''}"


def _bars(
  axes: Axes, x: Sequence[float], rows: Sequence[Row], metric: Score, name: str, rank: int
) -> None:
  _errors(axes, x, [row.score for row in rows], metric, name, style(rank))


def _errors(
  axes: Axes,
  x: Sequence[float],
  found: Sequence[Estimate],
  metric: Score,
  name: str,
  look: dict[str, str],
) -> None:
  """Estimates with their intervals, as far as they have any."""
  if not found:
    return
  scale = metric.factor
  half = [0.0 if each.low is None else scale * (each.high - each.mean) for each in found]
  axes.errorbar(
    x,
    [scale * each.mean for each in found],
    yerr=half if any(half) else None,
    label=name,
    markersize=5,
    linewidth=1.4,
    capsize=2.5,
    **look,
  )
  if scale > 1:  # shares: an interval may go beyond what there can be
    low, high = axes.get_ylim()
    axes.set_ylim(max(low, -2), min(high, 102))


def _scale(axes: Axes, values: Sequence[float], *, ticks: bool) -> None:
  """A logarithmic axis where values span decades; 0 then has a place of its own."""
  positive = [value for value in values if value > 0]
  if values[0] >= 0 and positive and positive[-1] / positive[0] >= 10:
    if values[0] > 0:
      axes.set_xscale("log")
      axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
      axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
      axes.xaxis.set_minor_locator(NullLocator())
    else:
      axes.set_xscale("symlog", linthresh=positive[0], linscale=0.5)
  if ticks:
    axes.set_xticks(values, [f"{value:g}" for value in values])
    axes.minorticks_off()
  elif axes.get_xscale() == "linear":
    axes.ticklabel_format(axis="x", style="sci", scilimits=(-3, 5), useMathText=True)


def _float(text: str) -> float | None:
  try:
    value = float(text)
  except ValueError:
    return None
  return value if math.isfinite(value) else None


def _drawn(figure: Figure, title: str, caption: str) -> Drawn:
  axes = figure.axes[0]
  handles, labels = axes.get_legend_handles_labels()
  if len(labels) > 1 or any(labels):
    labels = [each if len(each) <= 56 else f"{each[:55]}…" for each in labels]
    columns = 1 if max(map(len, labels)) > 20 else 2
    figure.set_figheight(SIZE[1] + 0.19 * math.ceil(len(labels) / columns))
    figure.legend(handles, labels, loc="outside lower left", ncols=columns, frameon=False)
  out = io.StringIO()
  figure.savefig(out, format="svg", metadata={"Date": None}, transparent=True)
  return Drawn(title, inline(out.getvalue(), title), caption)


def inline(text: str, title: str) -> str:
  """An SVG file as a part of a page: with the page's colors, and no names that are not used."""
  text = text[text.index("<svg") :]
  text = re.sub(r"<metadata>.*?</metadata>\s*", "", text, flags=re.DOTALL)
  used = set(re.findall(r"#([\w.]+)", text))
  text = re.sub(
    r' id="([^"]+)"', lambda found: found.group(0) if found.group(1) in used else "", text
  )
  text = re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", text, count=1)
  text = re.sub(r'(<svg[^>]*?) width="[^"]*"', r"\1", text, count=1)
  for color, variable in VARIABLES.items():
    text = text.replace(color, variable)
  return text.replace("<svg", f'<svg role="img" aria-label="{escape(title)}"', 1)
