"""Compare two finished runs, or two groups of runs, on the same examples.

examples:
  python -m posexp.compare runs/mr/rpr/437f7d2f65d9/seed=0 runs/mr/sinusoidal/26ce69806f90/seed=0
  python -m posexp.compare RUN_A RUN_B --examples 20
  python -m posexp.compare RUN_A RUN_B --split beyond --json beyond.json
  python -m posexp.compare runs/mr/rpr/437f7d2f65d9 runs/mr/sinusoidal/26ce69806f90
                                              all seeds that both have, one against the other

Intervals are of 95 %. They and p come from a paired bootstrap over the examples, for accuracy and
exact match of one seed p from McNemar's exact test; over seeds from a t test, paired where that
pays. Only what the runs have written is read: neither a model nor the data are needed.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from posexp.config.arguments import Parser, command, keep


def arguments(argv: Sequence[str]) -> argparse.Namespace:
  """Parse the command line; raise UserError if it cannot be understood."""
  parser = Parser("compare", __doc__)
  folder = "the folder of a run, or of the seeds of one group"
  parser.add_argument("a", metavar="RUN_A", type=Path, help=folder)
  parser.add_argument("b", metavar="RUN_B", type=Path, help="likewise")
  parser.add_argument("--split", default="test", help="default: test")
  parser.add_argument("--examples", type=int, default=5, help="how many to show; default: 5")
  args = parser.parse_args(list(argv))
  parser.check_least(args, examples=0)
  return args


def compare(args: argparse.Namespace) -> dict[str, Any]:
  """Compare two runs or groups of runs; print the result, and keep it if asked to.

  Returns:
    What `--json` keeps.

  Raises:
    UserError: a run is missing, not finished, or not comparable to the other.
  """
  from posexp.reporting import comparison

  result = comparison.compare(args.a, args.b, args.split, args.examples)
  result["verdict"] = comparison.verdict(result)
  keep(**result)
  print("\n".join(comparison.report(result)))
  return result


main = command("comparing predictions", compare, arguments)


if __name__ == "__main__":
  main()
