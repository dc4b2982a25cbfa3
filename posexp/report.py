"""Turn runs into tables with error bars, tests, figures and one web page.

examples:
  python -m posexp.report                                      # all of runs/, by what differs
  python -m posexp.report runs/ --by encoding,rpr.k --metric test/accuracy
  python -m posexp.report runs/numbers --metric beyond/exact_match --baseline "rpr k=4"
  python -m posexp.report runs/mr --where model.backbone=cnn --by encoding
  python -m posexp.report runs/trec --no-files
  python -m posexp.report runs/trec --records trec.parquet     # for others, who then type
  python -m posexp.report trec.parquet
  python -m posexp.report runs/trec --labels "{rpr k=4: Shaw et al., none: no positions}"
  python -m posexp.report runs/trec --figures pdf,svg,png      # every figure, as files
  python -m posexp.report runs/trec --figures pdf --width 3.3in --font 8 --only by-group,by-step
                                                               # of a paper: one chart in a file

The report is printed, and goes to the folder of --out: as Markdown, a page in HTML with charts that
one can touch, and all numbers of groups and runs as CSV; paper.md, .tex and .csv are one table of
all groups and tasks, in LaTeX, too. Only what the runs have written is read.
Groups are compared with the baseline by t tests, paired by seed where that pays.
"""

from __future__ import annotations

import argparse
import gc
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from posexp import storage
from posexp.config.arguments import Parser, command, keep, names
from posexp.errors import UserError, counted, near, writing
from posexp.runs import Run, read_runs
from posexp.runs.context_losses import with_context_losses
from posexp.runs.lengths import with_extrapolation
from posexp.runs.records import held, read_records, write_records
from posexp.status import doing

if TYPE_CHECKING:
  from posexp.reporting.results import Results
  from posexp.reporting.text import Section

OTHERS = ("groups.csv", "runs.csv", "paper.md, .tex and .csv")


def arguments(argv: Sequence[str]) -> argparse.Namespace:
  """Parse the command line; raise UserError if it cannot be understood."""
  parser = Parser("report", __doc__)
  option = parser.add_argument
  what = "folders, or files of --records; default: runs"
  option("runs", nargs="*", type=Path, default=[Path("runs")], help=what)
  by = "options to group by; default: those that differ"
  option("--by", metavar="KEY,...", type=names, help=by)
  only = "only runs with this value of an option; may be given several times"
  option("--where", metavar="OPTION=VALUE", action="append", default=[], help=only)
  option("--metric", help="of summary.json; default: what the task is mainly about")
  base = "what others are compared with; default: sinusoidal or none, of several the best on "
  base += "validation, or else the first in the order of the options"
  option("--baseline", metavar="GROUP", help=base)
  out = "for files; default: report"
  chance = "also compare the baseline with itself: runs of the same seeds, or every other seed"
  option("--aa", action="store_true", help=chance)
  option("--out", metavar="DIR", type=Path, default=Path("report"), help=out)
  called = "names to be shown: {GROUP: NAME, ...} in YAML, or a file of it; tasks may have one, too"
  option("--labels", metavar="YAML", default="", help=called)
  drawn = "also write every figure, to figures/: of pdf, svg and png those that are named"
  option("--figures", metavar="KIND,...", type=names, default=[], help=drawn)
  wide = "of each figure for print, in inches: one chart in a file"
  option("--width", metavar="3.3in", type=inches, help=wide)
  option("--font", metavar="8", type=float, help="points of its letters; default: 8")
  ends = "only figures whose files' names end so"
  option("--only", metavar="NAME,...", type=names, default=[], help=ends)
  option("--no-files", action="store_true", help="print the report, and no more")
  keep = "also keep config, summary and metrics of all finished runs in this Parquet file"
  option("--records", metavar="FILE", type=Path, help=keep)
  args = parser.parse_args(list(argv))
  if args.records is not None and args.records.suffix != ".parquet":
    raise UserError(f"--records {args.records}: give it the ending .parquet")
  if unknown := [kind for kind in args.figures if kind not in ("pdf", "svg", "png")]:
    raise UserError(f"--figures {unknown[0]}: there are pdf, svg and png")
  if (args.width or args.font or args.only) and not args.figures:
    raise UserError("--width, --font and --only are of files of figures: add --figures pdf")
  if args.font is not None and args.width is None:
    raise UserError(f"--font {args.font:g} is of figures for print: add --width 3.3in")
  if args.font is not None and not 4 <= args.font <= 24:
    raise UserError(f"--font {args.font:g}: give from 4 to 24 points")
  if args.figures and args.no_files:
    raise UserError("--figures are files: leave --no-files out")
  return args


