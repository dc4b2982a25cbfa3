"""Compare two runs on the same examples: `python -m posexp.compare RUN_A RUN_B`."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from posexp import storage
from posexp.config.arguments import Parser, run
from posexp.errors import UserError

METRICS = ("bleu", "chrf", "exact_match", "accuracy")
FEWEST = 100  # samples, below which an interval of 95 % has no ends to speak of
EXAMPLES = """\
examples:
  python -m posexp.compare runs/mr/rpr/5d00c285df53/seed=0 runs/mr/sinusoidal/6d6c1ba8eb43/seed=0
  python -m posexp.compare RUN_A RUN_B --metric chrf --examples 20
  python -m posexp.compare RUN_A RUN_B --split beyond --json beyond.json
  python -m posexp.compare runs/mr/rpr/5d00c285df53 runs/mr/sinusoidal/6d6c1ba8eb43
                                              all seeds that both have, one against the other

Intervals are of 95 %. They and p come from a paired bootstrap over the examples, for accuracy and
exact match of one seed p from McNemar's exact test; over seeds from a paired t test. Only what the
runs have written is read: neither a model nor the data are needed.
"""


def arguments(argv: Sequence[str]) -> argparse.Namespace:
  """What was typed.

  Raises:
    UserError: it cannot be understood.
  """
  parser = Parser(
    "compare", "Compares two finished runs, or two groups of runs, on the same examples.", EXAMPLES
  )
  folder = "the folder of a run, or of the seeds of one group"
  parser.add_argument("a", metavar="RUN_A", type=Path, help=folder)
  parser.add_argument("b", metavar="RUN_B", type=Path, help="likewise")
  parser.add_argument("--split", default="test", help="default: test")
  parser.add_argument(
    "--metric",
    choices=METRICS,
    help="what the last sentence is about; default: what the task is mainly about",
  )
  parser.add_argument("--samples", type=int, default=1000, help="of the bootstrap; default: 1000")
  parser.add_argument("--examples", type=int, default=5, help="how many to show; default: 5")
  parser.add_argument("--json", metavar="FILE", type=Path, help="a file to keep all numbers in")
  args = parser.parse_args(list(argv))
  for name, least in (("samples", FEWEST), ("examples", 0)):
    if getattr(args, name) < least:
      parser.error(f"--{name} must be at least {least}, not {getattr(args, name)}")
  return args


def compare(args: argparse.Namespace) -> dict[str, Any]:
  """Compares two runs or groups of runs, prints what came of it and keeps it if asked to.

  Returns:
    What `--json` keeps.

  Raises:
    UserError: a run is missing, not finished, or not comparable to the other.
  """
  from posexp.reporting import comparison, verdict

  if args.json and args.json.is_dir():
    raise UserError(f"--json {args.json} is a folder: name a file")
  result = comparison.compare(
    args.a, args.b, args.split, args.metric, samples=args.samples, examples=args.examples
  )
  result["verdict"] = verdict.verdict(result)
  if args.json:
    try:
      storage.write(args.json, json.dumps(result, indent=2, ensure_ascii=False) + "\n")
    except OSError as error:
      raise UserError(f"--json {args.json} cannot be written: {error.strerror}") from error
  print("\n".join(verdict.report(result)))
  return result


def main() -> None:
  """The command line."""
  run(lambda argv: compare(arguments(argv)))


if __name__ == "__main__":
  main()
