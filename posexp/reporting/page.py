"""The report as one page that needs nothing else: no script, no network, light and dark."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path
from statistics import median
from urllib.parse import quote

from posexp.errors import near
from posexp.reporting import figures, grouping, sentences, tables
from posexp.reporting.grouping import value_of
from posexp.reporting.results import Row, Section

HEIGHT = 20  # of a drawn interval
STYLE = Path(__file__).with_name("page.css")


def page(sections: Sequence[Section], general: Sequence[str], out: Path) -> str:
  """The whole page; links to runs are relative to the folder `out`."""
  title = escape(", ".join(section.task for section in sections))
  runs = sum(len(section.runs) for section in sections)
  parts = [
    "<!doctype html>",
    '<html lang="en"><head><meta charset="utf-8">',
    '<meta name="viewport" content="width=device-width, initial-scale=1">',
    f"<title>{title} · posexp report</title>",
    f"<style>\n{STYLE.read_text(encoding='utf-8')}</style></head><body>",
    *(part for section in sections for part in _section(section, out)),
    _items("notes", general),
    f'<p class="small">{runs:,} runs, read by posexp.report.</p>',
    "</body></html>",
  ]
  return "\n".join(part for part in parts if part) + "\n"


def _section(section: Section, out: Path) -> Iterator[str]:
  by = ", ".join(section.by)
  title = f"{section.task}: {section.metric.title} by {by}"
  yield f'<section class="task"><h1>{escape(title)}</h1>'
  yield f'<p class="answer">{escape(sentences.headline(section))}</p>'
  yield _ranked(section)
  yield _items("said", list(sentences.verdicts(section)))
  yield _items("notes", list(sentences.notes(section)))
  yield f'<p class="small">{escape(sentences.method(section))}</p>'
  drawn = [_figure(each) for each in figures.figures(section)]
  if drawn:
    yield f'<h2>Figures</h2><div class="figures">{"".join(drawn)}</div>'
  if found := tables.costs(section):
    yield f"<h2>Costs</h2>{_table(*found)}"
  yield "<h2>Groups and their runs</h2>"
  yield from _groups(section, out)
  yield "</section>"


def _items(kind: str, items: Sequence[str]) -> str:
  listed = "".join(f"<li>{escape(item)}</li>" for item in items)
  return f'<ul class="{kind}">{listed}</ul>' if listed else ""


def _figure(drawn: figures.Drawn) -> str:
  caption = f"<figcaption>{escape(drawn.caption)}</figcaption>"
  return f"<figure><h3>{escape(drawn.title)}</h3>{drawn.svg}{caption}</figure>"


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
  head = "".join(f"<th>{escape(each)}</th>" for each in heads)
  body = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
  return f'<div class="scroll"><table><tr>{head}</tr>{body}</table></div>'


def _ranked(section: Section) -> str:
  heads, rows = tables.scores(section)
  limits, colors = _limits(section), _colors(section)
  ends = f"{section.metric.number(limits[0])} to {section.metric.number(limits[1])}"
  tested = section.tests > 0
  cells = [("", ""), ("", "mean"), ("", ends), ("", "n"), ("wide", "sd")]
  cells += [("wide", "95 % interval")]
  cells += [("", heads[5]), ("wide", heads[6])] if tested else []
  lines = ["".join(f'<th class="{kind}">{escape(text)}</th>' for kind, text in cells)]
  for row, texts in zip(section.rows, rows, strict=True):
    name, count, mean, sd, interval, *rest = map(escape, texts)
    swatch = f'<span class="swatch" style="background:{colors.get(id(row), "var(--rule)")}"></span>'
    drawing = _interval(row, section, limits, colors.get(id(row), "var(--soft)"))
    line = f"<td>{swatch}{name}</td><td>{mean}</td><td>{drawing}</td><td>{count}</td>"
    line += f'<td class="wide">{sd}</td><td class="wide">{interval}</td>'
    kinds = ("sure", "wide sure") if row.against is not None and row.against.sure else ("", "wide")
    line += "".join(
      f'<td class="{kind}">{each}</td>' for kind, each in zip(kinds, rest, strict=False)
    )
    lines.append((' class="base"' if row is section.baseline else "", line))
  head, *body = lines
  body = "".join(f"<tr{kind}>{line}</tr>" for kind, line in body)
  return f'<div class="scroll"><table class="ranked"><tr>{head}</tr>{body}</table></div>'


def _colors(section: Section) -> dict[int, str]:
  """The colors of the groups in the figures."""
  return {
    id(row): f"var(--c{rank % len(figures.COLORS)})"
    for rank, row in enumerate(figures.shown(section))
  }


def _limits(section: Section) -> tuple[float, float]:
  """What a drawn interval goes from and to: all means, and most of the intervals."""
  scores = [row.score for row in section.rows if row.score is not None]
  means = [score.mean for score in scores] or [0.0]
  halves = [score.high - score.mean for score in scores if score.high is not None]
  pad = max(0.12 * (max(means) - min(means)), 1.3 * median(halves) if halves else 0.0)
  pad = pad or 0.01 * abs(means[0]) or 1.0
  return min(means) - pad, max(means) + pad


def _interval(row: Row, section: Section, limits: tuple[float, float], color: str) -> str:
  """A mean, its interval and its seeds on a line; an interval that goes on has no end there."""
  if row.score is None:
    return ""
  low, high = limits

  def x(value: float) -> str:
    return f"{100 * (value - low) / (high - low):.1f}%"  # as wide as the page has room for

  parts, middle = [], HEIGHT / 2
  base = section.baseline
  if base is not None and base.score is not None:
    parts.append(
      f'<line x1="{x(base.score.mean)}" x2="{x(base.score.mean)}" y1="0" y2="{HEIGHT}" '
      'stroke="var(--soft)" stroke-dasharray="2 2"/>'
    )
  for score in row.group.scores(section.metric.key).values():
    if low <= score <= high:
      parts.append(
        f'<circle cx="{x(score)}" cy="{middle}" r="2.5" fill="{color}" fill-opacity=".35"/>'
      )
  if row.score.low is not None:
    ends = max(row.score.low, low), min(row.score.high, high)
    parts.append(
      f'<line x1="{x(ends[0])}" x2="{x(ends[1])}" y1="{middle}" y2="{middle}" stroke="{color}" '
      'stroke-width="2"/>'
    )
    for end, own in zip(ends, (row.score.low, row.score.high), strict=True):
      if end == own:
        parts.append(
          f'<line x1="{x(end)}" x2="{x(end)}" y1="{middle - 4}" y2="{middle + 4}" '
          f'stroke="{color}" stroke-width="2"/>'
        )
  fill = "var(--paper)" if row.group.mixed else color
  parts.append(
    f'<circle cx="{x(row.score.mean)}" cy="{middle}" r="4" fill="{fill}" stroke="{color}"/>'
  )
  label = escape(f"{row.label}: {section.metric.number(row.score.mean)}")
  return f'<svg height="{HEIGHT}" role="img" aria-label="{label}">{"".join(parts)}</svg>'


def _groups(section: Section, out: Path) -> Iterator[str]:
  """The options in which groups differ, then the runs of each."""
  keys = grouping.differing(section.runs)
  common = {key: value for key, value in section.runs[0].settings.items() if key not in keys}
  for row in section.rows:
    runs = sorted(row.group.runs, key=lambda run: (run.seed, str(run.path)))
    own = [
      [key, ", ".join(dict.fromkeys(value_of(run, key) for run in runs))]
      for key in keys
      if any(key in run.settings for run in runs)
    ]
    count = f"{len(runs)} run{'' if len(runs) == 1 else 's'}"
    lines = []
    for run in runs:
      score = run.score(section.metric.key)
      shown = "—" if score is None else section.metric.number(score)
      link = quote(os.path.relpath(run.path.absolute(), out.absolute()))
      path = f'<a class="path" href="{escape(link)}">{escape(near(run.path))}</a>'
      state = run.state if run.failure is None else f"failed: {run.failure}"
      lines.append(
        f"<tr><td>{run.seed}</td><td>{shown}</td><td>{escape(state)}</td><td>{path}</td></tr>"
      )
    head = "<tr><th>seed</th><th>score</th><th>state</th><th>folder</th></tr>"
    yield (
      f"<details><summary>{escape(row.label)}: {count}</summary>"
      f"{_table(['option', 'value'], own) if own else ''}"
      f'<div class="scroll"><table>{head}{"".join(lines)}</table></div></details>'
    )
  rest = [[key, grouping.canonical(value)] for key, value in common.items()]
  yield (
    f"<details><summary>What all {len(section.runs)} runs have in common"
    f"</summary>{_table(['option', 'value'], rest)}</details>"
  )
