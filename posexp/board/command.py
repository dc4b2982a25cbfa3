"""Show the leaderboard of positional encodings, or train a row of it.

examples:
  python -m posexp.leaderboard                                  # the table, from published records
  python -m posexp.leaderboard encoding=mine plugins=mine.py    # a whole row, and the page with it
  python -m posexp.leaderboard encoding=mine plugins=mine.py --quick     # a provisional one
  python -m posexp.leaderboard encoding=rope,none,alibi --columns copy,recall workers=4
  python -m posexp.leaderboard encoding=rope rope.p=0.75 --name p-rope   # options of an encoding
  python -m posexp.leaderboard --for 170m               # what is missing, until the time is up
  python -m posexp.leaderboard --verify leaderboard/2/mine.parquet plugins=mine.py

A row is checked (posexp.check), the machine is compared with published runs, options are tuned, and
the final seeds are trained: as many runs at once as there are cores, each on one. The same command
goes on where it was stopped. workers=, hydra/launcher=slurm with its options, and runs= mean what
they mean in a sweep. The row is written to NAME.parquet in the folder of --out, beside the page.
"""

from __future__ import annotations

import argparse
import logging
import os
import shlex
import signal
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from posexp import machine
from posexp.config import plugins, show
from posexp.config.arguments import Parser, command, keep, named_plugins, names, say
from posexp.config.checks import seconds
from posexp.config.command_line import explained, parse
from posexp.errors import Unsuited, UserError, counted, lasting, near
from posexp.status import doing

if TYPE_CHECKING:
  from posexp.board.rows import Cell, Row
  from posexp.board.standings import Standing
  from posexp.board.suite import Column, Suite

PUBLISHED = Path(__file__).parents[2] / "docs" / "leaderboard" / "records"
HOW = ("workers", "hydra/launcher", "hydra.", "runs")  # options that say how runs are trained


def arguments(argv: Sequence[str]) -> argparse.Namespace:
  """Parse the command line; raise UserError if it cannot be understood."""
  options = "the encoding, its options, and how runs are trained"
  parser = Parser("leaderboard", __doc__, options)
  option = parser.add_argument
  option("--quick", action="store_true", help="fewer trials and seeds: the row is provisional")
  which = "columns to train; default: those with published rows"
  option("--columns", metavar="A,B", type=names, default=[], help=which)
  option("--name", help="of the row; default: the encoding")
  about = (
    "train what is missing, what is worth most first, and stop in time; type it again to go on"
  )
  option("--for", metavar="170m", dest="time", type=duration, help=about)
  option("--out", metavar="DIR", type=Path, help="default: leaderboard/SUITE")
  suite = "a name such as 1 or 2-large, or a file of your own; default: the newest, 2"
  option("--suite", metavar="SUITE", help=suite)
  record = "folder of published rows; default: those of this checkout"
  option("--records", metavar="DIR", type=Path, help=record)
  option("--verify", metavar="FILE", type=Path, help="check an entry before it is published")
  files, others = named_plugins(argv)
  if any(word.partition("=")[0] == "--verify" for word in argv):
    # An entry's plugin could change how the entry is read, so it is not loaded here.
    args = parse(others, parser)
    args.plugins = [Path(file) for file in files]
    return args
  return parse(list(argv), parser)


def leaderboard(args: argparse.Namespace) -> None:
  """Train rows, verify an entry or draw the tables, as the command line asks.

  Raises:
    UserError: an option is wrong, an entry is refused, or runs of a row have failed.
  """
  doing("reading the suite")
  from posexp.board import suite as suites

  name = args.suite or suites.SUITES[0]
  brought = suites.FOLDER / f"{name}.yaml"
  suite = suites.Suite.read(brought if brought.exists() else Path(name))
  if args.records is None and not PUBLISHED.is_dir():
    say("note: published rows come with a checkout; --records DIR reads them from elsewhere")
  args.records = PUBLISHED / suite.name if args.records is None else args.records
  args.out = Path("leaderboard", suite.name) if args.out is None else args.out
  named = {o.key_or_group: o.input_line.partition("=")[2] for o in args.overrides}
  if args.verify:
    verify(args, suite)
  elif "encoding" in named or args.time:
    train_rows(args, suite, [name for name in named.get("encoding", "").split(",") if name])
  elif args.overrides or args.quick or args.columns or args.name:
    raise UserError("name what is to be trained: python -m posexp.leaderboard encoding=NAME ...")
  if not args.verify:
    draw(args, suite, echo="encoding" not in named and not args.time)


def how_of(args: argparse.Namespace) -> list[str]:
  """Return the overrides that say how and where runs are trained."""
  lines = [o.input_line for o in args.overrides if o.key_or_group.startswith(HOW)]
  own = any(line.startswith("runs=") for line in lines)
  return lines if own else [*lines, f"runs={show(str(place_of(args)))}"]


