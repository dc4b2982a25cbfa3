"""A run opened again: the model of its best checkpoint, with its data or without."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from flax import nnx
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from posexp import config as configuration
from posexp.data.tokenizer import Tokenizer
from posexp.encodings import Encoding, make_encoding
from posexp.errors import UserError
from posexp.models.heads import Kind, OfTranslator
from posexp.models.positions import Positions
from posexp.models.transformer import Size
from posexp.runs.run import Record, digest, open_run
from posexp.tasks import make_task
from posexp.tasks.translation import Translation, tokenizers
from posexp.train import model
from posexp.training.devices import mesh_for
from posexp.training.evaluation import Snapshot
from posexp.training.matching import matched
from posexp.training.optimizer import Training
from posexp.training.step import program


class Trained(NamedTuple):
  """What is needed to measure or to look into a trained model."""

  record: Record
  encoding: Encoding
  data: Any
  build: Any  # a function of rngs, for the model
  snapshot: Snapshot
  size: Size  # with the d_ff that was matched
  positions: Positions

  def model(self) -> nnx.Module:
    """The model, with the weights of the checkpoint."""
    program, state = self.snapshot.program, self.snapshot.state
    return nnx.merge(program.graphdef, state.params, state.settings)


class Described(NamedTuple):
  """What a run's folder says of the run by itself, without its data."""

  record: Record
  encoding: Encoding
  task: Any
  size: Size  # as given: its d_ff is not matched yet
  positions: Positions
  options: Training

  def check(self) -> None:
    """Raises UserError where no checkpoint was ever written."""
    path = self.record.path
    if not any((path / "checkpoints").glob("[0-9]*")):
      raise UserError(f"{path} has no checkpoint: it was not trained up to its first evaluation")

  def restore(self, build: Any, steps: int, mesh: Mesh, which: str) -> Snapshot:
    """The model that `build` makes, with the weights of a checkpoint, on the devices of a mesh."""
    compiled = program(build, self.options, steps, mesh)
    everywhere = NamedSharding(mesh, PartitionSpec())
    template = jax.tree.map(
      lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=everywhere),
      jax.eval_shape(lambda: compiled.init(self.record.config["seed"])),
    )
    state = self.record.restore(template, which)
    if state is None:
      raise UserError(
        f"{self.record.path} has no {which} checkpoint: it was stopped before its first evaluation"
      )
    return Snapshot(compiled, state, mesh, self.options.batch_size)


def describe(path: Path | str) -> Described:
  """Reads the config of a run.

  Raises:
    UserError: there is no run.
  """
  record = open_run(path)
  config = record.config
  return Described(
    record,
    make_encoding(config),
    make_task(config),
    configuration.build(Size, config["model"], "model"),
    configuration.build(Positions, config.get("positions"), "positions"),
    configuration.build(Training, config["train"], "train"),
  )


def open_trained(path: Path | str, which: str = "best") -> Trained:
  """Opens a run that has finished or was stopped, and restores a checkpoint.

  Raises:
    UserError: there is no run, it has no checkpoint yet, or its data are gone or are others.
  """
  run = describe(path)
  record, config, options = run.record, run.record.config, run.options
  identity = record.path.resolve().parent.name
  if re.fullmatch("[0-9a-f]{12}", identity) and digest(config, run.task.data_digest()) != identity:
    raise UserError(f"{path}: the data are not those that the run was trained on")
  run.check()
  data = run.task.prepare(record.path)
  build, fit = model(config["encoding"], run.encoding, data, run.size, run.positions)
  steps = options.steps or options.epochs * data.steps_per_epoch(options.batch_size)
  snapshot = run.restore(build, steps, mesh_for(data.rows_of(options.batch_size)), which)
  return Trained(record, run.encoding, data, build, snapshot, fit, run.positions)


class Opened(NamedTuple):
  """A translator with all that it needs to translate, and no data."""

  record: Record
  encoding: Encoding
  task: Translation
  tokenizers: tuple[str, str]  # the JSON of the source's and of the target's
  snapshot: Snapshot


def open_translator(path: Path | str, rows: int = 1, which: str = "best") -> Opened:
  """Opens a translation run from its folder alone, for batches of so many rows.

  Raises:
    UserError: there is no run, it is not one of translation, it has no checkpoint yet, or a file
      of its folder is missing or another run's.
  """
  run = describe(path)
  record = run.record
  if not isinstance(run.task, Translation):
    raise UserError(
      f"{path} is a run of {record.config['task']['kind']}; posexp.translate needs a translation "
      "run"
    )
  run.check()
  texts = tokenizers(run.task, record.path)
  kind = OfTranslator(*(Tokenizer(text).vocab_size for text in texts), length=1)
  build = kind.build(run.encoding, fitted(run, kind), run.positions)
  # No array of a checkpoint has a shape that depends on the number of steps.
  snapshot = run.restore(build, 1, mesh_for(np.array([rows])), which)
  return Opened(record, run.encoding, run.task, texts, snapshot)


def fitted(run: Described, kind: Kind) -> Size:
  """The size of a run's model, of which the lengths of its data are not known.

  Raises:
    UserError: these decide, and the run has not finished.
  """
  if run.record.summary is not None:
    width = run.record.summary["d_ff"]
    return dataclasses.replace(run.size, d_ff=width, match="none", match_to="none")
  if run.size.match == "flops":
    raise UserError(
      f"{run.record.path} has not finished: which d_ff model.match=flops chose is written down "
      "then; train it to its end"
    )
  return matched(kind, run.encoding, run.size)  # parameters do not depend on lengths


def terms_of(build: Any) -> list[tuple[str, ...]]:
  """The names of the terms of each layer's relation, an encoder's first; nothing is allocated."""
  fresh = nnx.eval_shape(lambda: build(rngs=nnx.Rngs(params=0, encoding=0, dropout=0)))
  return [tuple(block.attention.relation.terms) for stack in fresh.stacks for block in stack.blocks]
