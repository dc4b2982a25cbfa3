"""Distances between the heads of trained models, which show heads that attend alike.

Kazemnejad et al. 2023, section 5: a decoder without positions learns heads that attend like those
of models with positions. Two heads are as far apart as their attention on the same queries.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import Array

from posexp import plotting
from posexp.analysis import encoding_figures
from posexp.analysis.attention_weights import seen_by
from posexp.errors import UserError
from posexp.reporting.text import tabulated
from posexp.training.devices import prepare
from posexp.training.restore import TrainedModel, open_trained

MOST_BATCHES = 4  # batches to look at


def compare(run: Path, against: Sequence[Path], out: Path) -> tuple[list[str], list[Path]]:
  """Compare each head of a run with the nearest head of the same layer of other runs.

  Returns:
    The lines of a table, and the files of a heat map.

  Raises:
    UserError: a run cannot be opened, or the runs do not read the same data.
  """
  prepare()
  one, others = open_trained(run), [open_trained(path) for path in against]
  for path, each in zip((run, *against), (one, *others), strict=True):
    if not each.snapshot.model().stacks:
      raise UserError(f"{path}: model={each.spec.size.backbone} has no attention to be compared")
  for path, other in zip(against, others, strict=True):
    if other.run.config["task"] != one.run.config["task"]:
      raise UserError(f"against={path} is a run of other data than run={run}; compare runs of one")
    if other.spec.size.memory != one.spec.size.memory:
      raise UserError(f"against={path} has another model.memory than run={run}, and other keys")
  names = [each.run.config["encoding"] for each in others]
  if len(set(names)) < len(names):
    names = [str(path) for path in against]
  named = {name: distances(one, each) for name, each in zip(names, others, strict=True)}
  layers = min(len(each) for each in named.values())
  nearest = np.concatenate(
    [np.stack([each[layer].min(-1) for each in named.values()], 1) for layer in range(layers)]
  )
  heads = len(nearest) // layers
  rows = [f"layer {layer}, head {head}" for layer in range(layers) for head in range(heads)]
  name = one.run.config["encoding"]
  cells = [[f"{value:.3f}" for value in values] for values in (*nearest, nearest.mean(0))]
  body = [[row, *values] for row, values in zip([*rows, "mean"], cells, strict=True)]
  lines = [
    f"{name}: Jensen-Shannon distance of each head to the nearest of its layer in others",
    tabulated((["", *named], body), "plain"),
  ]
  drawn = encoding_figures.likeness(name, rows, [*named], nearest)
  return lines, plotting.save(drawn, out, "attention-likeness")


def distances(one: TrainedModel, other: TrainedModel) -> np.ndarray:
  """Return the distance of every pair of heads of a layer on validation texts, [layers,H,H'].

  It is the root of the Jensen-Shannon divergence in bits, from 0 to 1, averaged over the queries
  that count.
  """
  total, queries = 0.0, 0
  looks = [watching(each) for each in (one, other)]
  carries = [each.snapshot.model().initial_carry(one.snapshot.batch_size) for each in (one, other)]
  batches = one.data.texts("validation", one.snapshot.batch_size)
  for batch in itertools.islice(batches, MOST_BATCHES):
    seen, carries = zip(
      *(look(batch, carry) for look, carry in zip(looks, carries, strict=True)), strict=True
    )
    real = batch["mask"] & (batch["weight"] > 0)[:, None]
    found = [summed(first, second, real) for first, second in zip(*seen, strict=False)]
    total, queries = total + np.stack(found).astype(np.float64), queries + real.sum()
  return total / queries


@jax.jit
def summed(first: Array, second: Array, real: Array) -> Array:
  """Sum distances [H,H'] of attention [B,H,Q,K] and [B,H',Q,K] over queries bool [B,Q]."""
  p, q = first[:, :, None], second[:, None]
  middle = (p + q) / 2
  divergence = (jax.scipy.special.rel_entr(p, middle) + jax.scipy.special.rel_entr(q, middle)) / 2
  bits = jnp.maximum(divergence.sum(-1), 0) / jnp.log(2)
  return (jnp.sqrt(bits) * real[:, None, None]).sum((0, 3))


def watching(trained: TrainedModel) -> Callable[[Any, Any], tuple[list[Array], Any]]:
  """Compile (batch, carry) -> weights [B,H,Q,K] of each layer of the first stack, next carry."""

  @nnx.jit
  def look(model: Any, batch: dict[str, Array], carry: Any) -> tuple[list[Array], Any]:
    seen, carry = seen_by(model, batch, carry, trained.spec.positions)
    return [each.weights for each in seen], carry

  return functools.partial(look, trained.snapshot.model())
