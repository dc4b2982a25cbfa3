"""Scores by group and length, those of training and longer ones, as heat maps with their curves."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle

from posexp.plotting import GRAY, band, heat, legend_label, line_style, numbers, panels
from posexp.reporting import scores
from posexp.reporting.grouping import Group
from posexp.reporting.results import Results
from posexp.reporting.significance import over_seeds
from posexp.reporting.text import short
from posexp.runs.metrics import METRICS, Score
from posexp.tasks.diagnostic import REACHED

SPLITS = ("test", "beyond")
MOST = 10  # curves in a panel
ROWS = 40  # groups in a map
NAME = 28  # letters of a group
CMAP = "YlGnBu"  # of 0 light, of 1 dark, also in print
FAILED = "#d4d4d4"
LOOKS = {
  "not learned": {"facecolor": FAILED, "edgecolor": "w"},
  "not applicable": {"facecolor": "w", "edgecolor": "#b0b0b0", "hatch": "////"},
}
CAPTION = (
  "The farthest reaching group comes first; a line ends the lengths of training. Cells are "
  "means over seeds, beyond the line over those that learned (3 of 5); gray: no seed learned; "
  "hatched: not applicable. Thin lines are seeds, dotted those that did not learn; bands are 95 % "
  "intervals."
)


class Cell(NamedTuple):
  """The scores of a group at a length."""

  values: list[float]  # of the seeds that count, which may be none
  runs: int  # that have a score there, whether it counts or not

  @property
  def mean(self) -> float | None:
    return float(np.mean(self.values)) if self.values else None

  @property
  def state(self) -> str:
    """ "measured", "not learned", or "not applicable": where no run has a score."""
    return "measured" if self.values else "not learned" if self.runs else "not applicable"


class Grid(NamedTuple):
  """A score by group and length; the farthest reaching group comes first."""

  task: str
  groups: list[Group]
  lengths: list[Score]  # the columns, all lengths of training before longer ones
  trained: int  # how many of these are of training
  cells: list[list[Cell]]  # by group and length, of as many groups as are shown
  chance: list[float | None]  # by length: the level of a model that is blind to order

  @property
  def places(self) -> np.ndarray:
    """Where columns stand on an axis: at their length, the middle of a range, float [lengths]."""
    ends = (re.findall(r"\d+", each.part) for each in self.lengths)
    return np.array([np.mean([*map(int, each)]) for each in ends])


def grid(results: Results) -> Grid | None:
  """Return the score of a task by length; None where it is not measured in and beyond training by
  it, or where what is beyond training is not so by its length.
  """
  parts = scores.by_part(results.score, results.runs)
  if not all(split in parts and scores.lengths(parts[split]) for split in SPLITS):
    return None
  lengths = [score for split in SPLITS for score in parts[split]]
  if len({score.part for score in lengths}) < len(lengths):
    return None
  groups = [group for group in results.groups if group.repeats]
  groups.sort(key=lambda group: _order(group, lengths), reverse=True)
  cells = [[_cell(group, score) for score in lengths] for group in groups[:ROWS]]
  levels = ([run.score(f"chance/{each.key}") for run in results.runs] for each in lengths)
  chance = [next(filter(None, level), None) for level in levels]
  return Grid(results.task, groups, lengths, len(parts["test"]), cells, chance)


def _cell(group: Group, score: Score) -> Cell:
  values, every = (
    [value for run in runs if (value := run.score(score.key)) is not None]
    for runs in (group.counting(score), group.repeats.values())
  )
  return Cell(values, len(every))


def _order(group: Group, lengths: Sequence[Score]) -> tuple[int, float]:
  """Return how many lengths from the first on are reached, by the seeds that learned, and the sum
  of their scores.
  """
  runs = group.counting(lengths[-1])
  if not runs:
    return -1, 0.0
  means = np.mean([[run.score(score.key) or 0.0 for score in lengths] for run in runs], axis=0)
  return int(np.cumprod(means >= REACHED).sum()), float(means.sum())


def heat_map(grid: Grid) -> Figure:
  """Draw the score in every cell in per cent, and beside it the curves."""
  rows, columns = len(grid.cells), len(grid.lengths)
  widths = [1.9 + 0.34 * columns, 4.2]
  title = grid.lengths[0].metric.title
  figure, ((left, right),) = panels(
    1,
    2,
    width=sum(widths) / 2,
    height=max(2.0, 0.4 + 0.3 * rows),
    title=f"{short(grid.task, 40)}: {title} by length (%){_of(rows, len(grid.groups))}",
    width_ratios=widths,
  )
  mosaic(left, grid.cells, np.ones(columns), 100)
  left.set_xticks(range(columns), [each.part for each in grid.lengths])
  left.set_yticks(range(rows), names(grid))
  left.axvline(grid.trained - 0.5, color="k", linewidth=1.6)
  left.set_xlabel("length")
  curves(right, grid)
  right.set(xlabel="length", ylabel=f"{title} (%)")
  right.legend(loc="upper left", bbox_to_anchor=(1.01, 1))
  _explain(figure, grid.cells)
  return figure


def _of(shown: int, every: int) -> str:
  """Return what a title adds where not all groups are shown."""
  return f", the first {shown} of {every:,} groups" if shown < every else ""


def _explain(figure: Figure, cells: Sequence[Sequence[Cell]]) -> None:
  """Draw a legend of the cells without a number, where there are some."""
  states = {cell.state for row in cells for cell in row}
  patches = [Patch(label=state, **look) for state, look in LOOKS.items() if state in states]
  if patches:
    figure.legend(handles=patches, loc="outside lower left", ncols=2)


def names(grid: Grid) -> list[str]:
  """Return the titles of rows: groups, and how many of their seeds learned where not all did."""
  found = []
  for group in grid.groups[: len(grid.cells)]:
    learned, every = len(group.counting(grid.lengths[-1])), len(group.repeats)
    some = f" ({learned} of {every})" if learned < every else ""
    found.append(short(group.label, NAME) + some)
  return found


def mosaic(axes: Axes, cells: Sequence[Sequence[Cell]], whole: np.ndarray, factor: float) -> None:
  """Draw cells with their means times `factor`, in colors from 0 to the `whole` of their column."""
  means = np.array([[cell.mean or 0.0 for cell in row] for row in cells])
  shares = means / whole
  heat(axes, shares, cmap=CMAP, limits=(0.0, 1.0))
  written = np.ma.array(factor * means)
  for row, column in np.ndindex(means.shape):
    if look := LOOKS.get(cells[row][column].state):
      axes.add_patch(Rectangle((column - 0.5, row - 0.5), 1, 1, linewidth=0.5, **look))
      written[row, column] = np.ma.masked
  numbers(axes, written, ".0f", shares > 0.55, 7)
  rows, columns = means.shape
  axes.vlines(np.arange(1, columns) - 0.5, -0.5, rows - 0.5, color="w", linewidth=0.6)
  axes.hlines(np.arange(1, rows) - 0.5, -0.5, columns - 0.5, color="w", linewidth=0.6)
  axes.tick_params(length=0, labelsize=8)
  axes.spines[:].set_visible(False)


def curves(axes: Axes, grid: Grid, ranks: Mapping[str, int] | None = None) -> None:
  """Draw the means of groups over length with bands, every seed, and the level of chance.

  `ranks` numbers the labels of groups, where several panels share them.
  """
  places = grid.places
  for rank, (group, cells) in enumerate(zip(grid.groups[:MOST], grid.cells, strict=False)):
    line = line_style((ranks or {}).get(group.label, rank))
    for run in group.repeats.values():
      y = 100 * np.array([run.score(score.key) for score in grid.lengths], float)
      failed = run.learned(grid.lengths[-1].split) is False
      axes.plot(places, y, **line | ({"linestyle": ":"} if failed else {}), alpha=0.35, lw=0.6)
    ends = 100 * np.array([over_seeds(cell.values).ends for cell in cells])
    band(axes, places, *ends.T, label=legend_label(short(group.label, NAME)), **line)
  if any(grid.chance):
    chance = 100 * np.array(grid.chance, float)
    axes.plot(places, chance, color=GRAY, linestyle="-.", lw=1, label="blind to order")
  axes.axvline(places[grid.trained - 1 : grid.trained + 1].mean(), color="k", lw=1.2)
  axes.set_ylim(-3, 103)


def small_multiples(grids: Sequence[Grid]) -> Figure:
  """Draw the curves of several tasks, with one color for each group."""
  columns = 2 if len(grids) in (2, 4) else 3
  rows = math.ceil(len(grids) / columns)
  labels = dict.fromkeys(group.label for grid in grids for group in grid.groups[:MOST])
  ranks = {label: rank for rank, label in enumerate(labels)}
  figure, panel = panels(rows, columns, width=3.3, height=2.3, title="", sharey=True)
  handles = {}
  for axes, grid in zip(panel.flat, grids, strict=False):
    curves(axes, grid, ranks)
    axes.set(title=short(grid.task, 40), xlabel="length")
    handles |= {line.get_label(): line for line in axes.lines if line.get_label()[0] != "_"}
  for axes in panel.flat[len(grids) :]:
    axes.set_axis_off()
  figure.set_figheight(figure.get_figheight() + 0.22 * math.ceil(len(handles) / columns))
  figure.supylabel(f"{grids[0].lengths[0].metric.title} (%)")
  figure.legend(handles=list(handles.values()), loc="outside lower center", ncols=columns)
  return figure


def reach_map(grids: Sequence[Grid]) -> Figure | None:
  """Draw how far each group reaches in each task, colored by the share of the longest tested
  length; None unless several tasks have a `reach`.

  The farthest reaching group comes first. Groups of tasks are the same where their labels are.
  """
  score = Score("beyond/reach", METRICS["reach"], "beyond")
  reached, longest = {}, []
  for grid in grids:
    groups = [g for g in grid.groups if any(run.score(score.key) is not None for run in g.runs)]
    if groups:
      reached[grid.task] = {group.label: _cell(group, score) for group in groups}
      longest.append(grid.places.max())
  if len(reached) < 2:
    return None
  every = dict.fromkeys(label for cells in reached.values() for label in cells)
  rows = {label: [cells.get(label, Cell([], 0)) for cells in reached.values()] for label in every}

  def share(label: str) -> float:
    return sum((cell.mean or 0.0) / most for cell, most in zip(rows[label], longest, strict=True))

  labels = sorted(rows, key=share, reverse=True)[:ROWS]
  figure, ((axes,),) = panels(
    1,
    1,
    width=1.3 + 0.95 * len(reached),
    height=0.3 + 0.3 * len(labels),
    title="reach: the length up to which exact match is at least 90 %"
    f"{_of(len(labels), len(rows))}",
  )
  cells = [rows[label] for label in labels]
  mosaic(axes, cells, np.array(longest), 1)
  axes.set_xticks(range(len(reached)), [short(task, 14) for task in reached])
  axes.set_yticks(range(len(labels)), [short(label, NAME) for label in labels])
  _explain(figure, cells)
  return figure
