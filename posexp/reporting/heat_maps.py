"""Heat maps of scores by group and length, with their curves, as papers show extrapolation."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle

from posexp.plotting import COLORS, GRAY, heat, numbers
from posexp.reporting.lengths import Cell, Grid, Reaches
from posexp.reporting.text import short

MOST = 10  # curves in a panel
ROWS = 40  # groups in a map
NAME = 28  # letters of a group
DASHES = ("-", "--", ":")
CMAP = "YlGnBu"  # of 0 light, of 1 dark, also in print
FAILED = "#d4d4d4"
LOOKS = {
  "not learned": {"facecolor": FAILED, "edgecolor": "w"},
  "not applicable": {"facecolor": "w", "edgecolor": "#b0b0b0", "hatch": "////"},
}
CAPTION = (
  "The farthest reaching group comes first; a line ends the lengths of training. Cells are "
  "means over seeds, beyond the line over those that learned (3 of 5); gray: no seed learned; "
  "hatched: not applicable. Thin lines are seeds, dotted those that did not learn; bands are the "
  "range of seeds, or bootstrap intervals of 5 and more."
)


def heat_map(grid: Grid) -> Figure:
  """The score in every cell in per cent, and beside it the curves."""
  every = len(grid.groups)
  grid = grid._replace(groups=grid.groups[:ROWS], cells=grid.cells[:ROWS])
  rows, columns = len(grid.groups), len(grid.lengths)
  widths = [1.9 + 0.34 * columns, 4.2]
  figure = Figure(figsize=(sum(widths) + 0.3, max(2.9, 1.3 + 0.3 * rows)), layout="constrained")
  left, right = figure.subplots(1, 2, width_ratios=widths)
  metric = grid.lengths[0].metric
  of = _of(rows, every)
  figure.suptitle(f"{short(grid.task, 40)}: {metric.title} by length (%){of}", fontsize=10)
  mosaic(left, grid.cells, [1.0] * columns, 100)
  left.set_xticks(range(columns), grid.titles)
  left.set_yticks(range(rows), names(grid))
  left.axvline(grid.trained - 0.5, color="k", linewidth=1.6)
  left.set_xlabel("length")
  curves(right, grid)
  right.set(xlabel="length", ylabel=f"{metric.title} (%)")
  right.legend(loc="upper left", bbox_to_anchor=(1.01, 1))
  _explain(figure, grid.cells)
  return figure


def _of(shown: int, every: int) -> str:
  """What a title adds where not all groups are shown."""
  return f", the first {shown} of {every:,} groups" if shown < every else ""


def _explain(figure: Figure, cells: Sequence[Sequence[Cell]]) -> None:
  """A legend of the cells without a number, where there are some."""
  states = {cell.state for row in cells for cell in row}
  patches = [Patch(label=state, **look) for state, look in LOOKS.items() if state in states]
  if patches:
    figure.legend(handles=patches, loc="outside lower left", ncols=2)


def names(grid: Grid) -> list[str]:
  """The titles of rows: groups, and how many of their seeds learned where not all did."""
  found = []
  for group in grid.groups:
    score = grid.lengths[-1]
    learned, all_runs = len(group.counting(score)), len(group.repeats)
    some = f" ({learned} of {all_runs})" if learned < all_runs else ""
    found.append(short(group.label, NAME) + some)
  return found


def mosaic(
  axes: Axes, cells: Sequence[Sequence[Cell]], whole: Sequence[float], factor: float
) -> None:
  """Cells with their means times `factor`, in colors from 0 to the `whole` of their column."""
  means = np.array([[cell.mean or 0.0 for cell in row] for row in cells])
  shares = means / np.array(whole)
  heat(axes, shares, cmap=CMAP, limits=(0.0, 1.0))
  written = np.ma.array(factor * means)
  for row, column in np.ndindex(means.shape):
    if look := LOOKS.get(cells[row][column].state):
      axes.add_patch(Rectangle((column - 0.5, row - 0.5), 1, 1, linewidth=0.5, **look))
      written[row, column] = np.ma.masked
  numbers(axes, written, ".0f", shares > 0.55, 7)
  for edge in range(1, len(whole)):
    axes.axvline(edge - 0.5, color="w", linewidth=0.6)
  for edge in range(1, len(cells)):
    axes.axhline(edge - 0.5, color="w", linewidth=0.6)
  axes.tick_params(length=0, labelsize=8)
  axes.spines[:].set_visible(False)


def curves(axes: Axes, grid: Grid, looks: Mapping[str, int] | None = None) -> None:
  """The means of groups over length with bands, every seed, and the level of chance.

  `looks` numbers the labels of groups, where several panels share them.
  """
  places = grid.places
  for rank, (group, cells) in enumerate(zip(grid.groups[:MOST], grid.cells, strict=False)):
    rank = (looks or {}).get(group.label, rank)
    look = {"color": COLORS[rank % len(COLORS)], "linestyle": DASHES[rank // len(COLORS) % 3]}
    for run in group.repeats.values():
      y = [100 * _or_nan(run.score(score.key)) for score in grid.lengths]
      failed = run.learned(grid.lengths[-1].split) is False
      axes.plot(places, y, **look | {"linestyle": ":"} if failed else look, alpha=0.35, lw=0.6)
    mean, low, high = (
      100 * np.array([_or_nan(getattr(cell.found, end)) for cell in cells])
      for end in ("mean", "low", "high")
    )
    axes.plot(places, mean, lw=1.6, label=short(group.label, NAME), **look)
    axes.fill_between(places, low, high, color=look["color"], alpha=0.12, linewidth=0)
  if any(grid.chance):
    chance = [100 * _or_nan(each) for each in grid.chance]
    axes.plot(places, chance, color=GRAY, linestyle="-.", lw=1, label="blind to order")
  axes.axvline(places[grid.trained - 1 : grid.trained + 1].mean(), color="k", lw=1.2)
  axes.set_ylim(-3, 103)


def small_multiples(grids: Sequence[Grid]) -> Figure:
  """The curves of several tasks, with one color for each group."""
  columns = 2 if len(grids) in (2, 4) else 3
  rows = math.ceil(len(grids) / columns)
  labels = dict.fromkeys(group.label for grid in grids for group in grid.groups[:MOST])
  looks = {label: rank for rank, label in enumerate(labels)}
  legend_rows = math.ceil((len(labels) + 1) / 5)
  size = (3.3 * columns + 0.3, 2.3 * rows + 0.4 + 0.22 * legend_rows)
  figure = Figure(figsize=size, layout="constrained")
  panels = figure.subplots(rows, columns, squeeze=False, sharey=True).ravel()
  handles = {}
  for axes, grid in zip(panels, grids, strict=False):
    curves(axes, grid, looks)
    axes.set_title(short(grid.task, 40))
    axes.set_xlabel("length")
    handles |= {line.get_label(): line for line in axes.lines if line.get_label()[0] != "_"}
  for axes in panels[len(grids) :]:
    axes.set_axis_off()
  figure.supylabel(f"{grids[0].lengths[0].metric.title} (%)", fontsize=9)
  figure.legend(handles=list(handles.values()), loc="outside lower center", ncols=5)
  return figure


def reach_map(found: Reaches) -> Figure:
  """How far each group reaches in each task, colored by the share of the longest tested length."""
  labels, none = found.labels[:ROWS], Cell([], 0)
  cells = [[found.cells.get((task, label), none) for task in found.tasks] for label in labels]
  size = (1.9 + 0.95 * len(found.tasks), 1.2 + 0.3 * len(labels))
  figure = Figure(figsize=(max(4.0, size[0]), size[1]), layout="constrained")
  axes = figure.subplots()
  mosaic(axes, cells, [found.longest[task] for task in found.tasks], 1)
  axes.set_xticks(range(len(found.tasks)), [short(task, 14) for task in found.tasks])
  axes.set_yticks(range(len(labels)), [short(label, NAME) for label in labels])
  of = _of(len(labels), len(found.labels))
  axes.set_title(f"reach: the length up to which exact match is at least 90 %{of}")
  _explain(figure, cells)
  return figure


def _or_nan(value: float | None) -> float:
  return math.nan if value is None else value
