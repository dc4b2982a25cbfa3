"""Configuration: where it is kept, how it is composed, and the dataclasses it becomes."""

from __future__ import annotations

import dataclasses
import difflib
import functools
import types
import typing
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import MissingMandatoryValue, OmegaConfBaseException

from posexp.config import plugins
from posexp.errors import UserError

T = typing.TypeVar("T")

_package = Path(__file__).resolve().parents[1]
# A wheel carries the folder inside the package; a checkout has it beside the package.
CONFIGS = _package / "configs" if (_package / "configs").is_dir() else _package.parent / "configs"


def encodings_node() -> DictConfig:
  """A section of default options for every encoding that has a file in `configs/encoding`, or
  comes from a plugin.

  Hydra composes it below everything else, so that `rpr.k=2,4` has a place to go in the jobs of a
  sweep whose encoding is another. To be read only.
  """
  own = {name: plugin.options for name, plugin in plugins.found("encoding").items()}
  return OmegaConf.merge(_built_in(), own) if own else _built_in()


@functools.cache
def _built_in() -> DictConfig:
  node = OmegaConf.create()
  for file in sorted((CONFIGS / "encoding").glob("*.yaml")):
    node = OmegaConf.merge(node, OmegaConf.load(file))
  del node["encoding"]
  return node


def register() -> None:
  """Tells Hydra about the node `encodings` and about plugins, which no file of it holds."""
  from hydra.core.config_store import ConfigStore

  plugins.store(CONFIGS)
  ConfigStore.instance().store("encodings", encodings_node())


def compose(
  overrides: Sequence[str] = (), *, folders: Iterable[str | Path] = (), name: str = "train"
) -> DictConfig:
  """The config of one run as Hydra composes it, its own node `hydra` included.

  `folders` are searched after `configs`, as with `--config-dir`. Raises what Hydra raises.
  """
  import hydra

  paths = ",".join(f'"file://{Path(folder).resolve()}"' for folder in folders)
  register()
  with hydra.initialize_config_dir(str(CONFIGS), job_name="posexp", version_base="1.3"):
    search = [f"hydra.searchpath=[{paths}]"] if paths else []
    return hydra.compose(name, [*overrides, *search], return_hydra_config=True)


@dataclasses.dataclass(frozen=True)
class Run:
  """The options of a run that stand in no section."""

  seed: int = 0
  runs: str = "runs"
  rerun: bool = False
  seeds: int | None = None
  workers: int | str = 1
  distributed: str = "auto"

  def __post_init__(self):
    if not 0 <= self.seed < 2**31:
      raise ValueError(f"seed must be from 0 to {2**31 - 1}, not {self.seed}")
    if self.seeds is not None and not 1 <= self.seeds <= 2**31:
      raise ValueError(f"seeds must be at least 1, not {self.seeds}")
    if self.workers != "auto" and (isinstance(self.workers, str) or self.workers < 1):
      raise ValueError(f"workers must be auto or at least 1, not {self.workers}")
    if self.distributed not in ("auto", "off"):
      raise ValueError(f"distributed must be auto or off, not {self.distributed}")


def resolve(cfg: DictConfig) -> dict[str, Any]:
  """The plain, resolved dict of a run, with the chosen encoding's section only."""
  try:
    shown = OmegaConf.masked_copy(cfg, [key for key in cfg if key != "hydra"])
    config = OmegaConf.to_container(shown, resolve=True, throw_on_missing=True)
  except MissingMandatoryValue as error:
    raise UserError(f"{error.full_key} is missing: set {error.full_key}=...") from error
  except OmegaConfBaseException as error:
    raise UserError(f"{error.full_key}: {str(error).splitlines()[0]}") from error
  names = [field.name for field in dataclasses.fields(Run) if field.name in config]
  config |= dataclasses.asdict(build(Run, {name: config[name] for name in names}, where=""))
  del config["seeds"], config["workers"]  # of a sweep, not of one of its runs
  if used := plugins.record(config):
    config["plugins"] = used
  else:
    config.pop("plugins", None)
  chosen = config.get("encoding")
  unread = encodings_node().keys() - {chosen}
  first = [key for key in ("encoding", chosen, "task", "model", "positions") if key in config]
  return {key: config[key] for key in dict.fromkeys([*first, *config]) if key not in unread}


