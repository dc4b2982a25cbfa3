"""The command of this room: sentences parsed by a trained run."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from posexp.config.arguments import Parser, run
from posexp.data.lines import windows
from posexp.errors import counted, printable, writing
from posexp.parsing import trees
from posexp.status import doing

EXAMPLES = """\
examples:
  python -m posexp.parse RUN "The cat sat ."
  python -m posexp.parse RUN "The/DT cat/NN sat/VBD ./."
  python -m posexp.parse RUN "The cat sat ." --svg cat.svg
  python -m posexp.parse RUN < sentences.txt > parsed.mrg

Words are separated by spaces, as in the treebank that the run was trained on. Tags may follow a
slash, either for all words of a line or for none; without them, each word gets the tag that it most
often has in the training trees. The tree of a TEXT is printed over several lines, that of a line of
standard input on one line. Nothing but the folder RUN is read; its best checkpoint has the weights.
"""


def arguments(argv: list[str]) -> argparse.Namespace:
  """Parse the command line; raise UserError if it cannot be understood."""
  parser = Parser("parse", f"Parses sentences with the best checkpoint of a parser.\n\n{EXAMPLES}")
  option = parser.add_argument
  option("run", metavar="RUN", type=Path, help="the folder of a run")
  option("texts", metavar="TEXT", nargs="*", help="what to parse; default: standard input")
  option("--batch", metavar="N", type=int, default=16, help="sentences at a time; default: 16")
  option("--svg", metavar="FILE", type=Path, help="draw the tree of one TEXT")
  args = parser.parse_for_run(argv, batch=1)
  if args.svg and (given := sum(bool(text.strip()) for text in args.texts)) != 1:
    parser.error(f"--svg draws the tree of one TEXT, not of {given}")
  return args


def parse(args: argparse.Namespace) -> None:
  """Parse the given sentences, and print the trees window by window.

  Raises:
    UserError: the run cannot be opened, or what is to be parsed cannot be read.
  """
  rows, every = windows(args.texts, args.batch)
  from posexp.parsing.lines import LineParser
  from posexp.training.restore import open_for

  trained = open_for("parse", args.run, split=None, rows=rows)
  parser = LineParser(trained, rows)
  for window in every:
    doing(f"parsing {counted(len(window), 'sentence')}" if window else "")
    for tree in parser(window):
      written = trees.indented if args.texts else trees.brackets
      print("\n".join(map(printable, written(tree).split("\n"))) if tree else "")
      if tree and args.svg:
        from posexp.parsing import figures

        with writing("--svg", args.svg):
          args.svg.write_bytes(figures.drawn(tree))
    sys.stdout.flush()
  if parser.guessed:
    print(f"note: {parser.guessed}", file=sys.stderr)


def main() -> None:
  """Parse with a trained run: `python -m posexp.parse RUN "The cat sat ."`."""
  run(lambda argv: parse(arguments(argv)), "opening the run")
