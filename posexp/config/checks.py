"""Types of options: the annotations of a dataclass say which values its fields may have.

    k: Count = 16                                                 from 1 on
    share: Literal["heads", "none"] = "heads"                     one of these
    factor: Annotated[float, at_least(1), only_with("scaling")] = 1.0

Numbers are finite, and whole ones below 2^31; switches are no numbers; texts can be written.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import re
import shlex
import types
import typing
from collections.abc import Callable, Mapping
from numbers import Integral, Real
from typing import Annotated, Any, Literal, NamedTuple, TypeVar

from posexp.errors import UNPRINTABLE, printable

N = TypeVar("N", int, float)

LARGEST = 2**31 - 1  # int32, in which JAX counts
OPTION = re.compile(r"(?<![\w.])(?P<name>[a-z]\w*)(?:=(?P<value>[^\s,;:()]+))?(?![\w.=])")
FLOAT32 = 3.4028235e38  # the largest number of this type
SWITCHES = {"true": True, "yes": True, "on": True, "y": True}
SWITCHES |= {"false": False, "no": False, "off": False, "n": False}
NUMBERS = {int: Integral, float: Real}  # what a value of these types may be of, besides a text
SHOWN = 100  # characters of a value in a message
NAME = 200  # bytes of a folder's name; file systems take 255
# Texts that Hydra's grammar reads as something else; in a list, all but these words.
MISREAD = re.compile(
  r"""\s*['"[{]|.*(,|\$\{|\\[\\()[\]{}:=,\s])|\s*(?-i:null)\s*$|"""
  r"(choice|range|interval|glob|sort|shuffle|tag|int|str|float|bool)\s*\(",
  re.IGNORECASE | re.DOTALL,
)
BARE = re.compile(r"(?!null$)[\w./+@%*?|-]+")
TYPES = {
  int: "an integer", float: "a number", bool: "true or false", str: "text", list: "a list",
  tuple: "a list", dict: "a mapping", type(None): "null",
}  # fmt: skip


class Bound(NamedTuple):
  """A condition that a value must meet besides its type."""

  words: str  # "at least 1"
  holds: Callable[[Any], bool]


class OnlyWith(NamedTuple):
  """Options of which one must be on for another option to have an effect."""

  names: tuple[str, ...]  # options that are neither null, false, 0, nor "none"


def at_least(least: float) -> Bound:
  """least ≤ value."""
  return Bound(f"at least {least}", lambda value: value >= least)


def above(bound: float) -> Bound:
  """bound < value."""
  return Bound(f"above {bound}", lambda value: value > bound)


def at_most(most: float) -> Bound:
  """value ≤ most."""
  return Bound(f"at most {most}", lambda value: value <= most)


def between(least: float, most: float) -> Bound:
  """least ≤ value ≤ most."""
  return Bound(f"from {least} to {most}", lambda value: least <= value <= most)


def even_from(least: int, *others: int) -> Bound:
  """Return the bound of an even number from `least` up, or one of the others."""
  words = "".join(f"{other} or " for other in others)
  return Bound(
    f"{words}an even number from {least} up",
    lambda value: value in others or (value >= least and value % 2 == 0),
  )


def row_of(table: Mapping[str, Any]) -> Bound:
  """Return the bound of an option that names a row of a table."""
  return Bound(f"one of {', '.join(table)}", table.__contains__)


def seconds(text: str) -> float | None:
  """Return the seconds of a time that is typed as 2h, 90m or 30s; None if the text is no time."""
  match = re.fullmatch(r"(\d+(?:\.\d+)?) *([smh])", text)
  return float(match[1]) * {"s": 1, "m": 60, "h": 3600}[match[2]] if match else None


def only_with(*names: str) -> OnlyWith:
  """Return the annotation of an option that needs one of these on: "scaling", or "task.cls"."""
  return OnlyWith(names)


def _names_folder(text: str) -> bool:
  if UNPRINTABLE.search(text) or len(text.encode()) > NAME:
    return False
  return text.strip() == text != "" and "/" not in text and not text.startswith(".")


FOLDER = Bound(
  f"the name of a folder: up to {NAME} bytes, without / and line ends, blanks or a dot in front",
  _names_folder,
)
Count = Annotated[int, at_least(1)]
Whole = Annotated[int, at_least(0)]
Positive = Annotated[float, above(0)]
Base = Annotated[float, above(1)]
Share = Annotated[float, Bound("from 0 to below 1", lambda value: 0 <= value < 1)]
Name = Annotated[str, FOLDER]


