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

FORMATS = ("html", "markdown", "csv", "parquet", "latex", "terminal")
MOST_NOTES = 5  # on folders that were left out
EXAMPLES = """\
examples:
  python -m posexp.report                                      all of runs/, by what differs
  python -m posexp.report runs/ --by encoding,rpr.k --metric test/accuracy
  python -m posexp.report runs/numbers --metric beyond/exact_match --baseline "rpr k=4"
  python -m posexp.report runs/trec --format html,latex --out paper
  python -m posexp.report runs/trec --format terminal          writes no files

The table is always printed; files go to the folder of --out. Only what the runs have written is
read. Groups are compared on the seeds that they share (paired t tests, Holm's correction).
"""


def arguments(argv: Sequence[str]) -> argparse.Namespace:
  """What was typed.

  Raises:
    UserError: it cannot be understood.
  """
  parser = Parser(
    "report", "Turns runs into tables with error bars, tests, figures and one web page.", EXAMPLES
  )
  parser.add_argument("runs", metavar="RUNS", nargs="*", type=Path, help="folders; default: runs")
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
  parser.add_argument(
    "--format",
    metavar="NAME,...",
    type=names,
    default=list(FORMATS),
    help=f"of {', '.join(FORMATS)}; default: all",
  )
  args = parser.parse_args(list(argv))
  for each in args.format:
    if each not in FORMATS:
      parser.error(f"--format {each}: it is one of {', '.join(FORMATS)}")
  args.runs = args.runs or [Path("runs")]
  return args


def report(args: argparse.Namespace) -> tuple[list[Results], list[Path]]:
  """Prints the tables and writes the files.

  Returns:
    The results of each task, and the files.

  Raises:
    UserError: there are no runs, what was asked for is not in them, or files cannot be written.
  """
  from posexp.reporting import tables
  from posexp.reporting.results import results
  from posexp.reporting.text import wrapped

  runs, notes = read_runs(args.runs)
  tasks, more = results(runs, args.by, args.metric, args.baseline)
  notes += more
  for each in tasks:
    print("\n".join([*tables.terminal(each), ""]))
  for note in notes[:MOST_NOTES]:
    print("\n".join(wrapped(f"note: {note}", "      ")))
  if len(notes) > MOST_NOTES:
    print(f"note: and {len(notes) - MOST_NOTES} more such notes")
  try:
    files = write(tasks, notes, args.out, args.format)
  except OSError as error:
    raise UserError(f"--out {args.out} cannot be written: {error.strerror or error}") from error
  if files:
    print(f"written: {', '.join(map(near, files))}")
  return tasks, files


def write(
  tasks: Sequence[Results], notes: Sequence[str], out: Path, formats: Sequence[str]
) -> list[Path]:
  """Writes the files of some formats into a folder; returns their paths.

  Raises:
    OSError: they cannot be written.
  """
  from posexp.reporting import tables

  texts = {}
  if "html" in formats:
    from posexp.reporting.page import page

    texts["report.html"] = page(tasks, notes, out)
  if "markdown" in formats:
    texts["report.md"] = tables.markdown_report(tasks, notes)
  if "latex" in formats:
    texts["report.tex"] = tables.latex_report(tasks)
  for name, text in texts.items():
    storage.write(out / name, text)
  written = [out / name for name in texts]
  out.mkdir(parents=True, exist_ok=True)
  for suffix in [each for each in ("csv", "parquet") if each in formats]:
    for name, frame in (("groups", tables.group_data(tasks)), ("runs", tables.run_data(tasks))):
      written.append(out / f"{name}.{suffix}")
      getattr(frame, f"to_{suffix}")(written[-1], index=False)
  return written


def main() -> None:
  """The command line."""
  run(lambda argv: report(arguments(argv)))


if __name__ == "__main__":
  main()
