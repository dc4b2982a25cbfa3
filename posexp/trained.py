"""A run opened again: its data, and the model of its best checkpoint."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, NamedTuple

import jax
from flax import nnx
from jax.sharding import NamedSharding, PartitionSpec

from posexp import config as configuration
from posexp.encodings import Encoding
from posexp.errors import UserError
from posexp.evaluation import Snapshot
from posexp.optimizer import Training
from posexp.positions import Positions
from posexp.run import Record, digest, open_run
from posexp.train import model
from posexp.training import mesh_for, program
from posexp.transformer import Size


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


def open_trained(path: Path | str, which: str = "best") -> Trained:
  """Opens a run that has finished or was stopped, and restores a checkpoint.

  Raises:
    UserError: there is no run, it has no checkpoint yet, or its data are gone or are others.
  """
  record = open_run(path)
  config = record.config
  encoding, task = configuration.make_encoding(config), configuration.make_task(config)
  size = configuration.build(Size, config["model"], "model")
  positions = configuration.build(Positions, config.get("positions"), "positions")
  options = configuration.build(Training, config["train"], "train")
  identity = record.path.resolve().parent.name
  if re.fullmatch("[0-9a-f]{12}", identity) and digest(config, task.data_digest()) != identity:
    raise UserError(f"{path}: the data are not those that the run was trained on")
  if not any((record.path / "checkpoints").glob("[0-9]*")):
    raise UserError(f"{path} has no checkpoint: it was not trained up to its first evaluation")
  data = task.prepare(record.path)
  build, fit = model(config["encoding"], encoding, data, size, positions)
  steps = options.steps or options.epochs * data.steps_per_epoch(options.batch_size)
  mesh = mesh_for(data.rows_of(options.batch_size))
  compiled = program(build, options, steps, mesh)
  everywhere = NamedSharding(mesh, PartitionSpec())
  template = jax.tree.map(
    lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=everywhere),
    jax.eval_shape(lambda: compiled.init(config["seed"])),
  )
  state = record.restore(template, which)
  if state is None:
    raise UserError(f"{path} has no {which} checkpoint: it was stopped before its first evaluation")
  snapshot = Snapshot(compiled, state, mesh, options.batch_size)
  return Trained(record, encoding, data, build, snapshot, fit, positions)


def terms_of(build: Any) -> list[tuple[str, ...]]:
  """The names of the terms of each layer's relation, an encoder's first; nothing is allocated."""
  fresh = nnx.eval_shape(lambda: build(rngs=nnx.Rngs(params=0, encoding=0, dropout=0)))
  return [tuple(block.attention.relation.terms) for stack in fresh.stacks for block in stack.blocks]
