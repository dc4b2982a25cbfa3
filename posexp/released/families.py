"""Families of released models: what their configs ask for, and where their files have it.

A family is a row of families.yaml, with positions by name, or by a function of this module.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import yaml

from posexp.config.plugins import table
from posexp.encodings import make_encoding
from posexp.errors import UserError

Options = dict[str, Any]
# What layers have of positions, in turn: the options of RoPE (None: no positions), and a window.
Layers = list[tuple[Options | None, int | None]]
KINDS = {"full_attention": False, "sliding_attention": True}  # of layers: whether it has a window
NOTHING: Mapping[str, Any] = MappingProxyType({})
# The most that a config may ask for, of which lists are made before its weights are looked at.
SIZES = {"num_layers": 1_000, "num_heads": 4_096, "num_kv_heads": 4_096, "head_dim": 1 << 14}
SIZES |= {"d_model": 1 << 18, "d_ff": 1 << 22, "vocab_size": 10_000_000}
LARGEST = 2**31 - 1


class Family(NamedTuple):
  """What the released models of one `model_type` have in common: a row of families.yaml."""

  name: str
  encoding: str | Mapping[str, Options] | Callable[[Asked], Layers | Options]
  base: str
  layer: str
  names: dict[str, str]
  keys: dict[str, Any]
  model: Mapping[str, Any] = NOTHING
  bias: Mapping[str, str] = NOTHING
  fixed: Mapping[str, list] = NOTHING
  free: Sequence[str] = ()
  also: Mapping[str, str] = NOTHING
  transposed: bool = True  # whether matrices are [out, in]
  by_heads: bool = False  # whether joined tensors take turns: by heads, or channels of experts
  causal: bool = True
  head: Sequence[Any] = ()
  architecture: str = ""


def joined(rows: Mapping[str, Mapping[str, Any]], known: Mapping[str, Family]) -> dict[str, Family]:
  """Return families by name, of rows that may be `like` another one or a known family.

  Raises:
    UserError: a row is like no family, lacks a part or has one too many.
  """
  whole = dict(known)
  for name, row in rows.items():
    row, like = dict(row), row.get("like")
    if like is not None and like not in whole:
      raise UserError(f"family {name} is like {like!r}, which is none of {', '.join(whole)}")
    before = whole[row.pop("like")]._asdict() | {"architecture": ""} if like else {}
    added = {
      part: {**before.get(part, {}), **row.get(part, {})} for part in ("names", "keys", "model")
    }
    try:
      whole[name] = Family(**before | row | added | {"name": name})
    except TypeError as error:
      raise UserError(f"family {name}: {str(error).partition(') ')[2] or error}") from None
  return whole


def families() -> dict[str, Family]:
  """Return all families by name, with those of plugins."""
  return joined(table("family", {}), FAMILIES)


ROWS = yaml.safe_load(Path(__file__).with_name("families.yaml").read_text(encoding="utf-8"))
COMMON = ROWS.pop("common")
FAMILIES = joined(ROWS, {})
SCALINGS, RENAMED = COMMON["scalings"], COMMON["renamed"]


class Asked:
  """A config, asked for its keys by name; a key that the family does not have is refused.

  Where `positions` alone are asked for, other keys are not looked at.
  """

  def __init__(
    self, name: str, config: Mapping[str, Any], family: Family, positions: str | None = None
  ):
    config = {family.also.get(key, key): each for key, each in config.items()}
    self.name, self.config, self.family, self.last = name, config, family, ""
    fixed = COMMON["fixed"] | {**family.fixed}
    known = {*family.keys, *COMMON["free"], *fixed, *family.free}
    self.unknown = sorted(key for key in config if key not in known and key[:1] != "_")
    if positions is not None:
      fixed = {key: each for key, each in fixed.items() if re.search(positions, key)}
      self.unknown = [key for key in self.unknown if re.search(positions, key)]
    elif self.unknown:
      raise self.refused(self.unknown[0], "which posexp does not know and will not ignore")
    for key, allowed in fixed.items():
      if key not in family.free and config.get(key, allowed[0]) not in allowed:
        ours = f"posexp has {allowed[0]!r} alone, of what this key may ask for"
        raise self.refused(key, ours)
    options = {each: key for key, each in family.model.items() if isinstance(each, str)}
    for key in sorted(config.keys() & family.keys.keys()):
      value = config[key] if positions else self(key)
      most = SIZES.get(options.get(key, key), LARGEST)
      if type(value) is int and not isinstance(family.keys[key], float) and value > most:
        raise self.refused(key, f"and posexp reads models with at most {most:,}")

  def refused(self, key: str, why: str, *value: Any) -> UserError:
    """Return the error for a key of the config, or for one within another, of this value."""
    shown = value[0] if value else self.config.get(key, self.family.keys.get(key))
    return UserError(f"{self.name}: its config.json has {key}={shown!r:.80}, {why}")

  def __call__(self, key: str) -> Any:
    """Return the value of a key, or the one that holds where the config is silent.

    Raises:
      UserError: a number or a switch is none.
    """
    usual, self.last = self.family.keys[key], key
    value, switch = self.config.get(key, usual), isinstance(usual, bool)
    fits = isinstance(value, bool) == switch and isinstance(value, int | float | None)
    if isinstance(usual, int | float) and not fits:
      raise self.refused(key, f"which must be {'true or false' if switch else 'a number'}")
    return value

  def number(self, key: str) -> int:
    """Return a whole number above 0; UserError if it is none."""
    value = self(key)
    if not isinstance(value, int) or value < 1:
      raise self.refused(key, "which must be a whole number from 1 up")
    return value

  def window(self, key: str = "sliding_window") -> int | None:
    """Return the tokens of a window, or None; UserError if it is neither."""
    return None if self(key) is None else self.number(key)

  def said(self, entry: Any) -> Any:
    """Return the value of an option: `entry` itself, or the config's value of this key.

    Raises:
      UserError: the config has none of the values that posexp has.
    """
    if not isinstance(entry, list):
      return self(entry) if isinstance(entry, str) and entry in self.family.keys else entry
    key, ours = entry
    if (value := self(key)) not in ours:
      raise self.refused(key, f"and posexp has {', '.join(map(str, ours))}")
    return ours[value]

  @property
  def width(self) -> float:
    """The width of a head."""
    sizes = self.family.model
    given = self.said(sizes.get("head_dim"))
    return given or self.said(sizes["d_model"]) / self.number(sizes["num_heads"])

  def read(self) -> tuple[Options, Layers | Options, Options]:
    """Return the options of posexp's model, the positions of its layers, and these as an encoding.

    Raises:
      UserError: the config has a key that posexp does not have, or a value of a wrong kind.
    """
    try:
      model, positions = self.model(), self.positions()
      self.head = tuple(map(self.said, self.family.head))  # of an encoder: activation, biases
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
      raise self.refused(self.last, f"of which posexp can make nothing ({error})") from None
    try:
      make_encoding(encoding := by_layer(positions))
    except UserError as error:
      raise UserError(f"{self.name}: its config.json asks for {error}") from None
    return model, positions, encoding

  def model(self) -> Options:
    """Return the options of posexp's model."""
    keys = self.family.keys
    rows = COMMON["model"] | self.family.model
    for option in ("d_model", "num_layers", "num_heads", *{"experts"} & rows.keys()):
      self.number(rows[option])
    options = {key: self.said(row) for key, row in rows.items() if row is not None}
    parts = [each for key, each in self.family.bias.items() if key == "always" or self(key)]
    # Named twice it is these maps alone: named once, it is a row of BIASES with the head's.
    options["bias"] = "+".join(parts * 2 if parts == ["feed_forward"] else parts) or "none"
    if "d_ff" in options and options["d_ff"] is None:
      options["d_ff"] = 4 * options["d_model"]
    if "query_pre_attn_scalar" in keys:
      options["logits_scale"] = math.sqrt(self.width / self("query_pre_attn_scalar"))
    if "scale_attn_weights" in keys and not self("scale_attn_weights"):
      options["logits_scale"] = math.sqrt(self.width)
    return options

  def positions(self) -> Layers | Options:
    """Return the positions of each layer, or the options of an encoding for all of them."""
    given = self.family.encoding
    if isinstance(given, Mapping):
      ((name, options),) = given.items()
      return {"encoding": name, name: {key: self.said(option) for key, option in options.items()}}
    return given(self) if callable(given) else ENCODINGS[given](self)

  def slides(self, sliding: Callable[[int], bool]) -> list[bool]:
    """Return which layers have a window, by `layer_types` or else by their numbers."""
    count = self.number(self.family.model["num_layers"])
    given = self("layer_types") if "layer_types" in self.family.keys else None
    if given is None:
      return [sliding(layer) for layer in range(count)]
    if not isinstance(given, list) or len(given) != count or {*given} - KINDS.keys():
      raise self.refused("layer_types", f"which must be {count} of {', '.join(KINDS)}")
    return [KINDS[each] for each in given]