def inches(text: str) -> float:
  """Return a width as it is typed, 3.3in or 3.3; raise ArgumentTypeError if it is none."""
  try:
    width = float(text.removesuffix("in"))
  except ValueError:
    width = 0.0
  if not 1 <= width <= 20:
    raise argparse.ArgumentTypeError(f"{text}: give from 1in to 20in")
  return width


def given(paths: Sequence[Path]) -> tuple[list[Run], list[str]]:
  """Return the runs in folders and in files of records, and notes on unreadable ones.

  Raises:
    UserError: there are none.
  """
  kept = [file for path in paths if (file := held(path)) is not None]
  runs = [run for file in kept for run in read_records(file, trials=True)]
  folders = [path for path in paths if held(path) is None]
  if not folders:
    return with_extrapolation(runs), []
  read, notes = read_runs(folders, trials=True)
  read, damaged = with_context_losses(read)
  return with_extrapolation([*runs, *read]), [*notes, *damaged]


def report(args: argparse.Namespace) -> list[Results]:
  """Print the report and write the files; return the results of each task.

  Raises:
    UserError: there are no runs, what was asked for is not in them, or files cannot be written.
  """
  from posexp.reporting import grouping, labels, sentences, tables, text, trials, under_way
  from posexp.reporting.paired_predictions import packed_examples
  from posexp.reporting.results import results
  from posexp.runs.trials import tunings

  every, notes = given(args.runs)
  tuned = trials.labeled(tunings(every))
  runs = grouping.chosen(trials.tracks(every, tuned), args.where)
  kept = {run.digest for run in runs}
  tuned = [each for each in tuned if not args.where or {each.fixed, each.tuned} & kept]
  doing("comparing the groups")
  begun = under_way.sections(args.runs, every)
  finished = any(run.summary is not None for run in runs)
  if not finished and (tuned or begun):
    tasks = []  # a sweep has trained nothing that has a result yet
  else:
    tasks = results(runs, args.by, args.metric, args.baseline, args.aa)
  notes += grouping.left_out(runs, [task.task for task in tasks], args.metric)
  notes += sentences.other_baselines(tasks, args.baseline)
  notes += [*labels.rename(tasks, labels.read(args.labels)), *grouping.unmeasured(runs)]
  sections = [*begun, *trials.sections(tuned, tasks)]
  keep(tasks=[tables.as_data(task) for task in tasks], notes=notes)
  said = text.document(sections) + tables.document(tasks, notes)
  print(said)
  if (tasks or any(section.figures for section in sections)) and not args.no_files:
    doing("drawing the figures")
    if args.figures:  # first, as --only may name none
      count = save_figures(tasks, sections, args)
      print(f"written: {near(args.out / 'figures')}, {counted(count, 'file')}")
    with writing("--out", args.out):
      write(tasks, notes, said, args.out, sections)
    print(f"written: {near(args.out)}/report.html and .md, {', '.join(OTHERS)}")
  if args.records is not None:
    with writing("--records", args.records):
      count = write_records(args.records, grouping.chosen(every, args.where), packed_examples)
    print(f"written: {near(args.records)}, {counted(count, 'run')}")
  return tasks


def write(
  tasks: Sequence[Results],
  notes: Sequence[str],
  text: str,
  out: Path,
  sections: Sequence[Section] = (),
) -> None:
  """Write the files; `text` is the report in Markdown, which has the `sections` in front.

  Raises:
    OSError: they cannot be written.
  """
  from posexp.reporting import paper, tables
  from posexp.reporting.page import page

  storage.write(out / "report.md", text)
  storage.write(out / "report.html", page(tasks, notes, sections))
  one = paper.table(tasks)
  storage.write(out / "paper.md", one.markdown)
  storage.write(out / "paper.tex", one.latex)
  runs = tables.sheet([row for results in tasks for row in results.rows])
  data = {"groups": tables.group_data(tasks), "runs": runs, "paper": paper.data(tasks)}
  for name, rows in data.items():
    rows.to_csv(out / f"{name}.csv", index=False, errors="replace")


def save_figures(
  tasks: Sequence[Results], sections: Sequence[Section], args: argparse.Namespace
) -> int:
  """Write the figures that were asked for to files; return how many files they are.

  Raises:
    UserError: they cannot be written, or none has the name that was asked for.
  """
  from posexp.reporting import figures

  every = [figure for section in sections for figure in section.figures]
  every += [*(figure for task in tasks for figure in figures.figures(task)), *figures.of_all(tasks)]
  size = None
  if args.width:
    size = figures.Print(args.width, **({"letters": args.font} if args.font else {}))
  return figures.save(every, args.out / "figures", args.figures, size, args.only)


def main() -> None:
  """Run the command line."""
  gc.disable()  # or the rows of all runs would be walked again and again
  command("reading the runs", report, arguments)()


if __name__ == "__main__":
  main()
