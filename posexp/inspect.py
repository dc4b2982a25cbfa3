"""Look at an encoding before it is trained, or after: `python -m posexp.inspect encoding=rpr`."""

from __future__ import annotations

import hashlib
import json
import os
import sys
from pathlib import Path
from typing import Any, NamedTuple

from omegaconf import OmegaConf

from posexp import config as configuration
from posexp.config import command_line
from posexp.config.arguments import run
from posexp.errors import UserError
from posexp.runs import read_run

OWN = ("run=", "out=", "length=")
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
  typed = dict(word.split("=", 1) for word in argv if word.startswith(OWN))
  args = command_line.parse([word for word in argv if not word.startswith(OWN)])
  if args.multirun or args.cfg:
    raise UserError("posexp.inspect looks at one encoding: leave -m and --cfg out")
  with command_line.explained(args):
    config = configuration.resolve(command_line.single(args))
  length = typed.get("length", "128")
  if not length.isdecimal() or int(length) < 4:
    raise UserError(f"length={length}: must be a whole number, 4 or more")
  run = Path(typed["run"]) if typed.get("run") else None
  if run is not None:
    config = config_of_run(run, args.overrides, config)
  return Request(config, run, Path(typed.get("out") or folder(config, run)), int(length))


def config_of_run(run: Path, overrides: list[str], typed: dict[str, Any]) -> dict[str, Any]:
  """The config of a run, from which no option that was typed may differ."""
  config = read_run(run).config
  for override in overrides:
    key = override.partition("=")[0].lstrip("+")
    ours, theirs = (OmegaConf.select(OmegaConf.create(each), key) for each in (typed, config))
    if key != "plugins" and ours != theirs and not OmegaConf.is_dict(ours):
      shown = configuration.show(theirs)
      raise UserError(f"{override}, but the run has {key}={shown}; leave one of them out")
  return config


def folder(config: dict[str, Any], run: Path | None) -> Path:
  """Where figures go: inspect/<encoding>-<digest of its options, or the run's own>."""
  name = config["encoding"]
  if run is not None:
    return Path("inspect", "-".join([name, *run.resolve().parts[-2:]]))
  identity = json.dumps([config.get(name), config["model"]], sort_keys=True)
  return Path("inspect", f"{name}-{hashlib.sha256(identity.encode()).hexdigest()[:8]}")


def inspect(asked: Request) -> list[Path]:
  """Prints the card and draws the figures; returns the files.

  Raises:
    UserError: the encoding does not suit the model, or the run cannot be opened.
  """
  from posexp.analysis import inspection

  lines, files = inspection.inspect(asked.config, asked.run, asked.out, asked.length)
  print(*lines, "", *map(os.path.relpath, files), sep="\n")
  return files


def main() -> None:
  """The command line."""
  if {"-h", "--help"} & set(sys.argv[1:]):
    print(HELP, end="")
  else:
    run(lambda argv: inspect(request(argv)))


if __name__ == "__main__":
  main()
