"""Positions of a released model, read without the rest: its config, and the tensors of positions.

It knows the families of `families`, and more of which positions alone are read.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

import numpy as np
import yaml

from posexp.errors import UserError
from posexp.released.families import Asked, Options, families, joined
from posexp.released.folder import Folder, kind_of

# Names of the tensors of positions that an encoding has.
TABLES = {"learned": ("embed/vector",), "deberta": ("shared",), "t5": ("encoder", "decoder")}
# Keys of a config that may say where positions are; others say nothing of them.
PLACES = "position|rope|rotary|relative|alibi|window|sliding"


class Positions(NamedTuple):
  """The positions of a released model, as posexp has them."""

  name: str
  family: str  # model_type
  model: Options
  encoding: Options  # as a run's config has it: {"encoding": "rope", "rope": {"base": 10000.0}}
  causal: bool
  tables: dict[str, np.ndarray]  # of positions, offsets or buckets [rows,D], by what has them
  read: tuple[str, ...]  # the tensors that were read
  ignored: tuple[str, ...]  # keys of the config that were not


def width(model: Options) -> int:
  """Return the width of a head."""
  return model.get("head_dim") or model["d_model"] // model["num_heads"]


def positions(folder: Folder) -> Positions:
  """Return the positions of a released model; no other weights are read.

  Raises:
    UserError: its family is not known, or its config asks for positions that posexp does not have.
  """
  config = folder.config
  if isinstance(config.get("text_config"), dict):  # of a model that also sees
    config = config["text_config"]
  known = families() | OTHERS
  family = known[kind_of(folder, config, known, "positions")]
  ask = Asked(folder.name, config, family, PLACES)
  model, _, encoding = ask.read()
  tables, read = {}, []
  for label in TABLES.get(encoding["encoding"], ()):
    whole = re.compile(rf"(.*\.)?{re.escape(family.names[label])}\.weight")
    names = [name for name in folder.names() if whole.fullmatch(name)]
    if len(names) != 1 and label != "decoder":
      raise UserError(
        f"{folder.name}: {len(names)} tensors in it are called {family.names[label]}.weight, and "
        f"the positions of {family.name} are one"
      )
    read += names
    if names:
      tables[label] = folder.tensor(names[0]).astype(np.float64)
  if not all(np.isfinite(table).all() for table in tables.values()):
    raise UserError(f"{folder.name}: {read[0]} has numbers that are not finite; download it again")
  given = encoding.get(encoding["encoding"]) or {}
  if first := given.get("first"):  # rows before that of position 0
    tables = {label: table[first:] for label, table in tables.items()}
  if given.get("normalized"):
    parts = ("encoder.LayerNorm.weight", "encoder.LayerNorm.bias")
    read += [next((name for name in folder.names() if name.endswith(part)), "") for part in parts]
    scale, bias = map(folder.tensor, read[-2:])
    tables = {each: _normed(x, given["norm_epsilon"]) * scale + bias for each, x in tables.items()}
  about = folder.name, family.name, model, encoding, family.causal
  return Positions(*about, tables, tuple(read), tuple(ask.unknown))


def _normed(x: np.ndarray, epsilon: float) -> np.ndarray:
  return (x - x.mean(1, keepdims=True)) / np.sqrt(x.var(1, keepdims=True) + epsilon)


ROWS = yaml.safe_load(Path(__file__).with_name("positions.yaml").read_text(encoding="utf-8"))
OTHERS = joined(ROWS, {})