def rope(ask: Asked, base: str = "rope_theta", given: Any = None) -> Options:
  """Return the options of RoPE that a config asks for.

  Args:
    ask: the config.
    base: the key of the base, where the dictionary does not have it.
    given: replaces the config's dictionary.
  """
  if given is None:
    given = ask("rope_scaling") or ask("rope_parameters")
    given = given or ask.family.keys["rope_parameters"] or {}
  kind = given.get("rope_type", given.get("type", "default"))
  kind = {"su": "longrope"}.get(kind, kind)
  if kind not in SCALINGS:
    raise ask.refused("rope_type", f"and posexp has {', '.join(SCALINGS)}", kind)
  known = {*SCALINGS[kind], *COMMON["rotation"], *("mscale", "mscale_all_dim") * (kind == "yarn")}
  if unknown := sorted({*given} - known):
    why = f"which posexp does not know for rope_type={kind} and will not ignore"
    raise ask.refused(unknown[0], why, given[unknown[0]])
  turns = given.get("rope_theta", ask(base))
  options = {"base": turns, "layout": "half"} | _share(ask, given.get("partial_rotary_factor"))
  if kind == "default":
    return options
  longest = ask.number("max_position_embeddings")
  trained = ask("original_max_position_embeddings") or given.get("original_max_position_embeddings")
  trained = longest if kind == "dynamic" else trained or longest
  read = {key: given[key] for key in SCALINGS[kind] if given.get(key) is not None}
  if kind in ("yarn", "longrope"):
    read.setdefault("factor", longest / trained)
  if missing := [key for key in SCALINGS[kind][:3] if key not in read and kind != "yarn"]:
    raise UserError(f"{ask.name}: its config.json has no {missing[0]} for rope_type={kind}")
  scales = [given.get(key) for key in ("mscale", "mscale_all_dim")]
  if all(scales) and "attention_factor" not in read:
    top, bottom = (0.1 * scale * math.log(max(read["factor"], 1)) + 1 for scale in scales)
    read["attention_factor"] = top / bottom
  options |= {RENAMED.get(key, key): value for key, value in read.items()} | {"scaling": kind}
  return options | ({} if kind == "linear" else {"trained_length": trained})


