"""Encodings and tasks of one's own: from a file that the user names, or from an installed package.

A file ends with the same tables that the package has, `ENCODINGS = {"distance": Distance}` or
`TASKS = {"first": First}`; a package has entry points in the groups `posexp.encodings` and
`posexp.tasks`. Options are the fields of the dataclass, with its defaults.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import importlib.metadata
import importlib.util
import logging
import re
import sys
import traceback
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from omegaconf import OmegaConf

from posexp.errors import UserError, near

log = logging.getLogger("posexp")

PROVIDER = "posexp.plugins"  # of the configs that Hydra is told about
TABLES = {"encoding": "ENCODINGS", "task": "TASKS"}  # group -> the name of its table in a file


@dataclasses.dataclass(frozen=True)
class Plugin:
  """A class that is no part of posexp, under the name that the command line gives it."""

  group: str  # "encoding" or "task"
  name: str
  cls: type
  file: Path
  sha256: str  # of the file's content
  package: str | None = None  # name and version of the installed package, if it is of one

  @property
  def options(self) -> dict[str, Any]:
    """The fields of the dataclass with their defaults; "???" where there is none."""
    return OmegaConf.to_container(OmegaConf.structured(self.cls))

  @property
  def record(self) -> dict[str, str]:
    """What a run's config says of it."""
    whence = {"package": self.package} if self.package else {}
    return {"name": self.name, **whence, "path": str(self.file), "sha256": self.sha256}


_found: dict[tuple[str, str], Plugin] = {}


def load(files: Iterable[str | Path]) -> None:
  """Executes the files and adds what their tables hold. A file that is known already is skipped.

  Raises:
    UserError: a file cannot be loaded, or a name or a class in its tables will not do.
  """
  installed()
  for each in files:
    file = Path(each)
    try:
      source = file.read_bytes()
    except OSError as error:
      raise UserError(f"plugins={each}: {error.strerror or error}") from None
    sha256, path = hashlib.sha256(source).hexdigest(), file.resolve()
    if any((plugin.file, plugin.sha256) == (path, sha256) for plugin in _found.values()):
      continue
    module = _execute(file, source, f"posexp_plugin_{sha256[:12]}")
    tables = {group: getattr(module, table, {}) for group, table in TABLES.items()}
    for group, table in tables.items():
      if not isinstance(table, Mapping):
        raise _wrong(file, source, TABLES[group], f"must be a dict, as in {_shape(group)}")
    if not any(tables.values()):
      raise UserError(f"{near(file)} has no table: end it with {' or '.join(map(_shape, TABLES))}")
    for key in [key for key, plugin in _found.items() if plugin.file == path]:
      del _found[key]  # the same file, of another content
    for group, table in tables.items():
      for name, cls in table.items():
        _add(Plugin(group, name, cls, path, sha256), source)


def load_recorded(config: Mapping[str, Any]) -> None:
  """Loads what the config of a run names; that config must be the user's, not a run folder's."""
  load(plugin["path"] for plugin in config.get("plugins", {}).values() if "package" not in plugin)


@functools.cache
def installed() -> None:
  """Adds what installed packages offer. One that cannot be imported is left out with a warning."""
  for group in TABLES:
    for entry in importlib.metadata.entry_points(group=f"posexp.{group}s"):
      try:
        cls = entry.load()
        file = Path(sys.modules[cls.__module__].__file__).resolve()
        source = file.read_bytes()
        package = f"{entry.dist.name} {entry.dist.version}" if entry.dist else entry.value
        sha256 = hashlib.sha256(source).hexdigest()
        _add(Plugin(group, entry.name, cls, file, sha256, package), source)
      except Exception as error:
        log.warning("%s=%s of an installed package is left out: %s", group, entry.name, error)


def found(group: str) -> dict[str, Plugin]:
  """All plugins of a group, by their names."""
  installed()
  return {plugin.name: plugin for plugin in _found.values() if plugin.group == group}


def table(group: str, built_in: Mapping[str, type]) -> dict[str, type]:
  """The classes of a group by name, those of plugins after those of posexp."""
  return {**built_in, **{name: plugin.cls for name, plugin in found(group).items()}}


def record(config: Mapping[str, Any]) -> dict[str, dict[str, str]]:
  """What config.yaml says of the plugins that a run uses, by group."""
  chosen = {"encoding": config.get("encoding"), "task": (config.get("task") or {}).get("kind")}
  return {
    group: plugin.record
    for group, name in chosen.items()
    if (plugin := found(group).get(name)) is not None
  }


