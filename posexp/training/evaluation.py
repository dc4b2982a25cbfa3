"""A model at one moment of its training, asked about a split."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from jax import Array
from jax.sharding import Mesh

from posexp.training.devices import Batch, replicate, shard
from posexp.training.processes import fetch
from posexp.training.step import Program, State


class Snapshot(NamedTuple):
  """A model with its weights, on its devices."""

  program: Program
  state: State
  mesh: Mesh
  batch_size: int  # of evaluation, as in training

  def predict(
    self, batches: Iterable[Batch], kept: dict[str, Array] | None = None
  ) -> dict[str, np.ndarray]:
    """What the model says of every example, in the order of the data, [N] each.

    `kept` says how much of each term of its relations it keeps, as in `Stack`.
    """
    return gathered(
      (batch, self.program.predict(self.state, batch, kept))
      for batch, _ in shard(batches, self.mesh)
    )


def snapshot(program: Program, state: State, mesh: Mesh, batch_size: int) -> Snapshot:
  """The model of a state, of which the parameters may be divided among the devices."""
  return Snapshot(program, state.replace(params=replicate(state.params, mesh)), mesh, batch_size)


def gathered(found: Iterable[tuple[Batch, dict[str, Array]]]) -> dict[str, np.ndarray]:
  """Results of batches, less those of their padded rows, in the order of the data."""
  outputs = fetch([{**output, "index": batch["index"]} for batch, output in found])
  columns = {name: np.concatenate([each[name] for each in outputs]) for name in outputs[0]}
  real = columns["index"] >= 0
  order = np.argsort(columns["index"][real])
  return {name: column[real][order] for name, column in columns.items()}