def place_of(args: argparse.Namespace) -> Path:
  """Return the folder of all runs."""
  given = (o.value() for o in args.overrides if o.key_or_group == "runs")
  return Path(str(next(given, args.out / "runs"))).expanduser()


def train_rows(args: argparse.Namespace, suite: Suite, encodings: Sequence[str]) -> None:
  """Train rows, column by column, and write the file of each with the runs that have finished."""
  from posexp.board import rows, trust
  from posexp.board.standings import ANCHORS, of_folder, took
  from posexp.board.suite import TRACKS
  from posexp.sweeps.sweep import FAILED
  from posexp.train import train

  until = time.monotonic() + args.time if args.time else None
  asked = _asked(args, suite, encodings)
  published = of_folder(args.records, suite)
  filled = {column for standing in published for column, _ in standing.cells}
  default = [name for name in suite.columns if name in filled and until is None]
  columns = suite.chosen(args.columns or default)
  own = of_folder(args.out, suite) if until else []
  known = (published, own) if until else ()
  done, whole = (_done(known, suite, tracks) for tracks in (TRACKS[:1], TRACKS))
  pairs = {(row.name, column.name): (row, column) for column in columns for row in asked}
  cells: Iterable[Cell] = _cells(args, suite, [pairs[key] for key in pairs if key not in done])
  tuned = _cells(args, suite, [pairs[key] for key in pairs if key in done - whole])
  print(f"suite     {suite.name}: {counted(len(columns), 'column')}, {counted(len(asked), 'row')}")
  left: list[float] = []
  if until is None:
    cells = [*cells]
    left = [cell.column.seconds for cell in cells for _ in range(cell.left)]
  begins = until is not None or bool(left)
  checked = [row for row in asked if row.encoding in plugins.found("encoding")] if begins else []
  anchors = {standing.name for standing in published} & {*ANCHORS}
  compared = begins and bool(anchors) and not {row.name for row in asked} <= {*ANCHORS}
  calibrations = trust.calibrations(suite, published, columns) if compared else []
  if until is None:
    _print_estimate(left, trust.CHECK * len(checked) + sum(each.seconds for each in calibrations))
  if not suite.frozen:
    print("note      this suite is not frozen: once it is, its columns are others than these")
  empty = ",".join(name for name in suite.columns if filled and name not in filled)
  if empty and not args.columns and until is None:
    print(f"note      no row is published in {empty} yet: --columns {empty} trains them")
  for row in checked:
    trust.check_properties(row.encoding, row.options, plugins.files())
  for each in calibrations:
    if each.seconds:
      print(f"calibrate {each.column.name}, {each.encoding}, with two runs", flush=True)
    said = trust.calibrate(each, args.out, how_of(args), train)
    print(f"calibrate {said}", flush=True)
  if begins and not anchors:
    print("calibrate nothing: there is no published row of rope or none to compare with")
  sweep = rows.Remaining(cells, tuned, until, took(own))
  try:
    rows.train_cells(sweep, rows.cores() if until else len(left), how_of(args), train)
  finally:
    for row in asked:
      file = args.out / f"{row.name}.parquet"
      found = [cell for cell in sweep.cells if cell.row == row]
      if found and (n := rows.write_row(file, suite, found, args.quick, args.records / file.name)):
        print(f"written: {near(file)}, {counted(n, 'run')}", flush=True)
  missing = {cell.row.name: None for cell in sweep.cells if cell.left}
  if missing and (until is None or sweep.in_state(FAILED)):
    raise UserError(f"{', '.join(missing)}: runs have failed; the same command tries them again")
  if missing:
    print(f"left      runs of {', '.join(missing)}: the same command goes on")


def _print_estimate(left: Sequence[float], before: float) -> None:
  """Print how many runs are left, how long they take, and how long the checks before them take."""
  from posexp.board import rows

  first = f", and {lasting(before)} before that to check and to calibrate" if before else ""
  print(
    f"          {counted(len(left), 'run')} to train, and more where the best rate is at an edge: "
    f"about {lasting(sum(left))} of one core{first}; {counted(rows.cores(), 'core')} here",
    flush=True,
  )


def _done(
  known: Iterable[Sequence[Standing]], suite: Suite, tracks: Sequence[str]
) -> set[tuple[str, str]]:
  """Return the pairs of row and column names that a folder has complete in these tracks."""
  done: set[tuple[str, str]] = set()
  for folder in known:
    standings = [standing for standing in folder if standing.track in tracks]
    every = {(standing.name, name) for standing in standings for name in suite.columns}
    done |= every - {(each.name, name) for each in standings for name in each.incomplete}
  return done


def _cells(
  args: argparse.Namespace, suite: Suite, pairs: Sequence[tuple[Row, Column]]
) -> Iterator[Cell]:
  """Yield the cells of rows and columns, and say which there cannot be."""
  from posexp.board import rows, trust

  checked: set[str] = set()
  for row, column in pairs:
    try:
      with explained(args.overrides):
        cell = rows.Cell(row, suite, column, args.quick, place_of(args))
    except Unsuited as error:
      print(f"note      {row.name} has no cell in {column.name}: {error}")
      continue
    if cell.left and column.name not in checked:
      doing(f"making the test examples of {column.name}")
      column.check_examples(trust.config_of(column, "none", 0))
      checked.add(column.name)
    yield cell


