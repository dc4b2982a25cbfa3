"""Look at an encoding before it is trained, or after: `python -m posexp.inspect encoding=rpr`."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Sequence
from pathlib import Path

from posexp import storage
from posexp.config import plugins
from posexp.config.arguments import load_plugins, run
from posexp.config.command_line import OptionsParser, config_of_one
from posexp.errors import UserError, counted, near
from posexp.runs import read_run

WHAT = """\
Shows what a positional encoding is: a card on the terminal, and figures as PNG and SVG. Nothing is
trained."""
EXAMPLES = """\
examples:
  python -m posexp.inspect encoding=rpr rpr.k=4
  python -m posexp.inspect encoding=sinusoidal sinusoidal.base=100 model.d_model=64
  python -m posexp.inspect runs/mr/rpr/437f7d2f65d9/seed=0   # also of what was trained
  python -m posexp.inspect RUN against=[RUN_2,RUN_3]         # whose heads attend alike

Options are those of python -m posexp.train, whose --help lists them, and
  RUN or run=RUN    a run, finished or stopped: its encoding, its trained weights, its validation
                    texts
  against=RUN       or against=[A,B], trained runs of the same data: the run's attention is compared
                    with theirs, head by head, and nothing else is shown
  out=FOLDER        for the figures; default: inspect/ENCODING/OPTIONS, or the run's figures
"""


def inspect(argv: list[str]) -> list[Path]:
  """Print the card and draw the figures; return the files.

  Raises:
    UserError: an option does not exist or does not suit, or the run cannot be opened.
  """
  parser = OptionsParser("inspect", WHAT, EXAMPLES, "an encoding with its options, or a run")
  argv = [f"run={word}" if is_path(word) else word for word in load_plugins(argv)]
  own = [word for word in argv if word.startswith(("run=", "against=", "out="))]
  given = dict(word.split("=", 1) for word in own)
  if len(given) < len(own):
    raise UserError(f"{' '.join(own)}: name each once, and runs to compare with by against=[A,B]")
  listed = given.get("against", "")
  listed = listed[1:-1] if listed[:1] + listed[-1:] == "[]" else listed
  against = [Path(name) for name in listed.split(",")] if "against" in given else []
  if Path() in against or "" in given.values():
    raise UserError(f"{' '.join(own)}: the name of a folder is missing")
  options = [word for word in argv if word not in own]
  folder, out = (Path(given[key]) if given.get(key) else None for key in ("run", "out"))
  if folder and options:
    raise UserError(f"run={folder} has options of its own: leave {options[0]} out")
  config = config_of_one(options, parser)
  if folder:
    config = read_run(folder).config
  own = storage.unlinked(folder / "figures") if folder else None
  out = out or own or Path("inspect", config["encoding"], folder_name(options))
  before = {path: path.read_bytes() for path in out.glob("*.*") if path.is_file()}
  if against:
    if folder is None:
      raise UserError("against= compares trained runs: name one with run=FOLDER, too")
    from posexp.analysis import head_distances

    lines, files = head_distances.compare(folder, against, out)
  else:
    from posexp.analysis import inspection

    with plugins.explained(config):
      lines, files = inspection.inspect(config, folder, out)
  print(*lines, "", *map(near, files), sep="\n")
  if replaced := [
    path for path in files if before.get(path, path.read_bytes()) != path.read_bytes()
  ]:
    count = counted(len(replaced), "file")
    print(f"replaced {count} that showed something else; out=FOLDER keeps both")
  return files


def folder_name(options: Sequence[str]) -> str:
  """Return a folder's name for options as typed, other than the encoding; "" without any."""
  typed = ",".join(sorted(word for word in options if not word.startswith("encoding=")))
  name = re.sub(r"[^\w.,=+-]", "-", typed)[:80]
  return name if name == typed else f"{name}-{hashlib.sha256(typed.encode()).hexdigest()[:8]}"


def is_path(word: str) -> bool:
  """Return whether a word names a run, which may be missing, and no option; a run's folder
  has a =.
  """
  return os.path.exists(word) or "/" in word.partition("=")[0].removeprefix("hydra/")


def main() -> None:
  """Run the command line."""
  run(inspect, "looking at the encoding")


if __name__ == "__main__":
  main()
