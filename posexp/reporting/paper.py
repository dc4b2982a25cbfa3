"""One table for a paper: the scores of encodings in tasks, as Markdown, LaTeX and CSV."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from typing import NamedTuple

import pandas as pd

from posexp.reporting.grouping import Group
from posexp.reporting.results import Results
from posexp.reporting.sentences import outcome
from posexp.reporting.significance import LEVEL
from posexp.reporting.tables import sheet
from posexp.reporting.text import MISSING, Table, listed, markdown, one_line, tabulated

MARKS = {"better": "⁺", "worse": "⁻"}  # of a group that is told apart from the baseline
TEX = {
  "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "$": r"\$", "%": r"\%", "&": r"\&",
  "#": r"\#", "_": r"\_", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}",
  "<": r"\ensuremath{<}", ">": r"\ensuremath{>}", "|": r"\ensuremath{|}", "±": r"$\pm$",
  "⁺": r"$^{+}$", "⁻": r"$^{-}$", "−": "$-$", MISSING: "---", "·": r"\,",
}  # fmt: skip


WIDE_LETTERS = " and, for letters such as Chinese, XeLaTeX or LuaLaTeX with \\usepackage{ctex}"


class Paper(NamedTuple):
  """A table with its caption."""

  cells: Table
  best: set[tuple[int, int]]  # the row and the column of the best of each task
  caption: str
  label: str = "tab:encodings"  # by which a paper refers to it

  def marked(self, before: str, after: str) -> Table:
    """Return the table with marks around the best of each task."""
    heads, rows = self.cells
    rows = [[*cells] for cells in rows]
    for row, column in self.best:
      rows[row][column] = f"{before}{rows[row][column]}{after}"
    return heads, rows

  @property
  def markdown(self) -> str:
    return f"{tabulated(self.marked('**', '**'), 'pipe')}\n\n{markdown(self.caption)}\n"

  @property
  def latex(self) -> str:
    """The table with caption and label, for booktabs."""
    heads, rows = self.cells
    lines = [" & ".join(map(_tex, heads))]
    for row, cells in enumerate(rows):
      quoted = [
        f"\\textbf{{{_tex(cell)}}}" if (row, column) in self.best else _tex(cell)
        for column, cell in enumerate(cells)
      ]
      lines.append(" & ".join(quoted))
    # After the end of a row, LaTeX reads [ and * as an option of it.
    body = [f"{'{}' * line.startswith(('[', '*'))}{line} \\\\" for line in lines]
    others = any(unicodedata.east_asian_width(letter) in "WF" for letter in "".join(lines))
    return "\n".join(
      [
        "% needs \\usepackage{booktabs}" + WIDE_LETTERS * others,
        "\\begin{table}",
        "\\centering",
        f"\\caption{{{_tex(self.caption)}}}",
        f"\\label{{{self.label}}}",
        f"\\begin{{tabular}}{{l{'r' * (len(heads) - 1)}}}",
        "\\toprule",
        body[0],
        "\\midrule",
        *body[1:],
        "\\bottomrule",
        "\\end{tabular}",
        "\\end{table}",
        "",
      ]
    )


def table(tasks: Sequence[Results]) -> Paper:
  """Return a row for each label of groups, the best mean rank first, and a column for each task:
  means with their intervals, the seeds that learned, and marks of differences.
  """
  labeled = [{one_line(group.label): group for group in results.groups} for results in tasks]

  def rank(name: str) -> float:
    places = [[*groups].index(name) / len(groups) for groups in labeled if name in groups]
    return sum(places) / len(places)

  names = sorted(dict.fromkeys(name for groups in labeled for name in groups), key=rank)
  heads = ["", *(f"{one_line(task.task)}: {one_line(task.score.title)}" for task in tasks)]
  rows = [
    [name, *(_cell(groups.get(name), task) for groups, task in zip(labeled, tasks, strict=True))]
    for name in names
  ]
  best = {
    (names.index(one_line(group.label)), column)
    for column, task in enumerate(tasks, 1)
    for group in task.ranked
    if group.estimate.mean == task.ranked[0].estimate.mean and len(task.ranked) > 1
  }
  return Paper((heads, rows), best, _caption(tasks))


def _cell(group: Group | None, results: Results) -> str:
  if group is None or not group.repeats:
    return MISSING
  if not group.estimate.n:
    return MISSING
  mark = "" if group is results.baseline else MARKS.get(outcome(group, results), "")
  learned, every = len(group.learned(results.score)), len(group.repeats)
  partly = f" ({learned}/{every})" if learned < every else ""
  return f"{results.shown(group.estimate)}{mark}{partly}"


def _caption(tasks: Sequence[Results]) -> str:
  """Return the caption, with only those sentences that apply to the table."""
  seeds = sorted({len(group.repeats) for task in tasks for group in task.groups if group.repeats})
  number = f"{seeds[0]}" if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]}" if seeds else "no"
  percent = [one_line(results.task) for results in tasks if results.score.metric.percent]
  units = " in per cent" if len(percent) == len(tasks) else ""
  units = f" ({', '.join(percent)}: per cent)" if percent and not units else units
  lower = [one_line(task.task) for task in tasks if not task.score.metric.higher_is_better]
  bases: dict[str, list[str]] = {}
  for task in tasks:
    if task.baseline is not None:
      bases.setdefault(one_line(task.baseline.label), []).append(one_line(task.task))
  looked_at = any(each.looked_at for each in tasks)
  means = f"Means over {number} seeds" + " with 95 % intervals" * (not looked_at)
  means = "Scores of 1 seed" if number == "1" else means
  parts = [f"{means}{units}; the best of each column is bold."]
  if lower:
    parts.append(f"Less is better for {listed(lower, 8)}.")
  if bases:
    said = [name + (f" ({', '.join(of)})" if len(bases) > 1 else "") for name, of in bases.items()]
    how = "at any time, corrected for all comparisons" if looked_at else "with Holm's correction"
    corrected = f"(p < {LEVEL:g} {how})"
    parts.append(f"⁺ and ⁻: better and worse than {' and '.join(said)} {corrected}.")
  if any(each.gated for each in tasks):
    parts.append(
      "(3/5): three of five seeds learned the task, and the mean is of all five; nothing: all did."
    )
  return " ".join(parts)


def _tex(text: str) -> str:
  """Return a text as LaTeX shows it."""
  return re.sub("|".join(map(re.escape, TEX)), lambda found: TEX[found[0]], one_line(text))


def data(tasks: Sequence[Results]) -> pd.DataFrame:
  """Return the same table as numbers: five columns for each task, in the units of summary.json."""
  rows: dict[str, dict[str, object]] = {}
  for results in tasks:
    for group in results.groups:
      row = rows.setdefault(one_line(group.label), {"group": one_line(group.label)})
      mean, low, high = group.estimate.mean, group.estimate.low, group.estimate.high
      numbers = {"mean": mean, "low": low, "high": high, "seeds": len(group.repeats)}
      numbers |= {"learned": len(group.learned(results.score)), "p (Holm)": group.difference.holm}
      row |= {f"{results.task} {name}": value for name, value in numbers.items()}
  return sheet([*rows.values()])