def build(cls: type[T], section: Mapping[str, Any] | None, where: str) -> T:
  """`cls(**section)`, where the dataclass is the schema: its fields, their types and its checks.

  `where` is the key of the section, "" for the top level.

  Raises UserError for an unknown option, a value of another type, a missing value, and for the
  ValueErrors of `__post_init__`; each names the full key.
  """
  section = {} if section is None else section
  schema = OmegaConf.structured(cls)
  OmegaConf.set_readonly(schema, False)  # which a frozen dataclass makes it
  if OmegaConf.is_config(section):
    section = OmegaConf.to_container(section, resolve=True)
  if not isinstance(section, Mapping):
    raise UserError(f"{where}={show(section)}: {where} is a section, set its options one by one")
  hints = typing.get_type_hints(cls)
  keys = {f.name: f"{where}.{f.name}" if where else f.name for f in dataclasses.fields(cls)}
  for name, value in section.items():
    if name not in keys:
      raise unknown_option(f"{where}.{name}", value, list(keys.values()))
    try:
      schema[name] = value
    except OmegaConfBaseException:
      message = f"{keys[name]}={show(value)}: must be {_describe(hints[name])}"
      raise UserError(message) from None
  for name, key in keys.items():
    if OmegaConf.is_missing(schema, name):
      raise UserError(f"{key} is missing: set {key}=...")
  values = OmegaConf.to_container(schema)
  for name, value in values.items():
    if isinstance(value, list) and _origin(hints[name]) is tuple:
      values[name] = tuple(value)
  try:
    return cls(**values)
  except ValueError as error:
    name, _, rest = str(error).partition(" ")
    raise UserError(f"{keys[name]} {rest}" if name in keys else f"{where}: {error}") from error


def unknown_option(key: str, value: Any, options: Sequence[str]) -> UserError:
  """The error for an option that does not exist; `options` are the full keys of those that do."""
  section, _, name = key.rpartition(".")
  tree: dict[str, dict[str, str]] = {}  # section -> its options, by their last names
  for option in options:
    parent, _, end = option.rpartition(".")
    tree.setdefault(parent, {})[end] = option
  section = section if section in tree else nearest(section, tree) or ""
  names = tree.get(section, {})
  same = [siblings[name] for siblings in tree.values() if name in siblings]
  close = names.get(name) or " or ".join(same) or names.get(nearest(name, names))
  if close:
    way_out = f"did you mean {close}?"
  elif section:
    way_out = f"the options of {section} are {', '.join(names)}"
  else:
    way_out = "--help lists the options"
  return UserError(f"{key}={show(value)}: there is no option {key}; {way_out}")


def unknown_name(group: str, name: Any, names: Sequence[str]) -> UserError:
  """The error for a choice that does not exist; `names` are those that do."""
  close = nearest(str(name), names)
  hint = f"; did you mean {close}?" if close else ""
  return UserError(f"{group}={show(name)}: no such {group}{hint} (known: {', '.join(names)})")


def look_up(table: Mapping[str, T], name: Any, key: str) -> T:
  """What a table holds under the name that the option `key` gives.

  Raises:
    UserError: the table holds no such name.
  """
  if name not in table:
    raise unknown_name(key, name, list(table))
  return table[name]


def nearest(name: str, names: Iterable[str]) -> str | None:
  """The one of `names` that was probably meant, if any."""
  return next(iter(difflib.get_close_matches(name, list(names), n=1)), None)


def show(value: Any) -> str:
  """A value as one types it on the command line."""
  if value is None or isinstance(value, bool):
    return {None: "null", True: "true", False: "false"}[value]
  if isinstance(value, list | tuple):
    return f"[{','.join(map(show, value))}]"
  if isinstance(value, Mapping):
    return "{" + ",".join(f"{key}:{show(item)}" for key, item in value.items()) + "}"
  return str(value)


def _describe(hint: Any) -> str:
  names = {int: "an integer", float: "a number", bool: "true or false", str: "text"}
  if _origin(hint) in (typing.Union, types.UnionType):
    return " or ".join(_describe(part) for part in typing.get_args(hint))
  if _origin(hint) in (list, tuple):
    return "a list"
  return "null" if hint is type(None) else names.get(hint, f"a {hint.__name__}")


def _origin(hint: Any) -> Any:
  return typing.get_origin(hint) or hint
