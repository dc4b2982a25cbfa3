"""The report as one page that needs nothing else: no script, no network, light and dark."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from pathlib import Path

from matplotlib.figure import Figure

from posexp.reporting import heat_maps, sentences, tables
from posexp.reporting.contexts import context_table, of_little_gain
from posexp.reporting.figures import CAPTION, figures, heat_map_name, svg
from posexp.reporting.grouping import value_of
from posexp.reporting.results import Results
from posexp.reporting.text import Section, Table, one_line, tabulated

TITLES = {"lengths": "curves of all tasks", "reach": "how far groups reach"}
ROWS = 1000  # of runs, that a browser shows at once
STYLE = Path(__file__).with_name("page.css")


def page(
  tasks: Sequence[Results],
  notes: Sequence[str],
  wide: Mapping[str, Figure],
  sections: Sequence[Section] = (),
) -> str:
  """Return the whole page; `wide` has the figures of `wide_figures`, `sections` come first."""
  title = escape(", ".join(results.task for results in tasks))
  parts = [
    "<!doctype html>",
    '<html lang="en"><head><meta charset="utf-8">',
    '<meta name="viewport" content="width=device-width, initial-scale=1">',
    f"<title>{title} · posexp report</title>",
    f"<style>\n{STYLE.read_text(encoding='utf-8')}</style></head><body>",
    *(part for each in sections for part in _section(each)),
    *(part for results in tasks for part in _task(results, wide.get(heat_map_name(results.task)))),
    *_lengths({TITLES[name]: figure for name, figure in wide.items() if name in TITLES}),
    _items("notes", notes),
    "</body></html>",
  ]
  return "\n".join(part for part in parts if part) + "\n"


def _task(results: Results, heat_map: Figure | None) -> Iterator[str]:
  yield f'<section class="task"><h1>{escape(results.title)}</h1>'
  yield f'<p class="answer">{escape(sentences.answer(results))}</p>'
  yield _table(tables.score_table(results), "ranked")
  yield _items("said", sentences.differences(results))
  yield _items("notes", [*sentences.notes(results), *of_little_gain(results)])
  yield f'<p class="small">{escape(sentences.method(results))}</p>'
  if (contexts := context_table(results))[1]:
    yield f"<h2>Context</h2>{_table(contexts)}"
  if heat_map is not None:
    yield from _lengths({"groups by length": heat_map})
  drawn = "".join(_figure(title, svg) for title, svg in figures(results))
  yield "<h2>Figures</h2>"
  if drawn:
    yield f'<p class="small">{CAPTION}</p><div class="figures">{drawn}</div>'
  else:
    yield f"<p>{escape(sentences.missing(results, 'figures'))}</p>"
  costs = tables.cost_table(results)
  known = _table(costs) if costs[1] else f"<p>{escape(sentences.missing(results, 'costs'))}</p>"
  yield f"<h2>Costs</h2>{known}"
  if (families := tables.family_table(results))[1]:
    yield f"<h2>Weights of other runs</h2>{_table(families)}"
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
  yield "</section>"


def _section(section: Section) -> Iterator[str]:
  yield f'<section class="task"><h1>{escape(section.title)}</h1>{_table(section.table, "ranked")}'
  yield _items("notes", section.notes)
  yield _details("Every trial", section.details) if section.details else ""
  yield "</section>"


def _lengths(found: Mapping[str, Figure]) -> Iterator[str]:
  """Yield figures of scores by length, in their own size; `found` has them by their titles."""
  if found:
    drawn = "".join(_figure(title, svg(figure)) for title, figure in found.items())
    yield f'<h2>By length</h2><p class="small">{heat_maps.CAPTION}</p>'
    yield f'<div class="lengths">{drawn}</div>'


def _items(kind: str, items: Sequence[str]) -> str:
  listed = "".join(f"<li>{escape(one_line(item))}</li>" for item in items)
  return f'<ul class="{kind}">{listed}</ul>' if listed else ""


def _figure(title: str, svg: str) -> str:
  data = base64.b64encode(svg.encode()).decode()
  image = f'<img alt="{escape(title)}" src="data:image/svg+xml;base64,{data}">'
  return f"<figure><h3>{escape(title[:1].upper() + title[1:])}</h3>{image}</figure>"


def _table(table: Table, kind: str = "") -> str:
  return f'<div class="scroll {kind}">{tabulated(table, "html")}</div>'


def _details(summary: str, table: Table) -> str:
  return f"<details><summary>{escape(summary)}</summary>{_table(table)}</details>"
