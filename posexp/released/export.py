"""A model as a folder that Hugging Face's `transformers` loads, for what its architectures can say.

A config is written for each candidate family and read again. A model is one of the family only if
that gives its own options; otherwise the first difference is the reason why it is not.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from flax import nnx

from posexp.config.checks import show
from posexp.data.library import opened
from posexp.data.tokenizer import END, SPECIAL
from posexp.encodings import make_encoding, name_of
from posexp.encodings.base import Encoding, Layer
from posexp.encodings.rotary import RoPE
from posexp.encodings.scaling import LLAMA_FAST, SLOW
from posexp.errors import UserError, writing
from posexp.models.size import Size
from posexp.released.families import (
  COMMON,
  FAMILIES,
  RENAMED,
  SCALINGS,
  Asked,
  Family,
  Options,
)
from posexp.released.folder import WEIGHTS
from posexp.released.weights import Path as Name
from posexp.released.weights import exchanged, pieces

# Options of a model that neither its weights nor what it computes depend on.
FREE = {"dropout", "attention", "dtype", "match", "match_to", "vectors"}
Difference = tuple[str, str]  # an option of the model as typed, and that of an architecture


class Tokens(NamedTuple):
  """The part of a folder that is about tokens."""

  tokenizer: str | None  # its JSON
  names: Options  # of special tokens
  begin: int = 0  # the token before a document, which the model has as token 0 in place of its own
  ends: tuple[int, ...] = (0,)
  length: int = 0  # tokens that the model could read where it comes from


class Exported(NamedTuple):
  """A model to be written, and its tokens."""

  encoding: Encoding
  size: Size
  vocab_size: int
  length: int  # tokens of a text in training
  params: Any  # of the model: a state of Flax
  tokens: Tokens
  labels: tuple[str, ...] = ()  # of an encoder that classifies

  @property
  def longest(self) -> int:
    """The longest text that the model is known to read, in tokens."""
    return max(self.length, self.tokens.length)

  @property
  def layers(self) -> list[Layer]:
    """The layers' positions, in the words of transformers.

    The limits of Llama 3 stand in numbers, and planes are halves: see `_in_halves`.
    """
    return [_explicit(layer) for layer in self.encoding.layers(self.size.num_layers)]


def export(model: Exported, folder: Path, card: str) -> list[Path]:
  """Write a model, its tokenizer and its card; return the files.

  Raises:
    UserError: no architecture is the model's; the message says which option stands in the way. Or
      the folder cannot be written.
  """
  from safetensors.numpy import save

  family, config = config_of(model)
  tensors, tokens = _tensors(model, family), model.tokens
  ends = [*tokens.ends]
  ids = {"bos_token_id": tokens.begin, "eos_token_id": ends[0] if len(ends) == 1 else ends}
  config |= {"dtype": str(tensors[min(tensors)].dtype)} | ({} if model.labels else ids)
  files = {
    "config.json": _json(config),
    "README.md": card.replace("ARCHITECTURE", family.architecture).encode(),
    WEIGHTS: save(tensors, {"format": "pt"}),
  }
  if not model.labels:
    files["generation_config.json"] = _json(ids)
  if tokens.tokenizer is not None:
    names = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": model.longest}
    files["tokenizer.json"] = tokens.tokenizer.encode()
    files["tokenizer_config.json"] = _json(names | tokens.names)
  with writing("FOLDER", folder):
    folder.mkdir(parents=True, exist_ok=True)
    if others := sorted({entry.name for entry in folder.iterdir()} - {*files}):
      raise UserError(f"{folder} holds other files ({others[0]}): give a folder of its own")
    for name, data in files.items():
      (folder / name).write_bytes(data)
  return [folder / name for name in files]


def _json(content: Mapping[str, Any]) -> bytes:
  return (json.dumps(content, indent=2, sort_keys=True) + "\n").encode()


def _tensors(model: Exported, family: Family) -> dict[str, np.ndarray]:
  """Return the tensors of a model by their names in a file of the family."""
  layers = [*model.encoding.layers(model.size.num_layers)]
  flat = {path: np.asarray(leaf[...]) for path, leaf in nnx.to_flat_state(model.params)}
  if model.labels:  # where an architecture has a part that the model lacks, it does nothing
    flat.setdefault(("stack", "types"), np.zeros((1, model.size.d_model), np.float32))
    flat.setdefault(("head", "bias"), np.zeros(len(model.labels), np.float32))
    family = family._replace(names=family.names | {"head": family.names["classes"]})
  else:
    flat = {path: exchanged(x, path, model.tokens.begin) for path, x in flat.items()}
  flat = {path: _in_halves(path, x, layers, model.size) for path, x in flat.items()}
  named = {}
  for piece in pieces(family, {path: x.shape for path, x in flat.items()}, model.size.num_heads):
    prefix = "" if piece.name.startswith("^") else family.base
    named[prefix + piece.name.removeprefix("^")] = piece.join([flat[path] for path in piece.paths])
  return dict(sorted(named.items()))


def _in_halves(path: Name, x: np.ndarray, layers: list[Layer], size: Size) -> np.ndarray:
  """Reorder the channels of queries and keys, so that plane t has channels t and t + r/2 of the r
  that turn, instead of 2t and 2t + 1. Other parameters are returned as they are.

  The model stays the same, since channels of queries and keys change places alike.
  """
  if path[1] != "blocks" or {*path}.isdisjoint(("query", "key", "query_norm", "key_norm")):
    return x
  rope, width = layers[int(path[2])].encoding, size.width_of_head
  if not isinstance(rope, RoPE) or rope.layout == "half":
    return x
  turning = round(rope.share * width)
  order = [*range(0, turning, 2), *range(1, turning, 2), *range(turning, width)]
  return x[..., np.add.outer(np.arange(0, x.shape[-1], width), order).ravel()]


def config_of(model: Exported) -> tuple[Family, Options]:
  """Return the family of a model, and its config.

  Raises:
    UserError: it is of none; the message names the option that stands in the way of the nearest.
  """
  nearest: list[Difference] = []
  architecture, failed = "", ""
  for family in FAMILIES.values():
    if not family.architecture or family.causal == bool(model.labels):
      continue
    config = _config(family, model)
    try:
      options, _, encoding = Asked(family.name, config, family).read()
      why = differences(model, Size(**options), make_encoding(encoding))
    except (UserError, ValueError, TypeError) as error:
      failed = str(error)
      continue
    if not why:
      return family, config
    if not nearest or len(why) < len(nearest):
      nearest, architecture = why, family.architecture
  if not nearest:
    raise UserError(f"no architecture of transformers has these options: {failed}")
  ours, theirs = zip(*nearest, strict=True)
  preset = "model=bert encoding=learned" if model.labels else "model=llama encoding=rope"
  raise UserError(
    f"no architecture of transformers has {', '.join(ours)}; the nearest, {architecture}, has "
    f"{' '.join(theirs)}: train with that, or with {preset}"
  )


def differences(model: Exported, size: Size, encoding: Encoding) -> list[Difference]:
  """Return the options in which a model differs from another, each with the other's."""
  lines = []
  free = FREE | ({"token_types"} if model.size.token_types == 0 and model.labels else set())
  for field in dataclasses.fields(Size):
    name = field.name
    ours, theirs = (_said(each, name, bool(model.labels)) for each in (model.size, size))
    if name not in free and ours != theirs:
      lines.append(_option(f"model.{name}", *(getattr(each, name) for each in (model.size, size))))
  other = model._replace(encoding=encoding)
  for number, (ours, theirs) in enumerate(zip(model.layers, other.layers, strict=True)):
    if ours != theirs:
      return lines + _of_layer(number, ours, theirs)
  return lines


