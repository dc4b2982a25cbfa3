"""Where rows stand: their cells, what columns can tell, and means over columns."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import io
import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from posexp import reading
from posexp.board import aggregates
from posexp.board.aggregates import Interval
from posexp.board.choices import Choice
from posexp.board.suite import SIDES, TRACKS, Column, Suite, tested_on
from posexp.errors import UserError
from posexp.reporting.significance import Contrast, Difference, Estimate, estimate, holm
from posexp.runs import Run
from posexp.runs.metrics import Score, score
from posexp.runs.records import read_records

ANCHORS = ("rope", "none")  # rows that others are compared with
LEVEL = 0.05


@dataclasses.dataclass(frozen=True, eq=False)
class Cell:
  """The final runs of a row in a column, on one side: those of the chosen point, or of two points
  that trials cannot tell apart.
  """

  column: Column
  side: str
  points: dict[str, list[Run]]  # by the options of a point, as they are typed
  at_edge: bool = False  # whether a rate beyond those that were tried may be better

  @property
  def runs(self) -> list[Run]:
    return [run for runs in self.points.values() for run in runs]

  @property
  def score(self) -> Score:
    return score(self.column.sides[self.side].score)

  @functools.cached_property
  def values(self) -> dict[int, float]:
    """The score of each seed, a mean over points."""
    of_seed: dict[int, list[float]] = {}
    for run in self.runs:
      if (value := run.score(self.score.key)) is not None:
        of_seed.setdefault(run.seed, []).append(value)
    return {seed: statistics.fmean(of_seed[seed]) for seed in sorted(of_seed)}

  @functools.cached_property
  def worth(self) -> np.ndarray:
    """The worth of the score of each seed, float [seeds]."""
    return np.array([*map(self.column.sides[self.side].worth, self.values.values())])

  @property
  def mean(self) -> float:
    """The mean worth, rounded so that the order of summation makes no difference."""
    return round(float(self.worth.mean()), 9)

  @functools.cached_property
  def estimate(self) -> Estimate:
    return estimate([*self.values.values()], self.score.most)

  @property
  def learned(self) -> int:
    """The number of runs that have learned the task, where the task has a gate."""
    return sum(run.learned("beyond") is not False for run in self.runs)

  @functools.cached_property
  def of_learned(self) -> Cell:
    """The cell without the runs that have not learned the task."""
    if self.learned == len(self.runs):
      return self
    kept = {
      point: [run for run in runs if run.learned("beyond") is not False]
      for point, runs in self.points.items()
    }
    return dataclasses.replace(self, points=kept)

  @property
  def reach(self) -> float | None:
    """The mean of the longest lengths that are reached."""
    reached = [value for run in self.runs if (value := run.score("beyond/reach")) is not None]
    return statistics.fmean(reached) if reached else None


@dataclasses.dataclass(frozen=True, eq=False)
class Standing:
  """A row in one track."""

  name: str
  about: dict[str, Any]
  track: str
  cells: dict[tuple[str, str], Cell]  # by column and side
  chosen: dict[str, str]  # by column, the options of the best trial, as they are typed
  trials: list[Run]
  incomplete: set[str]  # columns that lack a choice, or a final run
  other: list[str]  # columns that were trained with other options, or on other examples

  def finals(self, column: str) -> list[Run]:
    """Return the runs of its cells in a column."""
    return [run for (name, _), cell in self.cells.items() if name == column for run in cell.runs]

  def over(
    self, columns: Iterable[Column], side: str, learned: bool = False
  ) -> dict[str, np.ndarray] | None:
    """Return the worth of each seed by column; None if the row has no cell in one of the columns,
    or is not ranked there.

    With `learned`, only runs that learned the task count, and columns without any are left out.
    """
    row_cells = {column.name: self.cells.get((column.name, side)) for column in columns}
    if any(cell is None or cell.at_edge for cell in row_cells.values()):
      return None
    worth = {n: (cell.of_learned if learned else cell).worth for n, cell in row_cells.items()}
    return {name: each for name, each in worth.items() if each.size} or None

  @property
  def runs(self) -> list[Run]:
    return [*self.trials, *(run for cell in self.cells.values() for run in cell.runs)]

  def costs(self, key: str) -> dict[tuple[str, str], float]:
    """Return the median of a figure, as `parameters`, by column and, of seconds, by processor."""
    of_time = key.startswith("time/")
    every: dict[tuple[str, str], list[float]] = {}
    for cell in self.cells.values():
      for run in cell.runs:
        if (value := run.score(key)) is not None:
          processor = str(run.facts.get("processor")) if of_time else ""
          every.setdefault((cell.column.name, processor), []).append(value)
    return {place: statistics.median(values) for place, values in every.items()}


def of_file(file: Path, suite: Suite) -> list[Standing]:
  """Return the standings in a row's file, one a track, without columns that have changed.

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
  is_tuned = suite.whole.option and not about["quick"]
  tracks = {track: None for column in suite.columns.values() for track in column.tracks if is_tuned}
  return [_standing(about, track, every, suite, other) for track in tracks or TRACKS[:1]]


