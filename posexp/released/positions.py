"""Positions of a released model, read without the rest: its config, and the tensors of positions.

Beside `families` there are some here of which positions alone are read.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import yaml

from posexp.errors import UserError
from posexp.released.families import (
  OPTIONS,
  Asked,
  Family,
  Options,
  by_layer,
  families,
  joined,
  rope,
  rotary,
)
from posexp.released.folder import Folder, kind_of

# Names of the tensors of positions that an encoding has.
TABLES = {"learned": ("embed/vector",), "deberta": ("shared",), "t5": ("encoder", "decoder")}
# Keys of a config that may say where positions are; others say nothing of them.
PLACES = re.compile("position|rope|rotary|relative|alibi|window|sliding")


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


class Loose(Asked):
  """A config that is asked for positions alone: what it says of anything else may be unknown."""

  def __init__(self, name: str, config: Mapping[str, Any], family: Family):
    about = {key: each for key, each in family.fixed.items() if PLACES.search(key)}
    super().__init__(name, {}, family._replace(fixed=about))
    self.config = config
    for key, allowed in about.items():
      if config.get(key, allowed[0]) not in allowed:
        raise self.refused(key, f"and posexp has {allowed[0]!r} alone")


def width(model: Options) -> int:
  """Return the width of a head."""
  return model.get("head_dim") or model["d_model"] // model["num_heads"]


def positions(folder: Folder) -> Positions:
  """Return the positions of a released model; of its weights no others are read.

  Raises:
    UserError: its family is not known, or its config asks for positions that posexp does not have.
  """
  config = folder.config
  if isinstance(config.get("text_config"), dict):  # of a model that also sees
    config = config["text_config"]
  known = families() | OTHERS
  family = known[kind_of(folder, config, known, "positions")]
  ask = Loose(folder.name, config, family)
  of_config = family.options if callable(family.options) else (OPTIONS | OWN)[family.options]
  model, encoding = of_config(ask)
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
  if not all(np.isfinite(each).all() for each in tables.values()):
    raise UserError(f"{folder.name}: {read[0]} has numbers that are not finite; download it again")
  given = encoding.get(encoding["encoding"]) or {}
  if first := given.get("first"):  # rows before that of position 0
    tables = {label: table[first:] for label, table in tables.items()}
  if given.get("normalized"):
    parts = ("encoder.LayerNorm.weight", "encoder.LayerNorm.bias")
    read += [next((name for name in folder.names() if name.endswith(each)), "") for each in parts]
    scale, bias = map(folder.tensor, read[-2:])
    tables = {each: _normed(x, given["norm_epsilon"]) * scale + bias for each, x in tables.items()}
  left = sorted(key for key in config if PLACES.search(key) and key not in _keys(family))
  return Positions(
    folder.name, family.name, model, encoding, family.causal, tables, tuple(read), tuple(left)
  )


def _normed(x: np.ndarray, epsilon: float) -> np.ndarray:
  return (x - x.mean(1, keepdims=True)) / np.sqrt(x.var(1, keepdims=True) + epsilon)


def _keys(family: Family) -> set[str]:
  return {*family.keys, *family.fixed, *family.free}


def t5(ask: Asked) -> tuple[Options, Options]:
  model = {"d_model": ask.number("d_model"), "num_heads": ask.number("num_heads")}
  model |= {"head_dim": ask.number("d_kv"), "num_layers": ask.number("num_layers")}
  given = {"buckets": ask.number("relative_attention_num_buckets")}
  given |= {"max_distance": ask.number("relative_attention_max_distance")}
  return model, {"encoding": "t5", "t5": given}


def opt(ask: Asked) -> tuple[Options, Options]:
  length = ask.number("max_position_embeddings")
  return _sizes(ask, "hidden_size", "num_attention_heads", "num_hidden_layers"), {
    "encoding": "learned",
    "learned": {"length": length, "first": 2},
  }


def bloom(ask: Asked) -> tuple[Options, Options]:
  return _sizes(ask, "hidden_size", "n_head", "n_layer"), {"encoding": "alibi"}


def mpt(ask: Asked) -> tuple[Options, Options]:
  given = ask("attn_config") or {}
  if not isinstance(given, Mapping) or given.get("alibi_bias_max", 8) != 8:
    raise ask.refused("attn_config", "and posexp has ALiBi with alibi_bias_max=8 alone")
  return _sizes(ask, "d_model", "n_heads", "n_layers"), {"encoding": "alibi"}


def _sizes(ask: Asked, features: str, heads: str, layers: str) -> Options:
  keys = {"d_model": features, "num_heads": heads, "num_layers": layers}
  return {ours: ask.number(theirs) for ours, theirs in keys.items()}


def phi(ask: Asked) -> tuple[Options, Options]:
  model = _sizes(ask, "hidden_size", "num_attention_heads", "num_hidden_layers")
  model["num_kv_heads"] = ask("num_key_value_heads")
  share = ask("partial_rotary_factor")
  turns = rope(ask, ask("rope_theta") or 1e4, share=share)
  channels = int(width(model) * turns["share"])
  turns |= {"share": channels / width(model)}
  return model, by_layer([(turns, ask("sliding_window"))])


def gpt_oss(ask: Asked) -> tuple[Options, Options]:
  model = _sizes(ask, "hidden_size", "num_attention_heads", "num_hidden_layers")
  model |= {"head_dim": ask("head_dim"), "num_kv_heads": ask("num_key_value_heads")}
  slides = ask.kinds(lambda layer: layer % 2 == 0)
  windows = [ask("sliding_window") if each else None for each in slides]
  return model, rotary(ask, 1.5e5, windows)


OWN = {each.__name__: each for each in (t5, opt, bloom, mpt, phi, gpt_oss)}
ROWS = yaml.safe_load(Path(__file__).with_name("positions.yaml").read_text(encoding="utf-8"))
OTHERS = joined(ROWS, {})
