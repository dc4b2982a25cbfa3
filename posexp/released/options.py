"""Options of a run of a released model: what its config asks for, or others in their place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from posexp.config.checks import show
from posexp.encodings.scaling import SCALINGS
from posexp.errors import UserError
from posexp.released.families import Options, by_layer
from posexp.released.weights import Released


def changed(released: Released, typed: Mapping[str, Any]) -> tuple[Options, Options]:
  """Return the options of the model, and of the encoding, with those that were typed.

  `rope.base=…` of a model whose layers differ is that of all of its layers with RoPE, and
  `encoding=rope` has the options of the first of them.

  Raises:
    UserError: an option is of none of these.
  """
  model, encoding, layers = dict(released.model), dict(released.encoding), released.layers
  own = encoding["encoding"]
  name = typed.get("encoding", own)
  given = {key.removeprefix("rope."): each for key, each in typed.items() if key[:5] == "rope."}
  if layers and name in (own, "rope"):
    if name != own:
      layers = [(next((turn for turn, _ in layers if turn), {"layout": "half"}), None)]
    encoding = by_layer([(turn and _turned(released, turn, given), each) for turn, each in layers])
    taken = {f"rope.{key}" for key in given} if any(turn for turn, _ in layers) else set()
  else:
    encoding, taken = encoding if name == own else {"encoding": name}, set()
  for key in (key for key in typed if key not in taken | {"encoding"}):
    section, _, option = key.partition(".")
    if section == "model":
      model[option] = typed[key]
    elif section == name:
      encoding[section] = dict(encoding.get(section) or {}) | {option: typed[key]}
    else:
      raise UserError(
        f"{key}: {released.folder.name} has encoding={name}, so give encoding= or options of "
        f"{name} or of model"
      )
  return model, encoding


def _turned(released: Released, turn: Options, given: Options) -> Options:
  """Return other options of RoPE; a scaling has none of those of the one that it replaces."""
  scaling = SCALINGS.get(given.get("scaling", ""))
  if "scaling" in given:
    gone = {"factor", "attention_factor"}.union(*(x.needs + x.takes for x in SCALINGS.values()))
    turn = {key: each for key, each in turn.items() if key not in gone}
  if scaling and "trained_length" in scaling.needs:
    turn = turn | {"trained_length": released.longest}
  return turn | given


def overrides(released: Released, typed: Sequence[str], sections: Sequence[str]) -> list[str]:
  """Return the options of a run of a released model as one types them, followed by those typed.

  Args:
    released: the model.
    typed: options with their values, as "rope.factor=4"; what these say counts.
    sections: the names of all encodings.
  """
  given = dict(word.lstrip("+").split("=", 1) for word in typed if "=" in word)
  name = given.get("encoding", released.encoding["encoding"])
  own = {k: v for k, v in given.items() if k == "encoding" or k.startswith("rope.")}
  if name not in sections or any("," in v.partition("[")[0] for v in own.values()):  # of a sweep
    own, name = {}, released.encoding["encoding"]
  if name not in ("rope", "by_layer"):
    own = {"encoding": name}
  model, encoding = changed(released, own)
  found = {"task.tokenizer": "given", "encoding": encoding["encoding"]}
  if released.family.causal:
    found |= {"task.vocab_size": "null"}
  else:
    found |= {"task.cls": "true"}
    model["tie_embeddings"] = False  # a classifier writes no words
  found |= {f"model.{key}": show(value) for key, value in model.items()}
  if released.dtype == "bfloat16":
    found["model.dtype"] = "bfloat16"
  inner = encoding.get(encoding["encoding"]) or {}
  found |= {f"{encoding['encoding']}.{key}": show(value) for key, value in inner.items()}
  by_layer = encoding["encoding"] == "by_layer"
  kept = [word for word in typed if not (by_layer and own and word.startswith("rope."))]
  return [f"{key}={value}" for key, value in found.items() if key not in given] + kept
