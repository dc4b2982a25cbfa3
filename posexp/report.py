"""From runs to an answer: `python -m posexp.report RUNS --by encoding,rpr.k`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from posexp import storage
from posexp.config.arguments import Parser, names, run
from posexp.errors import UserError, near
from posexp.runs import read_runs

if TYPE_CHECKING:
  from posexp.reporting.results import Results

EXAMPLES = """\
examples:
  python -m posexp.report                                      all of runs/, by what differs
  python -m posexp.report runs/ --by encoding,rpr.k --metric test/accuracy
  python -m posexp.report runs/numbers --metric beyond/exact_match --baseline "rpr k=4"
  python -m posexp.report runs/trec --no-files

The report is printed, and goes to the folder of --out: as Markdown, a page in HTML with figures, a
LaTeX table, and all numbers of groups and runs as CSV; heat maps of tasks that have scores by
length as PDF and PNG in figures/. Only what the runs have written is read.
Groups are compared on the seeds that they share (paired t tests, Holm's correction).
"""


def arguments(argv: Sequence[str]) -> argparse.Namespace:
  """What was typed.

  Raises:
    UserError: it cannot be understood.
  """
  parser = Parser(
    "report", "Turns runs into tables with error bars, tests, figures and one web page.", EXAMPLES
  )
  parser.add_argument(
    "runs", nargs="*", type=Path, default=[Path("runs")], help="folders; default: runs"
  )
  parser.add_argument(
    "--by", metavar="KEY,...", type=names, help="options to group by; default: those that differ"
  )
  parser.add_argument("--metric", help="of summary.json; default: what the task is mainly about")
  parser.add_argument(
    "--baseline", metavar="GROUP", help="what others are compared with; default: sinusoidal or none"
  )
  parser.add_argument(
    "--out", metavar="DIR", type=Path, default=Path("report"), help="for files; default: report"
  )
  parser.add_argument("--no-files", action="store_true", help="print the report, and no more")
  return parser.parse_args(list(argv))


def report(args: argparse.Namespace) -> list[Results]:
  """Prints the report and writes the files; returns the results of each task.

  Raises:
    UserError: there are no runs, what was asked for is not in them, or files cannot be written.
  """
  from posexp.reporting import contexts, tables
  from posexp.reporting.results import results

  runs, notes = read_runs(args.runs)
  runs, damaged = contexts.added(runs)
  notes = [*notes, *damaged]
  tasks = results(runs, args.by, args.metric, args.baseline)
  text = tables.document(tasks, notes)
  print(text)
  if not args.no_files:
    try:
      write(tasks, notes, text, args.out)
    except OSError as error:
      raise UserError(f"--out {args.out} cannot be written: {error.strerror or error}") from error
    print(f"written: {near(args.out)}/report.html, .md and .tex, groups.csv and runs.csv")
  return tasks


def write(tasks: Sequence[Results], notes: Sequence[str], text: str, out: Path) -> None:
  """Writes the files; `text` is the report in Markdown.

  Raises:
    OSError: they cannot be written.
  """
  from posexp import plotting
  from posexp.reporting import tables
  from posexp.reporting.figures import wide_figures
  from posexp.reporting.page import page

  storage.write(out / "report.md", text)
  storage.write(out / "report.html", page(tasks, notes))
  for name, figure in wide_figures(tasks).items():
    plotting.save(figure, out / "figures", name, kinds=("png", "pdf"))
  storage.write(out / "report.tex", tables.latex(tasks))
  tables.group_data(tasks).to_csv(out / "groups.csv", index=False, errors="replace")
  tables.run_data(tasks).to_csv(out / "runs.csv", index=False, errors="replace")


def main() -> None:
  """The command line."""
  run(lambda argv: report(arguments(argv)))


if __name__ == "__main__":
  main()