def _standing(
  about: dict[str, Any], track: str, every: Sequence[Run], suite: Suite, other: list[str]
) -> Standing:
  budget, cells, chosen = suite.budget(about["quick"]), {}, {}
  incomplete = {each.name for each in suite.columns.values() if track in each.tracks}
  for column in suite.columns.values():
    runs = [run for run in every if run.task == column.name]
    choice = Choice.of(runs, about["default"], column) if track in column.tracks else None
    if choice is None or not (points := choice.of_track(track)):
      continue
    finals = {
      point.typed: [r for r in runs if not r.trial and r.digest == point.runs[0].digest]
      for point in points
    }
    names = " or ".join(point.typed for point in points)
    chosen[column.name] = f"not chosen: {names}" if len(points) > 1 else names
    if all(len(final) >= budget.seeds for final in finals.values()):
      incomplete.discard(column.name)
    at_edge = budget.doublings > 0 and any(map(choice.at_edge, points))
    for side in column.sides:
      if (cell := Cell(column, side, finals, at_edge)).values:
        cells[column.name, side] = cell
  trials = [run for run in every if run.trial]
  return Standing(about["name"], about, track, cells, chosen, trials, incomplete, other)


def _of_same_tests(standings: list[Standing], suite: Suite) -> list[Standing]:
  """Return standings without cells that were tested on other examples than the newest in a column
  of the user's own, whose examples are not frozen.
  """
  for name in [column.name for column in suite.columns.values() if column.examples is None]:
    runs = [run for each in standings for run in each.finals(name)]
    if not runs:
      continue
    newest = tested_on(max(runs, key=lambda run: str((run.summary or {}).get("ended", ""))))
    for at, each in enumerate(standings):
      if any(tested_on(run) != newest for run in each.finals(name)):
        kept = {key: cell for key, cell in each.cells.items() if key[0] != name}
        standings[at] = dataclasses.replace(each, cells=kept, other=[*each.other, name])
  return standings


def of_folder(folder: Path, suite: Suite) -> list[Standing]:
  """Return the standings of all rows in a folder; UserError as in `of_file`."""
  return [each for file in sorted(folder.glob("*.parquet")) for each in of_file(file, suite)]


def took(rows: Iterable[Standing]) -> dict[str, dict[str, list[float]]]:
  """Return the seconds that the runs of some rows have taken, by column and row."""
  taken: dict[str, dict[str, list[float]]] = {}
  for row in rows:
    for run in row.runs:
      taken.setdefault(run.task, {}).setdefault(row.name, []).append(run.score("time/seconds") or 0)
  return taken


def boards(suite: Suite, rows: Sequence[Standing]) -> list[Board]:
  """Return the board of each track in which a row has a cell."""
  tracks = (Board.of(suite, rows, track) for track in TRACKS)
  return [board for board in tracks if board.rows]


