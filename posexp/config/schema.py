"""A dataclass as the schema of its options, and one sentence for each option that is wrong."""

from __future__ import annotations

import dataclasses
import difflib
import itertools
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from posexp.config.checks import brief, check, converted, hints_of
from posexp.errors import UserError

T = TypeVar("T")
LISTED = 150  # characters of a list of names in a message
MISSING = "???"  # OmegaConf's mark of a value that is still to be given


def build(cls: type[T], section: Mapping[str, Any] | None, where: str) -> T:
  """Return `cls(**section)`, checked by the dataclass: its fields, their types and its own checks.

  `where` is the key of the section, "" for the top level.

  Raises UserError for an unknown option, a value of another type, a missing value, and for the
  ValueErrors of `__post_init__`; each names the full key.
  """
  section = {} if section is None else section
  if not isinstance(section, Mapping):
    raise UserError(f"{where}={brief(section)}: {not_a_value(where)}")
  hints, values = hints_of(cls), {}
  keys = {name: f"{where}.{name}" if where else name for name in hints}
  for name, value in section.items():
    if name not in keys:
      raise unknown_option(f"{where}.{name}", value, list(keys.values()))
    try:
      values[name] = converted(value, hints[name])
    except TypeError as error:
      raise UserError(f"{keys[name]}={brief(value)}: {error}") from None
    except ValueError as error:
      raise UserError(f"{keys[name]} {error}") from None
  given = {name: values.get(name, default) for name, default in defaults(cls).items()}
  for name, value in given.items():
    if value == MISSING:
      raise UserError(f"{keys[name]} is missing: set {keys[name]}=...")
  try:
    built = cls(**values)
    check(built)
    return built
  except ValueError as error:
    name, _, rest = str(error).partition(" ")
    option, equals, value = name.partition("=")
    if option in keys:
      raise UserError(f"{keys[option]}{equals}{value} {rest}") from error
    raise UserError(f"{where}: {error}") from error


def not_a_value(section: str) -> str:
  """Return why a section of options cannot have a value, in words."""
  return f"{section} is a section, set its options one by one"


def defaults(cls: type) -> dict[str, Any]:
  """Return the options of a dataclass with their defaults; "???" where there is none."""
  options = {}
  for field in dataclasses.fields(cls):
    make: Any = field.default_factory
    value = field.default if make is dataclasses.MISSING else make()
    options[field.name] = MISSING if value is dataclasses.MISSING else value
  return options


def unknown_option(
  key: str, value: Any, options: Sequence[str], others: Sequence[str] = ()
) -> UserError:
  """Return the error for an option that does not exist; `others` is as in `suggestion`."""
  way_out = suggestion(key, options, others)
  return UserError(f"{key}={brief(value)}: there is no option {key}; {way_out}")


def suggestion(key: str, options: Sequence[str], others: Sequence[str] = ()) -> str:
  """Return a hint for a key that does not exist: the options that it probably means, or where they
  are listed.

  `options` are the full keys of existing options, and `others` those of encodings that are not
  chosen.
  """
  section, _, name = key.rpartition(".")
  siblings = [
    o for o in (*options, *(others if section else ())) if o.rpartition(".")[0] == section
  ]
  own = f"options of {section} are {', '.join(each.rpartition('.')[2] for each in siblings)}"
  below = key.partition(".")[2]  # encoding.rope.base: rope.base
  close = [below] if below in {*options, *others} else []
  if close := close or closest(name, siblings, options, () if section else others):
    elsewhere = siblings and not {*close} & {*siblings}
    close = [f"{o}, with encoding={o.partition('.')[0]}," if o in others else o for o in close]
    hint = f"did you mean {' or '.join(close[:3]).removesuffix(',')}?"
    return f"{hint} The {own}" if section and elsewhere and len(own) <= LISTED else hint
  if section and siblings:
    return f"the {own}"
  return "--help lists the options"


