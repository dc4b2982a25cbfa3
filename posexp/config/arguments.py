"""The command lines of all commands: their help, how they are parsed, and how they end."""

from __future__ import annotations

import argparse
import contextlib
import io
import itertools
import json
import math
import os
import re
import shutil
import sys
import textwrap
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from posexp import __version__, storage
from posexp.errors import UserError, near, refused, writing
from posexp.status import doing

MOST = 10_000  # numbers that a range may have
OPTION = re.compile(r"[~+]*[\w.]+=.*|~.*", re.S)  # seed=0 may also be the folder of a run


class Parser(argparse.ArgumentParser):
  """A parser for `python -m posexp.<name>` whose mistakes are UserErrors.

  `about` is the docstring of the command's module: its first paragraph stands above the options in
  the help, the others below them; None, as with `python -OO`, leaves them out. `overrides` is the
  help of Hydra's, if the command takes some. `keeps` says whether it has `--json`.
  """

  def __init__(
    self, name: str, about: str | None, overrides: str = "", *, keeps: bool = True, **kwargs: Any
  ):
    description, _, examples = (about or "").partition("\n\n")
    super().__init__(
      prog=f"python -m posexp.{name}",
      description=description,
      epilog=examples,
      formatter_class=argparse.RawDescriptionHelpFormatter,
      allow_abbrev=not overrides,
      **kwargs,
    )
    if overrides:
      self.add_argument("overrides", metavar="OPTION=VALUE", nargs="*", help=overrides)
    if keeps:
      self.add_argument("--json", metavar="FILE", help="a file for numbers; - prints them alone")
    version = f"posexp {__version__}"
    self.add_argument("--version", action="version", version=version, help="print the version")

  def format_help(self) -> str:
    return within(super().format_help())

  def parse_for_run(self, argv: Sequence[str], **least: int) -> argparse.Namespace:
    """Parse the command line of a command that opens a run.

    Files of `plugins=FILE` are loaded first. `least` has the least values of some options.
    """
    about = "plugins=FILE loads a file of one's own that the run was trained with."
    self.epilog = f"{self.epilog}\n{about}\n"
    args = self.parse_intermixed_args(load_plugins(argv))
    self.check_least(args, **least)
    return args

  def parse_to_measure(
    self, argv: Sequence[str], also: Mapping[str, str] | None = None, **least: int
  ) -> argparse.Namespace:
    """Parse the command line of a command that measures runs, with `options` anywhere in it.

    `also` explains what must be named behind a single run; without it there may be several `runs`.
    """
    places = {"run": "the folder of a run, or a released model, hf:...", **(also or {})}
    for name, about in places.items():
      self.add_argument(name, metavar=name.upper(), help=about)
    more = "options to measure it with" + ("" if also else ", and more runs")
    self.add_argument("options", metavar="OPTION=VALUE", nargs="*", default=[], help=more)
    args = self.parse_for_run(argv, **least)
    words = [*(getattr(args, name) for name in places), *args.options]
    args.options = [word for word in words if OPTION.fullmatch(word) and not Path(word).exists()]
    args.runs = [word for word in words if word not in args.options]
    if len(args.runs) < len(places) or (also and len(args.runs) > len(places)):
      self.error(f"name {' and '.join(map(str.upper, places))}, and options as OPTION=VALUE")
    vars(args).update(zip(places, args.runs, strict=False))
    return args

  def check_least(self, args: argparse.Namespace, **least: float) -> None:
    """Raise UserError if an argument is less than the number in `least` of the same name."""
    for name, number in least.items():
      if (given := getattr(args, name)) is not None and given < number:
        self.error(f"--{name} must be at least {number}, not {given}")

  def error(self, message: str) -> None:
    raise UserError(f"{message}; --help shows how it is used")


def named_plugins(words: Sequence[str]) -> tuple[list[str], list[str]]:
  """Return the files of `plugins=FILE` or `plugins=[A.py,B.py]`, and the other words.

  Raises:
    UserError: the files are no list.
  """
  files: list[str] = []
  others: list[str] = []
  for word in words:
    if word.partition("=")[0] == "--plugins":
      raise UserError(f"{word}: write plugins=FILE, without --")
    if not (line := word.lstrip("+")).startswith("plugins=") or "--" in others:
      others.append(word)
      continue
    from posexp.config import overrides  # only then: Hydra takes a while to import

    (given,) = overrides.read([line])
    named = given.value() if isinstance(given.value(), list) else [given.value()]
    if given.is_sweep_override() or not named or "" in named:
      raise UserError(f"{given.input_line}: write a list, plugins=[a.py,b.py]")
    files += [str(file) for file in named if file is not None]
  return files, others


def load_plugins(words: Sequence[str]) -> list[str]:
  """Load the files of `plugins=...`, and return the other words.

  Raises:
    UserError: the files are no list, or cannot be loaded.
  """
  files, others = named_plugins(words)
  if files:
    from posexp.config import plugins

    plugins.load(files)
  return others


def names(text: str) -> list[str]:
  """Return the names of a comma-separated list, each once.

  Raises:
    ArgumentTypeError: one is empty.
  """
  listed = [name.strip() for name in text.split(",")]
  if not all(listed):
    raise argparse.ArgumentTypeError(f"a name is missing in {text!r}")
  return list(dict.fromkeys(listed))


def numbers(text: str) -> list[int]:
  """Return the whole numbers of a comma-separated list in ascending order.

  Raises:
    ArgumentTypeError: one is something else.
  """
  try:
    return sorted({int(name) for name in names(text)})
  except ValueError as error:
    raise argparse.ArgumentTypeError(f"write whole numbers, as in 0,1,2, not {text!r}") from error


