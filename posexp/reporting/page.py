"""The report as one page, whose charts answer a reader, and which needs no network."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path

from posexp.reporting import paper, sentences, specs, tables, vega
from posexp.reporting.contexts import context_table, of_little_gain
from posexp.reporting.figures import Figure, figures, library, of_all
from posexp.reporting.grouping import value_of
from posexp.reporting.results import Results
from posexp.reporting.text import Section, Table, one_line, tabulated

ROWS = 200  # of runs, that a browser shows at once
SAID = 5  # sentences that are shown at once
HERE = Path(__file__).parent
AGAINST = {
  "differences": "difference to the baseline",
  "curves": "length, as lines",
  "context map": "tokens, as a map",
}
BOLD = "\ue000\ue001"  # characters that no text has, around what is bold
MAIN = ("names", "lengths", "contexts")  # kinds of charts that a page shows at once


def page(tasks: Sequence[Results], notes: Sequence[str], sections: Sequence[Section] = ()) -> str:
  """Return the whole page; `sections` come first."""
  title = escape(", ".join(results.task for results in tasks))
  drawn = Drawn()
  first = [part for section in sections for part in _section(section, drawn)]
  body = [*_several(tasks, drawn), *(part for task in tasks for part in _task(task, drawn))]
  parts = [
    "<!doctype html>",
    '<html lang="en"><head><meta charset="utf-8">',
    '<meta name="viewport" content="width=device-width, initial-scale=1">',
    f"<title>{title} · posexp report</title>",
    f"<style>\n{_read('page.css')}</style></head><body>",
    "<noscript>The charts of this page need JavaScript; python -m posexp.report --figures svg "
    "writes them into files.</noscript>",
    *first,
    *body,
    _items("notes", notes),
    f'<script type="application/json" id="charts">{drawn.json()}</script>',
    f"<script>{library()}</script>",
    f"<script>\n{_read('page.js')}</script>",
    "</body></html>",
  ]
  return "\n".join(part for part in parts if part) + "\n"


class Drawn:
  """The charts of a page, which its script draws."""

  def __init__(self) -> None:
    self.specs: list[dict] = []

  def add(self, figure: Figure) -> list[int]:
    """Keep the charts of a figure; return their numbers."""
    first = len(self.specs)
    for chart, spec in zip(figure.charts, figure.specs, strict=True):
      about = {
        "y": one_line(chart.y.title),
        "x": AGAINST.get(chart.kind, one_line(chart.x)),
        "says": figure.says,
      }
      other = specs.other_scale(chart) if chart.kind == "numbers" else None
      self.specs.append(about | {"other": other, "spec": spec})
    return list(range(first, len(self.specs)))

  def json(self) -> str:
    """Return the charts as JSON without tags, as it stands in the page."""
    value = {"config": vega.CONFIG, "specs": self.specs}
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")


def _read(name: str) -> str:
  return (HERE / name).read_text(encoding="utf-8")


def _several(tasks: Sequence[Results], drawn: Drawn) -> Iterator[str]:
  """Yield the sections on several tasks: a table of all, and how far groups reach."""
  if len(tasks) > 1:
    table = paper.table(tasks)
    shown = _table(table.marked(*BOLD), "groups")
    shown = shown.replace(BOLD[0], "<b>").replace(BOLD[1], "</b>")  # once the rest is escaped
    yield f'<section class="task"><h1>{len(tasks)} tasks</h1>{shown}'
    yield f'<p class="small">{escape(table.caption)}</p>'
    yield from (_figure(figure, drawn.add(figure)) for figure in of_all(tasks))
    yield "</section>"


def _task(results: Results, drawn: Drawn) -> Iterator[str]:
  yield f'<section class="task"><h1>{escape(results.title)}</h1>'
  yield f'<p class="answer">{escape(sentences.answer(results))}</p>'
  first: list[tuple[Figure, list[int]]] = []
  others: list[int] = []
  for figure in figures(results):
    chart, numbers = figure.charts[0], drawn.add(figure)
    main = len(numbers) > 1 or chart.kind in MAIN
    if main and (chart.y == results.score or chart.trained):
      first.append((figure, numbers))
    else:
      others += numbers
  yield from (_figure(*each) for each in first)
  yield _table(tables.score_table(results), "ranked groups")
  said = sentences.differences(results)
  if len(said) > SAID:
    yield f"<details><summary>{len(said)} differences in words</summary>{_items('said', said)}"
    yield "</details>"
  else:
    yield _items("said", said)
  yield _items("notes", [*sentences.notes(results), *of_little_gain(results)])
  yield f'<p class="small">{escape(sentences.method(results))}</p>'
  if (contexts := context_table(results))[1]:
    yield f"<h2>How far it holds</h2>{_table(contexts, 'groups')}"
  yield "<h2>Every score against everything</h2>"
  every = [*others, *(at for _, numbers in first for at in numbers)]  # what is new comes first
  yield _explorer(every) or f"<p>{escape(sentences.missing(results, 'figures'))}</p>"
  costs = tables.cost_table(results)
  known = f"<p>{escape(sentences.missing(results, 'costs'))}</p>"
  yield f"<h2>Costs</h2>{_table(costs, 'groups') if costs[1] else known}"
  if (families := tables.family_table(results))[1]:
    yield f"<h2>Weights of other runs</h2>{_table(families, 'groups')}"
  yield from _runs(results)
  yield "</section>"


def _runs(results: Results) -> Iterator[str]:
  yield "<h2>Runs</h2>"
  cells = tables.sheet(results.rows[:ROWS]).astype(object)
  cells = cells.where(cells.notna(), "").astype(str)
  count = len(results.rows)
  title = f"The first {ROWS:,} of {count:,} runs; runs.csv has all"
  title = title if count > ROWS else f"All {count} runs"
  yield _details(title, (list(cells.columns), cells.values.tolist()))
  run = results.runs[0]
  common = [[key, value_of(run, key)] for key in run.settings if key not in results.differing]
  yield _details("What they have in common", (["option", "value"], common))


def _section(section: Section, drawn: Drawn) -> Iterator[str]:
  yield f'<section class="task"><h1>{escape(section.title)}</h1>{_table(section.table, "ranked")}'
  yield from (_figure(figure, drawn.add(figure)) for figure in section.figures)
  yield _items("notes", section.notes)
  yield _details("Every trial", section.details) if section.details else ""
  yield "</section>"


def _items(kind: str, items: Sequence[str]) -> str:
  listed = "".join(f"<li>{escape(one_line(item))}</li>" for item in items)
  return f'<ul class="{kind}">{listed}</ul>' if listed else ""


def _figure(figure: Figure, numbers: Sequence[int]) -> str:
  charts = "".join(f'<div class="chart" data-chart="{at}"></div>' for at in numbers)
  title = escape(figure.heading[:1].upper() + figure.heading[1:])
  caption = f"<figcaption>{escape(figure.says)}</figcaption>"
  return f'<figure><h3>{title}</h3><div class="charts">{charts}</div>{caption}</figure>'


def _explorer(numbers: Sequence[int]) -> str:
  """Return a figure in which a reader chooses a score, and the axis that it is drawn against."""
  if not numbers:
    return ""
  lists = "<label>score <select></select></label> <label>against <select></select></label>"
  log = '<label><input type="checkbox"> other scale</label>'
  listed = ",".join(map(str, numbers))
  return (
    f'<figure class="explore" data-charts="{listed}"><p class="choose">{lists} {log}'
    '</p><div class="charts"><div class="chart"></div></div><figcaption></figcaption></figure>'
  )


def _table(table: Table, kind: str = "") -> str:
  return f'<div class="scroll {kind}">{tabulated(table, "html")}</div>'


def _details(summary: str, table: Table) -> str:
  return f"<details><summary>{escape(summary)}</summary>{_table(table)}</details>"
