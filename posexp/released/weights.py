"""Weights of a released model as parameters of posexp's, tensor by tensor, and back."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from flax import nnx

from posexp.config import build
from posexp.config.checks import as_typed
from posexp.encodings import make_encoding
from posexp.encodings.rngs import abstract_model
from posexp.errors import UserError
from posexp.models.language_model import LanguageModelSpec
from posexp.models.size import Size
from posexp.released.families import COMMON, Asked, Family, Layers, Options, families
from posexp.released.folder import Folder, kind_of, open_folder
from posexp.released.masked import MaskedSpec
from posexp.released.tokens import Ends, check_rows, ends_of, opened, text_of

LEAVES = {"kernel": "weight", "table": "weight", "rows": "weight", "scale": "weight"}
OLD = {".gamma": ".weight", ".beta": ".bias"}  # of norms
# Of a model that also reads images: what stands before names of texts, and what is not read.
OUTER = ("model.language_model.", "language_model.model.", "language_model.")
EYES = r"(model\.)?(vision_tower|multi_modal_projector)\..*"
Path = tuple[str | int, ...]
Shape = tuple[int, ...]


class Piece(NamedTuple):
  """A tensor of a file, and the parameters of the model that it holds, which are one or several.

  The name is without the family's prefix; ^ stands before one that never has it.
  """

  name: str
  paths: tuple[Path, ...]
  shapes: tuple[Shape, ...]
  turned: bool  # whether the tensor is [out, in]
  heads: int = 0  # of several parameters: their features take so many turns

  @property
  def shape(self) -> Shape:
    """The shape of the tensor."""
    whole = (*self.shapes[0][:-1], sum(shape[-1] for shape in self.shapes))
    return whole[::-1] if self.turned else whole

  def split(self, tensor: np.ndarray) -> list[np.ndarray]:
    """Return the parameters that a tensor holds."""
    whole = tensor.T if self.turned else tensor
    if self.heads:
      apart = whole.reshape(*whole.shape[:-1], self.heads, len(self.paths), -1)
      return [apart[..., i, :].reshape(shape) for i, shape in enumerate(self.shapes)]
    ends = np.cumsum([shape[-1] for shape in self.shapes])[:-1]
    return np.split(whole, ends, axis=-1) if len(ends) else [whole]

  def join(self, parameters: Sequence[np.ndarray]) -> np.ndarray:
    """Return the tensor of parameters: the bytes that `split` was given."""
    whole = np.concatenate(parameters, axis=-1)
    if self.heads:
      apart = [each.reshape(*each.shape[:-1], self.heads, 1, -1) for each in parameters]
      whole = np.concatenate(apart, axis=-2).reshape(whole.shape)
    return np.ascontiguousarray(whole.T if self.turned else whole)


def pieces(family: Family, shapes: Mapping[Path, Shape], heads: int) -> list[Piece]:
  """Return the tensors of a family's files, for parameters of these shapes, by their paths.

  Raises:
    ValueError: the family has no name for a parameter; the message is its path.
  """
  modules = {}
  for ours, theirs in family.names.items():
    before, several, after = re.fullmatch(r"(.*?)([^/]*\+[^/]*|[^/+]*)(/[^+]*)?", ours).groups("")
    for number, part in enumerate(several.split("+")):
      modules[f"{before}{part}{after}"] = theirs, number
  tables: dict[str, dict[int, Path]] = {}
  for path in shapes:
    rest = [each for each in path if each not in ("stack", "words")]
    layer = ""
    if rest[0] == "blocks":
      layer, rest = f"{family.layer}{rest[1]}.", ["." + str(rest[2]), *rest[3:]]
    whole, module = "/".join(map(str, rest)), "/".join(map(str, rest[:-1]))
    if whole in modules:
      name, number = modules[whole]
      name = layer + name
    elif module in modules and rest[-1] in (*LEAVES, "bias"):
      name, number = modules[module]
      name = f"{layer}{name}.{LEAVES.get(rest[-1], rest[-1])}"
    else:
      raise ValueError("/".join(map(str, path)))
    tables.setdefault(name, {})[number] = path
  made = []
  for name, parts in tables.items():
    paths = tuple(parts[number] for number in sorted(parts))
    each = tuple(map(shapes.__getitem__, paths))
    kernel = paths[0][-1] == "kernel" and "experts" not in paths[0]
    turned = kernel and (family.transposed or paths[0][0] != "stack")
    turns = heads if "attention" in paths[0] else each[0][-1]  # of channels, between two maps
    alternate = turns if family.by_heads and len(paths) > 1 else 0
    made.append(Piece(name, paths, each, turned, alternate))
  return made


@dataclasses.dataclass(frozen=True, eq=False)
class Released:
  """A released model, of which no weight is read yet."""

  folder: Folder
  family: Family
  files: dict[str, str]  # the name of each tensor in the file, by that of a `Piece`
  model: Options
  encoding: Options  # as a run's config has it: {"encoding": "rope", "rope": {"base": 10000.0}}
  layers: Layers  # the same by layer, of a model that turns
  vocab_size: int
  config: dict[str, Any]
  head: tuple[Any, ...] | None  # of an encoder: its activation, and its two biases

  @classmethod
  def open(cls, name: str) -> Released:
    """Open a folder, or a name on the hub.

    Raises:
      UserError: the folder is damaged, or it holds something that posexp does not have.
    """
    folder = open_folder(name)
    config = folder.config
    if config.get("model_type") == "gemma3" and isinstance(config.get("text_config"), dict):
      config = config["text_config"]
    known = families()
    family = known[kind_of(folder, config, known, "models")]
    asked, files = Asked(folder.name, config, family), _named(folder, family)
    words = asked.number("vocab_size")
    _check_sizes(folder, asked, files, words)
    model, positions, encoding = asked.read()
    layers = positions if isinstance(positions, list) else []
    transform, classes = (family.names.get(each, "") for each in ("transform", "classes"))
    written = transform + ".weight" in files and classes + ".weight" not in files
    head = asked.head if asked.head and written else None
    made = cls(folder, family, files, model, encoding, layers, words, config, head)
    return dataclasses.replace(made, model=model | {"tie_embeddings": made._ties()})

  def _ties(self) -> bool:
    """Return whether the table of words is the output layer, too.

    It is not if the file has an output layer of its own that differs from the table.
    """
    if not self.family.causal and self.head is None:
      return False
    names = [self.files.get(self.family.names[each] + ".weight") for each in ("embed", "head")]
    if not self.model["tie_embeddings"] or None in names:
      return self.model["tie_embeddings"]
    one, other = (self.folder.tensor(name) for name in names if name is not None)
    return one.shape == other.shape and one.tobytes() == other.tobytes()

  @property
  def dtype(self) -> str:
    """The type in which most weights are stored."""
    name = self.files.get(self.family.names["embed"] + ".weight")
    return self.folder.dtype(name) if name else "float32"

  @property
  def longest(self) -> int:
    """The longest text that its config speaks of, in tokens."""
    if table := self.encoding.get("learned"):
      return table["length"]
    key = "max_position_embeddings"
    return self.config.get(key) or self.family.keys.get(key, 2048)

  def tokenizer(self) -> Any:
    """Return the folder's tokenizer, a `tokenizers.Tokenizer`; None if it has none.

    It neither cuts texts nor pads them.

    Raises:
      UserError: its tokenizer.json cannot be read.
    """
    return opened(self.folder)

  def tokens(self) -> str:
    """Return the JSON of the tokenizer for `Vocabulary.opened` and `posexp.data.tokenizer.Given`.

    Raises:
      UserError: the folder has no tokenizer, or nothing in it says how a text begins.
    """
    library = self.tokenizer()
    if library is None:
      raise UserError(
        f"{self.folder.name}: no tokenizer.json in it, without which it reads no text; save the "
        "tokenizer there, too, or give tokens to posexp.load"
      )
    begin, ends = self._ends(library)
    content = {"kind": "given", "tokenizer": library.to_str(), "size": self.vocab_size}
    content |= {"end": begin, "stops": ends, "length": self.longest}
    return json.dumps(content, ensure_ascii=False)

  def _ends(self, library: Any) -> Ends:
    if not self.family.causal or library is None:
      return Ends(0, ())
    return ends_of(self.folder, self.config, library, self.vocab_size)

  def digest(self) -> str:
    """Return the sha256 of all that the model is: its config, its weights and its tokens."""
    texts = [self.config, text_of(self.folder), self._ends(self.tokenizer())]
    parts = [json.dumps(texts, sort_keys=True), *self.folder.digests()]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()

  def spec(self, model: Options | None = None, encoding: Options | None = None) -> Any:
    """Return the specification of the model, with its own options or others.

    Raises:
      UserError: there is no such option, or the config asks for sizes that do not suit each other.
    """
    try:
      size = build(Size, self.model if model is None else model, "model")
    except UserError as error:
      if model is not None:
        raise
      raise UserError(f"{self.folder.name}: its config.json asks for {error}") from None
    made = make_encoding(self.encoding if encoding is None else encoding)
    if self.family.causal:
      return LanguageModelSpec(self.vocab_size, made, size)
    return MaskedSpec(self.vocab_size, made, size, self.head)

  def pieces(self, spec: Any) -> list[Piece]:
    """Return the tensors of a model; UserError unless the file has these and no others.

    A model with other positions may have other parameters of positions than the file.
    """
    try:
      state = nnx.to_flat_state(nnx.state(abstract_model(spec.build), nnx.Param))
      whole = pieces(self.family, {path: leaf.shape for path, leaf in state}, spec.size.num_heads)
    except ValueError as error:
      parts = {"model": spec.size, "encoding": spec.encoding}
      raise UserError(f"{self.folder.name}: {as_typed(str(error), parts)}") from None
    for piece in whole:
      if piece.name not in self.files:
        name = piece.name.removeprefix("^")
        raise UserError(
          f"{self.folder.name}: no tensor {name} in it, under any prefix, which its config asks for"
        )
      there = self.folder.shape(self.files[piece.name])
      if there != piece.shape:
        raise UserError(
          f"{self.folder.name}: {self.files[piece.name]} is {[*there]}, and its config.json asks "
          f"for {[*piece.shape]}"
        )
    copies = {self.family.names.get("head", "") + ".weight"} if spec.size.tie_embeddings else set()
    left = self.files.keys() - {piece.name for piece in whole} - copies
    if self.head is None and not self.family.causal:  # the encoder alone is read
      left = {each for each in left if not each.startswith("^")}
    known = rf"\^?(.*\.)?({'|'.join(COMMON['ignored'])})|{EYES}"  # no parameters of what is read
    if strange := sorted(each for each in left if not re.fullmatch(known, each)):
      raise UserError(
        f"{self.folder.name}: {self.files[strange[0]]} is none of the tensors that its config.json "
        "asks for"
      )
    return whole

  def classifier(self, labels: Sequence[str]) -> dict[str, Tensor]:
    """Return the parameters of the head that tells these labels apart, if the file has it."""
    name, given = self.family.names.get("classes", ""), self.config.get("id2label")
    same = isinstance(given, dict) and [*given.values()] == [*labels]
    if not same or self.config.get("architectures") != [self.family.architecture]:
      return {}
    width, classes = self.folder.shape(self.files[f"{name}.weight"])[::-1]
    shapes: dict[Path, Shape] = {("head", "kernel"): (width, classes), ("head", "bias"): (classes,)}
    return _held(self, pieces(self.family._replace(names={"head": name}), shapes, 1))


def _check_sizes(folder: Folder, asked: Asked, files: Mapping[str, str], words: int) -> None:
  """Raise UserError unless a config has the words and layers of the weights, and no more tokens.

  Lists of this length are made before other shapes are compared.
  """
  family = asked.family
  depth, first = family.model["num_layers"], len(family.layer)
  layers = {name[first:].partition(".")[0] for name in files if name.startswith(family.layer)}
  sizes = [(depth, asked.number(depth), len(layers))]
  if table := files.get(family.names["embed"] + ".weight"):
    sizes.append(("vocab_size", words, (*folder.shape(table), 0)[0]))
  for key, asks, there in sizes:
    if asks != there:
      raise asked.refused(key, f"and its weights have {there:,}; copy or download both again")
  check_rows(folder, words)


def _named(folder: Folder, family: Family) -> dict[str, str]:
  """Return the name of each tensor in a folder, by its name without prefixes."""
  heads = tuple(
    each[1:].partition(".")[0] + "." for each in family.names.values() if each[:1] == "^"
  )
  heads += ("cls.", "lm_predictions.", "mask_predictions.", "qa_outputs.")
  names = {}
  for name in folder.names():
    outer = next((prefix for prefix in OUTER if name.startswith(prefix)), "")
    short = family.base + name.removeprefix(outer) if outer else name
    for old, new in OLD.items():
      short = short.removesuffix(old) + new if short.endswith(old) else short
    body = short.startswith(family.base)
    short = short.removeprefix(family.base) if body else short
    short = f"^{short}" if not body and short.startswith(heads) else short
    if short in names:
      raise UserError(
        f"{folder.name}: {names[short]} and {name} are two names of one tensor; keep one of them"
      )
    names[short] = name
  if "bias" in family.names and (own := names.pop(f"{family.names['head']}.bias", None)):
    names[family.names["bias"]] = own  # it counts, and the other is a copy of it if words are tied
  return names


class Tensor(NamedTuple):
  """A parameter that is in a file, read when NumPy asks for it."""

  folder: Folder
  file: str
  piece: Piece
  number: int
  word: int = 0  # which changes places with word 0

  @property
  def shape(self) -> Shape:
    return self.piece.shapes[self.number]

  def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
    array = self.piece.split(self.folder.tensor(self.file))[self.number]
    if not np.isfinite(array).all():
      raise UserError(
        f"{self.folder.name}: {self.file} has numbers that are not finite; download it again"
      )
    return np.asarray(exchanged(array, self.piece.paths[self.number], self.word), dtype)


def exchanged(x: np.ndarray, path: Path, word: int) -> np.ndarray:
  """Return a parameter in which a word and word 0 have changed places, if it has words at all."""
  words = (path[-1] == "table" and "embed" in path) or path[0] in ("head", "bias")
  if not words or not word:
    return x
  axis = -1 if path[-1] == "kernel" else 0
  order = np.arange(x.shape[axis])
  order[[0, word]] = order[[word, 0]]
  return np.take(x, order, axis)


def parameters(released: Released, spec: Any, word: int = 0) -> dict[str, Tensor]:
  """Return the parameters that a file has, by their paths; none is read.

  With `word`, that one and word 0 change places.
  """
  return _held(released, released.pieces(spec), word)


def _held(released: Released, held: Sequence[Piece], word: int = 0) -> dict[str, Tensor]:
  return {
    "/".join(map(str, path)): Tensor(released.folder, released.files[each.name], each, number, word)
    for each in held
    for number, path in enumerate(each.paths)
  }


def tensors(released: Released, spec: Any, params: Any) -> dict[str, np.ndarray]:
  """Return parameters, or gradients of them, as the file has them, by their names there."""
  flat = {path: np.asarray(leaf[...]) for path, leaf in nnx.to_flat_state(params)}
  return {
    released.files[piece.name]: piece.join([flat[path] for path in piece.paths])
    for piece in released.pieces(spec)
  }
