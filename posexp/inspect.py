"""Look at an encoding before it is trained, or after: `python -m posexp.inspect encoding=rpr`."""

from __future__ import annotations

import hashlib
import json
import os
import sys
from pathlib import Path
from typing import Any, NamedTuple

from posexp import config as configuration
from posexp.config import command_line
from posexp.config.arguments import run
from posexp.errors import UserError

OWN = ("run", "out", "length")
HELP = """\
posexp.inspect shows what a positional encoding is: a card on the terminal and figures as PNG and
SVG. Nothing is trained.

  python -m posexp.inspect encoding=rpr rpr.k=4
  python -m posexp.inspect encoding=sinusoidal sinusoidal.base=100 model.d_model=64
  python -m posexp.inspect run=runs/mr/rpr/5d00c285df53/seed=0     also of what was trained

Options are those of posexp.train (see its --help), and
  run=FOLDER   a run, finished or stopped: its encoding, its trained weights, its validation texts
  out=FOLDER   for the figures (default: inspect/ENCODING-DIGEST, or with the name of the run)
  length=128   how many positions, or offsets to either side, are looked at
"""


class Request(NamedTuple):
  """What was asked for."""

  config: dict[str, Any]
  run: Path | None
  out: Path
  length: int


def request(argv: list[str]) -> Request:
  """What was typed, checked as for training.

  Raises:
    UserError: an option does not exist, does not suit, or contradicts the run.
  """
  own = {}
  overrides = []
  for word in argv:
    key, equals, value = word.partition("=")
    if key in OWN and equals:
      own[key] = value
    else:
      overrides.append(word)
  args = command_line.parse(overrides)
  if args.multirun or args.cfg:
    raise UserError("posexp.inspect looks at one encoding: leave -m and --cfg out")
  with command_line.explained(args):
    config = configuration.resolve(command_line.single(args))
  text = own.get("length", "128")
  if not text.isdecimal() or int(text) < 4:
    raise UserError(f"length={text}: must be a whole number, 4 or more")
  run = Path(own["run"]) if own.get("run") else None
  if run is not None:
    config = of_run(run, args.overrides, config)
  out = Path(own["out"]) if own.get("out") else default_folder(config, run)
  return Request(config, run, out, int(text))


def of_run(run: Path, overrides: list[str], typed: dict[str, Any]) -> dict[str, Any]:
  """The config of a run, from which no option that was typed may differ."""
  from posexp.runs import read_run

  config = read_run(run).config
  for override in overrides:
    key = override.partition("=")[0].lstrip("+")
    if key == "plugins":
      continue
    values = []
    for each in (typed, config):
      for name in key.split("."):
        each = each.get(name) if isinstance(each, dict) else None
      values.append(each)
    if isinstance(values[0], dict):
      continue
    if values[0] != values[1]:
      shown = configuration.show(values[1])
      raise UserError(f"{override}, but the run has {key}={shown}; leave one of them out")
  return config


def default_folder(config: dict[str, Any], run: Path | None) -> Path:
  """inspect/<encoding>-<what tells it from others of its kind>."""
  name = config["encoding"]
  if run is not None:
    parts = run.resolve().parts[-2:]
    return Path("inspect", "-".join([name, *parts]))
  identity = json.dumps([config.get(name), config["model"]], sort_keys=True)
  return Path("inspect", f"{name}-{hashlib.sha256(identity.encode()).hexdigest()[:8]}")


def inspect(asked: Request) -> list[Path]:
  """Prints the card and draws the figures; returns the files.

  Raises:
    UserError: the encoding does not suit the model, or the run cannot be opened.
  """
  from posexp.analysis import inspection
  from posexp.encodings import make_encoding

  encoding = make_encoding(asked.config)
  lines, files = inspection.inspect(asked.config, encoding, asked.run, asked.out, asked.length)
  print("\n".join(lines))
  print()
  for file in files:
    print(os.path.relpath(file))
  return files


def main() -> None:
  """The command line."""
  argv = sys.argv[1:]
  if {"-h", "--help"} & set(argv):
    print(HELP, end="")
    return
  run(lambda argv: inspect(request(argv)))


if __name__ == "__main__":
  main()
