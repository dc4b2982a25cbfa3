"""A released model as a run would be: with a config, the data of a task, and its weights."""

from __future__ import annotations

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
from posexp.config.command_line import compose, explained
from posexp.config.overrides import read
from posexp.data.corpus import kept_vocabulary
from posexp.encodings.rngs import Rngs
from posexp.errors import UserError
from posexp.released import PREFIX
from posexp.released.weights import Released, parameters
from posexp.runs import Run
from posexp.runs.identity import settings
from posexp.status import doing
from posexp.tasks.contract import Task
from posexp.tasks.language_modeling import LanguageModeling
from posexp.training.devices import mesh_for, replicated
from posexp.training.evaluation import Snapshot
from posexp.training.released_options import overrides, record
from posexp.training.restore import TrainedModel
from posexp.training.setup import Setup
from posexp.training.step import State, empty, keys, program, split

TEXT = "task=reviews"  # what a decoder is measured on where no task is named
SEGMENT = 1024  # tokens that are read at once, where no number is given


def open_released(name: str, typed: Sequence[str] = (), *, data: bool = True) -> TrainedModel:
  """Open a released decoder for a text, or for the `data` of a task.

  `typed` are options, as "rope.scaling=yarn", of its positions, of the model or of the task.

  Raises:
    UserError: it cannot be read, or an option does not suit it.
  """
  doing(f"opening {name}")
  released = Released.open(name)
  if not released.family.causal:
    raise UserError(
      f"{name} is an encoder, which writes no text: classify with it, as in python -m posexp.train "
      f"task=trec init={name}, or read its hidden states with posexp.load"
    )
  given = [*typed] if any(word.startswith("task=") for word in typed) else [TEXT, *typed]
  if not any(word.startswith("task.segment=") for word in typed):
    given.append(f"task.segment={min(SEGMENT, released.longest)}")
  lines = read(overrides(released, given, [*encodings_node()]))
  with explained(lines):
    setup = Setup.of(resolve(compose([each.input_line for each in lines])))
  if data:  # whose results these are
    setup = setup._replace(config=setup.config | {"init": record(name)})
  if not isinstance(setup.task, LanguageModeling):
    raise UserError(f"{name} writes text: choose a task of language modeling, such as {TEXT}")
  path = folder_of(released, setup.config["runs"])
  prepared = setup.task.prepare(path) if data else None
  spec: Any
  if prepared is None:
    spec = setup.task.kept_model(path, setup.encoding, setup.size, setup.positions)
  else:
    spec = setup.model_for(prepared)
  rows = setup.training.batch_size
  mesh = mesh_for(np.array([rows]) if prepared is None else prepared.rows_of(rows))
  compiled = program(spec, setup.training, 1, mesh, rows)
  doing(f"reading the weights of {name}")
  found = of_folder(released, setup.task, path)
  params = _read(compiled.shapes.params, found, spec.size.dtype, replicated(mesh))
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


def of_folder(
  released: Released, task: Task, folder: Path, labels: Sequence[str] = ()
) -> Mapping[str, Any]:
  """Return the weights by their paths, none of which is read yet, with words as a run has them.

  Of an encoder the head is that of a classifier of the `labels`, if the folder has one.
  """
  end = kept_vocabulary(folder).end if isinstance(task, LanguageModeling) else 0
  found = parameters(released, released.spec(), end)
  own = {plain(name): each for name, each in found.items()}
  if released.family.causal:
    return own
  body = {name: each for name, each in own.items() if not name.startswith("head/")}
  return body | released.classifier(labels)


def _read(shapes: Any, found: Mapping[str, Any], dtype: str, where: Any) -> Any:
  """Return parameters of `shapes`, each read and put on devices before the next one.

  Raises:
    UserError: the released model lacks one, or has it in another size.
  """
  leaves, tree = jax.tree_util.tree_flatten_with_path(shapes)
  values = []
  for path, leaf in leaves:
    name = plain(jax.tree_util.keystr(path, simple=True, separator="/"))
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


def plain(name: str) -> str:
  """Return the path of a parameter; words have one, be there a table of positions or not."""
  return name.replace("/embed/words/", "/embed/")
