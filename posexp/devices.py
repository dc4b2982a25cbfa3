"""The devices of a run: which there are, and which part of its arrays each of them holds."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any

import jax
import numpy as np
from jax import Array
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from posexp.errors import UserError

Batch = dict[str, np.ndarray]
SMALL = 2**8  # numbers; arrays of fewer are whole on every device


def mesh_for(rows: np.ndarray, parts: int = 1) -> Mesh:
  """As many local devices as divide a part of every size of batches, in one row.

  Raises:
    UserError: a batch does not divide into so many parts.
  """
  whole = math.gcd(*np.asarray(rows).ravel().tolist())
  if whole % parts:
    way_out = f"choose a divisor of {whole}" if whole > 1 else "choose another train.batch_size"
    sizes = ", ".join(map(str, np.unique(rows)))
    raise UserError(
      f"train.accumulate={parts}: batches have {sizes} rows, which do not divide into {parts} "
      f"equal parts; {way_out}"
    )
  devices = jax.local_devices()
  count = next(n for n in range(len(devices), 0, -1) if whole // parts % n == 0)
  return Mesh(np.array(devices[:count]), ("data",))


def everywhere(mesh: Mesh) -> NamedSharding:
  """Whole on every device."""
  return NamedSharding(mesh, PartitionSpec())


def placed(tree: Any, mesh: Mesh, divided: bool) -> Any:
  """Where the arrays of a tree are kept: whole on every device, or each `divided` among them.

  Its largest dimension is, of those that divide; arrays are whole where none does, and small ones.
  """

  def place(leaf: Any) -> NamedSharding:
    fit = [size for size in leaf.shape if size % mesh.size == 0]
    if not divided or leaf.size < SMALL or not fit:
      return everywhere(mesh)
    return NamedSharding(mesh, PartitionSpec(*[None] * leaf.shape.index(max(fit)), "data"))

  return jax.tree.map(place, tree)


def whole(tree: Any, mesh: Mesh) -> Any:
  """The same arrays, each whole on every device."""
  return jax.device_put(tree, everywhere(mesh))


def shard(batches: Iterable[Batch], mesh: Mesh) -> Iterator[tuple[dict[str, Array], int]]:
  """Batches divided among the devices and its number of real tokens, one batch ahead of its use."""
  sharding = NamedSharding(mesh, PartitionSpec("data"))
  ahead = None
  for batch in batches:
    tokens = int(batch["mask"].sum())
    ahead, ready = (jax.device_put(batch, sharding), tokens), ahead
    if ready is not None:
      yield ready
  if ahead is not None:
    yield ahead