def check(group: str, config: Mapping[str, Any]) -> None:
  """Compares what a run was trained with, as its config says, with what is loaded.

  Raises:
    UserError: the run needs a plugin that is not loaded, or that has another content now.
  """
  wanted = config.get("plugins", {}).get(group)
  if wanted is None:
    return
  name, package, path = wanted["name"], wanted.get("package"), Path(wanted["path"])
  here = found(group).get(name)
  if here is None and package:
    raise UserError(f"{group} {name} is of the package {package}, which is not installed")
  if here is None:
    raise UserError(
      f"{group} {name} is not one of posexp's: it was loaded from {near(path)}; name that file, "
      f"plugins={near(path)} among options and --plugins {near(path)} among flags"
    )
  if here.sha256 != wanted["sha256"]:
    raise UserError(
      f"{group} {name}: {here.package or near(here.file)} has another content than the run was "
      f"trained with (sha256 {here.sha256[:12]}, then {wanted['sha256'][:12]})"
    )


def store(configs: Path) -> None:
  """Tells Hydra about the plugins, and about no others, as if each had a YAML file in `configs`.

  Raises:
    UserError: a name is taken.
  """
  from hydra.core.config_store import ConfigStore

  installed()
  hydra = ConfigStore.instance()
  for group in TABLES:
    named = hydra.repo.get(group, {})
    for file in [file for file, node in named.items() if node.provider == PROVIDER]:
      del named[file]
  taken = {*OmegaConf.load(configs / "train.yaml"), *(each.name for each in configs.iterdir())}
  for plugin in _found.values():
    group, name = plugin.group, plugin.name
    if (configs / group / f"{name}.yaml").exists() or (group == "encoding" and name in taken):
      raise UserError(
        f"{near(plugin.file)}: the name {name} exists already in posexp; choose another"
      )
    if group == "encoding":
      node, package = {"encoding": name, name: plugin.options}, "_global_"
    else:
      node, package = {"name": name, **plugin.options, "kind": name}, None
    hydra.store(name, node, group=group, package=package, provider=PROVIDER)


def _execute(file: Path, source: bytes, name: str) -> ModuleType:
  spec = importlib.util.spec_from_file_location(name, file)
  if spec is None:
    raise UserError(f"plugins={file}: the name of a file of Python code ends in .py")
  module = importlib.util.module_from_spec(spec)
  sys.modules[name] = module  # where dataclasses look their annotations up
  try:
    exec(compile(source, str(file.resolve()), "exec"), module.__dict__)
  except SyntaxError as error:
    del sys.modules[name]
    where = f"{near(Path(error.filename or file))}, line {error.lineno}"
    raise UserError(f"{where}: {error.msg}") from error
  except Exception as error:
    del sys.modules[name]
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if frame.filename == str(file.resolve())]
    first = (str(error).splitlines() or [""])[0]
    where = f"{near(file)}, line {lines[-1]}" if lines else near(file)
    raise UserError(f"{where}: {type(error).__name__}: {first}") from error
  return module


def _add(plugin: Plugin, source: bytes) -> None:
  group, name, cls, file = plugin.group, plugin.name, plugin.cls, plugin.file
  if not (isinstance(name, str) and name.isidentifier()):
    raise _wrong(file, source, TABLES[group], f"the name {name!r} must be one word")
  if (other := _found.get((group, name))) is not None:
    raise UserError(f"{near(file)}: {near(other.file)} has the {group} {name} already")
  if not isinstance(cls, type):
    raise _wrong(file, source, TABLES[group], f"{name} must be a class, not {cls!r}")
  own = vars(cls).get("__dataclass_params__")
  if own is None or not own.frozen:
    advice = "write @dataclasses.dataclass(frozen=True) above it"
    raise _wrong(file, source, cls.__name__, f"{cls.__name__} is no frozen dataclass: {advice}")
  try:
    _ = plugin.options
  except Exception as error:
    first = str(error).splitlines()[0]
    raise _wrong(file, source, cls.__name__, f"{cls.__name__}: {first}") from error
  _found[group, name] = plugin


def _wrong(file: Path, source: bytes, name: str, message: str) -> UserError:
  """The error with the line in which a class or a table begins."""
  text = source.decode(errors="replace")
  match = re.search(rf"^(class )?{re.escape(name)}\b", text, re.MULTILINE)
  line = f", line {text.count(chr(10), 0, match.start()) + 1}" if match else ""
  return UserError(f"{near(file)}{line}: {message}")


def _shape(group: str) -> str:
  return f'{TABLES[group]} = {{"name": Class}}'
