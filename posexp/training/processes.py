"""The processes that train a run together: which one this is, and how they act as one.

The environment tells their number: the tasks of a Slurm step (`srun -n 4 ...`), or else
JAX_COORDINATOR_ADDRESS (host:port of the main process), JAX_NUM_PROCESSES and JAX_PROCESS_ID. All
get the same command and see the same folder of runs, in which only the main process writes.
"""

from __future__ import annotations

import collections
import contextlib
import logging
import os
import sys
import zlib
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from posexp.errors import UserError

log = logging.getLogger("posexp")

EXPLICIT = ("JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID")
LATE = 3  # steps before a stop flag is read, so that no process waits for another


class ProcessInfo(NamedTuple):
  """One of the processes that train a run."""

  rank: int = 0  # 0 is the main process
  count: int = 1
  address: str | None = None  # of the main process; None: JAX gets it from Slurm


_joined = ProcessInfo()  # this process, once it is connected to the others


def process_info() -> ProcessInfo:
  """Read from the environment which process this is.

  Raises:
    UserError: the environment is incomplete or contradicts itself.
  """
  address, *numbers = (os.environ.get(name) for name in EXPLICIT)
  if any(numbers):
    if address is None or not all(each and each.isdigit() for each in numbers):
      raise UserError(f"{', '.join(EXPLICIT[:2])} and {EXPLICIT[2]} must all be set, or none")
    count, rank = map(int, numbers)
    if rank >= count:
      raise UserError(f"JAX_PROCESS_ID={rank}: must be below JAX_NUM_PROCESSES={count}")
    return ProcessInfo(rank, count, address)
  # Only srun sets the number of tasks: a shell in an allocation is not a task.
  tasks = os.environ.get("SLURM_STEP_NUM_TASKS")
  return ProcessInfo(int(os.environ["SLURM_PROCID"]), int(tasks)) if tasks else ProcessInfo()


def join(identity: Any) -> None:
  """Connect to the other processes, if there are any; call it before JAX is used.

  Raises:
    UserError: the other processes do not come, or train a run of another `identity`.
  """
  info = process_info()
  if info.count == 1:
    return
  if not _several():
    _connect(info)
  asked = zlib.crc32(repr(identity).encode())
  if len(set(_gathered(asked).tolist())) > 1:
    raise UserError(
      f"{info.count} processes were started together for different runs; distributed=off lets "
      "each train its own"
    )


def _connect(info: ProcessInfo) -> None:
  import jax

  global _joined
  if info.rank:
    log.addFilter(lambda record: record.levelno >= logging.ERROR)  # the main process logs the rest
  jax.config.update("jax_enable_preemption_service", False)  # it would take SIGTERM for itself
  method = "deactivate" if info.address else "slurm"
  try:
    jax.distributed.initialize(info.address, info.count, info.rank, cluster_detection_method=method)
  except RuntimeError as error:
    raise UserError(
      f"process {info.rank} of {info.count} does not find the others "
      f"({str(error).partition(chr(10))[0]})"
    ) from error
  sys.excepthook = _leave
  _joined = info


def _leave(*error: Any) -> None:
  """Print an exception and exit at once; else this process and the others would wait forever."""
  sys.__excepthook__(*error)
  sys.stdout.flush()
  sys.stderr.flush()
  os._exit(1)


def _several() -> bool:
  return _joined.count > 1


def is_main_process() -> bool:
  """Return True in the one process that writes files and prints."""
  return _joined.rank == 0


@contextlib.contextmanager
def main_process_first() -> Iterator[None]:
  """Run the block in the main process first, then in the others.

  Raises:
    UserError: in the others, if the main process fails in the block.
  """
  if not _several():
    yield
  elif is_main_process():
    done = False
    try:
      yield
      done = True
    finally:
      _gathered(done)
  else:
    if not _gathered(False)[0]:
      raise UserError("the main process has failed, and says why")
    yield


def fetch(arrays: Any) -> Any:
  """Copy a tree of arrays to the host, with the parts that other processes hold."""
  import jax
  from jax.experimental import multihost_utils

  def get(array: Any) -> Any:
    if isinstance(array, jax.Array) and not array.is_fully_addressable:
      return multihost_utils.process_allgather(array, tiled=True)
    return jax.device_get(array)

  return jax.tree.map(get, arrays) if _several() else jax.device_get(arrays)


class StopFlag:
  """A flag that any process was asked to stop, read by all processes at the same step."""

  def __init__(self):
    self._pending: collections.deque[Any] = collections.deque()

  def step(self, mine: bool) -> bool:
    """Return whether any process was asked `LATE` steps ago; a single process learns it at once.

    Call it in every step; `mine` says whether this process was asked.
    """
    if not _several():
      return mine
    self._pending.append(_any_process(mine))
    return len(self._pending) > LATE and bool(self._pending.popleft())

  def read(self, mine: bool) -> bool:
    """Return whether any process has been asked by now."""
    return bool(_any_process(mine)) if _several() else mine


def _any_process(mine: bool) -> Any:
  """Return whether `mine` is True in any process, as an array, without waiting for it."""
  import jax
  import jax.numpy as jnp
  from jax.sharding import Mesh, NamedSharding, PartitionSpec

  sharding = NamedSharding(Mesh(np.array(jax.devices()), ("devices",)), PartitionSpec("devices"))
  flags = np.full(jax.local_device_count(), mine)
  return jnp.any(jax.make_array_from_process_local_data(sharding, flags))


def _gathered(number: int) -> Any:
  """Gather a number from each process."""
  from jax.experimental import multihost_utils

  return multihost_utils.process_allgather(np.uint32(number)).ravel()
