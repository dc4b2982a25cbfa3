"""Runs that were saved before their first step: all that needs no training.

To compile what draws weights in a run takes longer than all that is tested with them.
"""

from pathlib import Path
from typing import Any

import jax
import numpy as np

from posexp.config import resolve
from posexp.config.command_line import compose
from posexp.encodings.rngs import Rngs
from posexp.runs import RunWriter
from posexp.tasks.contract import ModelSpec
from posexp.tasks.results import score_of
from posexp.training.devices import mesh_for
from posexp.training.setup import Setup
from posexp.training.step import Program, keys, split


def state(compiled: Program, spec: ModelSpec) -> Any:
  """The state of a model with weights from N(0, 0.3²)."""
  shapes, draw = compiled.shapes, np.random.default_rng(3)

  def weights(leaf: jax.ShapeDtypeStruct) -> np.ndarray:
    return draw.normal(0, 0.3, leaf.shape).astype(leaf.dtype)

  zeros = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), shapes)
  settings = jax.jit(lambda: split(spec.build(Rngs(**keys(3))))[2])()
  return jax.device_put(
    zeros.replace(params=jax.tree.map(weights, shapes.params), settings=settings)
  )


def run(path: Path, *options: str) -> Path:
  """Writes the folder of a run that was stopped right after its first evaluation."""
  config = resolve(compose(list(options)))
  setup = Setup.of(config)
  path.mkdir(parents=True)
  data = setup.task.prepare(path)
  spec = setup.model_for(data)
  compiled = setup.program(spec, data, mesh_for(data.rows_of(setup.training.batch_size)))
  score = score_of(setup.task.metrics, setup.task.score)
  with RunWriter(path, config) as writer:
    writer.metric = score
    writer.save(1, state(compiled, spec), {score.key: 1.0, "validation/loss": 1.0})
  return path
