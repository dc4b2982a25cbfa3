"""The tables of the leaderboard, as Markdown and LaTeX."""

from __future__ import annotations

import itertools
import statistics
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from posexp.board import aggregates
from posexp.board.aggregates import Interval
from posexp.board.standings import ANCHORS, LEVEL, Board, Cell
from posexp.board.suite import SIDES, TRACKS, Column
from posexp.errors import counted, lasting
from posexp.reporting import paper
from posexp.reporting.text import MISSING, Section, Table, document, p_number

COSTS = {"parameters": "parameters", "FLOPs": "flops_per_token", "time": "time/cpu_seconds"}
MOST = 4  # rows that are named where several are equal
SEEN = 0.02  # of worth, more than which an effect has to be to be spoken of
LUCK = "All rows have the same initial weights and batches at a seed, and so share its luck."


def shown(cell: Cell | None, mark: str = "") -> str:
  """Return the mean of a cell with its interval; both means where trials have not chosen, and
  whether its rate is at an edge.
  """
  if cell is None:
    return MISSING
  number, (_, mean, _, low, high) = cell.score.number, cell.estimate
  text = number(mean)
  if low is not None:
    halves = {number(mean - low), number(high - mean)}
    text += f" ± {halves.pop()}" if len(halves) == 1 else f" ({number(low)} to {number(high)})"
  text += mark
  if len(cell.points) > 1:
    parts = [Cell(cell.column, cell.side, {"": runs}) for runs in cell.points.values()]
    means = [number(part.estimate.mean) if part.values else MISSING for part in parts]
    text += f" not chosen: {', '.join(means)}"
  return text + " at an edge" * cell.at_edge


def _mark(board: Board, name: str, column: Column, side: str) -> str:
  """Return the sign of a row that is told apart from `rope`, by whether it is worth more."""
  if (column, side) not in board.told(name):
    return ""
  own, base = (board.cells(column, side)[each].worth.mean() for each in (name, ANCHORS[0]))
  return paper.MARKS["better" if own > base else "worse"]


def as_data(board: Board) -> list[dict[str, Any]]:
  """Return all cells of a track as `--json` keeps them; `learned` is None without a gate."""
  return [
    {"row": row.name, "column": column, "side": side, "score": cell.score.key, "worth": cell.mean}
    | cell.estimate._asdict()
    | {"learned": cell.learned if _gated(cell) else None}
    | {"chosen": row.chosen.get(column), "at_edge": cell.at_edge}
    for row in board.rows
    for (column, side), cell in row.cells.items()
  ]


def has_gate(board: Board, column: Column, side: str) -> bool:
  """Return whether the table of a side counts the runs of a column that learned its task; only that
  of `beyond` does, where runs can fail to.
  """
  return side == "beyond" and any(map(_gated, board.cells(column, side).values()))


def _gated(cell: Cell) -> bool:
  """Return whether the task of a cell says what learning it is."""
  return any(run.learned("beyond") is not None for run in cell.runs)


def scores(board: Board, side: str) -> Table:
  """Return the scores of all rows on one side, and how many of their seeds learned the task."""
  heads, rows = [""], [[row.name + " (provisional)" * row.about["quick"]] for row in board.rows]
  for column in (column for column, each in board.columns if each == side):
    gate = has_gate(board, column, side)
    heads += [f"{column.name} ({_unit(board, column, side)})", *[f"{column.name} (learned)"] * gate]
    for row, cells in zip(board.rows, rows, strict=True):
      cell = row.cells.get((column.name, side))
      is_whole = not cell or len(cell.values) >= board.suite.budget(row.about["quick"]).seeds
      few = "" if is_whole else f" (n = {len(cell.values)})"
      cells.append(shown(cell, _mark(board, row.name, column, side)) + few)
      cells += [f"{cell.learned}/{len(cell.runs)}" if cell else MISSING] * gate
  return heads, rows


def _unit(board: Board, column: Column, side: str) -> str:
  metric = next(iter(board.cells(column, side).values())).score.metric
  return metric.name.replace("_", " ") + ", %" * metric.percent


def _interval(found: Interval | None, digits: int = 2) -> str:
  if found is None:
    return MISSING
  return f"{found.value:.{digits}f} ({found.low:.{digits}f} to {found.high:.{digits}f})"


