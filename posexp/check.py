"""Check what must hold of any encoding: `python -m posexp.check encoding=rpr rpr.k=4`."""

from __future__ import annotations

import sys
import textwrap
import time

from posexp import config as configuration
from posexp.config import command_line
from posexp.config.arguments import run
from posexp.errors import UserError

HELP = """\
posexp.check builds small models with a positional encoding and measures what must hold of them:
that padding, the other rows of a batch, cached keys and memories change nothing, that gradients are
right, and more. It takes about a minute.

  python -m posexp.check encoding=rpr rpr.k=4
  python -m posexp.check encoding=distance distance.price=0.2 plugins=distance.py

Options are those of posexp.train (see its --help); only the encoding's are read. Of what does not
hold the smallest counterexample is shown, and the exit status is 1. What an encoding does not
declare (shifts and memories where it is not `relative`) is not asked.
"""
WIDTH = 100  # of a line


def check(argv: list[str]) -> bool:
  """Prints what holds of an encoding and what does not; returns whether all of it holds.

  Raises:
    UserError: the options are wrong, or no model can be built with the encoding.
  """
  args = command_line.parse(argv)
  if args.multirun or args.cfg:
    raise UserError("posexp.check looks at one encoding: leave -m and --cfg out")
  with command_line.explained(args):
    config = configuration.resolve(command_line.single(args))
  import jax

  from posexp.analysis.conformance import examine
  from posexp.encodings import make_encoding

  jax.config.update("jax_disable_most_optimizations", True)  # each program runs but a few times
  begun, name = time.perf_counter(), config["encoding"]
  encoding = make_encoding(config)
  given = ", ".join(f"{k}={configuration.show(v)}" for k, v in (config.get(name) or {}).items())
  print(f"{name}{f': {given}' if given else ''}")
  failed = 0
  try:
    for outcome in examine(encoding):
      failed += outcome.status == "fails"
      print(line(outcome.name, outcome.status, outcome.detail or outcome.sentence), flush=True)
  except ValueError as error:
    raise UserError(f"{name}: {error}") from error
  seconds = time.perf_counter() - begun
  said = f"{failed} {'does' if failed == 1 else 'do'} not hold" if failed else "all of it holds"
  print(f"{said}; {seconds:.0f} s")
  return not failed


def line(name: str, status: str, text: str) -> str:
  """A row of the table; a long text goes on below itself."""
  start = f"{name:<19} {status:<13} "
  return textwrap.fill(
    text, WIDTH, initial_indent=start, subsequent_indent=" " * len(start), break_on_hyphens=False
  )


def main() -> None:
  """The command line."""
  if {"-h", "--help"} & set(sys.argv[1:]):
    print(HELP, end="")
    return
  run(lambda argv: check(argv) or sys.exit(1))


if __name__ == "__main__":
  main()
