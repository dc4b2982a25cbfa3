"""A model as a folder that Hugging Face's `transformers` loads, for what its architectures can say.

A config is written for each family that comes into question and read again: only where that gives
the options of the model is the model one of the family. Otherwise the first difference is the
reason why not.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from flax import nnx
from safetensors.numpy import save

from posexp.config.checks import show
from posexp.data.tokenizer import END
from posexp.data.vocabulary import byte_letters
from posexp.encodings import make_encoding, name_of
from posexp.encodings.base import Encoding, Layer
from posexp.encodings.rotary import RoPE
from posexp.encodings.scaling import LLAMA_FAST, SLOW
from posexp.errors import UserError, writing
from posexp.models.block import Size
from posexp.models.parts import PARTS
from posexp.released.families import (
  ACTIVATIONS,
  FAMILIES,
  OPTIONS,
  RENAMED,
  SCALED,
  Asked,
  Options,
)
from posexp.released.folder import WEIGHTS
from posexp.released.weights import pieces

# Options of a model that neither its weights nor what it computes depend on.
FREE = {"dropout", "attention", "dtype", "match", "match_to", "vectors"}
WORDS = ("table", "kernel", "bias")  # what an embedding of words or an output layer has
CLASSES = {
  "gpt2": "GPT2LMHeadModel",
  "llama": "LlamaForCausalLM",
  "mistral": "MistralForCausalLM",
  "qwen2": "Qwen2ForCausalLM",
  "qwen3": "Qwen3ForCausalLM",
  "smollm3": "SmolLM3ForCausalLM",
}  # of decoders, those first whose configs are plainest


Difference = tuple[str, str]  # an option of the model as typed, and that of an architecture


class Exported(NamedTuple):
  """A model to be written, and its tokens."""

  encoding: Encoding
  size: Size
  vocab_size: int
  length: int  # tokens of a text in training
  params: Any  # of the model: a state of Flax
  tokens: Tokens


class Tokens(NamedTuple):
  """What a folder says of tokens."""

  tokenizer: str | None  # its JSON
  names: Options  # of special tokens
  begin: int = 0  # the token before a document, which the model has as token 0 in place of its own
  ends: tuple[int, ...] = (0,)


def export(model: Exported, folder: Path, card: str) -> list[Path]:
  """Write a model, its tokenizer and its card; return the files.

  Raises:
    UserError: no architecture is the model's; the message says which option stands in the way. Or
      the folder cannot be written.
  """
  kind, config = config_of(model)
  flat = {path: np.asarray(leaf[...]) for path, leaf in nnx.to_flat_state(model.params)}
  for path in (path for path in flat if model.tokens.begin and path[-1] in WORDS):
    flat[path] = _swapped(path, flat[path], model)
  shapes = {path: leaf.shape for path, leaf in flat.items()}
  family = FAMILIES[kind]
  found = {}
  for piece in pieces(family, shapes, model.size.num_heads):
    prefix = "" if piece.name.startswith("^") else family.base
    found[prefix + piece.name.removeprefix("^")] = piece.join([flat[path] for path in piece.paths])
  begin, ends = model.tokens.begin, [*model.tokens.ends]
  ids = {"bos_token_id": begin, "eos_token_id": ends[0] if len(ends) == 1 else ends}
  dtype = {"dtype": str(found[min(found)].dtype)}
  files = {
    "config.json": _json(config | ids | dtype),
    "generation_config.json": _json(ids),
    "README.md": card.replace("ARCHITECTURE", CLASSES[kind]).encode(),
    WEIGHTS: save(dict(sorted(found.items())), {"format": "pt"}),
  }
  if model.tokens.tokenizer is not None:
    names = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": model.length}
    files["tokenizer.json"] = model.tokens.tokenizer.encode()
    files["tokenizer_config.json"] = _json(names | model.tokens.names)
  with writing("FOLDER", folder):
    folder.mkdir(parents=True, exist_ok=True)
    if others := sorted({each.name for each in folder.iterdir()} - {*files}):
      raise UserError(f"{folder} holds other files ({others[0]}): give a folder of its own")
    for name, data in files.items():
      (folder / name).write_bytes(data)
  return [folder / name for name in files]


def _swapped(path: tuple, x: np.ndarray, model: Exported) -> np.ndarray:
  """Return words in the order of the tokenizer, of a parameter that has them."""
  if not {"embed", "head"} & {*path} or model.vocab_size not in x.shape:
    return x
  axis = -1 if path[-1] == "kernel" else 0
  order = np.arange(model.vocab_size)
  order[[0, model.tokens.begin]] = order[[model.tokens.begin, 0]]
  return np.take(x, order, axis)


def _json(content: Mapping[str, Any]) -> bytes:
  return (json.dumps(content, indent=2, sort_keys=True) + "\n").encode()


def config_of(model: Exported) -> tuple[str, Options]:
  """Return the family of a model, and its config.

  Raises:
    UserError: it is of none; the message names the option that stands in the way of the nearest.
  """
  nearest: list[Difference] = []
  architecture, failed = "", ""
  for kind in CLASSES:
    config, family = _config(kind, model), FAMILIES[kind]
    try:
      options, encoding = OPTIONS[str(family.options)](Asked(kind, config, family))
      why = differences(model, Size(**options), make_encoding(encoding))
    except (UserError, ValueError, TypeError) as error:
      failed = str(error)
      continue
    if not why:
      return kind, config
    if not nearest or len(why) < len(nearest):
      nearest, architecture = why, CLASSES[kind]
  if not nearest:
    raise UserError(f"no architecture of transformers has these options: {failed}")
  ours, theirs = zip(*nearest, strict=True)
  raise UserError(
    f"no architecture of transformers has {', '.join(ours)}; the nearest, {architecture}, has "
    f"{' '.join(theirs)}: train with that"
  )


def differences(model: Exported, size: Size, encoding: Encoding) -> list[Difference]:
  """Return the options in which a model differs from another, each with the other's."""
  found = []
  for field in dataclasses.fields(Size):
    name, ours, theirs = field.name, *(_said(each, field.name) for each in (model.size, size))
    if name not in FREE and ours != theirs:
      found.append(_option(f"model.{name}", *(getattr(each, name) for each in (model.size, size))))
  count = model.size.num_layers
  pairs = zip(model.encoding.layers(count), encoding.layers(count), strict=True)
  for number, layers in enumerate(pairs):
    ours, theirs = map(_explicit, layers)
    if ours != theirs:
      return found + _of_layer(number, ours, theirs)
  return found


