"""Families of released models: what their configs ask for, and where their files have it.

A family is a row of families.yaml and a function of its name here, from the keys of a config to
the options of posexp's model and those of the encoding.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import yaml

from posexp.config.plugins import table
from posexp.errors import UserError

Options = dict[str, Any]

# Tensors that are no parameters of what is read: buffers, poolers, other heads, copies.
IGNORED = (
  r"rotary_emb\.inv_freq|(attn|attention)\.(masked_)?bias|embeddings\.position_ids|pooler\..*"
  r"|cls\.seq_relationship\..*|(cls\.predictions|lm_head)\.decoder\.bias|(lm|mask)_predictions\..*"
)
# Hugging Face's activations -> posexp's, without a gate and with one.
TANH = ("gelu_tanh", "geglu_tanh")
ACTIVATIONS = {"silu": ("silu", "swiglu"), "swish": ("silu", "swiglu"), "relu": ("relu", "reglu")}
ACTIVATIONS |= dict.fromkeys(("gelu", "gelu_python"), ("gelu", "geglu"))
ACTIVATIONS |= dict.fromkeys(("gelu_new", "gelu_pytorch_tanh", "gelu_fast"), TANH)
KINDS = {"full_attention": False, "sliding_attention": True}  # of layers: whether it has a window
# What each scaling reads beside the base and `rope_type`.
SCALED: dict[str, tuple[str, ...]] = {
  "default": (),
  "linear": ("factor",),
  "dynamic": ("factor",),
  "llama3": ("factor", "low_freq_factor", "high_freq_factor"),
  "yarn": ("factor", "beta_fast", "beta_slow", "attention_factor", "truncate"),
  "longrope": ("factor", "short_factor", "long_factor", "attention_factor"),
}
RENAMED = {"low_freq_factor": "beta_slow", "high_freq_factor": "beta_fast"}
RENAMED |= {"short_factor": "short_factors", "long_factor": "long_factors"}


BLOCK = "qkv+out+feed_forward"  # all maps of a block


class Family(NamedTuple):
  """What the released models of one `model_type` have in common: a row of families.yaml."""

  name: str
  options: str | Callable[[Asked], tuple[Options, Options]]  # a function of OPTIONS, or one's own
  base: str  # in front of names
  layer: str  # and of those of a layer
  names: dict[str, str]
  keys: dict[str, Any]
  fixed: Mapping[str, list] = MappingProxyType({})
  free: list[str] | tuple[str, ...] = ()
  transposed: bool = True  # whether matrices are [out, in]
  by_heads: bool = False  # whether features of joined tensors alternate from head to head
  causal: bool = True
  head: Sequence[str | None] = (None, None)  # keys of an encoder's head: activation, and first bias


def joined(rows: Mapping[str, Mapping[str, Any]], known: Mapping[str, Family]) -> dict[str, Family]:
  """Return families by name, of rows that may be `like` another one or a known family.

  Raises:
    UserError: a row is like no family, lacks a part or has one too many.
  """
  found = dict(known)
  for name, row in rows.items():
    row, like = dict(row), row.get("like")
    if like is not None and like not in found:
      raise UserError(f"family {name} is like {like!r}, which is none of {', '.join(found)}")
    before = found[row.pop("like")]._asdict() if like else {}
    added = {part: before.get(part, {}) | row.get(part, {}) for part in ("names", "keys")}
    try:
      found[name] = Family(**before | row | added | {"name": name})
    except TypeError as error:
      raise UserError(f"family {name}: {str(error).partition(') ')[2] or error}") from None
  return found


def families() -> dict[str, Family]:
  """Return all families by name, those of plugins among them."""
  return joined(table("family", {}), FAMILIES)


ROWS = yaml.safe_load(Path(__file__).with_name("families.yaml").read_text(encoding="utf-8"))
COMMON = ROWS.pop("common")
FAMILIES = joined(ROWS, {})


class Asked:
  """A config, asked for its keys by name; a key that the family does not have is refused."""

  def __init__(self, name: str, config: Mapping[str, Any], family: Family):
    self.name, self.config, self.family = name, config, family
    fixed = COMMON["fixed"] | {**family.fixed}
    known = {*family.keys, *COMMON["free"], *fixed, *family.free}
    if unknown := sorted(key for key in config if key not in known and key[:1] != "_"):
      raise self.refused(unknown[0], "which posexp does not know and will not ignore")
    for key, allowed in fixed.items():
      if key not in family.free and config.get(key, allowed[0]) not in allowed:
        ours = f"posexp has {allowed[0]!r} alone, of what this key may ask for"
        raise self.refused(key, ours)

  def refused(self, key: str, why: str) -> UserError:
    """Return the error for a key of the config."""
    return UserError(f"{self.name}: its config.json has {key}={self.config.get(key)!r:.80}, {why}")

  def __call__(self, key: str) -> Any:
    """Return the value of a key, or the one that holds where the config is silent."""
    return self.config.get(key, self.family.keys[key])

  def number(self, key: str, least: float = 1) -> Any:
    """Return a number that must be there; UserError if it is none, or too small."""
    value = self(key)
    if isinstance(value, bool) or not isinstance(value, int | float) or not value >= least:
      raise self.refused(key, f"which must be a number from {least} up")
    return value

  def activation(self, key: str, gated: bool) -> str:
    """Return posexp's name of an activation; UserError if it has none."""
    if self(key) not in ACTIVATIONS:
      raise self.refused(key, f"and posexp has {', '.join(ACTIVATIONS)}")
    return ACTIVATIONS[self(key)][gated]

  def kinds(self, sliding: Callable[[int], bool]) -> list[bool]:
    """Return which layers have a window, by `layer_types` or else by their numbers."""
    count, given = self.number("num_hidden_layers"), self("layer_types")
    if given is None:
      return [sliding(layer) for layer in range(count)]
    if not isinstance(given, list) or len(given) != count or {*given} - KINDS.keys():
      raise self.refused("layer_types", f"which must be {count} of {', '.join(KINDS)}")
    return [KINDS[each] for each in given]


