"""The source `hf`: a released model as a run would be, with a config, data and weights."""

from __future__ import annotations

import functools
import hashlib
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from posexp import reading, storage
from posexp.config import encodings_node, resolve
from posexp.config.checks import show
from posexp.config.command_line import compose, explained
from posexp.config.overrides import read
from posexp.encodings.rngs import Rngs
from posexp.encodings.scaling import SCALINGS
from posexp.errors import UserError
from posexp.released import PREFIX
from posexp.released.families import Options, by_layer
from posexp.released.loaded import Loaded, filled
from posexp.released.weights import Released, parameters, tensors
from posexp.runs import Run
from posexp.runs.identity import settings
from posexp.status import doing
from posexp.training.devices import mesh_for, replicated
from posexp.training.evaluation import Snapshot
from posexp.training.restore import TrainedModel
from posexp.training.setup import Setup
from posexp.training.sources import Source, path_of
from posexp.training.step import State, empty, keys, program, split

TEXT = "task=reviews"  # what a decoder is measured on where no task is named
WRITTEN = "generate"  # the command that opens runs of language models
SEGMENT = 1024  # tokens that are read at once, where no number is given


class HuggingFace(Source):
  """A checkpoint in Hugging Face's format: "hf:FOLDER", or its name on the hub."""

  @property
  def released(self) -> Released:
    """The checkpoint, which is opened once."""
    return Released.open(self.name)

  def record(self) -> dict[str, str]:
    """Return a run's record of the model, which knows its weights, config and tokens again."""
    digest = self.released.digest()
    path = Path(self.name.removeprefix(PREFIX)).expanduser()
    where = f"{PREFIX}{path.resolve()}" if path.is_dir() else self.name
    return {"path": where, "run": f"hf/{digest[:12]}", "results": digest}

  def weights(self, task: Any, folder: Path, labels: Sequence[str] = ()) -> Mapping[str, Any]:
    """Return the weights by their paths, none of which is read yet, with words as a run has them.

    Of an encoder the head is that of a classifier of the `labels`, if the folder has one.
    """
    end = task.vocabulary(folder).end if WRITTEN in task.commands else 0
    arrays = parameters(self.released, self.released.spec(), end)
    own = {path_of(name): array for name, array in arrays.items()}
    if self.released.family.causal:
      return own
    body = {name: array for name, array in own.items() if not name.startswith("head/")}
    return body | self.released.classifier(labels)

  def overrides(self, typed: Sequence[str]) -> list[str]:
    """Return the options of a run that starts from the checkpoint, `typed` ones last."""
    return overrides(self.released, typed, [*encodings_node()])

  def config(self) -> dict[str, Any]:
    """Return the encoding and the sections of options."""
    return {"model": self.released.model, **self.released.encoding}

  def keep_tokens(self, folder: Path) -> None:
    """Write the tokenizer where a run keeps its own."""
    keep_tokens(self.released.tokens(), folder)

  def open(self, typed: Sequence[str], *, data: bool) -> TrainedModel:
    """Open the checkpoint as a run, as `open_released` does."""
    return open_released(self.name, typed, data=data)

  def load(self, typed: Sequence[str]) -> Loaded:
    """Load the checkpoint with other options of its encoding, and `model.dtype`."""
    released = self.released
    dtype = "bfloat16" if released.dtype == "bfloat16" else "float32"
    options = dict(each.split("=", 1) for each in typed)
    model, encoding = changed(released, {"model.dtype": dtype} | options)
    spec = released.spec(model, encoding)
    arrays = {path_of(key): each for key, each in parameters(released, released.spec()).items()}
    made = filled(spec.build, arrays, spec.size.dtype)
    written = functools.partial(tensors, released, spec)
    return Loaded(made, released.tokenizer(), written, spec.vocab_size)

  def inspect(self, models: Sequence[str], out: Path, count: int | None) -> tuple[list, list[Path]]:
    """Return the cards of models, and their figures side by side."""
    from posexp.released import side_by_side  # slow to import

    return side_by_side.inspect(models, out, count)


