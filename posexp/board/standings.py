"""Where rows stand: their cells, what columns can tell, and means over columns."""

from __future__ import annotations

import dataclasses
import functools
import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from posexp.board import aggregates
from posexp.board.aggregates import Interval
from posexp.board.rows import TRACKS, about_row
from posexp.board.suite import SIDES, Column, Suite
from posexp.errors import UserError
from posexp.reporting.significance import Contrast, Difference, Estimate, estimate, holm
from posexp.runs import Run, trials
from posexp.runs.metrics import Score, score
from posexp.runs.records import read_records

ANCHORS = ("rope", "none")  # rows that others are compared with
LEVEL = 0.05


@dataclasses.dataclass(frozen=True, eq=False)
class Cell:
  """The final runs of a row in a column, on one side."""

  column: Column
  side: str
  runs: list[Run]

  @property
  def score(self) -> Score:
    return score(self.column.sides[self.side].score)

  @functools.cached_property
  def values(self) -> dict[int, float]:
    """The score of each seed."""
    found = {run.seed: self.column.value(run, self.side) for run in self.runs}
    return {seed: value for seed, value in sorted(found.items()) if value is not None}

  @functools.cached_property
  def worth(self) -> np.ndarray:
    """The worth of the score of each seed, float [seeds]."""
    return np.array([*map(self.column.sides[self.side].worth, self.values.values())])

  @functools.cached_property
  def estimate(self) -> Estimate:
    return estimate([*self.values.values()], self.score.most)

  @property
  def learned(self) -> int:
    """The number of runs that have learned the task, where the task has a gate."""
    return sum(run.learned("beyond") is not False for run in self.runs)

  @property
  def of_all_seeds(self) -> float:
    """The mean score of all runs, in which those that have not learned the task have their own."""
    found = (run.score(self.column.sides[self.side].score) for run in self.runs)
    return statistics.fmean(value for value in found if value is not None)

  @property
  def reach(self) -> float | None:
    """The mean of the longest lengths that are reached."""
    found = [value for run in self.runs if (value := run.score("beyond/reach")) is not None]
    return statistics.fmean(found) if found else None


@dataclasses.dataclass(frozen=True, eq=False)
class Standing:
  """A row in one track."""

  name: str
  about: dict[str, Any]
  track: str
  cells: dict[tuple[str, str], Cell]  # by column and side
  chosen: dict[str, str]  # by column, the options of the best trial, as they are typed
  other: list[str]  # columns that were trained with other options, or on other examples

  def over(self, columns: Iterable[Column], side: str) -> list[np.ndarray] | None:
    """Return the worth of each seed in some columns; None if the row lacks one."""
    found = [self.cells.get((each.name, side)) for each in columns]
    return None if None in found else [each.worth for each in found]

  def costs(self, key: str) -> dict[tuple[str, str], float]:
    """Return the median of a fact of its runs, such as `parameters`, by column and processor."""
    every: dict[tuple[str, str], list[float]] = {}
    for cell in self.cells.values():
      for run in cell.runs:
        if (value := run.score(key)) is not None:
          every.setdefault((cell.column.name, str(run.facts.get("processor"))), []).append(value)
    return {place: statistics.median(values) for place, values in every.items()}


def of_file(file: Path, suite: Suite) -> list[Standing]:
  """Return what the file of a row holds, in each track; columns that have changed are left out.

  Raises:
    UserError: it is no such file, or of another suite.
  """
  about = about_row(file)
  if about["suite"] != suite.name:
    raise UserError(
      f"{file}: its runs are of the suite {about['suite']}, and not of {suite.name}: rows of "
      "several suites share no table"
    )
  same = {name for name, each in suite.columns.items() if about["columns"].get(name) == each.digest}
  every = [run for run in read_records(file, trials=True) if run.task in same]
  other = sorted({*about["columns"]} - same)
  return [
    Standing(about["name"], about, track, *_cells(every, about, track, suite), other)
    for track in TRACKS[: 1 + (not about["quick"] and suite.whole.option)]
  ]


def of_folder(folder: Path, suite: Suite) -> list[Standing]:
  """Return what the files of rows in a folder hold; UserError as in `of_file`."""
  return [each for file in sorted(folder.glob("*.parquet")) for each in of_file(file, suite)]


def boards(suite: Suite, rows: Sequence[Standing]) -> list[Board]:
  """Return the board of each track in which a row has a cell."""
  found = (Board.of(suite, rows, track) for track in TRACKS)
  return [board for board in found if board.rows]


def chosen(runs: Sequence[Run], about: dict[str, Any], track: str) -> trials.Point | None:
  """Return the best trial of a row in a column for a track, as the command chooses it."""
  (tuning,) = trials.tunings([run for run in runs if run.trial]) or [None]
  if tuning is None:
    return None
  return tuning.among(about["default"] if track == TRACKS[0] else {}).best


def _cells(
  every: Sequence[Run], about: dict[str, Any], track: str, suite: Suite
) -> tuple[dict[tuple[str, str], Cell], dict[str, str]]:
  cells, options = {}, {}
  for column in suite.columns.values():
    runs = [run for run in every if run.task == column.name]
    if (best := chosen(runs, about, track)) is None:
      continue
    finals = [run for run in runs if not run.trial and run.digest == best.runs[0].digest]
    options[column.name] = best.typed
    for side in column.sides:
      if (cell := Cell(column, side, finals)).values:
        cells[column.name, side] = cell
  return cells, options