def _share(ask: Asked, given: Any) -> Options:
  """Return the share of the channels that turns, if a family has one: `given`, or its config's."""
  key = next((each for each in COMMON["shares"] if each in ask.family.keys), None)
  if key is None:
    if given not in (None, 1):
      raise ask.refused("partial_rotary_factor", f"which {ask.family.name} does not have", given)
    return {}
  channels = int(ask.width * (ask(key) if given is None else given))
  if channels % 2:
    raise ask.refused(key, f"so {channels} channels of a head turn, which must be even")
  return {"share": channels / ask.width}


def by_layer(layers: Layers | Options) -> Options:
  """Return the encoding of layers, as in the config of a run: mixed by layer, or the one of all."""
  if isinstance(layers, dict):
    return layers
  if len({repr(each) for each in layers}) == 1 and layers[0][1] is None:
    return {"encoding": "rope", "rope": layers[0][0]} if layers[0][0] else {"encoding": "none"}

  def words(layer: tuple[Options | None, int | None]) -> str:
    options, window = layer
    given = (options or {}) | ({} if window is None else {"window": window})
    parts = [f"{key}={str(value).replace(' ', '')}" for key, value in given.items()]
    return " ".join(["none" if options is None else "rope", *parts])

  runs = [(len([*run]), each) for each, run in itertools.groupby(map(words, layers))]
  pattern = [each if count == 1 else f"{count} {each}" for count, each in runs]
  return {"encoding": "by_layer", "by_layer": {"pattern": pattern}}


def plain(ask: Asked, base: str = "rope_theta") -> Layers:
  """Return the layers of Llama: the same RoPE in all of them."""
  return [(rope(ask, base), None)]


def neox(ask: Asked) -> Layers:
  """Return the layers of GPT-NeoX, whose base has a name of its own."""
  return plain(ask, "rotary_emb_base")


def everywhere(ask: Asked) -> Layers:
  """Return the layers of Mistral: the same RoPE and window in all of them."""
  return [(rope(ask), ask.window())]


def sliding(ask: Asked, slides: Callable[[int], bool], window: int | None) -> Layers:
  """Return layers with RoPE, of which some slide."""
  turn = rope(ask)
  return [(turn, window if each else None) for each in ask.slides(slides)]


def even(ask: Asked) -> Layers:
  """Return the layers of Gemma 2."""
  return sliding(ask, lambda layer: layer % 2 == 0, ask.window())


