"""The page of the leaderboard, and its heat maps."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path
from typing import Any

from posexp import storage
from posexp.board.standings import Board
from posexp.board.suite import SIDES
from posexp.board.tables import latex, markdown, scores, sections, shown
from posexp.reporting import figures, specs, vega
from posexp.reporting.text import Table, one_line

MAP = {"scheme": "yellowgreenblue"}
CHOOSE = """
for (const box of document.querySelectorAll(".columns input")) box.onchange = () => {
  const off = [...document.querySelectorAll(".columns input:not(:checked)")].map((b) => b.value);
  for (const cell of document.querySelectorAll("[data-column]"))
    cell.hidden = off.includes(cell.dataset.column);
  for (const { spec } of charts.specs) spec.params.find((each) => each.name === "off").value = off;
  for (const { view } of views.values()) view.signal("off", off).runAsync();
};
"""


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
      yield "</div><figcaption>Worth of each row: 0 is a guess and 1 what the task allows. Point "
      yield "at a cell for its seeds; click it to highlight its row.</figcaption></figure>"
    yield _table(board, section.table, side)
    if section.notes:
      items = "".join(f"<li>{escape(one_line(each))}</li>" for each in section.notes)
      yield f'<ul class="notes">{items}</ul>'
  yield "</section>"


def _table(board: Board, table: Table, side: str | None) -> str:
  """Return a table in HTML; cells of scores show their seeds to who points at them."""
  heads, rows = table
  names = [head.partition(" (")[0] for head in heads]
  known = {row.name: row for row in board.rows}

  def column_of(name: str) -> str:
    return f' data-column="{escape(name)}"' if name in board.suite.columns else ""

  def cell(tag: str, at: int, text: str, hint: str = "") -> str:
    column = column_of(names[at])
    title = f' title="{escape(hint)}"' if hint else ""
    return f"<{tag}{column}{title}>{escape(one_line(text))}</{tag}>"

  def hint(name: str, at: int) -> str:
    row = known.get(_named(name)) if side else None
    found = row.cells.get((names[at], side)) if row else None
    seeds = " ".join(map(found.score.number, found.values.values())) if found else ""
    return f"{shown(found)}; seeds {seeds}; {row.chosen[names[at]]}" if found else ""

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
  """Write the page, the tables and the heat maps; OSError if they cannot be written."""
  storage.write(out / "leaderboard.html", page(boards))
  storage.write(out / "leaderboard.md", markdown(boards))
  for board in boards:
    for side in SIDES:
      if any(each == side for _, each in board.columns):
        name = f"{board.track}-{side}".replace(" ", "-")
        storage.write(out / f"{name}.svg", drawn(board, side))
        storage.write(out / f"{name}.tex", latex(board, side))