def means(board: Board) -> Table:
  """Return the means over columns of each row, with and without the seeds that did not learn, the
  columns in which it is told apart, and its costs.
  """
  sides = [(side, False) for side in SIDES if board.overall(side)]
  sides += [(side, True) for side, _ in [*sides] if _unlearned(board, side)]
  names = [side + ", seeds that learned" * learned for side, learned in sides]
  heads = ["", *(f"worth {name}" for name in names)]
  heads += [f"better than {a}, {name} (p)" for a in ANCHORS for name in names]
  heads += [f"reciprocal rank {side}" for side, learned in sides if not learned]
  heads += ["differs from rope in", *(f"{what} against none" for what in COSTS)]
  rows = []
  for row in board.rows:
    cells = []
    for side, learned in sides:
      columns = board.shared(side)
      left = len(row.over(columns, side, learned) or ())
      few = f", {left} of {len(columns)} columns" if 0 < left < len(columns) else ""
      cells.append(_interval(board.overall(side, learned).get(row.name)) + few)
    for anchor in ANCHORS:
      better = [board.improvements(side, anchor, learned).get(row.name) for side, learned in sides]
      cells += [MISSING if f is None else f"{f.value:.2f} ({p_number(f.p)})" for f in better]
    ranks = [board.ranks(side).get(row.name) for side, learned in sides if not learned]
    cells += [MISSING if rank is None else f"{rank:.2f}" for rank in ranks]
    compared = sum(row.name in board.differences(c, s) for c, s in board.columns)
    told = f"{len(board.told(row.name))} of {compared}" if compared else MISSING
    costs = [board.cost(row, key) for key in COSTS.values()]
    cells += [told, *(MISSING if cost is None else f"{cost:.2f}" for cost in costs)]
    rows.append([row.name, *cells])
  return heads, rows


def _unlearned(board: Board, side: str) -> bool:
  """Return whether some run on a side has not learned the task of its column."""
  cells = (cell for c, s in board.columns if s == side for cell in board.cells(c, s).values())
  return any(cell.learned < len(cell.runs) for cell in cells)


def named(names: Sequence[str], count: int) -> str:
  """Return the best of so many rows in words: one by its name, and several as equal."""
  if len(names) < 2:
    return names[0] if names else MISSING
  return f"all {count}" if len(names) == count else f"{len(names)} equal"


def answers(board: Board) -> Table:
  """Return the encodings to use for each need: the best row, the rows that are not told apart from
  it (by Holm's correction over the rows), and by how much it is ahead of `rope` and of no
  positions.
  """
  heads = ["to", "inputs", "best", "not told apart from it", "score", *ANCHORS, "seen from"]
  rows = []
  for column, side in board.columns:
    cells, top = board.ranked(column, side), board.best(column, side)
    if not top or column.control == "A/A":
      continue
    ahead = board.differences(column, side, top[0])
    equal = [n for n, d in ahead.items() if n not in top and (d.holm is None or d.holm >= LEVEL)]
    rest = "all others" if len(equal) == len(cells) - len(top) > 0 else ", ".join(equal[:MOST])
    rest += f" and {len(equal) - MOST} more" if "," in rest and len(equal) > MOST else ""
    best = cells[top[0]]
    scores = [best, *(cells.get(anchor) for anchor in ANCHORS)]
    shown = [MISSING if c is None else best.score.number(c.estimate.mean) for c in scores]
    least, metric = board.detectable(column, side), best.score.metric
    rows.append([
      column.label if metric.percent else f"{column.label}, in {metric.title}",
      "longer" if side == "beyond" else "as trained",
      named(top, len(cells)) if len(top) > MOST else ", ".join(top), rest or MISSING, *shown,
      MISSING if least is None else best.score.number(least, "+").removeprefix("+"),
    ])  # fmt: skip
  return heads, rows