@dataclasses.dataclass(frozen=True, eq=False)
class Board:
  """All rows of a track."""

  suite: Suite
  track: str
  rows: list[Standing]

  @classmethod
  def of(cls, suite: Suite, standings: Sequence[Standing], track: str) -> Board:
    """Return the rows of a track that have a cell, those with the best mean over columns first."""
    every = [standing for standing in standings if standing.track == track]
    rows = [standing for standing in _of_same_tests(every, suite) if standing.cells]
    board = cls(suite, track, rows)
    means = {row.name: [board.overall(side).get(row.name) for side in SIDES] for row in rows}
    place = {name: sum(each.value for each in found if each) for name, found in means.items()}
    complete = {name: None not in found for name, found in means.items()}
    rows.sort(key=lambda each: (not complete[each.name], -place[each.name]))
    return board

  @functools.cached_property
  def columns(self) -> list[tuple[Column, str]]:
    """The columns and sides that have a cell."""
    pairs = [(column, side) for column in self.suite.columns.values() for side in column.sides]
    return [(c, s) for c, s in pairs if any((c.name, s) in row.cells for row in self.rows)]

  def shared(self, side: str) -> list[Column]:
    """Return the columns over which means are taken: those that most rows have, but no controls and
    none that causal encodings lack.
    """
    columns = [c for c, s in self.columns if s == side and not c.control and not c.encoder]
    return [column for column in columns if 2 * len(self.cells(column, side)) > len(self.rows)]

  def cells(self, column: Column, side: str) -> dict[str, Cell]:
    """Return the cells of a column by their rows."""
    of_row = {row.name: row.cells.get((column.name, side)) for row in self.rows}
    return {name: cell for name, cell in of_row.items() if cell is not None}

  def ranked(self, column: Column, side: str) -> dict[str, Cell]:
    """Return the cells of a column whose rates are bracketed."""
    return {name: c for name, c in self.cells(column, side).items() if not c.at_edge}

  def best(self, column: Column, side: str) -> list[str]:
    """Return the rows with the best mean of a column: several, if these are equal."""
    means = {name: cell.mean for name, cell in self.ranked(column, side).items()}
    return [name for name, mean in means.items() if mean == max(means.values())]

  def anchor(self, name: str) -> Standing | None:
    return next((row for row in self.rows if row.name == name), None)

  @functools.cache  # noqa: B019  # a board lives as long as its page is drawn
  def overall(self, side: str, learned: bool = False) -> dict[str, Interval]:
    """Return the interquartile mean of worth of each row that has all shared columns, over all
    seeds or those that have learned the task.
    """
    columns = self.shared(side)
    worths = {row.name: row.over(columns, side, learned) for row in self.rows if columns}
    return {name: aggregates.overall([*worth.values()]) for name, worth in worths.items() if worth}

  @functools.cache  # noqa: B019
  def improvements(self, side: str, anchor: str, learned: bool = False) -> dict[str, Interval]:
    """Return the probability that each row is better than an anchor, with p by Holm over the rows.
    With `learned`, only seeds that learned the task count, over the columns in which both rows have
    some.
    """
    columns, base = self.shared(side), self.anchor(anchor)
    theirs = base.over(columns, side, learned) if base and columns else None
    improved = {}
    for row in self.rows if theirs else ():
      own = row.over(columns, side, learned) if row is not base else None
      if both := [name for name in own or () if name in theirs]:
        pair = ([worths[name] for name in both] for worths in (own, theirs))
        improved[row.name] = aggregates.improvement(*pair)
    corrected = holm([chance.p for chance in improved.values()])
    return {n: each._replace(p=p) for (n, each), p in zip(improved.items(), corrected, strict=True)}

  def doubtful(self, side: str, anchor: str, column: Column | None = None) -> list[str]:
    """Return the rows that change sides of an anchor if seeds that did not learn are left out: in a
    column, or in the means over columns.
    """
    if column is None:
      every, rest = (self.improvements(side, anchor, learned) for learned in (False, True))
      signs = {n: (p.value - 0.5, rest[n].value - 0.5) for n, p in every.items() if n in rest}
    else:
      cells = self.ranked(column, side)
      base = cells.pop(anchor, None)
      pairs = {n: ((c, base), (c.of_learned, base.of_learned)) for n, c in cells.items() if base}
      signs = {
        name: [own.mean - other.mean for own, other in both]
        for name, both in pairs.items()
        if all(cell.worth.size for cell in both[1])
      }
    return [name for name, (every, rest) in signs.items() if every * rest < 0]

  @functools.cache  # noqa: B019
  def differences(
    self, column: Column, side: str, anchor: str = ANCHORS[0]
  ) -> dict[str, Difference]:
    """Return how the rows of a column differ from an anchor, p by Holm over the rows."""
    cells = self.ranked(column, side)
    if (base := cells.get(anchor)) is None:
      return {}
    different = {
      name: Difference.of(cell.values, base.values, cell.score.most)
      for name, cell in cells.items()
      if cell is not base
    }
    tested = [difference for difference in different.values() if difference.p is not None]
    for difference, p in zip(tested, holm([each.p for each in tested]), strict=True):
      difference.holm = p
    return different

  def told(self, name: str) -> list[tuple[Column, str]]:
    """Return the columns in which a row is told apart from `rope`."""
    tests = ((c, s, self.differences(c, s).get(name)) for c, s in self.columns)
    return [(c, s) for c, s, each in tests if each and each.holm is not None and each.holm < LEVEL]

  def detectable(self, column: Column, side: str) -> float | None:
    """Return the smallest difference that a column's seeds find with a power of 80 %, if rows vary
    over seeds as the median row does.
    """
    n, cells = self.suite.whole.seeds, self.cells(column, side).values()
    deviations = [cell.estimate.sd for cell in cells if cell.estimate.n == n > 1]
    if not deviations:
      return None
    variance = statistics.median(deviation**2 / n for deviation in deviations)
    both = Contrast(0.0, 0.0, np.diag([variance] * 2), 2.0 * (n - 1), None, (n, n), False)
    return both.detectable()

  def ranks(self, side: str) -> dict[str, float]:
    """Return the mean reciprocal rank of each row that has all shared columns."""
    worths = {row.name: row.over(self.shared(side), side) for row in self.rows}
    kept = {name: worth.values() for name, worth in worths.items() if worth}
    if not kept:
      return {}
    means = np.array([[task.mean() for task in tasks] for tasks in kept.values()])
    return dict(zip(kept, aggregates.reciprocal_ranks(means).tolist(), strict=True))

  def cost(self, row: Standing, key: str) -> float | None:
    """Return a row's cost over that of `none`, seconds on the same processor, as a median over
    columns.
    """
    none = self.anchor("none")
    own, base = (standing.costs(key) if standing else {} for standing in (row, none))
    ratios = [own[place] / base[place] for place in own if base.get(place)]
    return statistics.median(ratios) if ratios else None


