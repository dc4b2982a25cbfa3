"""Measures how far the heads of a trained model are from those of others, which may attend alike.

    python scripts/head_distances.py RUN RUN_2 RUN_3       a table, and a heat map in RUN/figures
    python scripts/head_distances.py RUN RUN_2 --out DIR   the heat map elsewhere

Kazemnejad et al. 2023, section 5: a decoder without positions learns heads that attend like those
of models with positions. Each head is compared with the nearest head of the same layer of the other
runs, which read the same data. Two heads are as far apart as their attention on the same queries.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import Array
from matplotlib.figure import Figure

from posexp import storage
from posexp.analysis import plotting
from posexp.analysis.attention_weights import seen_by
from posexp.errors import UserError, near
from posexp.reporting.text import tabulated
from posexp.training.devices import prepare
from posexp.training.restore import TrainedModel, open_trained

MOST_BATCHES = 4  # batches to look at


def compare(run: Path, against: Sequence[Path], out: Path | None = None) -> list[Path]:
  """Print each head's distance to the nearest head of the same layer of other runs, and draw them.

  Returns:
    The files of the heat map, by default in the run's `figures`.

  Raises:
    UserError: a run cannot be opened, or the runs do not read the same data.
  """
  prepare()
  one, others = open_trained(run), [open_trained(path) for path in against]
  for path, each in zip((run, *against), (one, *others), strict=True):
    if not each.snapshot.model().stacks:
      raise UserError(f"{path}: model={each.spec.size.backbone} has no attention to be compared")
    if each.run.config["task"] != one.run.config["task"]:
      raise UserError(f"{path} is a run of other data than {run}; compare runs of one")
    if each.spec.size.memory != one.spec.size.memory:
      raise UserError(f"{path} has another model.memory than {run}, and other keys")
  names = [other.run.config["encoding"] for other in others]
  if len(set(names)) < len(names):
    names = [str(path) for path in against]
  nearest = [distances(one, other).min(-1) for other in others]  # [layers,H] each
  layers = min(map(len, nearest))
  table = np.stack([each[:layers] for each in nearest], axis=-1)
  places = [f"layer {layer}, head {head}" for layer, head in np.ndindex(table.shape[:2])]
  table = table.reshape(len(places), -1)
  name = one.run.config["encoding"]
  rows = zip([*places, "mean"], [*table, table.mean(0)], strict=True)
  cells = [[place, *(f"{value:.3f}" for value in values)] for place, values in rows]
  print(f"{name}: Jensen-Shannon distance of each head to the nearest of its layer in others")
  print(tabulated((["", *names], cells), "plain"))
  out = out or storage.unlinked(run / "figures")
  files = plotting.save(heat_map(name, places, names, table), out, "attention-likeness")
  print("", *map(near, files), sep="\n")
  return files


def heat_map(name: str, rows: list[str], columns: list[str], found: np.ndarray) -> Figure:
  """Draw distances [rows,columns] of a model's heads to those of others, with their numbers."""
  title = f"{name}: how far its heads are from the nearest of their layer in others"
  size = {"width": 2.4 + 0.9 * len(columns), "height": 0.8 + 0.3 * len(rows)}
  figure, ((axes,),) = plotting.panels(1, 1, **size, title=title)
  plotting.heat(axes, found, label="Jensen-Shannon distance", cmap="viridis_r", limits=(0, 1))
  axes.set_xticks(range(len(columns)), columns, rotation=30, ha="right")
  axes.set_yticks(range(len(rows)), rows)
  plotting.numbers(axes, found, ".2f", found > 0.5)
  return figure


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


if __name__ == "__main__":
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawTextHelpFormatter
  )
  parser.add_argument("run", metavar="RUN", type=Path)
  parser.add_argument("against", metavar="RUN_2", type=Path, nargs="+")
  parser.add_argument("--out", metavar="DIR", type=Path, help="for the heat map")
  try:
    compare(**vars(parser.parse_args()))
  except UserError as error:
    sys.exit(f"head_distances: {error}")
