"""The device that a program is compiled for, which this machine need not have."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any, NamedTuple

import jax
from jax.sharding import Mesh, PartitionSpec


class Target(NamedTuple):
  """The kind of device, and the devices that share the rows of a batch if they are known."""

  platform: str  # cpu, gpu or tpu
  mesh: Mesh | None = None

  def by_rows(self, f: Callable[..., Any]) -> Callable[..., Any]:
    """Make each device apply f to its own rows of arrays with one row per sequence.

    XLA gathers the arguments of what it cannot divide, and every device computes the whole batch.
    """
    if self.mesh is None or self.mesh.size == 1:
      return f
    rows = PartitionSpec(self.mesh.axis_names)
    divided = jax.shard_map(f, mesh=self.mesh, in_specs=rows, out_specs=rows, check_vma=False)
    return lambda *args: (f if len(jax.tree.leaves(args)[0]) % self.mesh.size else divided)(*args)


_chosen: ContextVar[Target | None] = ContextVar("target", default=None)


def target() -> Target:
  """Return the target of the program being traced: set by `compiling`, else JAX's default."""
  return _chosen.get() or Target(jax.default_backend())


@contextlib.contextmanager
def compiling(mesh: Mesh) -> Iterator[None]:
  """Set the target of all programs built and traced within to the devices of a mesh."""
  before = _chosen.set(Target(mesh.devices.flat[0].platform, mesh))
  try:
    yield
  finally:
    _chosen.reset(before)
