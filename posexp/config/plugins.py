"""Extensions of posexp that need no edit of it: from a file, or from an installed package.

    ENCODINGS = {"distance": Distance}       a frozen dataclass of options, a posexp.Encoding
    TASKS = {"first": First}                 likewise, with the methods of posexp.Task
    TRACKERS = {"lines": Lines}              likewise, with a method `open`
    OPTIMIZERS = {"clipped": clipped}        a function that returns an optax transformation
    SOURCES = {"npz": Arrays}                a posexp.Source: init=npz:FILE takes weights from it
    LAUNCHERS = {"queue": Queue}             a posexp.Launcher: hydra/launcher=queue trains sweeps
    COMMANDS = {"hello": hello}              a function without arguments: python -m posexp hello
    CONFIGS = "configs"                      a folder beside the file, for Hydra's search path

A file ends with some of these tables; a package has entry points in the groups `posexp.encodings`,
`posexp.tasks`, and so on. The parts of posexp that come by its own entry points count as built in:
a run's config.yaml does not name them, and each is imported when it is first looked up.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib.metadata
import inspect
import logging
import re
import sys
import tomllib
import traceback
from collections import UserDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib.metadata import EntryPoint
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from posexp import machine
from posexp.config.checks import typed
from posexp.config.schema import defaults, nearest
from posexp.errors import UserError, near

log = logging.getLogger("posexp")

_package = Path(__file__).resolve().parents[1]
# A wheel carries the folder inside the package; a checkout has it beside the package.
CONFIGS = _package / "configs" if (_package / "configs").is_dir() else _package.parent / "configs"
# What a wrong line of Python raises; a full disk or a failing kernel is no mistake in it.
MISTAKES = (
  ArithmeticError, AssertionError, AttributeError, ImportError, LookupError, NameError,
  NotImplementedError, TypeError, ValueError,
)  # fmt: skip


def _is_dataclass(value: Any) -> bool:
  """Return whether a class is a frozen dataclass, or inherits one and adds no fields."""
  if not isinstance(value, type):
    return False
  has = vars(value).get if inspect.get_annotations(value) else functools.partial(getattr, value)
  params = has("__dataclass_params__", None)
  return params is not None and params.frozen


def _takes_nothing(value: Any) -> bool:
  """Return whether something can be called without arguments."""
  try:
    inspect.signature(value).bind()
  except (TypeError, ValueError):  # or it has no signature
    return False
  return True


NAME = re.compile(r"[^\W\d][\w-]*")  # of what has options, which are typed as NAME.OPTION


class Kind(NamedTuple):
  """What the plugins of a group must be."""

  holds: Callable[[Any], bool]  # of each of them
  words: str  # in which an error says so


OPTIONS = Kind(
  _is_dataclass, "no frozen dataclass: write @dataclasses.dataclass(frozen=True) above it"
)
FUNCTION = Kind(callable, "no function")
COMMAND = Kind(_takes_nothing, "no function without arguments; one reads sys.argv")
CLASS = Kind(lambda value: isinstance(value, type), "no class")
LAUNCHER = Kind(
  lambda value: isinstance(value, type) and hasattr(value, "work"), "no class of posexp.Launcher"
)
ROW = Kind(lambda value: isinstance(value, dict), "no mapping, as are the rows of families.yaml")
FOLDER = Kind(lambda value: isinstance(value, Path) and value.is_dir(), "no folder beside the file")


class Group(NamedTuple):
  """A group of plugins, with everything that has to be declared for one."""

  table: str  # its name in a file; entry points stand in posexp.<table>, in small letters
  kind: Kind
  option: str = ""  # by which a run's config names the plugin that decides its results
  # What a file of configs/<group> would say, for a name and the options of the dataclass.
  config: Callable[[str, dict[str, Any]], dict[str, Any]] | None = None


GROUPS = {
  "encoding": Group(
    "ENCODINGS", OPTIONS, "encoding", lambda name, options: {"encoding": name, name: options}
  ),
  "task": Group(
    "TASKS",
    OPTIONS,
    "task.kind",
    lambda name, options: {"task": {"name": name, **options, "kind": name}},
  ),
  "tracker": Group("TRACKERS", OPTIONS, config=lambda name, options: {"tracker": {name: options}}),
  "source": Group("SOURCES", CLASS),
  "launcher": Group("LAUNCHERS", LAUNCHER),
  "optimizer": Group("OPTIMIZERS", FUNCTION, "train.optimizer"),
  "command": Group("COMMANDS", COMMAND),
  "config": Group("CONFIGS", FOLDER),
  "family": Group("FAMILIES", ROW),
}


class Plugin(NamedTuple):
  """An extension of posexp, under the name by which the command line knows it."""

  group: str  # of GROUPS
  name: str
  value: Any  # a class, a function, or the path of a folder
  file: Path
  sha256: str  # of the file's content
  package: str | None = None  # name and version of the installed package, if it is of one

  @property
  def options(self) -> dict[str, Any]:
    """The fields of the dataclass with their defaults; "???" where there is none."""
    return defaults(self.value)


_found: dict[tuple[str, str], Plugin] = {}


def load(files: Iterable[str | Path]) -> None:
  """Execute plugin files and add their tables. A file that is known already is skipped.

  Raises:
    UserError: a file cannot be loaded, or a name or a value in its tables is not valid.
  """
  for file in files:
    path = Path(file).expanduser().resolve()
    try:
      source = path.read_bytes()
    except OSError as error:
      raise UserError(f"plugins={file}: {error.strerror}") from None
    sha256 = hashlib.sha256(source).hexdigest()
    if any((plugin.file, plugin.sha256) == (path, sha256) for plugin in _found.values()):
      continue
    if b"jax" in source:  # an array of the file's own, as jnp.arange(4), begins to use devices
      machine.a_device_for_each_core()
    module = _execute(path, source, f"posexp_plugin_{sha256[:12]}")
    tables = {group: getattr(module, row.table, {}) for group, row in GROUPS.items()}
    if isinstance(folder := tables["config"], str | Path):
      tables["config"] = {str(folder): path.parent / folder}
    if not any(tables.values()) or not all(isinstance(each, dict) for each in tables.values()):
      others = ", ".join(row.table for row in GROUPS.values() if row.table != "ENCODINGS")
      raise UserError(
        f'{near(path)} must end with a table: ENCODINGS = {{"name": Class}}, or one of {others}'
      )
    _warn_of_misspelled(module)
    for key in [key for key, plugin in _found.items() if plugin.file == path]:
      del _found[key]  # the same file, of another content
    for group, table in tables.items():
      for name, value in table.items():
        installed(group)
        _add(Plugin(group, name, value, path, sha256))


def _warn_of_misspelled(module: ModuleType) -> None:
  """Warn of each method of a file's classes that nearly has the name of one in a class of posexp's.

  posexp would never call it: an encoding with `relations` trains as one without positions.
  """
  for own in vars(module).values():
    if not isinstance(own, type) or own.__module__ != module.__name__:
      continue
    above = [vars(each) for each in own.__mro__ if each.__module__.startswith("posexp.")]
    called = [name for names in above for name in names if not name.startswith("_")]
    for name in vars(own).keys() - {*called}:
      meant = None if name.startswith("_") else nearest(name, called, cutoff=0.8)
      if meant is not None and callable(getattr(own, name)) and meant not in vars(own):
        log.warning(
          "%s: %s.%s is nothing that posexp calls; did you mean %s? A method of your own may begin "
          "with _", near(Path(module.__file__)), own.__name__, name, meant,
        )  # fmt: skip


def _add(plugin: Plugin) -> None:
  """Add a plugin; raise UserError if its name is taken or its value does not suit its group."""
  group, name, kind = plugin.group, plugin.name, GROUPS[plugin.group].kind
  file = near(plugin.file)
  if (other := _found.get((group, name))) is not None:
    raise UserError(f"{file}: {near(other.file)} has the {group} {name} already")
  if not kind.holds(plugin.value):
    own = type(plugin.value)
    instance = kind in (OPTIONS, CLASS, LAUNCHER) and _is_dataclass(own)
    words = f"an instance: write {own.__name__}, without ()" if instance else kind.words
    raise UserError(f"{file}: {name} is {words}")
  if GROUPS[group].config:
    if not isinstance(name, str) or not NAME.fullmatch(name):
      raise UserError(f"{file}: {name!r} is no name: write a letter, then letters, digits, _ and -")
    for option, value in plugin.options.items():
      if not _typed(value) or (group == "encoding" and isinstance(value, dict)):
        raise UserError(
          f"{file}: the default of {name}.{option} is of the type "
          f"{type(value).__name__}; an option is a number or text of Python's own, true or false, "
          "None, or a tuple of these"
        )
  _found[group, name] = plugin


def _typed(value: Any) -> bool:
  """Return whether a value can be typed, and kept in config.yaml."""
  if isinstance(value, list | tuple):
    return all(map(_typed, value))
  if isinstance(value, dict):  # of a tracker
    return all(map(_typed, value.values()))
  return type(value) in (bool, int, float, str, type(None))


def files() -> list[Path]:
  """Return the files that `load` has loaded, for another process to load them, too."""
  return list(dict.fromkeys(plugin.file for plugin in _found.values() if plugin.package is None))


@functools.cache
def _declared() -> dict[str, dict[str, str]]:
  """Return the entry points of a checkout, which may be newer than what was installed from it."""
  file = CONFIGS.with_name("pyproject.toml")
  return tomllib.loads(file.read_text("utf-8"))["project"]["entry-points"] if file.is_file() else {}


@functools.cache
def entries(group: str) -> tuple[list[EntryPoint], list[EntryPoint]]:
  """Return the entry points of a group, of posexp and of other packages."""
  name = f"posexp.{GROUPS[group].table.lower()}"
  points = [*importlib.metadata.entry_points(group=name)]
  own = [entry for entry in points if entry.dist is not None and entry.dist.name == "posexp"]
  others = [entry for entry in points if entry not in own]
  if declared := _declared():
    own = [EntryPoint(*entry, name) for entry in sorted(declared.get(name, {}).items())]
  return own, others


def _loaded(entry: EntryPoint) -> tuple[Any, Path]:
  """Return the object that an entry point names, and the file that defines it."""
  value = entry.load()
  module = sys.modules.get(getattr(value, "__module__", ""))
  if getattr(module, getattr(value, "__name__", ""), None) is not value:  # as a functools.partial
    module = sys.modules[entry.module]
  file = Path(module.__file__).resolve()
  return (file.parent / value if isinstance(value, str | Path) else value), file


@functools.cache
def installed(group: str) -> None:
  """Add the plugins of installed packages; warn of those that cannot be imported."""
  for entry in entries(group)[1]:
    try:
      value, file = _loaded(entry)
      sha256 = hashlib.sha256(file.read_bytes()).hexdigest()
      package = f"{entry.dist.name} {entry.dist.version}" if entry.dist else entry.value
      _add(Plugin(group, entry.name, value, file, sha256, package))
    except Exception as error:
      log.warning("%s=%s of an installed package is left out: %s", group, entry.name, error)


def found(group: str) -> dict[str, Plugin]:
  """Return all plugins of a group, by their names."""
  installed(group)
  return {plugin.name: plugin for plugin in _found.values() if plugin.group == group}


class Table(UserDict):
  """Objects by their names; those of posexp's own entry points are imported when looked up."""

  def __getitem__(self, name: str) -> Any:
    value = super().__getitem__(name)
    return _loaded(value)[0] if isinstance(value, EntryPoint) else value


