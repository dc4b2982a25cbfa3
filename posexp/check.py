"""Check what must hold of any encoding: that padding, the other rows of a batch, cached keys and
memories change nothing, that gradients are right, and more. Small models are built with it and
measured, which takes about a minute. For a task of one's own, check that the identity of a run
depends on the files that the task reads.

examples:
  python -m posexp.check encoding=rpr rpr.k=4
  python -m posexp.check encoding=distance distance.price=0.2 plugins=distance.py
  python -m posexp.check task=first plugins=first.py

positions.reach=20000 with positions=randomized asks for positions below 20,000. If a property does
not hold, its smallest counterexample is shown, and the exit status is 1. Shifts and memories are
tested only of an encoding that is declared `relative` or `recurrent`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import site
import sys
import sysconfig
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import posexp
from posexp import config as configuration
from posexp import storage
from posexp.config import plugins
from posexp.config.arguments import Parser, command, keep
from posexp.config.checks import as_typed
from posexp.config.command_line import GROUPS, config_of_one
from posexp.config.plugins import CONFIGS
from posexp.errors import UserError, near
from posexp.reporting.text import wrapped
from posexp.status import doing

if TYPE_CHECKING:
  from posexp.data.batches import Batch
  from posexp.tasks.contract import Data, Task

EVENTS = ("open", "sqlite3.connect")  # of Python's, when a file is opened
NO_DATA = (".py", ".pyc", ".so", ".lock")  # code, of which `beside` has the user's own
ROWS = 64  # examples that are compared at a time
SYSTEM = ("/proc", "/sys", "/dev", "/etc", "/usr")
_listening: list[dict[Path, bool]] = []


def check(argv: list[str]) -> bool:
  """Check an encoding, or a task of one's own; print each result, and return whether all checks
  pass.

  Raises:
    UserError: the options are wrong, no model can be built with the encoding, or the task's data
      are missing or broken.
  """
  options = "options of python -m posexp.train; those of the encoding, positions and task are read"
  with files_opened() as loaded:
    config = config_of_one(argv, Parser("check", __doc__, options))
  typed = any(word.startswith("encoding=") for word in argv)
  if "task" not in config.get("plugins", {}):
    own = [each.name for each in plugins.found("encoding").values() if each.package is None]
    if own and not typed:
      raise UserError(f"say which encoding is checked: encoding={' or encoding='.join(own)}")
    return check_encoding(config)
  held = check_task(config, loaded)
  return check_encoding(config) and held if typed else held


def check_task(config: Mapping[str, Any], loaded: dict[Path, bool]) -> bool:
  """Check that a task's data are always the same, and that a run's identity depends on all of its
  files; print the results, and return whether both hold. `loaded` is as in `unnamed`.
  """
  from posexp.tasks import make_task

  doing("reading the data")
  with plugins.explained(config):
    task = make_task(config)
    paths = unnamed(task, loaded)
    other = unlike(task)
  print(config["task"]["name"])
  start = f"{'same examples':<19} {'fails' if other else 'holds':<13} "
  again = "Each time that the data are prepared, examples are the same."
  if other:
    again = (
      f"Examples of {', '.join(other)} are others each time that the data are prepared: draw them "
      "with a seed that is an option, as in numpy.random.default_rng(self.seed)."
    )
  print(wrapped(again, start), flush=True)
  start = f"{'data files':<19} {'fails' if paths else 'holds':<13} "
  if not paths:
    print(wrapped("Every file that Python reads is part of a run's identity.", start), flush=True)
    return not other
  files, verb = ", ".join(map(near, paths)), "is" if len(paths) == 1 else "are"
  why = (
    f"{files} {verb} read and {verb} no part of a run's identity, so that a run is taken for "
    f"finished after a change. Add to {type(task).__name__}:"
  )
  print(wrapped(why, start))
  print(f"\n{remedy(task, paths)}\n", flush=True)
  return False


def check_encoding(config: Mapping[str, Any]) -> bool:
  """Check an encoding; print each result, and return whether all checks pass."""
  import jax

  from posexp.analysis.conformance import examine
  from posexp.encodings import check_limit, make_encoding
  from posexp.encodings.sinusoids import REACH
  from posexp.models.positions import Positions
  from posexp.models.size import Size
  from posexp.training.devices import prepare

  prepare()
  jax.config.update("jax_disable_most_optimizations", True)  # each program runs but a few times
  name, failed = config["encoding"], 0
  results: list[dict[str, Any]] = []
  keep(encoding=name, options=config.get(name), properties=results)
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
        results.append(outcome._asdict())
        start = f"{outcome.name:<19} {outcome.status:<13} "
        print(wrapped(outcome.detail, start), flush=True)
        doing("measuring the next property")
  except ValueError as error:
    raise UserError(as_typed(str(error), {name: encoding, "model": Size()})) from error
  verb = "does" if failed == 1 else "do"
  print(f"{failed} {verb} not hold" if failed else "all of it holds")
  return not failed


@contextlib.contextmanager
def files_opened() -> Iterator[dict[Path, bool]]:
  """Collect the files that Python opens within the context, with False if first opened to write."""
  _listen()
  opened: dict[Path, bool] = {}
  _listening.append(opened)
  try:
    yield opened
  finally:
    _listening.pop()


@functools.cache  # Python knows no way to end it
def _listen() -> None:
  def hear(event: str, given: tuple[Any, ...]) -> None:
    if _listening and event in EVENTS and isinstance(given[0], str | bytes | os.PathLike):
      made = event == "open" and isinstance(given[2], int) and given[2] & (os.O_WRONLY | os.O_CREAT)
      with contextlib.suppress(OSError, ValueError):
        _listening[-1].setdefault(Path(os.path.realpath(os.fsdecode(given[0]))), not made)

  sys.addaudithook(hear)


def unnamed(task: Task, loaded: dict[Path, bool]) -> list[Path]:
  """Return the files that a task reads and whose content is not in its `data_digest`.

  `loaded` has the files that were opened while the task's class was imported. Files that are opened
  by compiled code, rather than by Python, go unnoticed.

  Raises:
    UserError: the data are missing or broken.
  """
  with files_opened() as named:
    digest = task.data_digest()
  with tempfile.TemporaryDirectory() as folder, files_opened() as read:
    task.prepare(Path(folder))
    if digest is None:
      read = loaded | read
    # What is of Python, its packages, posexp, the system or a cache.
    elsewhere: list[Any] = [storage.cache_folder().parent, Path.home() / ".cache", folder]
    elsewhere += [os.environ.get("HF_HOME"), *site.getsitepackages(), site.getusersitepackages()]
    elsewhere += [sysconfig.get_paths()["stdlib"], sys.prefix, *SYSTEM]
    elsewhere += [Path(posexp.__file__).parent, CONFIGS, CONFIGS.with_name("pyproject.toml")]
    folders = [Path(name).resolve() for name in elsewhere if name]
    found = [
      path
      for path, there in read.items()
      if there and path.suffix not in NO_DATA and path.is_file() and not _of_configs(path)
      if not any(path.is_relative_to(place) for place in folders)
    ]
    return sorted({*found, *beside()} - named.keys())


def unlike(task: Task) -> list[str]:
  """Return the splits whose examples are others when the data are prepared once more."""
  import numpy as np

  with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as other:
    first, second = (task.prepare(Path(folder)) for folder in (one, other))
    if first.sizes != second.sizes:
      return [*first.sizes]

    def examples(data: Data, split: str) -> Iterator[Batch]:
      try:
        yield from data.evaluation(split, ROWS)
      except UserError:  # of training, drawn anew in each step
        yield next(iter(data.batches(ROWS, seed=0)))

    def same(split: str) -> bool:
      batches = (examples(data, split) for data in (first, second))
      pairs = zip(*batches, strict=True)
      return all(np.array_equal(a[name], b[name]) for a, b in pairs for name in a)

    return [split for split in first.sizes if not same(split)]


def _of_configs(path: Path) -> bool:
  """Return whether a file holds options, as an experiment's, which a run's config has."""
  return path.suffix == ".yaml" and path.parent.name in GROUPS


def beside() -> set[Path]:
  """Return the modules that plugins import from their folders, which their digests do not cover."""
  own = {*plugins.files()}
  loaded = (getattr(module, "__file__", None) for module in [*sys.modules.values()])
  paths = {Path(file).resolve() for file in loaded if file}
  return {path for path in paths if path.parent in {each.parent for each in own}} - own


def remedy(task: Task, paths: list[Path]) -> str:
  """Return the text of a `data_digest` for a task that reads files, by its options for them."""
  options = {}
  for field in dataclasses.fields(cast(Any, task)):
    if isinstance(value := getattr(task, field.name), str | Path):
      options[Path(value).resolve()] = f"self.{field.name}"
  names = [options.get(path, repr(os.path.relpath(path))) for path in paths]
  return (
    "  def data_digest(self):\n"
    "    import hashlib, pathlib\n\n"
    f"    files = [{', '.join(names)}]\n"
    '    read = b"".join(pathlib.Path(file).read_bytes() for file in files)\n'
    "    return hashlib.sha256(read).hexdigest()"
  )


main = command("building small models", lambda argv: check(argv) or sys.exit(1))


if __name__ == "__main__":
  main()
