"""Measure a model of a diagnostic at other lengths: exact match by the length of the input.

examples:
  python -m posexp.lengths RUN 20:100:5
  python -m posexp.lengths RUN 30,60 rope.scaling=ntk rope.factor=4        with other options

Options are those that python -m posexp.evaluate takes.
"""

from __future__ import annotations

import argparse
from typing import Any

from posexp.config.arguments import Parser, command, ranges


def arguments(argv: list[str]) -> argparse.Namespace:
  """Parse the command line; raise UserError if it cannot be understood."""
  parser = Parser("lengths", __doc__)
  args = parser.parse_to_measure(argv, {"lengths": "30,60 or from:to:step"})
  try:
    args.lengths = ranges(args.lengths)
  except (ValueError, argparse.ArgumentTypeError):
    parser.error(f"{args.lengths}: write LENGTHS as 30,60 or from:to:step")
  return args


def lengths(args: argparse.Namespace) -> dict[str, Any]:
  """Measure the lengths and print the result, as `analysis.lengths.measure` does."""
  from posexp.analysis.lengths import measure
  from posexp.training.restore import open_for

  return measure(args, open_for("lengths", args.run, args.options))


main = command("opening the run", lengths, arguments)


if __name__ == "__main__":
  main()