def table(group: str, built_in: Mapping[str, Any]) -> Table:
  """Return a group's built-in objects and plugins, by name.

  Raises:
    UserError: a plugin has the name of a built-in object.
  """
  objects = {**built_in, **{entry.name: entry for entry in entries(group)[0]}}
  for name, plugin in found(group).items():
    if name in objects:
      raise taken(plugin)
    objects[name] = plugin.value
  return Table(objects)


def taken(plugin: Plugin) -> UserError:
  """Return the error for a plugin whose name is taken."""
  name = plugin.name
  return UserError(f"{near(plugin.file)}: the name {name} exists already in posexp; choose another")


def record(config: Mapping[str, Any]) -> dict[str, dict[str, str]]:
  """Return the record, for config.yaml, of the plugins that decide a run's results, by group."""
  records = {}
  for group, row in GROUPS.items():
    section, _, key = row.option.rpartition(".")
    name = (config.get(section) or {}).get(key) if section else config.get(key)
    if isinstance(name, str) and (plugin := found(group).get(name)) is not None:
      package = {"package": plugin.package} if plugin.package else {}
      path = {"path": str(plugin.file), "sha256": plugin.sha256}
      records[group] = {"name": name, **package, **path}
  return records


def check(group: str, config: Mapping[str, Any]) -> None:
  """Compare the plugins that a run was trained with, by its config, with those that are loaded.

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
    raise UserError(
      f"{group} {name} is not one of posexp's: it was loaded from {file}; name that file, with "
      f"{typed('plugins', file)}"
    )
  if plugin.sha256 != wanted["sha256"]:
    raise UserError(
      f"{group} {name}: {plugin.package or near(plugin.file)} has another content than the run was "
      f"trained with (sha256 {plugin.sha256[:12]}, then {wanted['sha256'][:12]})"
    )


@contextlib.contextmanager
def explained(config: Mapping[str, Any]) -> Iterator[None]:
  """Turn an exception of Python that comes from a plugin into a UserError.

  It names the plugin's line in the traceback; without one, the plugins that `config` records, and
  the source of its weights, of which one is meant.
  """
  try:
    yield
  except MISTAKES as error:
    for plugin in _found.values():
      if line := _line(error, plugin.file):
        raise UserError(f"{near(plugin.file)}, line {line}: {_said(error)}") from error
    used = [(k, v["name"], Path(v["path"])) for k, v in config.get("plugins", {}).items()]
    init = config.get("init") or ""
    prefix = str(init if isinstance(init, str) else init["path"]).partition(":")[0]
    if (own := found("source").get(prefix)) is not None:
      used.append(("source", own.name, own.file))
    if not used:
      raise
    names = (f"{group} {name} of {near(file)}" for group, name, file in used)
    raise UserError(f"{' or '.join(names)}: {_said(error)}") from error


def _execute(path: Path, source: bytes, name: str) -> ModuleType:
  """Execute a file and return its module; an error in it names the line."""
  module = sys.modules[name] = ModuleType(name)  # where dataclasses look their annotations up
  module.__file__ = str(path)
  if (folder := str(path.parent)) not in sys.path:
    sys.path.insert(0, folder)  # as for a script, which imports what lies beside it
  try:
    exec(compile(source, str(path), "exec"), module.__dict__)
  except (Exception, SystemExit) as error:
    del sys.modules[name]
    line, text = _line(error, path), _said(error)
    if isinstance(error, SyntaxError):
      path, line, text = Path(error.filename or path), error.lineno, error.msg
    raise UserError(f"{near(path)}, line {line or 1}: {text}") from error
  return module


def _line(error: BaseException, file: Path) -> int | None:
  """Return the last line of a file in the traceback of an error."""
  frames = traceback.extract_tb(error.__traceback__)
  return next((frame.lineno for frame in reversed(frames) if frame.filename == str(file)), None)


def _said(error: BaseException) -> str:
  said = (str(error).splitlines() or [""])[0]
  if said == "unhashable type: 'list'":  # options are a part of what is compiled
    said += ", as of an option whose type is list[float]; write tuple[float, ...]"
  return f"{type(error).__name__}: {said}"