def _option(name: str, ours: Any, theirs: Any) -> Difference:
  return f"{name}={show(ours)}", f"{name}={show(theirs)}"


def _said(size: Size, name: str, headless: bool = False) -> Any:
  """Return an option in a form in which settings with the same meaning are equal."""
  if name == "bias":  # a tied head has none
    return {*size.biased} - ({"head"} if size.tie_embeddings or headless else set())
  ways = {"num_kv_heads": size.kv_heads, "head_dim": size.width_of_head}
  return ways.get(name, getattr(size, name))


def _explicit(layer: Layer) -> Layer:
  rope = layer.encoding
  if not isinstance(rope, RoPE):
    return layer
  limits: Options = {}
  if rope.scaling == "llama3":
    limits = {"beta_slow": rope.beta_slow or SLOW, "beta_fast": rope.beta_fast or LLAMA_FAST}
  return layer._replace(encoding=dataclasses.replace(rope, layout="half", **limits))


def _of_layer(number: int, ours: Layer, theirs: Layer) -> list[Difference]:
  """Return the differences between a layer and the architecture's."""
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


def _config(family: Family, model: Exported) -> Options:
  """Return the config of a family that is nearest to a model, from the rows of families.yaml."""
  size, layers, keys = model.size, model.layers, family.keys
  # Some families have a number of padding by default that is beyond a small vocabulary.
  config: Options = {"model_type": family.name, "architectures": [family.architecture]}
  config |= {"vocab_size": model.vocab_size, "pad_token_id": None}
  if model.labels:
    config["id2label"] = {str(number): label for number, label in enumerate(model.labels)}
    config["label2id"] = {label: number for number, label in enumerate(model.labels)}
  for option, entry in family.model.items():
    ours = _said(size, option)
    if isinstance(entry, list):
      theirs = [each for each, value in entry[1].items() if value == ours]
      usual = keys[entry[0]]
      config[entry[0]] = usual if usual in theirs else next(iter(theirs), usual)
    elif isinstance(entry, str) and entry in keys:
      config[entry] = ours
    if option == "token_types":  # a table of one row at the least, which may hold nothing
      config[entry] = ours or 1
  for key in family.bias.keys() & keys:
    config[key] = {*family.bias[key].split("+")} <= {*size.biased}
  if isinstance(family.encoding, Mapping):
    for options in family.encoding.values():
      config |= {options[key]: getattr(model.encoding, key, model.length) for key in options}
    return config
  windows = [layer.window for layer in layers]
  window = max(filter(None, windows), default=None)
  turns = [layer.encoding for layer in layers if isinstance(layer.encoding, RoPE)]
  kinds = ["sliding_attention" if each else "full_attention" for each in windows]
  given: Options = {"sliding_window": window, "use_sliding_window": window is not None}
  given |= {"layer_types": kinds if window else None}
  given |= {"no_rope_layers": [int(isinstance(layer.encoding, RoPE)) for layer in layers]}
  config |= {key: value for key, value in given.items() if key in keys}
  shares = any(each in keys for each in COMMON["shares"])
  return config | _rope(turns[0] if turns else RoPE(), model.longest, shares)


