"""Encodings by their names on the command line, and what they declare."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from posexp.config import build, look_up, plugins, show
from posexp.encodings import table
from posexp.encodings.base import Columns, Encoding, Layer, Relation, Span
from posexp.encodings.by_layer import ByLayer
from posexp.errors import UserError

ENCODINGS: dict[str, type[Encoding]] = {**table.ENCODINGS, "by_layer": ByLayer}  # which mixes them


def all_encodings() -> Mapping[str, type[Encoding]]:
  """Return the built-in encodings and those of plugins, by name.

  Raises:
    UserError: a plugin's class is no Encoding.
  """
  encodings = plugins.table("encoding", ENCODINGS)
  for name, cls in encodings.items():
    if not issubclass(cls, Encoding):
      raise UserError(f"encoding {name}: the class {cls.__name__} must inherit posexp.Encoding")
  return encodings


def encoding(name: str, **options: Any) -> Encoding:
  """Return the encoding that the command line calls by this name: `encoding("rpr", k=4)`.

  Raises:
    UserError: there is no such encoding, or an option of it is wrong.
  """
  return make_encoding({"encoding": name, name: options})


def check_declared(encoding: Encoding, features: int, *, causal: bool) -> None:
  """Check self-attention of width `features` against the declarations of the encoding's class.

  Raises:
    ValueError: it is `causal_only` and this is an encoder, or `paired` and the width is odd.
  """
  if encoding.causal_only and not causal:
    name, option = name_of(encoding), encoding.both_sides_by
    unless = f", unless {name}.{option}=true" if option else ""
    raise ValueError(f"{name} is defined for causal attention only, not for an encoder{unless}")
  if encoding.paired and features % 2:
    raise ValueError(f"d_model={features} must be even: {name_of(encoding)} has features in pairs")


def check_limit(encoding: Encoding, positions: int, why: str, lower: str) -> None:
  """Check that an encoding has at least this many positions.

  Raises:
    ValueError: it has fewer; `why` says who needs them, and `lower` how to need fewer.
  """
  if encoding.limit is None or positions <= encoding.limit:
    return
  name, option = name_of(encoding), encoding.limited_by
  has, ways = f"{name} has", lower
  if option in {field.name for field in dataclasses.fields(encoding)}:
    has = f"{name}.{option}={getattr(encoding, option)} gives"
    ways = f"raise {name}.{option}, or {lower}"
  raise ValueError(f"{has} {encoding.limit} positions: {why}; {ways}")


def alternative_of(name: str) -> tuple[str, Any] | None:
  """Return the main option of an encoding, "rpr.k", and the value to try beside the default; None
  if its class declares none.

  Raises:
    UserError: there is no such encoding, or what its class declares is none of its options.
  """
  cls = look_up(all_encodings(), name, "encoding")
  if cls.alternative is None:
    return None
  option, value = cls.alternative
  known = {field.name: field.default for field in dataclasses.fields(cls)}
  if option not in known or known[option] == value:
    raise UserError(
      f"encoding {name}: its alternative {option}={show(value)} must be one of its "
      f"options ({', '.join(known) or 'there is none'}) with another value than its default"
    )
  return f"{name}.{option}", value


def name_of(encoding: Encoding) -> str:
  """Return the name of an encoding on the command line, or the name of its class if it has none."""
  names = (name for name, cls in all_encodings().items() if cls is type(encoding))
  return next(names, type(encoding).__name__)


def make_encoding(config: Mapping[str, Any]) -> Encoding:
  """Return the encoding that a run's config names, with its options.

  Raises:
    UserError: there is no such encoding, an option of it is wrong, or it is a plugin's and not
      loaded as the run was trained with it.
  """
  plugins.check("encoding", config)
  name = config.get("encoding")
  return build(look_up(all_encodings(), name, "encoding"), config.get(name), where=name)