def bias(ask: Asked, **parts: str) -> str:
  """Return the parts with a bias, of those whose key of the config is true."""
  return "+".join(part for key, part in parts.items() if ask(key)) or "none"


def sizes(ask: Asked, **more: Any) -> Options:
  """Return the options that all families have."""
  return {
    "d_model": ask.number("hidden_size"),
    "num_layers": ask.number("num_hidden_layers"),
    "num_heads": ask.number("num_attention_heads"),
    "d_ff": ask.number("intermediate_size"),
    "dropout": 0.0,
    "embed_scale": "none",
    "tie_embeddings": bool(ask("tie_word_embeddings")),
  } | more


def decoder(ask: Asked, **more: Any) -> Options:
  """Return those of Llama and its heirs."""
  given = {"num_kv_heads": ask("num_key_value_heads"), "head_dim": ask("head_dim")}
  act = "hidden_activation" if "hidden_activation" in ask.family.keys else "hidden_act"
  given |= {"norm_kind": "rms", "norm_epsilon": ask.number("rms_norm_eps", 0)}
  return sizes(ask, feed_forward=ask.activation(act, True), bias="none", **given) | more


def rope(
  ask: Asked, base: float, given: Mapping[str, Any] | None = None, share: float | None = None
) -> Options:
  """Return the options of RoPE that a config asks for; `given` stands for its dictionary."""
  if given is None:
    given = ask("rope_scaling") or ask("rope_parameters") or {}
  if not isinstance(given, Mapping):
    raise ask.refused("rope_scaling" if ask("rope_scaling") else "rope_parameters", "no mapping")
  kind = given.get("rope_type", given.get("type", "default"))
  kind = {"su": "longrope"}.get(kind, kind)
  if kind not in SCALED:
    raise UserError(
      f"{ask.name}: its config.json has rope_type={kind!r}, and posexp has {', '.join(SCALED)}"
    )
  extra = {"rope_theta", "rope_type", "type", "original_max_position_embeddings"}
  extra |= {"partial_rotary_factor", *("mscale", "mscale_all_dim") * (kind == "yarn")}
  if unknown := sorted({*given} - {*SCALED[kind]} - extra):
    key = unknown[0]
    raise UserError(
      f"{ask.name}: its config.json has {key}={given[key]!r:.80} for rotations of "
      f"rope_type={kind}, which posexp does not know and will not ignore"
    )
  found = {"base": given.get("rope_theta") or base, "layout": "half"}
  part = given.get("partial_rotary_factor", 1 if share is None else share)
  if share is None and part != 1:
    raise UserError(
      f"{ask.name}: its config.json has partial_rotary_factor={part}, which "
      f"{ask.config['model_type']} does not have"
    )
  found |= {} if share is None else {"share": part}
  if kind == "default":
    return found
  longest = ask.number("max_position_embeddings")
  trained = ask("original_max_position_embeddings") or given.get("original_max_position_embeddings")
  trained = longest if kind == "dynamic" else trained or longest
  read = {key: given[key] for key in SCALED[kind] if given.get(key) is not None}
  if kind in ("yarn", "longrope"):
    read.setdefault("factor", longest / trained)
  if missing := [key for key in SCALED[kind][:3] if key not in read and kind != "yarn"]:
    raise UserError(f"{ask.name}: its config.json has no {missing[0]} for rope_type={kind}")
  scales = [given.get(key) for key in ("mscale", "mscale_all_dim")]
  if all(scales) and "attention_factor" not in read:
    top, bottom = (0.1 * each * math.log(max(read["factor"], 1)) + 1 for each in scales)
    read["attention_factor"] = top / bottom
  found |= {RENAMED.get(key, key): value for key, value in read.items()} | {"scaling": kind}
  return found | ({} if kind == "linear" else {"trained_length": trained})