def _hints_of(cls: Any) -> dict[str, Any]:
  """Return the type hints of a dataclass, with their `Annotated` bounds."""
  hints = typing.get_type_hints(cls, include_extras=True)
  return {field.name: hints[field.name] for field in dataclasses.fields(cls)}


hints_of: Callable[[type], dict[str, Any]] = functools.cache(_hints_of)


def check(options: Any) -> None:
  """Check all options of a dataclass; its `__post_init__` calls this.

  Raises:
    ValueError: a value is not what its annotation says; the message begins with the option's name.
  """
  for name, hint in hints_of(type(options)).items():
    value = getattr(options, name)
    try:
      converted(value, hint)
    except TypeError as error:
      raise ValueError(f"{name} {error}, not {brief(value, repr)}") from None
    except ValueError as error:
      raise ValueError(f"{name} {error}") from None
  check_effective(options, lambda other: getattr(options, other, True))


def check_effective(options: Any, of: Callable[[str], Any]) -> None:
  """Check each option that needs others; `of` returns the value of an option by its name.

  Raises:
    ValueError: an option has another value than its default, and none of those that it needs is on.
  """
  defaults = {field.name: field.default for field in dataclasses.fields(options)}
  for name, hint in hints_of(type(options)).items():
    value = getattr(options, name)
    for each in getattr(hint, "__metadata__", ()):
      idle = isinstance(each, OnlyWith) and value != defaults[name]
      if idle and all(of(other) in (None, False, 0, "none") for other in each.names):
        others, default = " or ".join(each.names), show(defaults[name])
        raise ValueError(f"{name} has no effect without {others}; leave it at {default}")


def converted(value: Any, hint: Any) -> Any:
  """Return the value that stands for `value` in a field with this annotation: 3 for "3", 1.0 for 1.

  Raises:
    TypeError: it is of another type.
    ValueError: it is none of those that are allowed.
  """
  origin, inner = typing.get_origin(hint) or hint, typing.get_args(hint)
  if origin is Annotated:
    inside = converted(value, inner[0])
    for bound in inner[1:]:
      if isinstance(bound, Bound) and not bound.holds(inside):
        shown = brief(value)
        raise ValueError(f"must be {bound.words}, not {shown if shown.strip() else repr(shown)}")
    return inside
  if origin in (typing.Union, types.UnionType):
    if value is None and type(None) in inner:
      return None
    refused: Exception | None = None
    for each in inner:  # the first of these types that accepts the value
      try:
        return converted(value, each)
      except TypeError:
        continue
      except ValueError as error:
        if typing.get_origin(each) is not Literal or {*inner} == {each, type(None)}:
          refused = error  # beside numbers, names say too little
    raise refused or TypeError(f"must be {describe(hint)}")
  if origin is Literal:
    spelled = {show(each): each for each in inner}
    text = value.strip() if isinstance(value, str) else show(value)
    if text not in spelled:
      typed = brief(value, repr if isinstance(value, str) else show)
      raise ValueError(f"must be one of {', '.join(spelled)}, not {typed}")
    return spelled[text]
  if origin in (list, tuple) and isinstance(value, list | tuple):
    kinds = inner if _fixed(inner) else (inner[:1] or (Any,)) * len(value)
    try:
      if len(value) != len(kinds):
        raise TypeError
      return origin(map(converted, value, kinds))
    except TypeError:
      raise TypeError(f"must be {describe(hint)}") from None
  if origin in (bool, int, float, str, type(None)):
    return _scalar(value, origin)
  if origin is Any or (isinstance(origin, type) and isinstance(value, origin)):
    return value
  raise TypeError(f"must be {describe(hint)}")


def _fixed(inner: tuple[Any, ...]) -> bool:
  """Return whether these are the types of a tuple's places, one by one: tuple[int, str]."""
  return len(inner) > 1 and inner[1] is not ...


def _scalar(value: Any, kind: Any) -> Any:
  """Return the number, switch, text or None that a value or its text stands for.

  Raises:
    TypeError, ValueError: as in `converted`.
  """
  word = value.strip().lower() if isinstance(value, str) else None
  if kind is bool and (isinstance(value, bool) or word in SWITCHES):
    return value if isinstance(value, bool) else SWITCHES[word]
  if kind is type(None) and (value is None or word == "null"):
    return None
  if kind is str and isinstance(value, str | Real):
    text = value if isinstance(value, str) else show(value)
    if "\0" in text or any("\ud800" <= letter <= "\udfff" for letter in text):
      raise ValueError(f"must be text in UTF-8, not {brief(value, ascii)}")
    return text
  if kind in NUMBERS and isinstance(value, NUMBERS[kind] | str) and not isinstance(value, bool):
    try:
      number = kind(value)
    except OverflowError:
      number = math.inf
    except ValueError:
      raise TypeError(f"must be {TYPES[kind]}") from None
    if kind is int and abs(number) > LARGEST:
      raise ValueError(f"must be at most {LARGEST:,}, not {brief(value)}")
    if not abs(number) <= FLOAT32:
      raise ValueError(f"must be a finite number, not {brief(value)}")
    return number
  raise TypeError(f"must be {TYPES[kind]}")