def about_row(file: Path) -> dict[str, Any]:
  """Return the metadata of a row's file; raise UserError if it has none, or damaged ones."""
  import pyarrow
  from pyarrow import parquet

  kinds: dict[str, Any] = {"suite": str, "name": str, "encoding": str, "default": dict}
  kinds["columns"] = dict  # the digest of each column
  kinds |= {"quick": bool, "options": list, "code": dict | None}
  about: dict[str, Any] = {}
  with contextlib.suppress(pyarrow.ArrowException, OSError, ValueError, TypeError, LookupError):
    data = io.BytesIO(reading.read(file) or b"")
    about = dict(reading.parse(parquet.read_schema(data).metadata[b"posexp"]))
  if not kinds.keys() <= about.keys() or not reading.is_plain(about):
    raise UserError(f"{file} is no row of a leaderboard; python -m posexp.leaderboard writes them")
  wrong = [key for key, kind in kinds.items() if not isinstance(about[key], kind)]
  if not wrong:
    code = about["code"]
    texts = {"options": about["options"], "entries": about.get("entries", [])}
    texts["code"] = [] if code is None else [code.get("file"), code.get("sha256")]
    wrong = [
      key
      for key, each in texts.items()
      if not isinstance(each, list) or not all(isinstance(text, str) for text in each)
    ]
  if wrong:
    raise UserError(f"{file}: its metadata is damaged: {wrong[0]} is {about[wrong[0]]!r:.60}")
  return about