def duration(text: str) -> float:
  """Return the seconds of a time such as 170m."""
  if (length := seconds(text)) is None:
    raise argparse.ArgumentTypeError(f"{text} is no time: type 170m, 90s or 3h, say")
  return length


def _asked(args: argparse.Namespace, suite: Suite, encodings: Sequence[str]) -> list[Row]:
  """Return the rows asked for; UserError for one that cannot be, or cannot be in this folder."""
  from posexp.board import rows

  own = [o for o in args.overrides if o.key_or_group != "encoding"]
  options = [o.input_line for o in own if not o.key_or_group.startswith(HOW)]
  if len(encodings) > 1 and (options or args.name):
    given = " ".join([*options, *(["--name"] if args.name else [])])
    raise UserError(
      f"{given}: several encodings have no options and no name: train a row at a time"
    )
  asked = [rows.Row.named(encoding, options, args.name) for encoding in encodings]
  if not encodings:
    lines = {name: shlex.split(line) for name, line in suite.rows.items()}
    asked = [rows.Row.named(line[0], line[1:], name) for name, line in lines.items()]
    if options or args.name or not asked:
      raise UserError(f"suite {suite.name} has no list of rows: name some, encoding=rope,none, say")
  for file in (args.out / f"{row.name}.parquet" for row in asked):
    about = rows.about_row(file) if file.exists() else {"suite": suite.name, "quick": True}
    if about["suite"] != suite.name:
      raise UserError(f"{near(file)} is a row of another suite: name another folder, as --out rows")
    if args.quick and not about["quick"]:
      raise UserError(f"{near(file)} is a whole row: leave --quick out, or name another folder")
  return asked


def draw(args: argparse.Namespace, suite: Suite, echo: bool) -> None:
  """Draw the tables and the page of published rows and of those of --out; print what to use."""
  from posexp.board import page, standings, tables
  from posexp.reporting.text import document

  files = {file.stem: file for file in sorted(args.records.glob("*.parquet"))}
  files |= {file.stem: file for file in sorted(args.out.glob("*.parquet"))}
  if not files:
    if args.time:
      return  # too little was trained in time for a table
    raise UserError(
      f"{near(args.records)} has no records of rows yet: train one, with encoding=NAME"
    )
  doing("drawing the leaderboard")
  rows_there = [each for file in files.values() for each in standings.of_file(file, suite)]
  boards = standings.boards(suite, rows_there)
  args.out.mkdir(parents=True, exist_ok=True)
  page.write(boards, args.out)
  keep(suite=suite.name, tracks={board.track: tables.as_data(board) for board in boards})
  if echo:
    print(document(tables.sections(boards[0])[:1]))
  print(f"written: {near(args.out)}/leaderboard.html and .md have all tables, beside heat maps")


def verify(args: argparse.Namespace, suite: Suite) -> None:
  """Print the checks that an entry passes; raise UserError if it is refused."""
  from posexp.board import verification

  given = [f"--{name}" for name in ("quick", "columns", "name") if getattr(args, name)]
  given += ["--for"] * bool(args.time)
  given += [o.input_line for o in args.overrides]
  if given:
    raise UserError(f"{given[0]}: --verify takes what was trained from the file; leave it out")
  if suite.own:  # its tasks may be of these files
    plugins.load(args.plugins)
  for line in verification.verify(args.verify, args.plugins, suite, args.records, args.out):
    print(line, flush=True)
  if args.plugins:
    print(f"note      {near(args.plugins[0])} was executed: a person has to read it, too")
  print(f"{near(args.verify)} is in order")


def main() -> None:
  """Rank encodings by a suite of tasks: draw the tables, train a row, or verify an entry.

  A job of a launcher's, which types the command line again, trains its run.
  """
  from posexp.sweeps import supervise

  # Each run has one thread, so that no core waits and the last digits do not depend on their count.
  os.environ.setdefault("NPROC", "1")  # which XLA reads when it begins
  machine.keep_freed()
  logging.basicConfig(format="%(message)s", level=logging.WARNING)
  logging.getLogger("posexp").setLevel(logging.INFO)
  if (job := supervise.job()) is not None:
    from posexp.train import train

    launcher, place = job
    raise SystemExit(launcher.work(train, place))
  from posexp.sweeps.workers import end

  signal.signal(signal.SIGTERM, end)  # so that rows are written, as after Ctrl-C
  try:
    command("reading the options", leaderboard, arguments)()
  except SystemExit as stop:
    if stop.code in (128 + signal.SIGINT, 128 + signal.SIGTERM):
      say("interrupted; the same command goes on from here")
    raise


if __name__ == "__main__":
  main()