def last(ask: Asked) -> Layers:
  """Return the layers of Qwen 2, of which the last ones may have a window."""
  window = ask.window() if ask("use_sliding_window") else None
  return sliding(ask, lambda layer: layer >= ask("max_window_layers"), window)


def smollm3(ask: Asked) -> Layers:
  """Return the layers of SmolLM3, of which every fourth, say, has no positions."""
  every, count = ask.number("no_rope_layer_interval"), ask.number("num_hidden_layers")
  turns = ask("no_rope_layers") or [int((layer + 1) % every != 0) for layer in range(count)]
  if len(turns) != count:
    raise ask.refused("no_rope_layers", f"which must be {count} numbers, one a layer")
  window = ask.window() if ask("use_sliding_window") else None
  layers = sliding(ask, lambda layer: not turns[layer], window)
  return [(turn if on else None, each) for on, (turn, each) in zip(turns, layers, strict=True)]


def two_ropes(
  ask: Asked, bases: Sequence[str], scaled: Sequence[bool], window: str, full: Callable[[int], bool]
) -> Layers:
  """Return layers that are `full` with the first of two RoPEs, or slide with the second.

  `bases` and `window` are keys of the config; `scaled` says which RoPE `rope_scaling` is for.
  """
  nested = ask("rope_parameters") or {}
  if nested and not isinstance(nested.get("full_attention", nested.get("sliding_attention")), dict):
    raise ask.refused("rope_parameters", "which must have full_attention and sliding_attention")
  turns = [
    rope(ask, base, (nested.get(kind) or {}) | ((ask("rope_scaling") or {}) if scale else {}))
    for kind, base, scale in zip(KINDS, bases, scaled, strict=True)
  ]
  slides = ask.slides(lambda layer: not full(layer))
  return [(turns[each], ask.number(window) if each else None) for each in slides]


def gemma3(ask: Asked) -> Layers:
  """Return the layers of Gemma 3."""
  bases, every = ("rope_theta", "rope_local_base_freq"), ask.number("sliding_window_pattern")
  return two_ropes(ask, bases, (True, False), "sliding_window", lambda i: (i + 1) % every == 0)


def modernbert(ask: Asked) -> Layers:
  """Return the layers of ModernBERT."""
  bases, every = ("global_rope_theta", "local_rope_theta"), ask.number("global_attn_every_n_layers")
  return two_ropes(ask, bases, (True, True), "local_attention", lambda i: i % every == 0)


def roberta(ask: Asked) -> Options:
  """Return learned positions, whose table has a row for padding first."""
  first = ask("pad_token_id") + 1
  length = ask.number("max_position_embeddings") - first
  return {"encoding": "learned", "learned": {"length": length, "first": first}}


def deberta(ask: Asked) -> Options:
  """Return DeBERTa's own, whose bounds depend on one another."""
  terms = ask("pos_att_type") or []
  terms = {*(terms.split("|") if isinstance(terms, str) else terms)}
  if not ask("relative_attention") or not terms <= {"c2p", "p2c"}:
    key = "pos_att_type" if ask("relative_attention") else "relative_attention"
    raise ask.refused(key, "and posexp has relative_attention with c2p and p2c alone")
  if ask("position_biased_input"):
    raise ask.refused("position_biased_input", "and posexp has no table of positions beside these")
  if ask("embedding_size") not in (None, ask("hidden_size")):
    raise ask.refused("embedding_size", "and posexp has that of hidden_size alone")
  farthest, buckets = ask("max_relative_positions"), ask("position_buckets")
  farthest = farthest if farthest >= 1 else ask.number("max_position_embeddings")
  shared, normed = bool(ask("share_att_key")), "layer_norm" in ask("norm_rel_ebd")
  given = {"k": farthest, "log_buckets": max(buckets, 0), "mirrored": False}
  given |= {"content_to_position": "c2p" in terms, "position_to_content": "p2c" in terms}
  given |= {"share_maps": shared, "biases": not shared, "normalized": normed}
  given |= {"norm_epsilon": ask("layer_norm_eps")} if normed else {}
  return {"encoding": "deberta", "deberta": given}


def mpt(ask: Asked) -> Options:
  """Return ALiBi, with its usual slopes alone."""
  given = ask("attn_config") or {}
  if given.get("alibi_bias_max", 8) != 8:
    raise ask.refused("attn_config", "and posexp has ALiBi with alibi_bias_max=8 alone")
  return {"encoding": "alibi"}


ENCODINGS = {each.__name__: each for each in (plain, everywhere, even, last, smollm3, neox)}
ENCODINGS |= {each.__name__: each for each in (gemma3, modernbert, roberta, deberta, mpt)}
