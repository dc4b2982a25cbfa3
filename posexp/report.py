"""From runs to an answer: `python -m posexp.report RUNS --by encoding,rpr.k`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from posexp.config.arguments import Parser, names, run
from posexp.errors import UserError, near

if TYPE_CHECKING:
  from posexp.reporting.results import Section

FORMATS = ("html", "markdown", "csv", "parquet", "latex", "terminal")
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
  parser.add_argument(
    "--metric", help="of summary.json; default: test/accuracy, test/bleu or test/exact_match"
  )
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


def report(args: argparse.Namespace) -> tuple[list[Section], list[Path]]:
  """Prints the tables and writes the files.

  Returns:
    The sections, one a task, and the files.

  Raises:
    UserError: there are no runs, what was asked for is not in them, or files cannot be written.
  """
  from posexp.reporting import results, tables
  from posexp.runs import read_runs

  runs, notes = read_runs(args.runs)
  sections, more = results.sections(runs, args.by, args.metric, args.baseline)
  notes += more
  for section in sections:
    print("\n".join([*tables.terminal(section), ""]))
  for note in notes[:5]:
    print("\n".join(tables.wrapped(f"note: {note}", "      ")))
  if len(notes) > 5:
    print(f"note: and {len(notes) - 5} more such notes")
  files = write(sections, notes, args.out, args.format)
  if files:
    print(f"written: {', '.join(map(near, files))}")
  return sections, files


def write(
  sections: list[Section], notes: list[str], out: Path, formats: Sequence[str]
) -> list[Path]:
  """Writes the files of some formats into a folder; returns their paths.

  Raises:
    UserError: they cannot be written.
  """
  from posexp import storage
  from posexp.reporting import files, tables

  texts = {}
  if "html" in formats:
    from posexp.reporting import page

    texts["report.html"] = page.page(sections, notes, out)
  if "markdown" in formats:
    texts["report.md"] = tables.markdown(sections, notes)
  if "latex" in formats:
    texts["report.tex"] = tables.latex(sections)
  rows = {"groups": files.groups(sections), "runs": files.runs(sections)}
  if "csv" in formats:
    texts |= {f"{name}.csv": files.as_csv(each) for name, each in rows.items()}
  written = [out / name for name in texts]
  try:
    for path, text in zip(written, texts.values(), strict=True):
      storage.write(path, text)
    if "parquet" in formats:
      out.mkdir(parents=True, exist_ok=True)
      for name, each in rows.items():
        written.append(out / f"{name}.parquet")
        files.write_parquet(each, written[-1])
  except OSError as error:
    raise UserError(f"--out {out} cannot be written: {error.strerror or error}") from error
  return written


def main() -> None:
  """The command line."""
  run(lambda argv: report(arguments(argv)))


if __name__ == "__main__":
  main()
