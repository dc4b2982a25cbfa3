"""Look at an encoding before it is trained, or after: a card on the terminal, figures as PNG and
SVG, and numbers. Nothing is trained.

examples:
  python -m posexp.inspect encoding=rpr rpr.k=4
  python -m posexp.inspect encoding=sinusoidal sinusoidal.base=100 model.d_model=64
  python -m posexp.inspect encoding=sinusoidal model.d_model=4 model.num_heads=1 positions=3
  python -m posexp.inspect encoding=rpr rpr.k=2 text='the dog chased Wang Wei'
  python -m posexp.inspect runs/mr/rpr/437f7d2f65d9/seed=0   # also of what was trained
  python -m posexp.inspect hf:FOLDER                         # positions of a released model
  python -m posexp.inspect hf:FOLDER hf:OWNER/NAME RUN       # of several, side by side

A few positions, or the words of a short text, are printed in numbers, too; the numbers that each
figure shows are written beside it as CSV.

Options are those of python -m posexp.train, whose --help lists them, and
  positions=N       how many are shown; default: 128
  text=TEXT         a sentence whose words, or characters, are the positions
  RUN or run=RUN    a run, finished or stopped: its encoding, its trained weights, its validation
                    texts
  hf:NAME           a released model, by its folder or its name on the Hugging Face hub, of which
                    its config and the tensors of its positions alone are read
  out=FOLDER        for the figures; default: inspect/ENCODING/OPTIONS, or the run's figures
  --all             the whole card: the encoding's whole description, its terms, and what it does
                    not suit, with the reason
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from posexp import storage
from posexp.config import plugins
from posexp.config.arguments import Parser, command, keep, load_plugins
from posexp.config.command_line import config_of_one
from posexp.errors import UserError, counted, near
from posexp.runs import read_run

if TYPE_CHECKING:
  from posexp.training.sources import Source

MOST = 4096  # positions that figures can show
Show = Callable[[list[str]], None]  # prints the lines of a card


def inspect(argv: list[str]) -> list[Path]:
  """Print the card and draw the figures; return the files.

  Raises:
    UserError: an option does not exist or does not suit, or the run cannot be opened.
  """
  parser = Parser("inspect", __doc__, "an encoding with its options, or a run")
  if {"-h", "--help"} & {*argv}:
    parser.parse_args(["--help"])
  if any(re.match(r"\w+:", word) for word in argv):
    from posexp.training.sources import source  # slow to import

    argv = load_plugins(argv)
    if models := [model for model in map(source, argv) if model is not None]:
      return _shown(*side_by_side(argv, models))
  whole, argv = "--all" in argv, [word for word in argv if word != "--all"]
  argv = [f"run={word}" if is_path(word) else word for word in load_plugins(argv)]
  own = [word for word in argv if re.match(r"(run|out|text)=|positions=[-+.\d]", word)]
  named = dict(word.split("=", 1) for word in own)
  if len(named) < len(own) or "" in named.values():
    raise UserError(f"{' '.join(own)}: give one folder, text or number with each of them")
  folder, out = (named.get(key) and Path(named[key]).expanduser() for key in ("run", "out"))
  shown = positions_of(named)
  options = [word for word in argv if word not in own]
  if folder and options:
    raise UserError(f"run={folder} has options of its own: leave {options[0]} out")
  config = config_of_one(options, parser)
  if folder:
    config, out = read_run(folder).config, out or storage.unlinked(folder / "figures")
  typed = [*options, *(word for word in own if word.startswith(("positions=", "text=")))]
  out = out or Path("inspect", config["encoding"], folder_name(typed))
  from posexp.analysis import inspection

  def card(show: Show) -> list[Path]:
    with plugins.explained(config):
      return inspection.inspect(config, folder, out, show, **shown, whole_card=whole)

  return _shown(card, out)


def side_by_side(
  argv: list[str], sources: Sequence[Source]
) -> tuple[Callable[[Show], list[Path]], Path]:
  """Return a function that inspects several models and runs together, and the folder of figures.

  Raises:
    UserError: something other than models, runs, positions=N and out=FOLDER was typed, or one of
      the last two is wrong or was typed twice.
  """
  known = {source.name for source in sources}
  models = [word for word in argv if word in known or is_path(word)]
  own = [word for word in argv if word not in models]
  named = dict(word.partition("=")[::2] for word in own)
  if len(named) < len(own) or {*named} - {"out", "positions"} or "" in named.values():
    raise UserError(
      f"{' '.join(own)}: beside {models[0]} give other models, runs, positions=N and out=FOLDER, "
      "each once"
    )
  count = positions_of(named)["positions"]
  prefix = sources[0].name.partition(":")[0]
  names = [re.sub(r"[^\w.-]+", "-", word.removeprefix(f"{prefix}:")).strip("-.") for word in models]
  out = Path(named.get("out") or Path("inspect", prefix, folder_name(names))).expanduser()

  def cards(show: Show) -> list[Path]:
    lines, files = sources[0].inspect(models, out, count)
    show(lines)
    return files

  return cards, out


def _shown(look: Callable[[Show], list[Path]], out: Path) -> list[Path]:
  """Call `look` with a function that prints lines, print the paths of its files, and return them.

  A last line says how many files in `out` had other contents before.
  """
  before = {path: path.read_bytes() for path in out.glob("*.*") if path.is_file()}

  def show(lines: list[str]) -> None:
    keep(lines=lines)
    print(*lines, "", sep="\n", flush=True)

  files = look(show)
  keep(files=files)
  for path in files:
    print(near(path))
  if replaced := [
    path for path in files if before.get(path, path.read_bytes()) != path.read_bytes()
  ]:
    count = counted(len(replaced), "file")
    print(f"replaced {count} that showed something else; out=FOLDER keeps both")
  return files


def positions_of(named: Mapping[str, str]) -> dict[str, Any]:
  """Return the number of positions and the text that were typed, if they were.

  Raises:
    UserError: it is no number from 2 to MOST, or both are given.
  """
  count, text = named.get("positions"), named.get("text")
  if count and text:
    raise UserError("positions= and text= exclude each other: a text has a position for each token")
  if count and not (count.isdecimal() and 2 <= int(count) <= MOST):
    raise UserError(f"positions={count}: give a whole number from 2 to {MOST:,}")
  return {"positions": count and int(count), "text": text}


def folder_name(options: Sequence[str]) -> str:
  """Return a folder's name for options as typed, other than the encoding; "" without any."""
  typed = ",".join(sorted(word for word in options if not word.startswith("encoding=")))
  name = re.sub(r"[^\w.,=+-]", "-", typed)[:80]
  return name if name == typed else f"{name}-{hashlib.sha256(typed.encode()).hexdigest()[:8]}"


def is_path(word: str) -> bool:
  """Return whether a word is the path of a run, which need not exist.

  It is if there is such a file or folder, or if it has a / before any =, other than that of an
  option such as hydra/launcher=slurm.
  """
  return os.path.exists(word) or "/" in word.partition("=")[0].removeprefix("hydra/")


main = command("looking at the encoding", inspect)


if __name__ == "__main__":
  main()
