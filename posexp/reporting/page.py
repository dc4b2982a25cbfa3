"""The report as one page that needs nothing else: no script, no network, light and dark."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from html import escape
from pathlib import Path
from urllib.parse import quote

from posexp.errors import near
from posexp.reporting import figures, sentences, tables
from posexp.reporting.grouping import Group, differing, value_of
from posexp.reporting.results import Results
from posexp.reporting.text import counted

STYLE = Path(__file__).with_name("page.css")


def page(tasks: Sequence[Results], notes: Sequence[str], out: Path) -> str:
  """The whole page; links to runs are relative to the folder `out`."""
  title = escape(", ".join(results.task for results in tasks))
  runs = sum(len(results.runs) for results in tasks)
  parts = [
    "<!doctype html>",
    '<html lang="en"><head><meta charset="utf-8">',
    '<meta name="viewport" content="width=device-width, initial-scale=1">',
    f"<title>{title} · posexp report</title>",
    f"<style>\n{STYLE.read_text(encoding='utf-8')}</style></head><body>",
    *(part for results in tasks for part in _task(results, out)),
    _items("notes", notes),
    f'<p class="small">{runs:,} runs, read by posexp.report.</p>',
    "</body></html>",
  ]
  return "\n".join(part for part in parts if part) + "\n"


def _task(results: Results, out: Path) -> Iterator[str]:
  yield f'<section class="task"><h1>{escape(results.title)}</h1>'
  yield f'<p class="answer">{escape(sentences.answer(results))}</p>'
  yield _table(*tables.score_table(results), kind="ranked")
  yield _items("said", sentences.differences(results))
  yield _items("notes", list(sentences.notes(results)))
  yield f'<p class="small">{escape(sentences.method(results))}</p>'
  if drawings := "".join(map(_figure, figures.figures(results))):
    yield f'<h2>Figures</h2><div class="figures">{drawings}</div>'
  if found := tables.cost_table(results):
    yield f"<h2>Costs</h2>{_table(*found)}"
  keys = differing(results.runs)
  common = [
    [key, value_of(results.runs[0], key)] for key in results.runs[0].settings if key not in keys
  ]
  yield "<h2>Runs</h2>"
  yield from (_runs(group, keys, results, out) for group in results.groups)
  summary = f"What all {len(results.runs)} runs have in common"
  yield _details(summary, _table(["option", "value"], common))
  yield "</section>"


def _items(kind: str, items: Sequence[str]) -> str:
  listed = "".join(f"<li>{escape(item)}</li>" for item in items)
  return f'<ul class="{kind}">{listed}</ul>' if listed else ""


def _figure(drawing: figures.Drawing) -> str:
  caption = f"<figcaption>{escape(drawing.caption)}</figcaption>"
  return f"<figure><h3>{escape(drawing.title)}</h3>{drawing.svg}{caption}</figure>"


def _runs(group: Group, keys: Sequence[str], results: Results, out: Path) -> str:
  """The runs of a group with their scores and links, below the options in which groups differ."""
  runs = sorted(group.runs, key=lambda run: (run.seed, str(run.path)))
  options = [
    [key, ", ".join(dict.fromkeys(value_of(run, key) for run in runs))]
    for key in keys
    if any(key in run.settings for run in runs)
  ]
  lines = []
  for run in runs:
    value = run.score(results.score.key)
    score = tables.MISSING if value is None else results.score.number(value)
    state = run.state if run.failure is None else f"failed: {run.failure}"
    link = quote(os.path.relpath(run.path.absolute(), out.absolute()))
    path = f'<a class="path" href="{escape(link)}">{escape(near(run.path))}</a>'
    lines.append([str(run.seed), score, escape(state), path])
  return _details(
    f"{group.label}: {counted(len(runs), 'run')}",
    _table(["option", "value"], options) if options else "",
    _rows(["seed", "score", "state", "folder"], lines),
  )


def _details(summary: str, *inside: str) -> str:
  return f"<details><summary>{escape(summary)}</summary>{''.join(inside)}</details>"


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]], kind: str = "") -> str:
  return _rows(map(escape, heads), [map(escape, row) for row in rows], kind)


def _rows(heads: Iterable[str], rows: Iterable[Iterable[str]], kind: str = "") -> str:
  """A table of cells in HTML."""
  lines = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in rows)
  head = "".join(f"<th>{each}</th>" for each in heads)
  return f'<div class="scroll"><table class="{kind}"><tr>{head}</tr>{lines}</table></div>'
