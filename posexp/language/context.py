"""Measure how the loss of a language model depends on the tokens that it has read.

examples:
  python -m posexp.context RUN --at 16,32,64,128,256,512
                       the loss of the same tokens, each with exactly so many before it
  python -m posexp.context RUN --beyond 8
                       the same up to 8 training lengths: how the loss grows, and where it breaks
  python -m posexp.context RUN --at 64,512 --memory 0,64,256
  python -m posexp.context RUN --at 64,256 rope.scaling=ntk rope.factor=4     with other options
  python -m posexp.context hf:FOLDER task=reviews rope.scaling=yarn rope.factor=4 --beyond 4
                       a released model, its positions changed, on the data of a task
  python -m posexp.context RUN RUN RUN --recl
                       relative effective context lengths, once --at has measured each

Options are those that python -m posexp.evaluate takes.
"""

from __future__ import annotations

import argparse

from posexp.config.arguments import Parser, command, numbers, ranges


def arguments(argv: list[str]) -> argparse.Namespace:
  """Parse the command line; raise UserError if it cannot be understood."""
  parser = Parser("context", __doc__)
  option, one_of = parser.add_argument, parser.add_mutually_exclusive_group(required=True)
  at = "how many tokens are read before those that are scored"
  one_of.add_argument("--at", metavar="16,32,64", type=ranges, help=at)
  beyond = "the curve of losses by context, or position, up to so many training lengths"
  one_of.add_argument("--beyond", metavar="8", type=int, help=beyond)
  one_of.add_argument("--recl", action="store_true", help="relative effective context lengths")
  option("--split", choices=("test", "validation", "train"), default="test", help="default: test")
  option("--memory", metavar="M,...", type=numbers, help="other memories")
  option("--positions", metavar="N", type=int, help="how many tokens are scored")
  args = parser.parse_to_measure(argv, positions=1, beyond=2)
  if args.recl and (args.memory or args.positions or args.options):
    parser.error("--recl compares what was measured, so only --split can be typed with it")
  return args


def context(args: argparse.Namespace) -> None:
  """Measure and print the losses that are asked for; figures are drawn in a run's folder.

  Raises:
    UserError: a run does not exist, or cannot be measured so.
  """
  if args.recl:
    from posexp.language.effective_lengths import effective_lengths, table
    from posexp.runs import read_run

    print(table(effective_lengths([*map(read_run, args.runs)], args.split)))
    return
  from posexp.language.by_context import measure
  from posexp.training.restore import open_for

  for path in args.runs:
    if len(args.runs) > 1:
      print(path if path == args.run else f"\n{path}")
    measure(args, open_for("context", path, args.options, args.split))


main = command("opening the run", context, arguments)


if __name__ == "__main__":
  main()