def open_released(name: str, typed: Sequence[str] = (), *, data: bool = True) -> TrainedModel:
  """Open a released decoder for a text, or for the `data` of a task.

  `typed` are options, as "rope.scaling=yarn", of its positions, of the model or of the task.

  Raises:
    UserError: it cannot be read, or an option does not suit it.
  """
  doing(f"opening {name}")
  source = HuggingFace(name)
  released = source.released
  if not released.family.causal:
    raise UserError(
      f"{name} is an encoder, which writes no text: classify with it, as in python -m posexp.train "
      f"task=trec init={name}, or read its hidden states with posexp.load"
    )
  given = [*typed] if any(word.startswith("task=") for word in typed) else [TEXT, *typed]
  if not any(word.startswith("task.segment=") for word in typed):
    given.append(f"task.segment={min(SEGMENT, released.longest)}")
  lines = read(source.overrides(given))
  with explained(lines):
    setup = Setup.of(resolve(compose([line.input_line for line in lines])))
  if data:  # whose results these are
    setup = setup._replace(config=setup.config | {"init": source.record()})
  if WRITTEN not in setup.task.commands:
    raise UserError(f"{name} writes text: choose a task of language modeling, such as {TEXT}")
  path = folder_of(released, setup.config["runs"])
  prepared = setup.task.prepare(path) if data else None
  spec: Any
  if prepared is None:
    spec = setup.task.kept_model(path, setup.encoding, setup.size, setup.positions)
  else:
    spec = setup.model_for(prepared)
  rows = setup.training.batch_size
  mesh = mesh_for(np.array([rows])) if prepared is None else setup.mesh(prepared)
  compiled = program(spec, setup.training, 1, mesh, rows)
  doing(f"reading the weights of {name}")
  weights = source.weights(setup.task, path)
  params = _read(compiled.shapes.params, weights, spec.size.dtype, replicated(mesh))
  made = jax.jit(lambda: split(spec.build(Rngs(**keys(0))))[2])()
  state = State(jnp.zeros((), jnp.int32), params, made, (), empty(("loss",)))
  run = Run(path, setup.config, settings(setup.config), None)
  return TrainedModel(run, setup, spec, Snapshot(compiled, state, rows), prepared)


def folder_of(released: Released, runs: str) -> Path:
  """Return the folder of a released model in `runs`, which no other model has, with its tokens."""
  name, text = released.folder.name.removeprefix(PREFIX), released.tokens()
  place = Path(name).expanduser()
  slug = re.sub(r"[^\w.-]+", "-", name).strip("-.")[-80:]
  about = str(place.resolve()) if place.is_dir() else name
  path = Path(runs, "released", f"{slug}-{storage.digest(about, released.config, text)[:12]}")
  keep_tokens(text, path)
  return path


def keep_tokens(text: str, folder: Path) -> None:
  """Write the JSON of a tokenizer where a run keeps its own, with its digest."""
  if reading.read(folder / "tokenizer.json") != text.encode():
    storage.write(folder / "tokenizer.json", text)
    storage.write(folder / "tokenizer.sha256", hashlib.sha256(text.encode()).hexdigest())


def _read(shapes: Any, found: Mapping[str, Any], dtype: str, where: Any) -> Any:
  """Return parameters of `shapes`, each read and put on devices before the next one.

  Raises:
    UserError: the released model lacks one, or has it in another size.
  """
  leaves, tree = jax.tree_util.tree_flatten_with_path(shapes)
  values = []
  for path, leaf in leaves:
    name = path_of(jax.tree_util.keystr(path, simple=True, separator="/"))
    if (tensor := found.get(name)) is None:
      raise UserError(
        f"{name} is no parameter of the released model: it must be trained, so start from it with "
        "posexp.train init=hf:..."
      )
    if tensor.shape != leaf.shape:
      raise UserError(
        f"{name} is {[*tensor.shape]} in the released model and {[*leaf.shape]} with these options"
      )
    values.append(jax.device_put(np.asarray(tensor, dtype), where))
  return jax.tree.unflatten(tree, values)


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
  """Return RoPE's options with others; a new scaling drops the options of the old one."""
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
  options = {"task.tokenizer": "given", "encoding": encoding["encoding"]}
  if released.family.causal:
    options |= {"task.vocab_size": "null"}
  else:
    options |= {"task.cls": "true"}
    model["tie_embeddings"] = False  # a classifier writes no words
  options |= {f"model.{key}": show(value) for key, value in model.items()}
  if released.dtype == "bfloat16":
    options["model.dtype"] = "bfloat16"
  inner = encoding.get(encoding["encoding"]) or {}
  options |= {f"{encoding['encoding']}.{key}": show(value) for key, value in inner.items()}
  by_layer = encoding["encoding"] == "by_layer"
  kept = [word for word in typed if not (by_layer and own and word.startswith("rope."))]
  return [f"{key}={value}" for key, value in options.items() if key not in given] + kept