def describe(hint: Any) -> str:
  """Describe in words which values are allowed."""
  origin = typing.get_origin(hint) or hint
  if origin is Annotated:
    return describe(typing.get_args(hint)[0])
  if origin in (typing.Union, types.UnionType):
    return " or ".join(map(describe, typing.get_args(hint)))
  if origin is Literal:
    return " or ".join(map(str, typing.get_args(hint)))
  if origin in (list, tuple) and (inner := typing.get_args(hint)):
    each = ", ".join(map(describe, inner))
    return f"a list of {each}" if _fixed(inner) else f"a list, each element {describe(inner[0])}"
  return TYPES.get(origin) or f"a {getattr(origin, '__name__', origin)}"


def show(value: Any, inside: bool = False) -> str:
  """Return a value as it is typed after "option="; with `inside`, as an item of a list or a
  mapping.
  """
  if value is None or isinstance(value, bool):
    return {None: "null", True: "true", False: "false"}[value]
  if isinstance(value, list | tuple):
    return f"[{','.join(show(item, True) for item in value)}]"
  if isinstance(value, Mapping):
    return "{" + ",".join(f"{key}:{show(item, True)}" for key, item in value.items()) + "}"
  if isinstance(value, str) and (not BARE.fullmatch(value) if inside else MISREAD.match(value)):
    return quoted(value)
  return str(value)


def quoted(text: str) -> str:
  """Return a text in the quotation marks of Hydra's grammar."""
  from hydra.core.override_parser.types import Quote, QuotedString

  mark = Quote.single if '"' in text and "'" not in text else Quote.double
  text = re.sub(r"(\\*)\$\{", r"\1\1\\${", text)  # which would be an interpolation
  return QuotedString(text, mark).with_quotes()


def typed(key: str, value: Any) -> str:
  """Return an option with a value, to be pasted into a shell."""
  return shlex.quote(f"{key}={show(value)}")


def as_typed(message: str, parts: Mapping[str, Any]) -> str:
  """Return an error message of a part of a model, with each option under its full name.

  `parts` are dataclasses by their sections: with {"binary": Binary(17), "model": size} `bits=17 are
  more than d_model` becomes `binary.bits=17 are more than model.d_model`. The name of an option may
  also begin the message. A message that names no option gets the prefix "model:", and at its end
  those options of the model whose values it mentions.
  """
  names = {section: {each.name for each in dataclasses.fields(parts[section])} for section in parts}

  def option(found: re.Match) -> str:
    name, value = found["name"], found["value"]
    given = [section for section in parts if name in names[section]]
    same = [each for each in given if show(getattr(parts[each], name)) == value]
    word = value is None and found.start() > 0 and not ("_" in name and given == ["model"])
    return found[0] if word or not given else f"{(same or given)[0]}.{found[0]}"

  told = OPTION.sub(option, message)
  model, numbers = parts["model"], re.findall(r"\d+", message)
  sizes = {name: show(getattr(model, name)) for name in sorted(names["model"])}
  found = [name for name, value in sizes.items() if value in numbers]
  named = any(f"{section}." in told for section in parts)
  if "model." not in told and (not found or named):  # it may be the width of a head
    of_head = str(getattr(model, "width_of_head", None)) in numbers
    found = ["d_model", "num_heads"] * of_head
  elif named:
    return told
  shown = ", ".join(f"model.{name}={sizes[name]}" for name in found)
  return f"{'' if named else 'model: '}{told}{f' ({shown})' if shown else ''}"


def show_options(options: Mapping[str, Any] | None) -> str:
  """Return options as one types them, "k=4, keys=true", without those that are null."""
  given = {key: value for key, value in (options or {}).items() if value is not None}
  return ", ".join(f"{key}={show(value)}" for key, value in given.items())


def brief(value: Any, text: Callable[[Any], str] | None = None) -> str:
  """Return a value for a message: on one line, and shortened where it is long."""
  if isinstance(value, int) and abs(value) >= 10**SHOWN:
    return f"a number of over {SHOWN} digits"
  shown = text(value) if text else value if isinstance(value, str) else show(value)
  if len(shown) > SHOWN:
    shown = f"{shown[:SHOWN]}…"
  return printable(shown)
