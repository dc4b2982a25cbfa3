"""The page of the leaderboard, and its heat maps."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path
from typing import Any

from posexp import storage
from posexp.board.standings import Board
from posexp.board.suite import SIDES
from posexp.board.tables import as_data, latex, markdown, scores, sections, shown
from posexp.reporting import figures, specs, vega
from posexp.reporting.tables import sheet
from posexp.reporting.text import Table, one_line

MAP = {"scheme": "yellowgreenblue"}
CHOOSE = """
const boxes = [...document.querySelectorAll(".columns input")];
for (const box of boxes) box.onchange = () => {
  const off = boxes.filter((each) => !each.checked).map((each) => each.value);
  for (const cell of document.querySelectorAll("[data-column]"))
    cell.hidden = off.includes(cell.dataset.column);
  for (const { spec } of charts.specs) spec.params.find((each) => each.name === "off").value = off;
  for (const { view } of views.values()) view.signal("off", off).runAsync();
};
"""
STYLE = """[hidden] { display: none; }
:is(th, td).words { text-align: left; }
section h3 { margin-top: 1.6rem; }
"""
TITLE = "Leaderboard of positional encodings"
INTRODUCTION = (
  "Which encoding suits a task, by how much does it matter, and how sure is that? Rows are "
  "encodings, and columns are tasks, each of which needs one thing: to copy, to count, to look "
  "something up. All rows have the same model and the same batches, and were tuned by one rule.",
  "Worth is 0 for a guess and 1 for what the task allows. A cell is empty where an encoding that "
  "is defined for causal attention only has no place in the task's encoder, or where nobody has "
  "trained it. A/A names a control that needs no order: what differs there at the lengths of "
  "training differs by chance.",
  "Untick the columns that do not concern you, and rows in any table; click a heading to sort by "
  "it, and a row to highlight it. Point at a cell for its seeds and for what trials chose.",
)
WHERE = {
  "within": "At the lengths of training.",
  "beyond": "On inputs that are longer than all of training.",
}
TRACK = {
  "default": "Learning rates are tuned, and options are as the encoding's paper has them.",
  "tuned within": "An option of each encoding is tuned, too, at the lengths of training.",
  "tuned beyond": "An option of each encoding is tuned, too, a little beyond these lengths.",
}


def heat_map(board: Board, side: str) -> dict[str, Any]:
  """Return a heat map of the worth of each row in each column, as a Vega-Lite spec."""
  columns = [column for column, each in board.columns if each == side]
  names, axis, step = vega.row_labels([row.name for row in board.rows])
  data = []
  for row, name in zip(board.rows, names, strict=True):
    for (column, of), cell in row.cells.items():
      if of == side:
        worth = float(cell.worth.mean())
        seeds = " ".join(map(cell.score.number, cell.values.values()))
        data.append({"group": row.name, "row": name, "x": column, "seeds": seeds,
                     "worth": f"{worth:z.2f}", "share": min(max(worth, 0.0), 1.0),
                     "shown": f"{cell.score.title}: {shown(cell)}",
                     "chosen": row.chosen[column]})  # fmt: skip
  needs = json.dumps({column.name: column.label for column in columns})
  x: dict[str, Any] = {"field": "x", "type": "nominal", "sort": [each.name for each in columns]}
  x |= {"title": "what the task needs"}
  x |= {"axis": {"labelAngle": -40, "labelOverlap": False, "domain": False, "ticks": False,
                 "labelExpr": f"({needs})[datum.value]"}}  # fmt: skip
  y: dict[str, Any] = {"field": "row", "type": "nominal", "sort": names}
  y |= {"title": "encoding", "axis": axis}
  legend = {"title": "worth", "labelExpr": "datum.value == 0 ? '0: a guess' : '1: all right'"}
  color = {
    "field": "share",
    "type": "quantitative",
    "legend": legend | {"values": [0, 1], "gradientLength": 90, "labelLimit": 60},
    "scale": MAP | {"domain": [0, 1]},
  }
  hints = vega.tooltip(("x", "column"), ("worth", "worth"), ("chosen", "chosen by trials"))
  narrow = f"wide / {max(len(columns), 1)} < 34"
  ink = {"condition": {"test": "datum.share > 0.55", "value": "#ffffff"}, "value": "#1b1b1f"}
  fade = {"condition": [{"test": narrow, "value": 0}, vega.PALE], "value": 0.12}
  on = "indexof(off, datum.x) < 0 && indexof(hidden, datum.group) < 0"
  return {
    "width": "container", "autosize": {"type": "fit-x", "contains": "padding"},
    "params": [{"name": "picked", "value": ""}, {"name": "hidden", "value": []},
               {"name": "off", "value": []}, {"name": "wide", "expr": "width"}],
    "height": {"step": max(specs.CELL, step)},
    "data": {"values": data}, "transform": [{"filter": on}],
    "encoding": {"x": x, "y": y},
    "layer": [
      {"mark": {"type": "rect", "stroke": "#ffffff", "strokeWidth": 0.5},
       "encoding": {"color": color, "opacity": vega.PICKED, "tooltip": hints}},
      {"mark": "text",
       "encoding": {"text": {"field": "worth"}, "color": ink, "opacity": fade}},
    ],
  }  # fmt: skip


def drawn(board: Board, side: str) -> str:
  """Return the heat map as SVG."""
  import vl_convert  # loads a browser's engine

  spec = heat_map(board, side) | {"width": 44 * max(sum(s == side for _, s in board.columns), 1)}
  values = {"picked": "", "hidden": [], "off": [], "wide": 900}
  spec["params"] = [{"name": name, "value": value} for name, value in values.items()]
  config = vega.CONFIG | {"background": "#ffffff", "aria": False}
  del spec["autosize"]
  return vl_convert.vegalite_to_svg({"$schema": figures.SCHEMA, "config": config} | spec)


def page(boards: Sequence[Board], back: str = "") -> str:
  """Return the whole page, which needs no network.

  Args:
    boards: the tracks of a suite.
    back: the address of a page that tells more, to which this one links.
  """
  from posexp.reporting import page as report

  charts: list[dict[str, Any]] = []
  body = [part for board in boards for part in _track(board, charts)]
  columns = dict.fromkeys(column.name for board in boards for column, _ in board.columns)
  boxes = "".join(
    f'<label><input type="checkbox" checked value="{escape(n)}"> {escape(n)}</label>'
    for n in columns
  )
  data = json.dumps({"config": vega.CONFIG, "specs": charts}, ensure_ascii=False)
  here = Path(report.__file__).parent
  read = lambda name: (here / name).read_text("utf-8")  # noqa: E731
  head = '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
  head += '<meta name="viewport" content="width=device-width, initial-scale=1">'
  link = f' <a href="{escape(back)}">How to read it, and how to add a row</a>.' if back else ""
  *said, last = (f"<p>{paragraph}</p>" for paragraph in INTRODUCTION)
  parts = [
    f"{head}<title>{TITLE}</title>",
    f"<style>\n{read('page.css')}{STYLE}</style></head><body>",
    f'<header><p class="answer">{TITLE}</p>',
    *said,
    last.replace("</p>", f"{link}</p>"),
    f'<p class="choose columns">columns: {boxes}</p></header>',
    *body,
    f'<script type="application/json" id="charts">{data.replace("<", chr(92) + "u003c")}</script>',
    f"<script>{figures.library()}</script>",
    f"<script>\n{read('page.js')}{CHOOSE}</script></body></html>\n",
  ]
  return "\n".join(parts)


def _track(board: Board, charts: list[dict[str, Any]]) -> Iterator[str]:
  title = f"Suite {escape(board.suite.name)}, {board.track} track"
  yield f'<section class="task"><h2>{title}</h2><p class="small">{TRACK[board.track]}</p>'
  for section in sections(board):
    title = section.title.partition(": ")[2]
    yield f"<h3>{escape(title[:1].upper() + title[1:])}</h3>"
    side = next((side for side in SIDES if section.table == scores(board, side)), None)
    if side:
      charts.append({"spec": heat_map(board, side)})
      yield f'<figure><div class="charts"><div class="chart" data-chart="{len(charts) - 1}"></div>'
      yield f"</div><figcaption>What each row is worth. {WHERE[side]}</figcaption></figure>"
    yield _table(board, section.table, side)
    if section.notes:
      items = "".join(f"<li>{escape(one_line(note))}</li>" for note in section.notes)
      yield f'<ul class="notes">{items}</ul>'
  yield "</section>"


def _table(board: Board, table: Table, side: str | None) -> str:
  """Return a table in HTML; cells of scores show their seeds to who points at them."""
  heads, rows = table
  names = [head.partition(" (")[0] for head in heads]
  known = {row.name: row for row in board.rows}
  columns = enumerate(zip(*rows, strict=True))
  words = {at for at, cells in columns if not re.search(r"(?m)^[-+]?\d", "\n".join(cells))}

  def column_of(name: str) -> str:
    return f' data-column="{escape(name)}"' if name in board.suite.columns else ""

  def cell(tag: str, at: int, text: str, hint: str = "") -> str:
    column = column_of(names[at]) + ' class="words"' * (at in words)
    title = f' title="{escape(hint)}"' if hint else ""
    return f"<{tag}{column}{title}>{escape(one_line(text))}</{tag}>"

  def hint(name: str, at: int) -> str:
    row = known.get(_named(name)) if side else None
    scored = row.cells.get((names[at], side)) if row else None
    seeds = " ".join(map(scored.score.number, scored.values.values())) if scored else ""
    return f"{shown(scored)}; seeds {seeds}; {row.chosen[names[at]]}" if scored else ""

  lines = ["<tr>" + "".join(cell("th", i, text) for i, text in enumerate(heads)) + "</tr>"]
  of_rows = heads[0] == ""
  body = []
  for row in rows:
    is_about = f' data-group="{escape(_named(row[0]))}"' if of_rows else column_of(row[0])
    cells = (cell("td", i, text, hint(row[0], i)) for i, text in enumerate(row))
    body.append(f"<tr{is_about}>{''.join(cells)}</tr>")
  kind = " groups" * of_rows
  inside = f"<thead>{lines[0]}</thead><tbody>{''.join(body)}</tbody>"
  return f'<div class="scroll{kind}"><table>{inside}</table></div>'


def _named(shown: str) -> str:
  return shown.removesuffix(" (provisional)")


def write(boards: Sequence[Board], out: Path) -> None:
  """Write the page, tables, cells and heat maps; OSError if they cannot be written."""
  storage.write(out / "leaderboard.html", page(boards))
  storage.write(out / "leaderboard.md", markdown(boards))
  for board in boards:
    track = board.track.replace(" ", "-")
    storage.write(out / f"{track}.csv", sheet(as_data(board)).to_csv(index=False))
    for side in SIDES:
      if any(each == side for _, each in board.columns):
        name = f"{track}-{side}"
        storage.write(out / f"{name}.svg", drawn(board, side))
        storage.write(out / f"{name}.tex", latex(board, side))