def unknown_name(
  group: str, name: Any, names: Sequence[str], said: Mapping[str, str] | None = None
) -> UserError:
  """Return the error for a choice that does not exist; `names` are the choices that do.

  The message suggests names that are spelled alike, or whose summary in `said` has a word that was
  typed. It also lists all names or, if they are too many, gives their number and the command that
  lists them.
  """
  typed, known = str(name)[:LISTED].lower(), f" (known: {', '.join(names)})" if names else ""
  near = nearest(typed, names, cutoff=0.8)
  parts = sorted((each for each in names if len(typed) > 1 and typed in each.lower()), key=len)
  close = [near] if near else parts[:3] or _named_in(typed, said or {})
  close = close or [each for each in [nearest(typed, names)] if each]
  hint = f"; did you mean {' or '.join(close)}?" if close else ""
  if len(known) > LISTED:
    known = f" ({len(names)} are known: python -m posexp.train --help {group.partition('.')[0]})"
  return UserError(f"{group}={brief(name)}: no such {group}{hint}{known}")


def summary(text: str) -> str:
  """Return the first sentence of the comment at the head of a config file; "" if it has none."""
  lines = (line for line in text.splitlines() if not line.startswith("# @package"))
  head = itertools.takewhile(lambda line: line.startswith("#"), lines)
  return re.split(r"(?<=[.?])\s+(?=[A-Z])", " ".join(line.lstrip("# ") for line in head))[0]


def _named_in(typed: str, said: Mapping[str, str]) -> list[str]:
  """Return up to three names whose summary has a word that was typed."""
  words = (word.rstrip("s") for word in re.findall(r"[a-z0-9]{2,}", typed))
  found = (
    [name for name, text in said.items() if re.search(rf"\b{word}s?\b", f"{name} {text}", re.I)]
    for word in words
  )
  return min((each for each in found if 0 < len(each) <= 3), key=len, default=[])


def look_up(table: Mapping[str, T], name: Any, key: str) -> T:
  """Return the entry of a table under the name that the option `key` gives.

  Raises:
    UserError: the table holds no such name.
  """
  if not isinstance(name, str) or name not in table:
    raise unknown_name(key, name, list(table))
  return table[name]


def closest(
  name: str, siblings: Sequence[str], options: Sequence[str], others: Sequence[str] = ()
) -> list[str]:
  """Return the full keys of the options that a name probably means, preferably `siblings`.

  They are, in this order: options of this name in another section, also among `others`; options
  with these initials (lr: train.learning_rate); options in which a word begins so (layers:
  model.num_layers); and the option that is spelled most alike.
  """
  name = name.lower()
  words = name.split("_")

  def fits(end: str) -> tuple[bool, bool]:
    own = end.split("_")
    initials = "_" in end and "".join(word[:1] for word in own) == name
    return initials, len(name) > 2 and all(any(o.startswith(w) for o in own) for w in words)

  def ending(ends: Callable[[str], bool], some: Sequence[str]) -> list[str]:
    return list(dict.fromkeys(option for option in some if ends(option.rpartition(".")[2].lower())))

  close = ending(name.__eq__, options) or ending(name.__eq__, others)
  for rank, some in itertools.product((0, 1), (siblings, options)):
    close = close or ending(lambda end, rank=rank: fits(end)[rank], some)
  for some in (siblings, options):
    alike = nearest(name, (option.rpartition(".")[2] for option in some))
    close = close or (ending(alike.lower().__eq__, some) if alike else [])
  return close


def nearest(name: str, names: Iterable[str], cutoff: float = 0.6) -> str | None:
  """Return the name that was probably meant, whatever its capitals; None if there is none."""
  lower = {each.lower(): each for each in names}
  close = difflib.get_close_matches(name[:LISTED].lower(), lower, 1, cutoff)
  return lower[close[0]] if close else None


def flat(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
  """Return a config with full keys: {"rpr": {"k": 4}} as {"rpr.k": 4}."""
  flattened: dict[str, Any] = {}
  for key, value in config.items():
    if isinstance(value, Mapping):
      flattened |= flat(value, f"{prefix}{key}.")
    else:
      flattened[sys.intern(f"{prefix}{key}")] = value  # shared by all runs of a report
  return flattened