@dataclasses.dataclass(frozen=True, eq=False)
class Board:
  """All rows of a track."""

  suite: Suite
  track: str
  rows: list[Standing]

  @classmethod
  def of(cls, suite: Suite, standings: Sequence[Standing], track: str) -> Board:
    """Return the rows of a track that have a cell, those with the best mean over columns first."""
    rows = [each for each in standings if each.track == track and each.cells]
    board = cls(suite, track, rows)
    means = {each.name: [board.overall(side).get(each.name) for side in SIDES] for each in rows}
    place = {name: sum(each.value for each in found if each) for name, found in means.items()}
    complete = {name: None not in found for name, found in means.items()}
    rows.sort(key=lambda each: (not complete[each.name], -place[each.name]))
    return board

  @functools.cached_property
  def columns(self) -> list[tuple[Column, str]]:
    """The columns and sides that have a cell."""
    pairs = [(each, side) for each in self.suite.columns.values() for side in each.sides]
    return [(c, s) for c, s in pairs if any((c.name, s) in row.cells for row in self.rows)]

  def shared(self, side: str) -> list[Column]:
    """Return the columns that means are over, which most rows have: no controls, and none that
    causal encodings lack.
    """
    found = [c for c, s in self.columns if s == side and not c.control and not c.encoder]
    return [each for each in found if 2 * len(self.cells(each, side)) > len(self.rows)]

  def cells(self, column: Column, side: str) -> dict[str, Cell]:
    """Return the cells of a column by their rows."""
    found = {row.name: row.cells.get((column.name, side)) for row in self.rows}
    return {name: cell for name, cell in found.items() if cell is not None}

  def anchor(self, name: str) -> Standing | None:
    return next((row for row in self.rows if row.name == name), None)

  @functools.cache  # noqa: B019  # a board lives as long as its page is drawn
  def overall(self, side: str) -> dict[str, Interval]:
    """Return the interquartile mean of worth of each row that has all shared columns."""
    columns = self.shared(side)
    found = {row.name: row.over(columns, side) for row in self.rows if columns}
    return {name: aggregates.overall(each) for name, each in found.items() if each}

  @functools.cache  # noqa: B019
  def improvements(self, side: str, anchor: str) -> dict[str, Interval]:
    """Return the probability that each row is better than an anchor, p by Holm over the rows."""
    columns, base = self.shared(side), self.anchor(anchor)
    theirs = base.over(columns, side) if base and columns else None
    found = {}
    for row in self.rows if theirs else ():
      if row is not base and (own := row.over(columns, side)):
        found[row.name] = aggregates.improvement(own, theirs)
    corrected = holm([each.p for each in found.values()])
    return {n: each._replace(p=p) for (n, each), p in zip(found.items(), corrected, strict=True)}

  @functools.cache  # noqa: B019
  def differences(
    self, column: Column, side: str, anchor: str = ANCHORS[0]
  ) -> dict[str, Difference]:
    """Return how the rows of a column differ from an anchor, p by Holm over the rows."""
    cells = self.cells(column, side)
    if (base := cells.get(anchor)) is None:
      return {}
    found = {
      name: Difference.of(cell.values, base.values, cell.score.most)
      for name, cell in cells.items()
      if cell is not base
    }
    tested = [each for each in found.values() if each.p is not None]
    for each, p in zip(tested, holm([each.p for each in tested]), strict=True):
      each.holm = p
    return found

  def told(self, name: str) -> list[tuple[Column, str]]:
    """Return the columns in which a row is told apart from `rope`."""
    found = ((c, s, self.differences(c, s).get(name)) for c, s in self.columns)
    return [(c, s) for c, s, each in found if each and each.holm is not None and each.holm < LEVEL]

  def detectable(self, column: Column, side: str) -> float | None:
    """Return the smallest difference that a column's seeds find with a power of 80 %, if rows vary
    over seeds as the median row does.
    """
    n, cells = self.suite.whole.seeds, self.cells(column, side).values()
    found = [cell.estimate.sd for cell in cells if cell.estimate.n == n > 1]
    if not found:
      return None
    variance = statistics.median(each**2 / n for each in found)
    both = Contrast(0.0, 0.0, np.diag([variance] * 2), 2.0 * (n - 1), None, (n, n), False)
    return both.detectable()

  def ranks(self, side: str) -> dict[str, float]:
    """Return the mean reciprocal rank of each row that has all shared columns."""
    found = {row.name: row.over(self.shared(side), side) for row in self.rows}
    found = {name: each for name, each in found.items() if each}
    means = np.array([[each.mean() for each in tasks] for tasks in found.values()])
    return (
      dict(zip(found, aggregates.reciprocal_ranks(means).tolist(), strict=True)) if found else {}
    )

  def cost(self, row: Standing, key: str) -> float | None:
    """Return the cost of a row as a multiple of that of `none`, on one processor: the median
    over columns.
    """
    none = self.anchor("none")
    own, base = (each.costs(key) if each else {} for each in (row, none))
    ratios = [own[place] / base[place] for place in own if base.get(place)]
    return statistics.median(ratios) if ratios else None