def ranges(text: str) -> list[int]:
  """Return the numbers of a comma-separated list, all at least 1, in ascending order.

  An item may also be a range, first:last:step or first:last, which includes both ends.

  Raises:
    ArgumentTypeError: an item is neither, or they are more than `MOST`.
  """
  listed: set[int] = set()
  try:
    for name in names(text):
      first, *rest = map(int, name.split(":"))
      last, step = (first, 1) if not rest else (*rest, 1) if len(rest) == 1 else rest
      listed |= set(itertools.islice(range(first, last + 1, step), MOST + 1))
  except ValueError:
    listed = set()
  if not 0 < len(listed) <= MOST or min(listed) < 1:
    what = f"write at most {MOST:,} whole numbers from 1 on, as in 16,32 or 16:128:16"
    raise argparse.ArgumentTypeError(f"{what}, not {text!r}")
  return sorted(listed)


def within(text: str) -> str:
  """Return a text with no line wider than the terminal, or than 100 characters where there is none.

  A command stays on one line, so that it can be pasted, and what explains it goes below.
  """
  width, lines = shutil.get_terminal_size((100, 24)).columns, []
  for line in text.splitlines():
    gaps = [hit.end() for hit in re.finditer(" {2,}(# )?", line)]
    indent = " " * max([gap for gap in gaps if gap < width / 2], default=0)
    if len(line) > width and line.startswith("  python "):
      lines += re.sub(r"(?<=\S) {2,}", f"\n{'':<8}", line).split("\n")
    else:
      lines += textwrap.wrap(line, width, subsequent_indent=indent, break_on_hyphens=False) or [""]
  return "\n".join(lines) + "\n"


def flush_output() -> None:
  """Flush standard output.

  Raises:
    OSError: it cannot be printed; the end of the process does not try again.
  """
  try:
    sys.stdout.flush()
  except OSError as error:
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    raise OSError(error.errno, error.strerror, "standard output") from error


def say(message: str) -> None:
  """Print a line on standard error."""
  print(f"posexp: {message}", file=sys.stderr)


def command(
  first: str, work: Callable[[Any], Any], arguments: Callable[[list[str]], Any] = list
) -> Callable[[], None]:
  """Return the `main` of a command, which does its work with the arguments that were typed.

  `first` is as in `run`.
  """

  def main() -> None:
    run(lambda argv: kept(argv, lambda words: work(arguments(words))), first)

  main.__doc__ = sys.modules[work.__module__].__doc__  # which `python -m posexp` lists
  return main


_kept: dict[str, Any] = {}  # what the command that runs has found


def keep(**found: Any) -> None:
  """Add to the JSON of this command; does nothing without `--json`."""
  _kept.update(found)


def kept(argv: Sequence[str], work: Callable[[list[str]], Any]) -> None:
  """Run a command line without its `--json FILE`, and write all that it `keep`s to that file.

  If the command keeps nothing, the lines that it prints are written instead. With `--json -` the
  JSON is printed, and nothing else.

  Raises:
    UserError: no file is named, or it cannot be written.
  """
  words = [part for word in argv for part in re.split(r"(?<=^--json)=", word)]
  if "--json" not in words:
    work(words)
    return
  at = words.index("--json")
  if len(words) == at + 1:
    raise UserError("--json: name a file, or - for standard output")
  file, alone = Path(words[at + 1]), words[at + 1] == "-"
  _kept.clear()
  said = io.StringIO()
  try:
    with contextlib.redirect_stdout(said):
      work(words[:at] + words[at + 2 :])
  finally:
    if not alone:
      print(said.getvalue(), end="")
    if told := dict(_kept) or {"lines": said.getvalue().splitlines()}:
      text = json.dumps(plain(told), indent=2, ensure_ascii=False) + "\n"
      if alone:
        print(text, end="")
      else:
        with writing("--json", file):
          storage.write(file, text)
        print(f"written: {near(file)}")


def plain(value: Any) -> Any:
  """Return a value as JSON has it: numbers that are not finite are null, other kinds are text."""
  if isinstance(value, Mapping):
    return {str(key): plain(each) for key, each in value.items()}
  if isinstance(value, list | tuple | set):
    return [plain(each) for each in value]
  if value is None or isinstance(value, bool | int | str):
    return value
  try:
    return number if math.isfinite(number := float(value)) else None
  except (TypeError, ValueError):
    return str(value)


def run(work: Callable[[list[str]], Any], first: str = "") -> None:
  """Do the work of a command line, and exit where that fails.

  `first` is what a terminal shows until the work says more.
  """

  def done() -> int:
    work(sys.argv[1:])
    return 0

  try:
    doing(first)
    if status := status_of(done):
      sys.exit(status)
  except KeyboardInterrupt:
    sys.exit(130)
  finally:
    doing("")


def status_of(work: Callable[[], int]) -> int:
  """Do the work of a command, and return its exit status, as `work` returns it.

  After a UserError or an OSError, which becomes one line on stderr, the status is 2. If standard
  output is a pipe whose reader has ended, it is 1.
  """
  for name in ("stdout", "stderr"):
    if getattr(sys, name) is None:  # as in ... >&-, where the next file would take its number
      setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_WRONLY), "w", encoding="utf-8"))
  if isinstance(sys.stdout, io.TextIOWrapper):  # not as in a notebook
    sys.stdout.reconfigure(encoding="utf-8")  # as texts that are read, whatever the locale
  os.environ["MPLBACKEND"] = "agg"  # that of a notebook may not be installed where its commands run
  try:
    status = work()
    flush_output()
    return status
  except BrokenPipeError:  # as in ... | head
    with contextlib.suppress(OSError):
      flush_output()
    return 1
  except (UserError, OSError) as error:
    say(f"error: {refused(error)}")
    return 2
