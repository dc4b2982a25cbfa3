"""What a program is compiled for, which is not always what this machine has."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any, NamedTuple

import jax
from jax.sharding import Mesh, PartitionSpec


class Target(NamedTuple):
  """The kind of device, and the devices that share the rows of a batch, where that is known."""

  platform: str  # cpu, gpu or tpu
  mesh: Mesh | None = None

  def by_rows(self, f: Callable[..., Any]) -> Callable[..., Any]:
    """f of arrays that all have a row for every sequence, each device at its own rows.

    XLA cannot divide a kernel that it did not make: it would gather the kernel's arguments, and
    every device would attend to the whole batch.
    """
    if self.mesh is None or self.mesh.size == 1:
      return f
    rows = PartitionSpec(self.mesh.axis_names)
    divided = jax.shard_map(f, mesh=self.mesh, in_specs=rows, out_specs=rows, check_vma=False)
    return lambda *args: (f if len(jax.tree.leaves(args)[0]) % self.mesh.size else divided)(*args)


_chosen: ContextVar[Target | None] = ContextVar("target", default=None)


def target() -> Target:
  """The target of the program that is traced: JAX's own choice, unless `compiling` says another."""
  return _chosen.get() or Target(jax.default_backend())


@contextlib.contextmanager
def compiling(mesh: Mesh) -> Iterator[None]:
  """What is built and traced within is for the devices of a mesh."""
  before = _chosen.set(Target(mesh.devices.flat[0].platform, mesh))
  try:
    yield
  finally:
    _chosen.reset(before)