def matters(board: Board) -> Table:
  """Return how much encodings matter in each column, and the smallest difference it can tell."""
  heads = ["column", "need", "side", "worth 0", "worth 1", "best", "its score", *ANCHORS]
  heads += ["best − rope", "best − none", "learned", "least detectable", "median SD"]
  heads += ["told apart from rope", "mean reach of the best"]
  rows = []
  for column, side in board.columns:
    cells, found = board.cells(column, side), board.best(column, side)
    best, of = cells[found[0]] if found else None, next(iter(cells.values())).score
    anchors = [cells.get(anchor) for anchor in ANCHORS]
    told = sum((column, side) in board.told(name) for name in cells)
    deviations = [c.estimate.sd for c in cells.values() if c.estimate.sd is not None]
    spread = statistics.median(deviations) if deviations else None
    reach = best.reach if best and side == "beyond" else None
    ends = column.sides[side].nothing, column.sides[side].high
    runs = [run for cell in cells.values() for run in cell.runs]
    learned = f"{sum(cell.learned for cell in cells.values())}/{len(runs)}"
    numbers = [board.detectable(column, side), spread]
    rows.append([
      column.name, column.label, side, *map(of.number, ends),
      named(found, len(cells)), of.number(best.estimate.mean) if best else MISSING,
      *(MISSING if c is None else of.number(c.estimate.mean) for c in anchors),
      *(MISSING if None in (c, best) else of.number(best.estimate.mean - c.estimate.mean, "+")
        for c in anchors),
      learned if has_gate(board, column, "beyond") else MISSING,
      *(MISSING if number is None else of.number(number) for number in numbers),
      f"{told} of {len(cells) - 1}", MISSING if reach is None else f"{reach:.0f}",
    ])  # fmt: skip
  return heads, rows


def tuning(board: Board) -> Table:
  """Return the choices of each row's trials in each column, and the cost of the trials."""
  columns = list(dict.fromkeys(column for column, _ in board.columns))
  rows = []
  for row in board.rows:
    seconds = [run.score("time/cpu_seconds") or 0.0 for run in row.trials]
    cost = f"{counted(len(row.trials), 'run')}, {lasting(sum(seconds))}"
    rows.append([row.name, *(row.chosen.get(c.name, MISSING) for c in columns), cost])
  return ["", *(column.name for column in columns), "trials, on one core"], rows


def by_seed(board: Board) -> Table:
  """Return how many rows did not learn the task of each column, by seed."""
  rows: list[list[str]] = []
  seeds = sorted(
    {seed for row in board.rows for cell in row.cells.values() for seed in cell.values}
  )
  for column, side in board.columns:
    runs = [run for cell in board.cells(column, side).values() for run in cell.runs]
    if failed := Counter(run.seed for run in runs if run.learned(side) is False):
      rows.append([column.name, str(len(runs)), *(str(failed[seed]) for seed in seeds)])
  return ["", "runs", *(f"seed {seed}" for seed in seeds)], rows


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
      cells = [[of_row[name] for name in names] for of_row in (here, there)]
      rho = aggregates.rank_correlation(*([cell.worth for cell in each] for each in cells))
      shares, most = [], 0
      for each in cells:
        best = [i for i, cell in enumerate(each) if cell.mean == max(c.mean for c in each)]
        most = max(most, len(best))
        shares.append(f"{named([names[i] for i in best], len(names))}, {shown(each[best[0]])}")
      ranks = MISSING if 2 * most > len(names) else _interval(rho)
      rows.append([other.suite.name, column.name, side, f"{len(names)}", ranks, *shares])
  about = (
    "Spearman's ρ of the means of the rows that both have, with its 95 % interval over seeds; "
  )
  about += "none where most rows share the best score, since a few seeds would decide it."
  return Section("another size and another block", (heads, rows), [about])


