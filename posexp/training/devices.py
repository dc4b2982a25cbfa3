"""The devices of a run, and the part of its arrays that each device holds."""

from __future__ import annotations

import contextlib
import gc
import math
import mmap
import os
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax import Array
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from posexp import machine, reading, storage
from posexp.data.batches import Batch
from posexp.errors import UserError, counted
from posexp.machine import HOST_DEVICES

CONTROL_GROUPS = (
  "/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes",
)  # fmt: skip
WIDEST, LENGTHS = 256, range(256, 513)  # of models and texts for which a CPU works as two devices
SMALL = 2**8  # arrays of fewer numbers are whole on every device


SETTINGS = {  # of JAX, on which a run's numbers depend; an environment variable may have others
  "jax_default_prng_impl": "threefry2x32",
  "jax_enable_x64": False,
  "jax_numpy_dtype_promotion": "standard",
}


def prepare(find: bool = True) -> None:
  """Set up this process; call it before JAX first uses a device.

  With `find` JAX then looks for its devices, as in `find_devices`.

  Compiled programs are cached on disk, so that the next process starts in seconds. Freed memory is
  kept, as in `posexp.machine`.

  Raises:
    UserError: NPROC is no number of cores, or as in `find_devices`.
  """
  cache = os.environ.get("JAX_COMPILATION_CACHE_DIR") or str(storage.cache_folder() / "jax")
  if not reading.SURROGATES.search(cache):  # XLA takes no path that is not UTF-8
    jax.config.update("jax_compilation_cache_dir", cache)
  jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
  jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
  for name, value in SETTINGS.items():
    jax.config.update(name, value)
  # A cached program that a full disk cut off is compiled again.
  warnings.filterwarnings("ignore", "Error (reading|writing) persistent compilation cache")
  if not (count := os.environ.get("NPROC", f"{machine.cores()}")).isdecimal() or not int(count):
    raise UserError(f"NPROC={count}: set it to a number of cores, 1 or more, or unset it")
  machine.a_device_for_each_core()
  if not gc.get_freeze_count():
    gc.freeze()
  gc.enable()
  machine.in_huge_pages()
  if find:
    find_devices()


def find_devices() -> None:
  """Have JAX look for its devices.

  Raises:
    UserError: there are none of the kinds that JAX_PLATFORMS asks for.
  """
  try:
    jax.devices()
  except (RuntimeError, AssertionError) as error:  # the latter without JAX's plugin for them
    asked = os.environ.get("JAX_PLATFORMS")
    raise UserError(
      f"JAX_PLATFORMS={asked}: JAX finds no such device here; unset it, or set it to cpu"
      if asked
      else f"JAX finds no device: {error}; JAX_PLATFORMS=cpu takes the processor"
    ) from error


def most_devices(asked: int | str = 1, width: int = 0, tokens: int = 0) -> int:
  """Return how many devices of a process may be used: all of them, or on a CPU as many of them as
  `asked`, which "auto" derives from the width of the model and the tokens of a text.

  XLA gives each product of attention one core, so that models of which these are a large part train
  faster if each of two cores has a share of the batch; more were not measured. For others the two
  ways are as fast, or were not compared: see docs/benchmarks/devices. A user's own number in
  XLA_FLAGS is kept.
  """
  there = len(jax.local_devices())
  if not _are_chosen():
    return there
  if asked == "auto":
    asked = 2 if width <= WIDEST and tokens in LENGTHS else 1
  return min(there, int(asked))


def _are_chosen() -> bool:
  """Return whether a run chooses its number of devices: on a CPU, unless XLA_FLAGS has one."""
  return jax.default_backend() == "cpu" and HOST_DEVICES not in os.environ.get("XLA_FLAGS", "")


def check_cores(asked: int | str) -> None:
  """Raise UserError if a run is to be trained on more devices of a CPU than there are cores."""
  there = len(jax.local_devices())
  if asked != "auto" and _are_chosen() and int(asked) > there:
    raise UserError(
      f"train.cpu_devices={asked}: each device takes a core, and this process has "
      f"{counted(there, 'core')}; lower it"
    )


