"""A dataclass as the schema of its options, and one sentence for each option that is wrong."""

from __future__ import annotations

import dataclasses
import difflib
import types
import typing
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from posexp.errors import UserError

T = typing.TypeVar("T")
TYPES = {
  int: "an integer", float: "a number", bool: "true or false", str: "text", list: "a list",
  tuple: "a list", type(None): "null",
}  # fmt: skip


def build(cls: type[T], section: Mapping[str, Any] | None, where: str) -> T:
  """`cls(**section)`, where the dataclass is the schema: its fields, their types and its checks.

  `where` is the key of the section, "" for the top level.

  Raises UserError for an unknown option, a value of another type, a missing value, and for the
  ValueErrors of `__post_init__`; each names the full key.
  """
  section = {} if section is None else section
  if not isinstance(section, Mapping):
    raise UserError(f"{where}={show(section)}: {where} is a section, set its options one by one")
  schema = OmegaConf.structured(cls)
  OmegaConf.set_readonly(schema, False)  # which a frozen dataclass makes it
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
    if isinstance(value, list) and typing.get_origin(hints[name]) is tuple:
      values[name] = tuple(value)
  try:
    return cls(**values)
  except ValueError as error:
    name, _, rest = str(error).partition(" ")
    raise UserError(f"{keys[name]} {rest}" if name in keys else f"{where}: {error}") from error


def unknown_option(key: str, value: Any, options: Sequence[str]) -> UserError:
  """The error for an option that does not exist; `options` are the full keys of those that do."""
  section, _, name = key.rpartition(".")
  parts = {option: option.rpartition(".") for option in options}
  siblings = {end: option for option, (parent, _, end) in parts.items() if parent == section}
  same = [option for option, (_, _, end) in parts.items() if end == name]
  if close := " or ".join(same) or siblings.get(nearest(name, siblings)):
    way_out = f"did you mean {close}?"
  elif section and siblings:
    way_out = f"the options of {section} are {', '.join(siblings)}"
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


def flat(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
  """A config with full keys: {"rpr": {"k": 4}} as {"rpr.k": 4}."""
  found: dict[str, Any] = {}
  for key, value in config.items():
    nested = isinstance(value, Mapping)
    found |= flat(value, f"{prefix}{key}.") if nested else {f"{prefix}{key}": value}
  return found


def _describe(hint: Any) -> str:
  origin = typing.get_origin(hint) or hint
  if origin in (typing.Union, types.UnionType):
    return " or ".join(map(_describe, typing.get_args(hint)))
  return TYPES.get(origin) or f"a {origin.__name__}"