def notes(board: Board) -> list[str]:
  """Return the notes under a table."""
  suite, budget = board.suite, board.suite.whole
  shared = {side: [c.name for c in board.shared(side)] for side in SIDES}
  said = [
    f"Suite {suite.name}, {board.track} track. "
    f"{counted(budget.seeds, 'seed')}; {len(budget.rates)} learning rates"
    + (" times two values of the encoding's main option" if board.track != TRACKS[0] else "")
    + f", at {counted(len(budget.trial_seeds), 'seed')} of their own, chosen by validation"
    + (" a little beyond the lengths of training." if board.track == TRACKS[2] else "."),
    "± is half of the 95 % interval over seeds. ⁺ and ⁻: told apart from rope (p < 0.05, Holm's "
    "correction over the rows of a column). Learned: seeds with at least 95 % right at the lengths "
    "of training; others count with what they reached.",
    "Worth is 0 for a guess and 1 for what the task allows; both stand in the first table. Its "
    "interquartile mean is over the seeds of "
    + "; ".join(f"{side}: {', '.join(names) or 'no column'}" for side, names in shared.items())
    + ". Controls, columns with an encoder, which causal encodings lack, and columns that few rows "
    "have yet are no part of it.",
  ]
  said += _of_choices(board)
  for side, anchor in itertools.product(SIDES, ANCHORS):
    if names := board.doubtful(side, anchor):
      said.append(
        f"Whether {', '.join(names)} is better than {anchor} over all columns ({side}) depends "
        "on the seeds that did not learn: without them the sign is the other one."
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


def _of_choices(board: Board) -> Iterator[str]:
  """Yield notes on choices that the trials could not make, or made at an edge."""
  suite, budget = board.suite, board.suite.whole
  choices = [choice for row in board.rows for choice in row.chosen.items()]
  if ties := sum(typed.startswith("not chosen") for _, typed in choices):
    yield (
      f"Trials did not choose in {ties} of {len(choices)} cells, where the two values of the "
      "option differ by no more than the seeds of trials do: these cells are means over both, as "
      "far as both were trained."
    )
  greatest = {
    name: f"rate={each.learning_rate * max(budget.rates):g}" for name, each in suite.columns.items()
  }
  edges = sum(greatest[name] in typed for name, typed in choices)
  if budget.doublings:
    yield (
      f"Rates grow by factors of two, {budget.doublings} times on either side, until the best is "
      "inside them. A cell whose best is at an edge even so is marked, and not ranked."
    )
  elif edges:
    yield (
      f"Trials chose the greatest rate in {edges} of {len(choices)} cells: even greater ones may "
      "be better there."
    )


def _of_column(board: Board, column: Column, side: str) -> Iterator[str]:
  """Yield the notes on one side of a column."""
  cells = board.cells(column, side)
  means = [cell.worth.mean() for cell in cells.values()]
  if not column.control and len(cells) > 1 and max(means) - min(means) < SEEN:
    yield f"{column.name} ({side}) tells no rows apart: all are within {SEEN:g} of worth."
  for anchor in ANCHORS if side == "beyond" else ():
    if names := board.doubtful(side, anchor, column):
      yield (
        f"{column.name} ({side}): whether {', '.join(names)} is better than {anchor} depends on "
        "the seeds that did not learn: without them the sign is the other one."
      )
  needs_none = column.control == "A/A" and side == "within"
  if needs_none and any((column, side) in board.told(name) for name in cells):
    yield f"{column.name} ({side}) needs no order and tells rows apart: doubt this table."


def sections(board: Board) -> list[Section]:
  """Return all tables of a track."""
  sides = [side for side in SIDES if any(each == side for _, each in board.columns)]
  titles = {"within": "at the lengths of training", "beyond": "beyond the lengths of training"}
  tables = [("what to use", answers(board)), ("how much it matters", matters(board))]
  tables += [(f"scores {titles[side]}", scores(board, side)) for side in sides]
  tables += [("means over columns", means(board)), ("options that trials chose", tuning(board))]
  parts = [Section(f"{board.track} track: {title}", table, []) for title, table in tables]
  parts[-2].notes.extend(notes(board))
  if (unlearned := by_seed(board))[1]:
    title = f"{board.track} track: runs that did not learn the task, by seed"
    parts.append(Section(title, unlearned, [LUCK]))
  return parts


def markdown(boards: Sequence[Board]) -> str:
  """Return the tables of all tracks in Markdown."""
  return document([section for board in boards for section in sections(board)])


def latex(board: Board, side: str) -> str:
  """Return the scores of one side as a table for a paper, which needs booktabs."""
  heads, rows = scores(board, side)
  at = {head.partition(" (")[0]: i for i, head in reversed([*enumerate(heads)])}
  best = {
    (i, at[column.name])
    for column, each in board.columns
    if each == side
    for i, row in enumerate(board.rows)
    if row.name in board.best(column, side)
  }
  caption = f"Encodings {side} the lengths of training. " + " ".join(notes(board)[:2])
  label = f"tab:leaderboard-{board.track}-{side}"
  return paper.Paper((heads, rows), best, caption, label).latex
