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
from matplotlib.ticker import EngFormatter

from posexp.plotting import COLORS
from posexp.reporting import scores
from posexp.reporting.grouping import Group, label, number
from posexp.reporting.results import COSTS, Results
from posexp.reporting.significance import Estimate, estimate
from posexp.reporting.text import short
from posexp.runs.metrics import Score, declared, score

MOST = 10  # groups in a figure
NAME = 56  # letters of a group's name in a legend
SIZE = (4.4, 3.1)  # inches: what a phone shows without making it smaller
INK, RULE = "#1a1a1b", "#e5e5e6"  # told apart from all other colors, to be replaced
DASHES = ("-", "--", ":")
MARKERS = "os^Dv<>P"
VARIABLES = {INK: "currentColor", RULE: "var(--rule)"} | {
  color.lower(): f"var(--c{index})" for index, color in enumerate(COLORS)
}
RC = {
  "text.color": INK,
  "text.parse_math": False,  # names come from run folders
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
BARS = "Means; bars are 95 % intervals over seeds, where there are two or more."


class Drawing(NamedTuple):
  """A figure, and what stands below it."""

  title: str
  svg: str
  caption: str


class Line(NamedTuple):
  """Estimates at some places; the rank of a line decides how it looks."""

  label: str
  rank: int
  x: Sequence[float]
  found: Sequence[Estimate]


def shown(results: Results) -> list[Group]:
  """The groups that figures show: all, or the first ones, the baseline and the last."""
  groups = [group for group in results.groups if group.ranked]
  if len(groups) <= MOST:
    return groups
  first = groups[: MOST - 2]
  ends = [g for g in (results.baseline, groups[-1]) if g is not None and g not in first]
  return [*first, *{id(group): group for group in ends}.values()]


def style(rank: int) -> dict[str, str]:
  """The look of the group with that place among those shown."""
  return {
    "color": COLORS[rank % len(COLORS)],
    "linestyle": DASHES[rank // len(COLORS) % len(DASHES)],
    "marker": MARKERS[rank % len(MARKERS)],
  }


def figures(results: Results) -> Iterator[Drawing]:
  """All figures that there are for a task."""
  groups, of = shown(results), results.score.metric
  every = sum(group.ranked for group in results.groups)
  few = f" Of {every} groups {len(groups)} are drawn." if len(groups) < every else ""
  table = declared(run.summary for run in results.runs)
  with matplotlib.rc_context(RC):
    yield ranking(groups, results, few)
    for key in results.by:
      yield from against_option(results, key)
    for key in dict.fromkeys((f"validation/{of.name}", "validation/loss")):
      yield from curves(groups, score(key, table), few)
    for split, parts in scores.by_part(results.score, results.runs).items():
      yield by_part(groups, split, parts, few)
    for cost in ("flops_per_token", "seconds"):
      yield from against_cost(groups, results.score, cost, few)


def ranking(groups: Sequence[Group], results: Results, few: str) -> Drawing:
  """Means with their intervals and seeds, the best on top, and the baseline as a dashed line."""
  of, base = results.score, results.baseline
  figure, axes = _figure(_axis(of), "")
  for rank, group in enumerate(groups):
    look = style(rank) | {"linestyle": "none"}
    half = of.factor * (group.estimate.half or 0.0)
    axes.errorbar(of.factor * group.estimate.mean, -rank, xerr=half or None, capsize=3, **look)
    seeds = [of.factor * value for value in group.scores(of.key).values()]
    axes.plot(seeds, [-rank] * len(seeds), ".", color=look["color"], alpha=0.4)
  if base is not None and base.estimate is not None:
    axes.axvline(of.factor * base.estimate.mean, color=INK, linestyle="--", linewidth=1)
  axes.set_yticks([-rank for rank in range(len(groups))], [short(g.label, 24) for g in groups])
  caption = f"Means with 95 % intervals and single seeds; dashed: the baseline.{few}"
  return _drawing(figure, f"{_capital(of.title)}, ranked", caption)


def curves(groups: Sequence[Group], of: Score, few: str) -> Iterator[Drawing]:
  """A score by step: the mean over seeds, and the standard deviation around it."""
  figure, axes = _figure("step", _axis(of))
  bands = False
  for rank, group in enumerate(groups):
    steps, values = scores.curve(list(group.counted.values()), of.key)
    if not len(steps):
      continue
    look = style(rank) | {"marker": "." if len(steps) < 30 else None}
    mean = of.factor * values.mean(0)
    axes.plot(steps, mean, label=group.label, linewidth=1.4, **look)
    if len(values) > 1:
      sd = of.factor * values.std(0, ddof=1)
      axes.fill_between(steps, mean - sd, mean + sd, color=look["color"], alpha=0.18, linewidth=0)
      bands = True
  if axes.lines:
    band = "; bands are ± one standard deviation over seeds" if bands else ""
    yield _drawing(figure, f"Learning curves, {of.title}", f"Means{band}.{few}")


def against_option(results: Results, key: str) -> Iterator[Drawing]:
  """The score against a numeric option, with a line for each combination of the others."""
  points: dict[str, list[tuple[float, Estimate]]] = {}
  for group in results.groups:
    value = number(group.values[key])
    if value is not None and group.ranked:
      rest = {other: v for other, v in group.values.items() if other != key}
      points.setdefault(label(rest, group.runs), []).append((value, group.estimate))
  longest = sorted(points.items(), key=lambda each: -len(each[1]))[:MOST]
  lines = [
    Line(name, rank, *zip(*sorted(found, key=lambda each: each[0]), strict=True))
    for rank, (name, found) in enumerate(longest)
  ]
  values = sorted({value for line in lines for value in line.x})
  if len(values) < 2:
    return
  figure, axes = _figure(key, _axis(results.score))
  _plot(axes, lines, results.score)
  base = results.baseline
  if base is not None and number(base.values[key]) is None and base.estimate is not None:
    level = results.score.factor * base.estimate.mean
    axes.axhline(level, color=INK, linestyle="--", linewidth=1, label=base.label)
  _scale(axes, values, ticks=len(values) <= 8)
  yield _drawing(figure, f"{_capital(results.score.title)} against {key}", BARS)


def by_part(groups: Sequence[Group], split: str, parts: Sequence[Score], few: str) -> Drawing:
  """A score of the lengths, or the groups, that a split consists of."""
  lengths, lines = scores.lengths(parts), []
  for rank, group in enumerate(groups):
    # Side by side, or intervals would hide each other.
    aside = 0.0 if lengths else 0.5 * (rank - (len(groups) - 1) / 2) / max(len(groups), 1)
    found = {}
    for place, part in enumerate(parts):
      values = [run.score(part.key) for run in group.counted.values()]
      if values and None not in values:
        found[place + aside] = estimate(values)
    lines.append(Line(group.label, rank, list(found), list(found.values())))
  what = "length" if lengths else "group"
  figure, axes = _figure(what, _axis(parts[0]))
  _plot(axes, lines, parts[0], connected=lengths)
  axes.set_xticks(range(len(parts)), [each.part for each in parts])
  title = f"{_capital(parts[0].metric.title)} by {what}, {split}"
  return _drawing(figure, title, f"{BARS} Measured on {split}.{few}")


def against_cost(groups: Sequence[Group], of: Score, cost: str, few: str) -> Iterator[Drawing]:
  """The score against what it cost."""
  lines = [
    Line(group.label, rank, [group.costs[cost]], [group.estimate])
    for rank, group in enumerate(groups)
    if cost in group.costs
  ]
  if len(lines) < 2:
    return
  figure, axes = _figure({"seconds": "seconds of training"}.get(cost, COSTS[cost]), _axis(of))
  _plot(axes, lines, of, connected=False)
  _scale(axes, sorted({line.x[0] for line in lines}), ticks=False)
  yield _drawing(figure, f"{_capital(of.title)} against {COSTS[cost]}", f"{BARS}{few}")


def _figure(x: str, y: str) -> tuple[Figure, Axes]:
  figure = Figure(figsize=SIZE, layout="constrained")
  axes = figure.subplots()
  axes.set_xlabel(x)
  axes.set_ylabel(y)
  return figure, axes


def _axis(of: Score) -> str:
  return f"{of.metric.title}{' (%)' if of.metric.percent else ''}"


def _plot(axes: Axes, lines: Sequence[Line], of: Score, connected: bool = True) -> None:
  """Estimates with their intervals, as far as they have any."""
  for line in [line for line in lines if line.found]:
    half = [of.factor * (each.half or 0.0) for each in line.found]
    axes.errorbar(
      line.x,
      [of.factor * each.mean for each in line.found],
      yerr=half if any(half) else None,
      label=line.label,
      markersize=5,
      linewidth=1.4,
      capsize=2.5,
      **style(line.rank) | ({} if connected else {"linestyle": "none"}),
    )
  if of.metric.percent:  # an interval may go beyond what there can be
    low, high = axes.get_ylim()
    axes.set_ylim(max(low, -2), min(high, 102))


def _scale(axes: Axes, values: Sequence[float], *, ticks: bool) -> None:
  """A logarithmic axis where values span decades; 0 then has a place of its own."""
  positive = [value for value in values if value > 0]
  if values[0] >= 0 and positive and positive[-1] >= 10 * positive[0]:
    axes.set_xscale("symlog", linthresh=positive[0], linscale=0.5, subs=(2, 5))
  if ticks:
    axes.set_xticks(values, [f"{value:g}" for value in values])
    axes.minorticks_off()
  else:
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))