def by_layer(layers: Sequence[tuple[Options | None, int | None]]) -> Options:
  """Return the encoding of layers, each with the options of its RoPE (None: no positions) and its
  window, as a config has it.
  """
  if len({repr(each) for each in layers}) == 1 and layers[0][1] is None:
    return {"encoding": "rope", "rope": layers[0][0]} if layers[0][0] else {"encoding": "none"}

  def words(layer: tuple[Options | None, int | None]) -> str:
    options, window = layer
    given = {} if options is None else options
    given = given if window is None else given | {"window": window}
    parts = [f"{key}={str(value).replace(' ', '')}" for key, value in given.items()]
    return " ".join(["none" if options is None else "rope", *parts])

  runs = [(len([*run]), each) for each, run in itertools.groupby(map(words, layers))]
  pattern = [each if count == 1 else f"{count} {each}" for count, each in runs]
  return {"encoding": "by_layer", "by_layer": {"pattern": pattern}}


def rotary(ask: Asked, base: float, windows: Sequence[int | None] | None = None) -> Options:
  """Return the encoding of a model whose layers have one RoPE, some with a window."""
  turns = rope(ask, ask("rope_theta") or base)
  return by_layer([(turns, each) for each in windows or [None]])


def llama(ask: Asked) -> tuple[Options, Options]:
  parts = bias(ask, attention_bias="qkv+out", mlp_bias="feed_forward")
  return decoder(ask, bias=parts), rotary(ask, 1e4)


def mistral(ask: Asked) -> tuple[Options, Options]:
  return decoder(ask), rotary(ask, 1e4, [ask("sliding_window")])


def qwen(ask: Asked, **more: Any) -> tuple[Options, Options]:
  window = ask("sliding_window") if ask("use_sliding_window") else None
  slides = ask.kinds(lambda layer: window is not None and layer >= ask("max_window_layers"))
  return decoder(ask, **{"bias": "qkv"} | more), rotary(
    ask, 1e4, [window if each else None for each in slides]
  )


def qwen3(ask: Asked) -> tuple[Options, Options]:
  return qwen(ask, bias=bias(ask, attention_bias="qkv+out"), qk_norm=True)


def smollm(ask: Asked) -> tuple[Options, Options]:
  every, count = ask.number("no_rope_layer_interval"), ask.number("num_hidden_layers")
  turns = ask("no_rope_layers") or [int((layer + 1) % every != 0) for layer in range(count)]
  if not isinstance(turns, list) or len(turns) != count:
    raise ask.refused("no_rope_layers", f"which must be {count} numbers, one a layer")
  window = ask("sliding_window") if ask("use_sliding_window") else None
  slides = ask.kinds(lambda layer: window is not None and not turns[layer])
  one = rope(ask, ask("rope_theta") or 2e6)
  layers = zip(turns, slides, strict=True)
  found = by_layer([(one if turn else None, window if slide else None) for turn, slide in layers])
  parts = bias(ask, attention_bias="qkv+out", mlp_bias="feed_forward")
  return decoder(ask, bias=parts), found


def gemma(ask: Asked, **more: Any) -> Options:
  width = ask("head_dim") or ask.number("hidden_size") / ask.number("num_attention_heads")
  scale = math.sqrt(width / ask.number("query_pre_attn_scalar", 1e-6))
  more |= {"norm": "sandwich", "norm_kind": "rms_one", "embed_scale": "sqrt"}
  more |= {"bias": bias(ask, attention_bias="qkv+out"), "logits_scale": scale}
  return decoder(ask, head_cap=ask("final_logit_softcapping"), **more)


def gemma2(ask: Asked) -> tuple[Options, Options]:
  slides = ask.kinds(lambda layer: layer % 2 == 0)
  windows = [ask("sliding_window") if each else None for each in slides]
  return gemma(ask, logits_cap=ask("attn_logit_softcapping")), rotary(ask, 1e4, windows)


def by_kind(ask: Asked, slides: Sequence[bool], window: int, turns: Sequence[Options]) -> Options:
  """Return the encoding of layers, of which those that slide have the second of two RoPEs."""
  return by_layer([(turns[each], window if each else None) for each in slides])


