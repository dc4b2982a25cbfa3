"""The ranked groups and their costs as tables: for a terminal, in Markdown and in LaTeX."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Sequence

from posexp.reporting import sentences
from posexp.reporting.results import Row, Section, spent
from posexp.runs.metrics import Score

WIDTH = 100
NAME = 36  # letters of a group's name in a terminal
LATEX = {
  "\\": r"\textbackslash{}",
  "~": r"\textasciitilde{}",
  "^": r"\textasciicircum{}",
  "<": "$<$",
  ">": "$>$",
  "—": "---",
  "−": "$-$",
  "±": r"$\pm$",
  "×": r"$\times$",
} | {each: f"\\{each}" for each in "&%$#_{}"}

Table = tuple[list[str], list[list[str]]]  # headings and rows


def scores(section: Section) -> Table:
  """A row for each group, the best first."""
  metric, base = section.metric, section.baseline
  heads = ["", "n", "mean", "sd", "95 % interval"]
  if section.tests:
    heads += [f"against {base.label}", "p (Holm)" if section.tests > 1 else "p"]
  rows = []
  for row in section.rows:
    found = row.score
    cells = [row.label, str(found.n if found else 0)]
    if found is None:
      cells += ["—"] * 3
    else:
      cells += [
        metric.number(found.mean) + (" mixed" if row.group.mixed else ""),
        "—" if found.sd is None else metric.number(found.sd),
        "—" if found.low is None else span(found.low, found.high, metric),
      ]
    if section.tests:
      cells += ["baseline", ""] if row is base else [difference(row, metric), p(row)]
    rows.append(cells)
  return heads, rows


def span(low: float, high: float, metric: Score) -> str:
  """An interval."""
  return f"{metric.number(low)} to {metric.number(high)}"


def difference(row: Row, metric: Score) -> str:
  """A difference to the baseline with half its interval."""
  found = row.against
  if found is None or found.mean is None:
    return "—"
  shown = metric.number(found.mean, "+")
  return shown if found.half is None else f"{shown} ± {metric.number(found.half)}"


def p(row: Row) -> str:
  """The corrected p, with a star where it tells that there is a difference."""
  found = row.against
  if found is None or found.holm is None:
    return "—"
  star = " *" if found.sure else ""
  return sentences.p_value(found.holm).removeprefix("p ").removeprefix("= ") + star


def costs(section: Section) -> Table | None:
  """What the groups cost, as far as anything is known."""
  names = spent(section.rows)
  if not names:
    return None
  rows = [
    [row.label, *(cost(row.costs.get(name)) for name in names)]
    for row in section.rows
    if row.score is not None
  ]
  return ["", *names.values()], rows


def cost(value: float | None) -> str:
  """A number of any size."""
  if value is None:
    return "—"
  return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def terminal(section: Section) -> Iterator[str]:
  """All of a section in lines of 100 columns."""
  yield f"{section.task}: {section.metric.title} by {', '.join(section.by)}"
  yield from wrapped(sentences.headline(section))
  yield ""
  yield from _aligned(scores(section))
  if said := list(sentences.verdicts(section)):
    yield ""
    for sentence in said:
      yield from wrapped(sentence)
  if found := costs(section):
    yield ""
    yield from _aligned(found)
  yield ""
  yield from wrapped(sentences.method(section))
  for note in sentences.notes(section):
    yield from wrapped(f"note: {note}", "      ")


def wrapped(text: str, indent: str = "") -> list[str]:
  """Lines of at most 100 columns; a path may be longer."""
  return textwrap.wrap(
    text, WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
  )


def _aligned(table: Table) -> Iterator[str]:
  heads, rows = table
  lines = [[_short(line[0]), *line[1:]] for line in ([*heads], *rows)]
  widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
  for line in lines:
    cells = [f"{line[0]:<{widths[0]}}"]
    cells += [f"{cell:>{width}}" for cell, width in zip(line[1:], widths[1:], strict=True)]
    yield "  ".join(cells).rstrip()


def _short(text: str) -> str:
  return text if len(text) <= NAME else text[: NAME - 1] + "…"


def markdown(sections: Sequence[Section], general: Sequence[str]) -> str:
  """All sections as a Markdown document."""
  parts = []
  for section in sections:
    parts.append(f"## {section.task}: {section.metric.title} by {', '.join(section.by)}")
    parts.append(_escaped(sentences.headline(section)))
    parts.append(_pipes(scores(section)))
    parts.append("\n".join(f"- {_escaped(each)}" for each in sentences.verdicts(section)))
    if found := costs(section):
      parts.append(_pipes(found))
    parts.append(_escaped(sentences.method(section)))
    parts.append("\n".join(f"- Note: {_escaped(each)}" for each in sentences.notes(section)))
  parts.append("\n".join(f"- Note: {_escaped(each)}" for each in general))
  return "\n\n".join(part for part in parts if part) + "\n"


def _pipes(table: Table) -> str:
  heads, rows = table
  rule = ["---", *["---:"] * (len(heads) - 1)]
  lines = [[_escaped(cell) for cell in line] for line in (heads, rule, *rows)]
  return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _escaped(text: str) -> str:
  return re.sub(r"([\\`*_|<>\[\]])", r"\\\1", text)


def latex(sections: Sequence[Section]) -> str:
  """A booktabs table for each section; the best mean is bold."""
  parts = ["% needs \\usepackage{booktabs}"]
  for section in sections:
    heads, rows = scores(section)
    lines = [[_tex(cell) for cell in line] for line in (heads, *rows)]
    if rows and section.rows[0].score is not None:
      lines[1][2] = f"\\textbf{{{lines[1][2]}}}"
    body = [" & ".join(line) + r" \\" for line in lines]
    about = [*sentences.verdicts(section), sentences.method(section), *sentences.notes(section)]
    parts.append(
      "\n".join(
        [
          f"% {section.task}: {section.metric.title} by {', '.join(section.by)}",
          *(f"% {each}" for each in about),
          f"\\begin{{tabular}}{{l{'r' * (len(heads) - 1)}}}",
          r"\toprule",
          body[0],
          r"\midrule",
          *body[1:],
          r"\bottomrule",
          r"\end{tabular}",
        ]
      )
    )
  return "\n\n".join(parts) + "\n"


def _tex(text: str) -> str:
  text = re.sub(r"(?<!\S)-(?=\d)", "−", text)
  return "".join(LATEX.get(each, each) for each in text)