def _capital(title: str) -> str:
  return title[:1].upper() + title[1:]


def _drawing(figure: Figure, title: str, caption: str) -> Drawing:
  axes = figure.axes[0]
  handles, labels = axes.get_legend_handles_labels()
  if any(labels):
    labels = [short(each, NAME) for each in labels]
    columns = 1 if max(map(len, labels)) > 20 else 2
    figure.set_figheight(SIZE[1] + 0.19 * math.ceil(len(labels) / columns))
    figure.legend(handles, labels, loc="outside lower left", ncols=columns, frameon=False)
  out = io.StringIO()
  figure.savefig(out, format="svg", metadata={"Date": None}, transparent=True)
  return Drawing(title, inline(out.getvalue(), title), caption)


def inline(text: str, title: str) -> str:
  """An SVG file as a part of a page: with the page's colors, and no names that are not used."""
  text = text[text.index("<svg") :]
  text = re.sub(r"<metadata>.*?</metadata>\s*", "", text, flags=re.DOTALL)
  used = set(re.findall(r"#([\w.]+)", text))
  text = re.sub(
    r' id="([^"]+)"', lambda found: found.group(0) if found.group(1) in used else "", text
  )
  for size in ("height", "width"):
    text = re.sub(rf'(<svg[^>]*?) {size}="[^"]*"', r"\1", text, count=1)
  for color, variable in VARIABLES.items():
    text = text.replace(color, variable)
  return text.replace("<svg", f'<svg role="img" aria-label="{escape(title)}"', 1)
