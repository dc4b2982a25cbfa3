"""Options of a released model: those that its config asks for, and others in their place."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from posexp.errors import UserError
from posexp.released.families import Options
from posexp.released.weights import Released


def changed(released: Released, typed: Mapping[str, Any]) -> tuple[Options, Options]:
  """Return the options of the model, and of the encoding, with those that were typed.

  `rope.base=…` of a model whose layers differ is that of all of its layers with RoPE.

  Raises:
    UserError: an option has no section.
  """
  model, encoding = dict(released.model), dict(released.encoding)
  if (name := typed.get("encoding")) is not None and name != encoding["encoding"]:
    encoding = {"encoding": name}
  for key, value in typed.items():
    section, _, option = key.partition(".")
    if key == "encoding":
      continue
    if section == "model":
      model[option] = value
    elif section == "rope" and encoding["encoding"] == "by_layer":
      pattern = encoding["by_layer"]["pattern"]
      encoding["by_layer"] = {"pattern": [with_word(each, option, value) for each in pattern]}
    elif section == encoding["encoding"]:
      encoding[section] = dict(encoding.get(section) or {}) | {option: value}
    else:
      raise UserError(
        f"{key}: {released.folder.name} has encoding={encoding['encoding']}, so give encoding= or "
        f"options of {encoding['encoding']} or of model"
      )
  return model, encoding


def with_word(part: str, option: str, value: Any) -> str:
  """Return a part of a pattern of layers with another value of an option of RoPE, if it has it."""
  words = part.split(" ")
  if "rope" not in words:
    return part
  kept = [each for each in words if not each.startswith(f"{option}=")]
  return " ".join([*kept, f"{option}={str(value).replace(' ', '')}"])