def _rope(rope: RoPE, length: int, shares: bool) -> Options:
  """Return the keys of a config that say how a model turns queries and keys.

  `shares` says whether a share of channels is usual, so that all of them must be said, too.
  """
  kind = "default" if rope.scaling == "none" else rope.scaling
  given = {"rope_type": kind, "rope_theta": rope.base}
  if shares or rope.share != 1:
    given["partial_rotary_factor"] = rope.share
  for key in SCALINGS.get(kind, ()):
    value = getattr(rope, RENAMED.get(key, key))
    if value is not None and not (key == "truncate" and value):
      given[key] = [*value] if isinstance(value, tuple) else value
  trained = rope.trained_length or length
  if kind not in ("default", "linear", "dynamic"):
    given["original_max_position_embeddings"] = trained
  longest = trained if kind == "dynamic" else max(length, round(trained * rope.factor))
  return {"rope_parameters": given, "max_position_embeddings": longest}


def tokens_of(content: Mapping[str, Any], made: str | None) -> Tokens:
  """Return the tokens of a run, whose tokenizer has the JSON `content`.

  `made` is the JSON of a `tokenizers.Tokenizer` of a language model's own vocabulary, if any does.
  """
  if content.get("kind") == "given":
    library = opened(content["tokenizer"])
    first, ends = content["end"], tuple(content["stops"]) or (content["end"],)
    ids = {"bos_token": first, "eos_token": ends[0]}
    names = {key: name for key, each in ids.items() if (name := library.id_to_token(each))}
    return Tokens(content["tokenizer"], names, first, ends, content.get("length", 0))
  if "kind" not in content:  # that of a classifier
    names = dict(zip(("pad_token", "unk_token", "cls_token"), SPECIAL, strict=True))
    return Tokens(json.dumps(content), names)
  return Tokens(made, {"bos_token": END, "eos_token": END} if made else {})
