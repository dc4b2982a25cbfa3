"""Check what must hold of any encoding: that padding, the other rows of a batch, cached keys and
memories change nothing, that gradients are right, and more. Small models are built with it and
measured, which takes about a minute. Of a task of one's own, check that a run's identity has the
files that it reads.

examples:
  python -m posexp.check encoding=rpr rpr.k=4
  python -m posexp.check encoding=distance distance.price=0.2 plugins=distance.py
  python -m posexp.check task=first plugins=first.py

positions.reach=20000 with positions=randomized asks for positions below 20,000. If a property does
not hold, its smallest counterexample is shown, and the exit status is 1. Shifts and memories are
tested only of an encoding that is declared `relative` or `recurrent`.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from posexp import config as configuration
from posexp.config import plugins
from posexp.config.arguments import command
from posexp.config.checks import as_typed
from posexp.config.command_line import OptionsParser, config_of_one
from posexp.errors import UserError, near
from posexp.reporting.text import wrapped
from posexp.status import doing


def check(argv: list[str]) -> bool:
  """Print what holds of an encoding, or of a task of one's own, and what does not; return whether
  all of it holds.

  Raises:
    UserError: the options are wrong, no model can be built with the encoding, or the task's data
      are missing or broken.
  """
  options = "options of python -m posexp.train; those of the encoding, positions and task are read"
  from posexp.analysis.data_files import opened

  with opened() as loaded:
    config = config_of_one(argv, OptionsParser("check", __doc__, options))
  if "task" not in config.get("plugins", {}):
    return check_encoding(config)
  held = check_task(config, loaded)
  typed = any(word.startswith("encoding=") for word in argv)
  return check_encoding(config) and held if typed else held


def check_task(config: Mapping[str, Any], loaded: dict[Path, bool]) -> bool:
  """Print whether a run's identity has the files that a task reads; `loaded` is as in `unnamed`."""
  from posexp.analysis.data_files import remedy, unnamed
  from posexp.tasks import make_task

  doing("reading the data")
  with plugins.explained(config):
    task = make_task(config)
    paths = unnamed(task, loaded)
  print(config["task"]["name"])
  start = f"{'data files':<19} {'fails' if paths else 'holds':<13} "
  if not paths:
    print(wrapped("Every file that Python reads is part of a run's identity.", start), flush=True)
    return True
  files, verb = ", ".join(map(near, paths)), "is" if len(paths) == 1 else "are"
  why = (
    f"{files} {verb} read and {verb} no part of a run's identity, so that a run is taken for "
    f"finished after a change. Add to {type(task).__name__}:"
  )
  print(wrapped(why, start))
  print(f"\n{remedy(task, paths)}\n", flush=True)
  return False


def check_encoding(config: Mapping[str, Any]) -> bool:
  """Print what holds of an encoding and what does not; return whether all of it holds."""
  import jax

  from posexp.analysis.conformance import examine
  from posexp.encodings import check_limit, make_encoding
  from posexp.encodings.sinusoids import REACH
  from posexp.models.positions import Positions
  from posexp.models.size import Size

  jax.config.update("jax_disable_most_optimizations", True)  # each program runs but a few times
  name, failed = config["encoding"], 0
  given = configuration.show_options(config.get(name))
  encoding = make_encoding(config)
  positions = configuration.build(Positions, config.get("positions"), "positions")
  reach = positions.reach
  far = "" if reach is None else f", {positions.kind} positions below {reach:,}"
  print(f"{name}{f': {given}' if given else ''}{far}")
  doing("building small models")
  try:
    check_limit(encoding, reach or 0, f"positions are drawn from {reach}", "lower positions.reach")
    with plugins.explained(config):
      for outcome in examine(encoding, reach or REACH):
        failed += outcome.status == "fails"
        start = f"{outcome.name:<19} {outcome.status:<13} "
        print(wrapped(outcome.detail, start), flush=True)
        doing("measuring the next property")
  except ValueError as error:
    raise UserError(as_typed(str(error), {name: encoding, "model": Size()})) from error
  verb = "does" if failed == 1 else "do"
  print(f"{failed} {verb} not hold" if failed else "all of it holds")
  return not failed


main = command("building small models", lambda argv: check(argv) or sys.exit(1))


if __name__ == "__main__":
  main()