def check_memory(need: int, what: str, way_out: str) -> None:
  """Raise UserError if a device, or a CPU's machine or cgroup, lacks the memory for `what`."""
  counted = jax.local_devices()[0].memory_stats() or {}
  limits = [counted.get("bytes_limit", os.sysconf("SC_PHYS_PAGES") * mmap.PAGESIZE)]
  for file in CONTROL_GROUPS if "bytes_limit" not in counted else ():
    with contextlib.suppress(OSError, ValueError):  # no such file, or "max"
      limits.append(int(Path(file).read_text()))
  if need > (limit := min(limits)):
    raise UserError(
      f"{what} would take {need / 2**30:,.1f} GiB, and a device here has {limit / 2**30:,.1f} GiB; "
      f"{way_out}"
    )


def mesh_for(rows: np.ndarray, parts: int = 1, most: int | None = None) -> Mesh:
  """Return a row of devices for batches of the sizes `rows`, each accumulated in `parts` parts.

  From every process it takes the most devices among which the parts of all batches divide evenly,
  but at most `most`; if that is None, at most as many as `most_devices` returns.

  Raises:
    UserError: a batch does not divide into these parts, or among the processes.
  """
  whole = math.gcd(*np.asarray(rows).ravel().tolist())
  sizes = ", ".join(map(str, np.unique(rows)))
  if whole % parts:
    way_out = f"choose a divisor of {whole}" if whole > 1 else "choose another train.batch_size"
    raise UserError(
      f"train.accumulate={parts}: batches have {sizes} rows, which do not divide into {parts} "
      f"equal parts; {way_out}"
    )
  processes = jax.process_count()
  there = most_devices() if most is None else most
  fit = [n for n in range(1, there + 1) if whole // parts % (n * processes) == 0]
  if not fit:
    each = f", in {parts} parts," if parts > 1 else ""
    raise UserError(
      f"batches of {sizes} rows{each} do not divide among {processes} processes; choose another "
      "train.batch_size, or start fewer"
    )
  used = [jax.local_devices(process_index=process)[: fit[-1]] for process in range(processes)]
  return Mesh(np.concatenate(used), ("data",))


def replicated(mesh: Mesh) -> NamedSharding:
  """Return the sharding of arrays that are whole on every device."""
  return NamedSharding(mesh, PartitionSpec())


def by_rows(mesh: Mesh) -> NamedSharding:
  """Return the sharding of arrays that are divided by their first dimension."""
  return NamedSharding(mesh, PartitionSpec("data"))


def shardings(tree: Any, mesh: Mesh, divide: bool) -> Any:
  """Return the sharding of each array of a tree: whole on every device, or divided if `divide`.

  An array is divided along its largest dimension that is a multiple of the number of devices. Small
  arrays, and arrays without such a dimension, are whole on every device.
  """

  def sharding(leaf: Any) -> NamedSharding:
    fit = [size for size in leaf.shape if size % mesh.size == 0]
    if not divide or leaf.size < SMALL or not fit:
      return replicated(mesh)
    return NamedSharding(mesh, PartitionSpec(*[None] * leaf.shape.index(max(fit)), "data"))

  return jax.tree.map(sharding, tree)


def shard(batches: Iterable[Batch], mesh: Mesh) -> Iterator[tuple[dict[str, Array], int]]:
  """Yield each batch divided among the devices, and its real tokens, one batch ahead of use.

  Every process receives whole batches and feeds its own devices.
  """
  sharding, ahead = by_rows(mesh), None
  for batch in batches:
    if sharding.is_fully_addressable:
      divided = jax.device_put(batch, sharding)
    else:
      divided = {
        name: jax.make_array_from_callback(rows.shape, sharding, rows.__getitem__)
        for name, rows in batch.items()
      }
    if ahead is not None:
      yield ahead
    ahead = divided, int(batch["mask"].sum())
  if ahead is not None:
    yield ahead
