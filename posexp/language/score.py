"""Measure what a text costs a language model: bits per byte and per character.

examples:
  python -m posexp.score RUN letter.txt
  python -m posexp.score RUN - --per-token --memory 512 < letter.txt
  python -m posexp.score RUN letter.txt rope.scaling=ntk rope.factor=4     with other options
  python -m posexp.score hf:FOLDER letter.txt                              of a released model

Options are those that python -m posexp.evaluate takes. Nothing but RUN and the text is read.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from posexp.config.arguments import Parser, command, numbers

if TYPE_CHECKING:
  from posexp.language.scoring import TokenLosses


def arguments(argv: list[str]) -> argparse.Namespace:
  """Parse the command line; raise UserError if it cannot be understood."""
  parser = Parser("score", __doc__)
  option = parser.add_argument
  option("--per-token", action="store_true", help="what each token costs, with tabs")
  option("--memory", metavar="M,...", type=numbers, help="other memories")
  option("--segment", metavar="T", type=int, help="tokens that are read at once")
  args = parser.parse_to_measure(argv, {"file": "the text; -: standard input"}, segment=2)
  if args.per_token and len(args.memory or [0]) > 1:
    parser.error("--per-token is for one --memory")
  return args


def score(args: argparse.Namespace) -> list[TokenLosses]:
  """Score the text and print the result, as `scoring.score` does."""
  from posexp.language import scoring
  from posexp.training.restore import open_for

  return scoring.score(args, open_for("score", args.run, args.options, split=None))


main = command("opening the run", score, arguments)


if __name__ == "__main__":
  main()