def _option(name: str, ours: Any, theirs: Any) -> Difference:
  return f"{name}={show(ours)}", f"{name}={show(theirs)}"


def _said(size: Size, name: str) -> Any:
  """Return what an option says, in one of the ways in which it can be said."""
  if name == "bias":  # a tied head has none
    return {part for part in PARTS if size.has_bias(part) and part != "head"} | (
      {"head"} if size.has_bias("head") and not size.tie_embeddings else set()
    )
  ways = {"num_kv_heads": size.kv_heads, "head_dim": size.width_of_head}
  return ways.get(name, getattr(size, name))


def _explicit(layer: Layer) -> Layer:
  """Return a layer whose rotation has the limits of Llama 3 in numbers."""
  rope = layer.encoding
  if not isinstance(rope, RoPE) or rope.scaling != "llama3":
    return layer
  slow, fast = rope.beta_slow or SLOW, rope.beta_fast or LLAMA_FAST
  return layer._replace(encoding=dataclasses.replace(rope, beta_slow=slow, beta_fast=fast))


def _of_layer(number: int, ours: Layer, theirs: Layer) -> list[Difference]:
  """Return in what a layer differs from the one that an architecture has there."""
  one, other = (name_of(each.encoding) for each in (ours, theirs))
  if one != other:
    return [(f"encoding={one} in layer {number}", f"encoding={other} there")]
  if ours.encoding == theirs.encoding:
    limits = ({"window": each.window, "chunk": each.chunk} for each in (ours, theirs))
    return [_option(f"layer {number}", *limits)]
  return [
    _option(f"{one}.{field.name}", *values)
    for field in dataclasses.fields(ours.encoding)
    if len({*(values := [getattr(each.encoding, field.name) for each in (ours, theirs)])}) > 1
  ]


