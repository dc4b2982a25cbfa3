"""Look at an encoding before it is trained, or after: a card on the terminal, and figures as PNG
and SVG. Nothing is trained.

examples:
  python -m posexp.inspect encoding=rpr rpr.k=4
  python -m posexp.inspect encoding=sinusoidal sinusoidal.base=100 model.d_model=64
  python -m posexp.inspect runs/mr/rpr/437f7d2f65d9/seed=0   # also of what was trained

Options are those of python -m posexp.train, whose --help lists them, and
  RUN or run=RUN    a run, finished or stopped: its encoding, its trained weights, its validation
                    texts
  out=FOLDER        for the figures; default: inspect/ENCODING/OPTIONS, or the run's figures
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Sequence
from pathlib import Path

from posexp import storage
from posexp.config import plugins
from posexp.config.arguments import command, load_plugins
from posexp.config.command_line import OptionsParser, config_of_one
from posexp.errors import UserError, counted, near
from posexp.runs import read_run


def inspect(argv: list[str]) -> list[Path]:
  """Print the card and draw the figures; return the files.

  Raises:
    UserError: an option does not exist or does not suit, or the run cannot be opened.
  """
  parser = OptionsParser("inspect", __doc__, "an encoding with its options, or a run")
  argv = [f"run={word}" if is_path(word) else word for word in load_plugins(argv)]
  own = [word for word in argv if word.startswith(("run=", "out="))]
  named = dict(word.split("=", 1) for word in own)
  if len(named) < len(own) or "" in named.values():
    raise UserError(f"{' '.join(own)}: name one folder with each of run= and out=")
  folder, out = (named.get(key) and Path(named[key]) for key in ("run", "out"))
  options = [word for word in argv if word not in own]
  if folder and options:
    raise UserError(f"run={folder} has options of its own: leave {options[0]} out")
  config = config_of_one(options, parser)
  if folder:
    config, out = read_run(folder).config, out or storage.unlinked(folder / "figures")
  out = out or Path("inspect", config["encoding"], folder_name(options))
  before = {path: path.read_bytes() for path in out.glob("*.*") if path.is_file()}
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


main = command("looking at the encoding", inspect)


if __name__ == "__main__":
  main()
