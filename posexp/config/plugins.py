"""Encodings and tasks of one's own: from a file that the user names, or from an installed package.

A file ends with the same tables that the package has, `ENCODINGS = {"distance": Distance}` or
`TASKS = {"first": First}`; a package has entry points in the groups `posexp.encodings` and
`posexp.tasks`. Options are the fields of the dataclass, with its defaults.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import importlib.metadata
import logging
import sys
import traceback
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from shlex import quote
from types import ModuleType
from typing import Any

from omegaconf import OmegaConf

from posexp.config.checks import show, typed
from posexp.config.schema import defaults
from posexp.errors import UserError, near

log = logging.getLogger("posexp")

PROVIDER = "posexp.plugins"  # marks the configs that Hydra is told about
# What a wrong line of Python raises; a full disk or a failing kernel is no mistake in it.
MISTAKES = (
  ArithmeticError, AssertionError, AttributeError, LookupError, NameError, TypeError, ValueError,
)  # fmt: skip
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
    return defaults(self.cls)


_found: dict[tuple[str, str], Plugin] = {}


def load(files: Iterable[str | Path]) -> None:
  """Execute the files and add what their tables hold. A file that is known already is skipped.

  Raises:
    UserError: a file cannot be loaded, or a name or a class in its tables will not do.
  """
  installed()
  for each in files:
    path = Path(each).resolve()
    try:
      source = path.read_bytes()
    except OSError as error:
      raise UserError(f"plugins={each}: {error.strerror}") from None
    sha256 = hashlib.sha256(source).hexdigest()
    if any((plugin.file, plugin.sha256) == (path, sha256) for plugin in _found.values()):
      continue
    module = _execute(path, source, f"posexp_plugin_{sha256[:12]}")
    tables = {group: getattr(module, name, {}) for group, name in TABLES.items()}
    if not any(tables.values()) or not all(isinstance(each, dict) for each in tables.values()):
      raise UserError(
        f'{near(path)} must end with a table: ENCODINGS = {{"name": Class}}, or TASKS likewise'
      )
    for key in [key for key, plugin in _found.items() if plugin.file == path]:
      del _found[key]  # the same file, of another content
    for group, table in tables.items():
      for name, cls in table.items():
        _add(Plugin(group, name, cls, path, sha256))


def load_recorded(config: Mapping[str, Any]) -> None:
  """Load what the config of a run names; that config must be the user's, not a run folder's."""
  load(plugin["path"] for plugin in config.get("plugins", {}).values() if "package" not in plugin)


@functools.cache
def installed() -> None:
  """Add what installed packages offer. One that cannot be imported is left out with a warning."""
  for group in TABLES:
    for entry in importlib.metadata.entry_points(group=f"posexp.{group}s"):
      try:
        cls = entry.load()
        file = Path(sys.modules[cls.__module__].__file__).resolve()
        sha256 = hashlib.sha256(file.read_bytes()).hexdigest()
        package = f"{entry.dist.name} {entry.dist.version}" if entry.dist else entry.value
        _add(Plugin(group, entry.name, cls, file, sha256, package))
      except Exception as error:
        log.warning("%s=%s of an installed package is left out: %s", group, entry.name, error)


def found(group: str) -> dict[str, Plugin]:
  """Return all plugins of a group, by their names."""
  installed()
  return {plugin.name: plugin for plugin in _found.values() if plugin.group == group}


def table(group: str, built_in: Mapping[str, type]) -> dict[str, type]:
  """Return the classes of a group by name, those of plugins after those of posexp."""
  return {**built_in, **{name: plugin.cls for name, plugin in found(group).items()}}


def record(config: Mapping[str, Any]) -> dict[str, dict[str, str]]:
  """Return what config.yaml says of the plugins that a run uses, by group."""
  chosen = {"encoding": config.get("encoding"), "task": (config.get("task") or {}).get("kind")}
  records = {}
  for group, name in chosen.items():
    if isinstance(name, str) and (plugin := found(group).get(name)) is not None:
      package = {"package": plugin.package} if plugin.package else {}
      path = {"path": str(plugin.file), "sha256": plugin.sha256}
      records[group] = {"name": name, **package, **path}
  return records


def check(group: str, config: Mapping[str, Any]) -> None:
  """Compare what a run was trained with, as its config says, with what is loaded.

  Raises:
    UserError: the run needs a plugin that is not loaded, or that has another content now.
  """
  wanted = config.get("plugins", {}).get(group)
  if wanted is None:
    return
  name, file = wanted["name"], near(Path(wanted["path"]))
  plugin = found(group).get(name)
  if plugin is None and "package" in wanted:
    raise UserError(f"{group} {name} is of the package {wanted['package']}, which is not installed")
  if plugin is None:
    flag = f"--plugins {quote(show([file])[1:-1])}"
    raise UserError(
      f"{group} {name} is not one of posexp's: it was loaded from {file}; name that file, with "
      f"{flag}, or with {typed('plugins', file)}"
    )
  if plugin.sha256 != wanted["sha256"]:
    raise UserError(
      f"{group} {name}: {plugin.package or near(plugin.file)} has another content than the run was "
      f"trained with (sha256 {plugin.sha256[:12]}, then {wanted['sha256'][:12]})"
    )


@contextlib.contextmanager
def explained(config: Mapping[str, Any]) -> Iterator[None]:
  """Turn an exception of Python into a UserError where the config has a plugin.

  It names the plugin's line in the traceback; without one, the encoding or task that is used.
  """
  used = config.get("plugins", {})
  try:
    yield
  except MISTAKES as error:
    for plugin in used.values():
      if line := _line(error, file := Path(plugin["path"])):
        raise UserError(f"{near(file)}, line {line}: {_said(error)}") from error
    for group, plugin in used.items():
      name = f"{group} {plugin['name']} of {near(Path(plugin['path']))}"
      raise UserError(f"{name}: {_said(error)}") from error
    raise


def store(configs: Path) -> None:
  """Tell Hydra about the plugins, and about no others, as if each had a YAML file in `configs`.

  Raises:
    UserError: a name is taken.
  """
  from hydra.core.config_store import ConfigStore

  installed()
  hydra = ConfigStore.instance()
  for group in TABLES:
    nodes = hydra.repo.get(group, {})
    for file in [file for file, node in nodes.items() if node.provider == PROVIDER]:
      del nodes[file]
  taken = {*OmegaConf.load(configs / "train.yaml"), *(each.name for each in configs.iterdir())}
  for (group, name), plugin in _found.items():
    if (configs / group / f"{name}.yaml").exists() or (group == "encoding" and name in taken):
      raise UserError(
        f"{near(plugin.file)}: the name {name} exists already in posexp; choose another"
      )
    if group == "encoding":
      node, package = {"encoding": name, name: plugin.options}, "_global_"
    else:
      node, package = {"name": name, **plugin.options, "kind": name}, None
    hydra.store(name, node, group=group, package=package, provider=PROVIDER)


def _execute(path: Path, source: bytes, name: str) -> ModuleType:
  """Return the module of a file; an error in it names the line."""
  module = sys.modules[name] = ModuleType(name)  # where dataclasses look their annotations up
  module.__file__ = str(path)
  try:
    exec(compile(source, str(path), "exec"), module.__dict__)
  except Exception as error:
    del sys.modules[name]
    line, text = _line(error, path), _said(error)
    if isinstance(error, SyntaxError):
      path, line, text = Path(error.filename or path), error.lineno, error.msg
    raise UserError(f"{near(path)}, line {line or 1}: {text}") from error
  return module


def _line(error: BaseException, file: Path) -> int | None:
  """Return the last line of a file in the traceback of an error."""
  frames = traceback.extract_tb(error.__traceback__)
  return next((each.lineno for each in reversed(frames) if each.filename == str(file)), None)


def _said(error: BaseException) -> str:
  return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"


def _add(plugin: Plugin) -> None:
  """Add a plugin; raises UserError if its name or its class will not do."""
  group, name, cls, file = plugin.group, plugin.name, plugin.cls, near(plugin.file)
  if (other := _found.get((group, name))) is not None:
    raise UserError(f"{file}: {near(other.file)} has the {group} {name} already")
  own = vars(cls).get("__dataclass_params__") if isinstance(cls, type) else None
  if own is None or not own.frozen:
    raise UserError(
      f"{file}: {name} is no frozen dataclass: write @dataclasses.dataclass(frozen=True) above it"
    )
  _found[group, name] = plugin
