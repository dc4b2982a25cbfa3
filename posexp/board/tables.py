"""The tables of the leaderboard, as Markdown and LaTeX."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence

from posexp.board import aggregates
from posexp.board.aggregates import Interval
from posexp.board.standings import ANCHORS, Board, Cell
from posexp.board.suite import SIDES, Column
from posexp.errors import counted
from posexp.reporting import paper
from posexp.reporting.text import MISSING, Section, Table, document, p_number

COSTS = {"parameters": "parameters", "FLOPs": "flops_per_token", "time": "time/cpu_seconds"}
SEEN = 0.02  # of worth, more than which an effect has to be to be spoken of


def shown(cell: Cell | None, mark: str = "") -> str:
  """Return the mean of a cell with its interval, and how many seeds learned if not all did."""
  if cell is None:
    return MISSING
  number, (_, mean, _, low, high) = cell.score.number, cell.estimate
  text = number(mean)
  if low is not None:
    halves = {number(mean - low), number(high - mean)}
    text += f" ± {halves.pop()}" if len(halves) == 1 else f" ({number(low)} to {number(high)})"
  return f"{text}{mark}{_few(cell)}"


def _few(cell: Cell) -> str:
  """Return how many seeds learned if not all did; the mean then holds anchors for the others."""
  return f" [{cell.learned}/{len(cell.runs)}]" if cell.learned < len(cell.runs) else ""


def _mark(board: Board, name: str, column: Column, side: str) -> str:
  """Return the sign of a row that is told apart from `rope`, by whether it is worth more."""
  if (column, side) not in board.told(name):
    return ""
  own, base = (board.cells(column, side)[each].worth.mean() for each in (name, ANCHORS[0]))
  return paper.MARKS["better" if own > base else "worse"]


def scores(board: Board, side: str) -> Table:
  """Return the scores of all rows on one side."""
  columns = [column for column, each in board.columns if each == side]
  heads = ["", *(f"{each.name} ({_unit(board, each, side)})" for each in columns)]
  rows = []
  for row in board.rows:
    seeds, cells = board.suite.budget(row.about["quick"]).seeds, []
    for column in columns:
      cell = row.cells.get((column.name, side))
      few = f" (n = {len(cell.runs)})" if cell and len(cell.runs) < seeds else ""
      cells.append(shown(cell, _mark(board, row.name, column, side)) + few)
    rows.append([row.name + " (provisional)" * row.about["quick"], *cells])
  return heads, rows


def _unit(board: Board, column: Column, side: str) -> str:
  metric = next(iter(board.cells(column, side).values())).score.metric
  return metric.name.replace("_", " ") + ", %" * metric.percent


def _interval(found: Interval | None, digits: int = 2) -> str:
  if found is None:
    return MISSING
  return f"{found.value:.{digits}f} ({found.low:.{digits}f} to {found.high:.{digits}f})"


def means(board: Board) -> Table:
  """Return the means over columns of each row, what it is told apart in, and what it costs."""
  sides = [side for side in SIDES if board.overall(side)]
  heads = ["", *(f"worth {side}" for side in sides)]
  heads += [f"better than {a}, {side} (p)" for a in ANCHORS for side in sides]
  heads += [f"reciprocal rank {side}" for side in sides]
  heads += ["differs from rope in", *(f"{what} against none" for what in COSTS)]
  rows = []
  for row in board.rows:
    cells = [_interval(board.overall(side).get(row.name)) for side in sides]
    for anchor in ANCHORS:
      found = [board.improvements(side, anchor).get(row.name) for side in sides]
      cells += [MISSING if f is None else f"{f.value:.2f} ({p_number(f.p)})" for f in found]
    ranks = [board.ranks(side).get(row.name) for side in sides]
    cells += [MISSING if each is None else f"{each:.2f}" for each in ranks]
    compared = sum(row.name in board.differences(c, s) for c, s in board.columns)
    told = f"{len(board.told(row.name))} of {compared}" if compared else MISSING
    costs = [board.cost(row, key) for key in COSTS.values()]
    cells += [told, *(MISSING if each is None else f"{each:.2f}" for each in costs)]
    rows.append([row.name, *cells])
  return heads, rows


def matters(board: Board) -> Table:
  """Return by how much encodings matter in each column, and the smallest difference that it can
  tell.
  """
  heads = ["column", "need", "side", "best", "its score", *ANCHORS, "best − rope", "best − none"]
  heads += ["least detectable", "median SD", "told apart from rope", "mean reach of the best"]
  rows = []
  for column, side in board.columns:
    cells = board.cells(column, side)
    best = max(cells, key=lambda name: cells[name].worth.mean())
    of, top = cells[best].score, cells[best].estimate.mean
    anchors = [cells.get(each) for each in ANCHORS]
    told = sum((column, side) in board.told(name) for name in cells)
    deviations = [c.estimate.sd for c in cells.values() if c.estimate.sd is not None]
    spread = statistics.median(deviations) if deviations else None
    reach = cells[best].reach if side == "beyond" else None
    numbers = [board.detectable(column, side), spread]
    rows.append([
      column.name, column.control or column.need, side, best, of.number(top),
      *(MISSING if c is None else of.number(c.estimate.mean) + _few(c) for c in anchors),
      *(MISSING if c is None else of.number(top - c.estimate.mean, "+") for c in anchors),
      *(MISSING if each is None else of.number(each) for each in numbers),
      f"{told} of {len(cells) - 1}", MISSING if reach is None else f"{reach:.0f}",
    ])  # fmt: skip
  return heads, rows


def tuning(board: Board) -> Table:
  """Return what the trials of each row have chosen in each column."""
  columns = list(dict.fromkeys(column for column, _ in board.columns))
  rows = [[row.name, *(row.chosen.get(c.name, MISSING) for c in columns)] for row in board.rows]
  return ["", *(each.name for each in columns)], rows


def agreement(board: Board, variants: Sequence[Board]) -> Section:
  """Return whether variants of a suite, with other models, rank rows as the suite does."""
  heads = ["variant", "column", "side", "rows", "rank correlation"]
  heads += [f"best in suite {board.suite.name}", "best in the variant"]
  rows = []
  for other in variants:
    for column, side in other.columns:
      there, here = other.cells(column, side), board.cells(board.suite.columns[column.name], side)
      names = [name for name in here if name in there]
      if len(names) < 3:
        continue
      cells = [[found[name] for name in names] for found in (here, there)]
      found = aggregates.rank_correlation(*([cell.worth for cell in each] for each in cells))
      best = [max(zip(names, each, strict=True), key=lambda x: x[1].worth.mean()) for each in cells]
      shares = [f"{name}, {shown(cell)}" for name, cell in best]
      rows.append([other.suite.name, column.name, side, f"{len(names)}", _interval(found), *shares])
  about = "Spearman's ρ of the means of the rows that both have, with its 95 % interval over seeds."
  return Section("another size and another block", (heads, rows), [about])


def notes(board: Board) -> list[str]:
  """Return what a reader must know of a table."""
  suite, budget = board.suite, board.suite.whole
  shared = {side: [c.name for c in board.shared(side)] for side in SIDES}
  said = [
    f"Suite {suite.name}, {board.track} track. "
    f"{counted(budget.seeds, 'seed')}; {len(budget.rates)} learning rates"
    + (" times two values of the encoding's main option" if board.track == "tuned" else "")
    + f", at {counted(len(budget.trial_seeds), 'seed')} of their own, chosen by validation.",
    "± is half of the 95 % interval over seeds. ⁺ and ⁻: told apart from rope (p < 0.05, Holm's "
    "correction over the rows of a column). [3/5]: three of five seeds learned the task; others "
    "count as the low anchor beyond.",
    "Worth is (score − low) / (high − low). Its interquartile mean is over the seeds of "
    + "; ".join(f"{side}: {', '.join(names) or 'no column'}" for side, names in shared.items())
    + ". Controls, columns with an encoder, which causal encodings lack, and columns that few rows "
    "have yet are no part of it.",
  ]
  greatest = {
    name: f"rate={each.learning_rate * max(budget.rates):g}" for name, each in suite.columns.items()
  }
  choices = [each for row in board.rows for each in row.chosen.items()]
  if edge := sum(typed.endswith(greatest[name]) for name, typed in choices):
    said.append(
      f"Trials chose the greatest rate in {edge} of {len(choices)} cells: even greater ones may be "
      "better there."
    )
  for column, side in board.columns:
    said += _of_column(board, column, side)
  for row in board.rows:
    if row.about["quick"]:
      said.append(f"{row.name} is provisional: fewer trials and seeds than all others.")
    if row.other:
      said.append(
        f"{row.name} has no cell in {', '.join(row.other)}: the column has other options or other "
        "examples now; the command of the row trains it again."
      )
    if (made := len(row.about.get("entries", []))) > 1:
      said.append(f"{row.name} is entry {made} under this name: its code or options changed.")
  if board.anchor(ANCHORS[0]):
    alike = [row.name for row in board.rows if row.name not in ANCHORS and not board.told(row.name)]
    verb = "is" if len(alike) == 1 else "are"
    said += [f"{', '.join(alike)} {verb} not told apart from rope in any column."] * bool(alike)
  return [*dict.fromkeys(said)]


def _of_column(board: Board, column: Column, side: str) -> Iterator[str]:
  """Yield what a reader must know of one side of a column."""
  cells = board.cells(column, side)
  means = [each.worth.mean() for each in cells.values()]
  if not column.control and len(cells) > 1 and max(means) - min(means) < SEEN:
    yield f"{column.name} ({side}) tells no rows apart: all are within {SEEN:g} of worth."
  unlearned = [(n, c) for n, c in cells.items() if c.learned < len(c.runs)]
  if side == "beyond" and unlearned:
    unlearned.sort(key=lambda item: -item[1].of_all_seeds)
    shares = [f"{name} {cell.score.number(cell.of_all_seeds)}" for name, cell in unlearned]
    yield f"{column.name} ({side}), seeds that did not learn included: {', '.join(shares)}."
  needs_none = column.control == "A/A" and side == "within"
  if needs_none and any((column, side) in board.told(name) for name in cells):
    yield f"{column.name} ({side}) needs no order and tells rows apart: doubt this table."


def sections(board: Board) -> list[Section]:
  """Return all tables of a track."""
  sides = [side for side in SIDES if any(each == side for _, each in board.columns)]
  titles = {"within": "at the lengths of training", "beyond": "beyond the lengths of training"}
  tables = [("how much it matters", matters(board))]
  tables += [(f"scores {titles[side]}", scores(board, side)) for side in sides]
  tables += [("means over columns", means(board)), ("options that trials chose", tuning(board))]
  found = [Section(f"{board.track} track: {title}", table, []) for title, table in tables]
  found[-2].notes.extend(notes(board))
  return found


def markdown(boards: Sequence[Board]) -> str:
  """Return the tables of all tracks in Markdown."""
  return document([section for board in boards for section in sections(board)])


def latex(board: Board, side: str) -> str:
  """Return the scores of one side as a table for a paper, which needs booktabs."""
  heads, rows = scores(board, side)
  best = set()
  for at, (column, _) in enumerate([each for each in board.columns if each[1] == side], 1):
    means = {n: c.worth.mean() for n, c in board.cells(column, side).items()}
    top = max(means.values())
    best |= {(i, at) for i, row in enumerate(board.rows) if means.get(row.name) == top}
  caption = f"Encodings {side} the lengths of training. " + " ".join(notes(board)[:2])
  label = f"tab:leaderboard-{board.track}-{side}"
  return paper.Paper((heads, rows), best, caption, label).latex