def two_ropes(ask: Asked, bases: Sequence[float], scaled: Sequence[bool]) -> list[Options]:
  """Return the RoPE of full layers and that of sliding ones; `rope_scaling` is for the `scaled`."""
  nested = ask("rope_parameters") or {}
  if nested and not isinstance(nested.get("full_attention", nested.get("sliding_attention")), dict):
    raise ask.refused("rope_parameters", "which must have full_attention and sliding_attention")
  return [
    rope(ask, base, (nested.get(kind) or {}) | ((ask("rope_scaling") or {}) if scale else {}))
    for kind, base, scale in zip(KINDS, bases, scaled, strict=True)
  ]


def gemma3(ask: Asked) -> tuple[Options, Options]:
  pattern = ask.number("sliding_window_pattern")
  bases = ask("rope_theta") or 1e6, ask("rope_local_base_freq") or 1e4
  turns = two_ropes(ask, bases, (True, False))
  slides = ask.kinds(lambda layer: (layer + 1) % pattern != 0)
  return gemma(ask, qk_norm=True), by_kind(ask, slides, ask.number("sliding_window"), turns)


def olmo(ask: Asked) -> tuple[Options, Options]:
  more = {"norm": "output", "qk_norm": True, "qk_norm_over": "all"}
  return decoder(ask, bias=bias(ask, attention_bias="qkv+out"), **more), rotary(ask, 1e4)


def gpt2(ask: Asked) -> tuple[Options, Options]:
  width, heads = ask.number("n_embd"), ask.number("n_head")
  model = {"d_model": width, "num_heads": heads, "num_layers": ask.number("n_layer")}
  model |= {"d_ff": ask("n_inner") or 4 * width, "dropout": 0.0, "embed_scale": "none"}
  model |= {"feed_forward": ask.activation("activation_function", False), "bias": BLOCK}
  model |= {"norm_epsilon": ask.number("layer_norm_epsilon", 0)}
  model |= {"tie_embeddings": bool(ask("tie_word_embeddings"))}
  if not ask("scale_attn_weights"):
    model["logits_scale"] = math.sqrt(width / heads)
  return model, {"encoding": "learned", "learned": {"length": ask.number("n_positions")}}


def neox(ask: Asked) -> tuple[Options, Options]:
  model = sizes(ask, feed_forward=ask.activation("hidden_act", False))
  model |= {"norm_epsilon": ask.number("layer_norm_eps", 0)}
  model |= {"norm": "parallel" if ask("use_parallel_residual") else "pre"}
  model |= {"bias": "qkv+out+feed_forward" if ask("attention_bias") else "feed_forward"}
  turns = rope(ask, ask("rotary_emb_base") or 1e4, share=ask("rotary_pct"))
  width = model["d_model"] // model["num_heads"]
  channels = int(width * turns["share"])
  if channels % 2:
    raise ask.refused("rotary_pct", f"so {channels} channels of a head turn, which must be even")
  return model, by_layer([(turns | {"share": channels / width}, None)])


def encoder(ask: Asked, **more: Any) -> Options:
  model = sizes(ask, norm="post", feed_forward=ask.activation("hidden_act", False), bias=BLOCK)
  model |= {"norm_epsilon": ask.number("layer_norm_eps", 0), "embed_norm": True}
  return model | {"token_types": ask.number("type_vocab_size", 0)} | more


def bert(ask: Asked, first: int = 0) -> tuple[Options, Options]:
  rows = ask.number("max_position_embeddings") - first
  table = {"length": rows} | ({"first": first} if first else {})
  return encoder(ask), {"encoding": "learned", "learned": table}


def roberta(ask: Asked) -> tuple[Options, Options]:
  return bert(ask, ask.number("pad_token_id", 0) + 1)


def deberta(ask: Asked) -> tuple[Options, Options]:
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
  given |= {"norm_epsilon": ask.number("layer_norm_eps", 0)} if normed else {}
  return encoder(ask), {"encoding": "deberta", "deberta": given}


def modern(ask: Asked) -> tuple[Options, Options]:
  model = sizes(ask, feed_forward=ask.activation("hidden_activation", True))
  model |= {"norm_kind": "layer" if ask("norm_bias") else "layer_scale", "embed_norm": True}
  model |= {"norm_epsilon": ask.number("norm_eps", 0), "first_norm": False}
  model |= {"bias": bias(ask, attention_bias="qkv+out", mlp_bias="feed_forward")}
  bases = ask("global_rope_theta") or 1.6e5, ask("local_rope_theta") or 1e4
  every, turns = ask.number("global_attn_every_n_layers"), two_ropes(ask, bases, (True, True))
  slides = ask.kinds(lambda layer: layer % every != 0)
  return model, by_kind(ask, slides, ask.number("local_attention"), turns)


OPTIONS = {
  each.__name__: each
  for each in (llama, mistral, qwen, qwen3, smollm, olmo, gemma2, gemma3, gpt2, neox)
} | {each.__name__: each for each in (bert, roberta, deberta, modern)}
