"""The processes that train a run together: which one this is, and how they act as one.

There are several where the environment says so: the tasks of a Slurm step (`srun -n 4 ...`), or
JAX_COORDINATOR_ADDRESS (host:port of the first), JAX_NUM_PROCESSES and JAX_PROCESS_ID. All are
given the same command, and see the same folder of runs, in which the first alone writes.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import logging
import os
import sys
import zlib
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from posexp.errors import UserError

log = logging.getLogger("posexp")

EXPLICIT = ("JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID")
LATE = 3  # steps after which a vote is counted, so that no process waits for another


class Place(NamedTuple):
  """One process among others."""

  rank: int = 0
  count: int = 1
  address: str | None = None  # of the first; None: JAX finds it as Slurm says


_joined: list[Place] = []


def place() -> Place:
  """What the environment says of this process.

  Raises:
    UserError: it says half of it.
  """
  given = [os.environ.get(name) for name in EXPLICIT]
  if any(given[1:]):
    address, *numbers = given
    if address is None or not all(number and number.isdigit() for number in numbers):
      raise UserError(f"{', '.join(EXPLICIT[:2])} and {EXPLICIT[2]} must all be set, or none")
    count, rank = map(int, numbers)
    if rank >= count:
      raise UserError(f"JAX_PROCESS_ID={rank}: must be below JAX_NUM_PROCESSES={count}")
    return Place(rank, count, address)
  # Only srun sets the first: a shell in an allocation is no task of it.
  tasks = os.environ.get("SLURM_STEP_NUM_TASKS")
  return Place(int(os.environ["SLURM_PROCID"]), int(tasks)) if tasks else Place()


def join(task: Any) -> None:
  """Meets the other processes, if there are any, to do the same `task`; before JAX is used.

  Raises:
    UserError: they are to do something else, or do not come.
  """
  here = place()
  if here.count == 1:
    return
  if not _joined:
    _meet(here)
  asked = zlib.crc32(repr(task).encode())
  if len(set(_gathered(asked).tolist())) > 1:
    raise UserError(
      f"{here.count} processes were started together for different runs; distributed=off lets "
      "each train its own"
    )


def _meet(here: Place) -> None:
  import jax

  if here.rank:
    log.addFilter(lambda record: record.levelno >= logging.ERROR)  # the first says the rest
  jax.config.update("jax_enable_preemption_service", False)  # it would take SIGTERM for itself
  method = "deactivate" if here.address else "slurm"
  try:
    jax.distributed.initialize(here.address, here.count, here.rank, cluster_detection_method=method)
  except RuntimeError as error:
    raise UserError(
      f"process {here.rank} of {here.count} does not find the others "
      f"({str(error).partition(chr(10))[0]})"
    ) from error
  sys.excepthook = _leave
  _joined.append(here)


def _leave(*error: Any) -> None:
  """Says what failed, and ends at once: JAX would wait for the others, and they for this one."""
  sys.__excepthook__(*error)
  sys.stdout.flush()
  sys.stderr.flush()
  os._exit(1)


def first() -> bool:
  """Whether this process writes and speaks for all."""
  return not _joined or _joined[0].rank == 0


@contextlib.contextmanager
def in_turn() -> Iterator[None]:
  """The first process goes through the block alone, then the others do.

  Raises:
    UserError: in the others, if the first does not come through.
  """
  if not _joined:
    yield
  elif first():
    done = False
    try:
      yield
      done = True
    finally:
      _gathered(done)
  else:
    if not _gathered(False)[0]:
      raise UserError("the first process has failed, and says why")
    yield


def fetch(arrays: Any) -> Any:
  """A tree of arrays on the host, with what of them is in other processes."""
  import jax
  from jax.experimental import multihost_utils

  def get(array: Any) -> Any:
    if isinstance(array, jax.Array) and not array.is_fully_addressable:
      return multihost_utils.process_allgather(array, tiled=True)
    return jax.device_get(array)

  return jax.tree.map(get, arrays) if _joined else jax.device_get(arrays)


class Ballot:
  """A question asked in every step: has any process said yes? All get one answer at one step."""

  def __init__(self):
    self.open: collections.deque[Any] = collections.deque()

  def step(self, mine: bool) -> bool:
    """The answer to what was asked `LATE` steps ago; of one process alone, its own at once."""
    if not _joined:
      return mine
    self.open.append(_votes()(mine))
    return len(self.open) > LATE and bool(self.open.popleft())

  def close(self, mine: bool) -> bool:
    """The answer now."""
    return bool(_votes()(mine)) if _joined else mine


@functools.cache
def _votes() -> Callable[[bool], Any]:
  """Whether any process says yes, as an array that is not waited for."""
  import jax
  import numpy as np
  from jax.sharding import Mesh, NamedSharding, PartitionSpec

  mesh = Mesh(np.array(jax.devices()), ("devices",))
  sharding = NamedSharding(mesh, PartitionSpec("devices"))
  count = jax.jit(lambda votes: votes.any(), out_shardings=NamedSharding(mesh, PartitionSpec()))

  def vote(mine: bool) -> Any:
    shape = (mesh.size,)
    return count(jax.make_array_from_callback(shape, sharding, lambda _: np.array([mine])))

  return vote


def _gathered(number: int) -> Any:
  """A number of each process."""
  import numpy as np
  from jax.experimental import multihost_utils

  return multihost_utils.process_allgather(np.uint32(number)).ravel()
