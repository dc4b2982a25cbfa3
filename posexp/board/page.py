"""The tables of the leaderboard, as Markdown and LaTeX, its heat map, and its page."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path
from typing import Any

from posexp import storage
from posexp.board.standings import ANCHORS, Board, Cell
from posexp.board.suite import SIDES, Column
from posexp.errors import counted
from posexp.reporting import aggregates, figures, paper, specs, vega
from posexp.reporting.aggregates import Interval
from posexp.reporting.text import MISSING, Section, Table, document, one_line, p_number

MAP = {"scheme": "yellowgreenblue"}
SEEN = 0.02  # of worth, more than which an effect has to be to be spoken of
CHOOSE = """
for (const box of document.querySelectorAll(".columns input")) box.onchange = () => {
  const off = [...document.querySelectorAll(".columns input:not(:checked)")].map((b) => b.value);
  for (const cell of document.querySelectorAll("[data-column]"))
    cell.hidden = off.includes(cell.dataset.column);
  for (const { view } of views.values()) view.signal("off", off).runAsync();
};
"""


def shown(cell: Cell | None, mark: str = "") -> str:
  """Return the mean of a cell with its interval, and how many seeds learned if not all did."""
  if cell is None:
    return MISSING
  number, (_, mean, _, low, high) = cell.score.number, cell.estimate
  text = number(mean)
  if low is not None:
    halves = {number(mean - low), number(high - mean)}
    text += f" ± {halves.pop()}" if len(halves) == 1 else f" ({number(low)} to {number(high)})"
  few = f" [{cell.learned}/{len(cell.runs)}]" if cell.learned < len(cell.runs) else ""
  return f"{text}{mark}{few}"


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
    cells = [
      shown(row.cells.get((each.name, side)), _mark(board, row.name, each, side))
      for each in columns
    ]
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
  heads += ["differs from rope in", "parameters", "FLOPs/token", "time against none"]
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
    costs = [row.cost("parameters"), row.cost("flops_per_token")]
    slower = board.slower(row)
    cells += [told, *(MISSING if each is None else f"{each:,.0f}" for each in costs)]
    rows.append([row.name, *cells, MISSING if slower is None else f"{slower:.2f}"])
  return heads, rows


def matters(board: Board) -> Table:
  """Return for each column by how much encodings matter in it, and what it can tell."""
  heads = ["column", "need", "side", "best", "its score", *ANCHORS, "best − rope", "best − none"]
  heads += ["least detectable", "median SD", "told apart from rope", "mean reach of the best"]
  rows = []
  for column, side in board.columns:
    cells = board.cells(column, side)
    best = max(cells, key=lambda name: cells[name].worth.mean())
    of, top = cells[best].score, cells[best].estimate.mean
    anchors = [cells[each].estimate.mean if each in cells else None for each in ANCHORS]
    told = sum((column, side) in board.told(name) for name in cells)
    deviations = sorted(c.estimate.sd for c in cells.values() if c.estimate.sd is not None)
    spread = deviations[len(deviations) // 2] if deviations else None
    reach = cells[best].reach if side == "beyond" else None
    numbers = [board.detectable(column, side), spread]
    rows.append([
      column.name, column.control or column.need, side, best, of.number(top),
      *(MISSING if each is None else of.number(each) for each in anchors),
      *(MISSING if each is None else of.number(top - each, "+") for each in anchors),
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
  """Return whether variants of a suite, with other models, rank the rows of a board alike."""
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
    f"Suite {suite.name} ({suite.digest}), {board.track} track. "
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
  greatest = {c.name: f"rate={c.learning_rate * max(budget.rates):g}" for c, _ in board.columns}
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
  if column.control == "A/A" and any((column, side) in board.told(name) for name in cells):
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
  return paper.Paper((heads, rows), best, caption).latex.replace("tab:encodings", label)


def heat_map(board: Board, side: str) -> dict[str, Any]:
  """Return a map of what each row is worth in each column, as a Vega-Lite spec."""
  columns = [column.name for column, each in board.columns if each == side]
  names, axis, step = vega.row_labels([row.name for row in board.rows])
  data = []
  for row, name in zip(board.rows, names, strict=True):
    for (column, of), cell in row.cells.items():
      if of == side:
        worth = float(cell.worth.mean())
        seeds = " ".join(map(cell.score.number, cell.values.values()))
        data.append({"group": row.name, "row": name, "x": column, "seeds": seeds,
                     "worth": vega.plain(worth), "share": min(max(worth, 0.0), 1.0),
                     "shown": f"{cell.score.title}: {shown(cell)}",
                     "chosen": row.chosen[column]})  # fmt: skip
  x: dict[str, Any] = {"field": "x", "type": "nominal", "sort": columns, "title": None}
  x |= {"axis": {"labelAngle": -40, "labelOverlap": False, "domain": False, "ticks": False}}
  y: dict[str, Any] = {"field": "row", "type": "nominal", "sort": names}
  y |= {"title": None, "axis": axis}
  color = {
    "field": "share",
    "type": "quantitative",
    "legend": None,
    "scale": MAP | {"domain": [0, 1]},
  }
  hints = vega.tooltip(("x", "column"), ("worth", "worth"), ("chosen", "chosen by trials"))
  text = {"text": {"field": "worth", "format": ".2f"}}
  narrow = f"wide / {max(len(columns), 1)} < 34"
  ink = {"condition": {"test": "datum.share > 0.55", "value": "#ffffff"}, "value": "#1b1b1f"}
  fade = {"condition": [{"test": narrow, "value": 0}, vega.PALE], "value": 0.12}
  return {
    "width": "container", "autosize": {"type": "fit-x", "contains": "padding"},
    "params": [{"name": "picked", "value": ""}, {"name": "off", "value": []},
               {"name": "wide", "expr": "width"}],
    "height": {"step": max(specs.CELL, step)},
    "data": {"values": data}, "transform": [{"filter": "indexof(off, datum.x) < 0"}],
    "encoding": {"x": x, "y": y},
    "layer": [
      {"mark": {"type": "rect", "stroke": "#ffffff", "strokeWidth": 0.5},
       "encoding": {"color": color, "opacity": vega.PICKED, "tooltip": hints}},
      {"mark": "text", "encoding": text | {"color": ink, "opacity": fade}},
    ],
  }  # fmt: skip


def drawn(board: Board, side: str) -> str:
  """Return the heat map as SVG."""
  import vl_convert  # loads a browser's engine

  spec = heat_map(board, side) | {"width": 44 * max(sum(s == side for _, s in board.columns), 1)}
  spec["params"] = [
    {"name": n, "value": v} for n, v in {"picked": "", "off": [], "wide": 900}.items()
  ]
  config = vega.CONFIG | {"background": "#ffffff", "aria": False}
  del spec["autosize"]
  return vl_convert.vegalite_to_svg({"$schema": figures.SCHEMA, "config": config} | spec)


def page(boards: Sequence[Board]) -> str:
  """Return the whole page, which needs no network."""
  from posexp.reporting import page as report

  charts: list[dict[str, Any]] = []
  body = [part for board in boards for part in _track(board, charts)]
  names = dict.fromkeys(column.name for board in boards for column, _ in board.columns)
  boxes = "".join(
    f'<label><input type="checkbox" checked value="{escape(n)}"> {escape(n)}</label>' for n in names
  )
  data = json.dumps({"config": vega.CONFIG, "specs": charts}, ensure_ascii=False)
  here = Path(report.__file__).parent
  read = lambda name: (here / name).read_text("utf-8")  # noqa: E731
  head = '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
  head += '<meta name="viewport" content="width=device-width, initial-scale=1">'
  parts = [
    f"{head}<title>Leaderboard of positional encodings</title>",
    f"<style>\n{read('page.css')}[hidden] {{ display: none; }}</style></head><body>",
    f'<p class="choose columns">columns: {boxes}</p>',
    *body,
    f'<script type="application/json" id="charts">{data.replace("<", chr(92) + "u003c")}</script>',
    f"<script>{figures.library()}</script>",
    f"<script>\n{read('page.js')}{CHOOSE}</script></body></html>\n",
  ]
  return "\n".join(parts)


def _track(board: Board, charts: list[dict[str, Any]]) -> Iterator[str]:
  yield f'<section class="task"><h1>Suite {escape(board.suite.name)}, {board.track} track</h1>'
  for section in sections(board):
    title = section.title.partition(": ")[2]
    yield f"<h2>{escape(title[:1].upper() + title[1:])}</h2>"
    side = next((side for side in SIDES if section.table == scores(board, side)), None)
    if side:
      charts.append({"spec": heat_map(board, side)})
      yield f'<figure><div class="charts"><div class="chart" data-chart="{len(charts) - 1}"></div>'
      yield "</div><figcaption>Worth of each row: 0 is the low anchor and 1 the high one. Point at "
      yield "a cell for its seeds; click it to highlight its row.</figcaption></figure>"
    yield _table(board, section.table, side)
    if section.notes:
      items = "".join(f"<li>{escape(one_line(each))}</li>" for each in section.notes)
      yield f'<ul class="notes">{items}</ul>'
  yield "</section>"


def _table(board: Board, table: Table, side: str | None) -> str:
  """Return a table in HTML; cells of scores show their seeds to who points at them."""
  heads, rows = table
  names = [head.partition(" (")[0] if side else "" for head in heads]
  known = {row.name: row for row in board.rows}

  def cell(tag: str, at: int, text: str, hint: str = "") -> str:
    column = f' data-column="{escape(names[at])}"' if names[at] else ""
    title = f' title="{escape(hint)}"' if hint else ""
    return f"<{tag}{column}{title}>{escape(one_line(text))}</{tag}>"

  def hint(name: str, at: int) -> str:
    row = known.get(name.removesuffix(" (provisional)"))
    found = row.cells.get((names[at], side)) if row else None
    seeds = " ".join(map(found.score.number, found.values.values())) if found else ""
    return f"{shown(found)}; seeds {seeds}; {row.chosen[names[at]]}" if found else ""

  lines = ["<tr>" + "".join(cell("th", i, text) for i, text in enumerate(heads)) + "</tr>"]
  body = [
    "<tr>" + "".join(cell("td", i, text, hint(row[0], i)) for i, text in enumerate(row)) + "</tr>"
    for row in rows
  ]
  kind = " groups" if heads[0] == "" else ""
  inside = f"<thead>{lines[0]}</thead><tbody>{''.join(body)}</tbody>"
  return f'<div class="scroll{kind}"><table>{inside}</table></div>'


def write(boards: Sequence[Board], out: Path) -> None:
  """Write the page, the tables and the heat maps; OSError if they cannot be written."""
  storage.write(out / "leaderboard.html", page(boards))
  storage.write(out / "leaderboard.md", markdown(boards))
  for board in boards:
    for side in SIDES:
      if any(each == side for _, each in board.columns):
        name = f"{board.track}-{side}"
        storage.write(out / f"{name}.svg", drawn(board, side))
        storage.write(out / f"{name}.tex", latex(board, side))