def _config(kind: str, model: Exported) -> Options:
  """Return the config of a family that is nearest to a model."""
  size, layers = model.size, [*model.encoding.layers(model.size.num_layers)]
  config = {"model_type": kind, "architectures": [CLASSES[kind]], "vocab_size": model.vocab_size}
  # Some families have a number of padding by default that is beyond a small vocabulary.
  config |= {"tie_word_embeddings": size.tie_embeddings, "pad_token_id": None}
  if kind == "gpt2":
    limit = model.encoding.limit or model.length
    return config | {
      **{"n_embd": size.d_model, "n_head": size.num_heads, "n_layer": size.num_layers},
      **{"n_inner": size.d_ff, "n_positions": limit, "layer_norm_epsilon": size.norm_epsilon},
      "activation_function": _activation(size.feed_forward, 0, "gelu_new"),
    }
  bias = size.bias.split("+")
  config |= {
    **{"hidden_size": size.d_model, "num_hidden_layers": size.num_layers},
    **{"num_attention_heads": size.num_heads, "intermediate_size": size.d_ff},
    **{"num_key_value_heads": size.num_kv_heads or size.num_heads},
    **{"head_dim": size.width_of_head, "rms_norm_eps": size.norm_epsilon},
    "hidden_act": _activation(size.feed_forward, 1, "silu"),
  }
  keys = FAMILIES[kind].keys
  given: Options = {"attention_bias": "out" in bias or "all" in bias}
  given |= {"mlp_bias": not {"feed_forward", "all"}.isdisjoint(bias)}
  windows = [layer.window for layer in layers]
  window = max(filter(None, windows), default=None)
  given["sliding_window"] = window
  if kind != "mistral":
    given["use_sliding_window"] = window is not None
    if window is not None:
      names = ["sliding_attention" if each else "full_attention" for each in windows]
      given["layer_types"] = names
  turns = [isinstance(layer.encoding, RoPE) for layer in layers]
  given["no_rope_layers"] = [int(each) for each in turns]
  config |= {key: value for key, value in given.items() if key in keys}
  rope = next((layer.encoding for layer in layers if isinstance(layer.encoding, RoPE)), RoPE())
  return config | _rope(rope, model.length)


def _activation(ours: str, gated: int, otherwise: str) -> str:
  """Return Hugging Face's name of an activation."""
  found = (theirs for theirs, names in reversed(ACTIVATIONS.items()) if names[gated] == ours)
  first = [*found]
  return otherwise if otherwise in first or not first else first[-1]


def _rope(rope: RoPE, length: int) -> Options:
  """Return the keys of a config that say how a model turns queries and keys."""
  kind = "default" if rope.scaling == "none" else rope.scaling
  given = {"rope_type": kind, "rope_theta": rope.base}
  for key in SCALED.get(kind, ()):
    value = getattr(rope, RENAMED.get(key, key))
    if value is not None and not (key == "truncate" and value):
      given[key] = [*value] if isinstance(value, tuple) else value
  trained = rope.trained_length or length
  if kind == "llama3":
    given |= {"low_freq_factor": rope.beta_slow or SLOW}
    given |= {"high_freq_factor": rope.beta_fast or LLAMA_FAST}
  if kind not in ("default", "linear", "dynamic"):
    given["original_max_position_embeddings"] = trained
  longest = trained if kind == "dynamic" else max(length, round(trained * rope.factor))
  return {"rope_parameters": given, "max_position_embeddings": longest}


def tokens_of(content: Mapping[str, Any]) -> Tokens:
  """Return the tokens of a run, whose vocabulary has this JSON; of words there is no tokenizer."""
  from tokenizers import Tokenizer, decoders, models, pre_tokenizers

  kind, made = content["kind"], None
  if kind == "given":
    library = Tokenizer.from_str(content["tokenizer"])
    first, ends = content["end"], tuple(content["stops"]) or (content["end"],)
    ids = {"bos_token": first, "eos_token": ends[0]}
    names = {key: name for key, each in ids.items() if (name := library.id_to_token(each))}
    return Tokens(content["tokenizer"], names, first, ends)
  if kind == "bpe":
    made = Tokenizer.from_str(content["bpe"])
    made.decoder = decoders.ByteLevel()
  elif kind == "byte":
    made = Tokenizer(models.BPE(_numbered(byte_letters()), []))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.decoder = decoders.ByteLevel()
  elif kind == "char" and not content.get("unknown"):
    made = Tokenizer(models.BPE(_numbered(content["characters"]), []))
    made.decoder = decoders.Fuse()
  if made is None:
    return Tokens(None, {})
  made.add_special_tokens([END])
  return Tokens(made.to_str(), {"bos_token": END, "eos_token": END})


def _numbered(letters: Iterable[str]) -> dict[str, int]:
  return {name: number for number, name in enumerate([END, *letters])}
