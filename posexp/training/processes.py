"""The processes that train a run together: which one this is, and how they act as one.

The environment tells their number: the tasks of a Slurm step (`srun -n 4 ...`), or else
JAX_COORDINATOR_ADDRESS (host:port of the main process), JAX_NUM_PROCESSES and JAX_PROCESS_ID. The
last two may come from Slurm, or from WORLD_SIZE and RANK, which Ray sets. All processes get the
same command and see the same folder of runs, in which only the main process writes.

SIGTERM, Ctrl-C and USR2 take effect at the end of a step, in all processes. The jobs of a cluster
are asked to end by SIGTERM and killed some time later, which may make the cluster queue them again.
So they save then, and train on; their handler of SIGTERM is `save_only`.
"""

from __future__ import annotations

import atexit
import collections
import contextlib
import dataclasses
import logging
import math
import os
import re
import signal
import sys
import threading
import zlib
from collections.abc import Iterator, Sequence
from concurrent import futures
from typing import Any, Self

from posexp.errors import UserError

log = logging.getLogger("posexp")

EXPLICIT = ("JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID")
SHOWN = 4  # ranks in a message
SOON = 0.5  # seconds in which processes connect that are all there
HEARTBEAT = 20  # seconds without a sign of life, after which JAX ends all processes
COLLECTIVES = re.compile("Gloo|NCCL")  # the libraries that speak in an error of theirs
LATE = 3  # steps before a request to stop is read, so that no process waits for another
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR2)  # clusters send USR2 before time is up
SAVE, STOP = 1, 2  # what a signal asks for


@dataclasses.dataclass(frozen=True)
class ProcessInfo:
  """One of the processes that train a run."""

  rank: int = 0  # 0 is the main process
  count: int = 1
  address: str | None = None  # host:port of the main process, if there are several

  @property
  def others(self) -> str:
    """The ranks of the others, as in "process 1" or "processes 0, 2, 3"."""
    ranks = [str(rank) for rank in range(self.count) if rank != self.rank]
    shown = ", ".join(ranks[:SHOWN]) + ", ..." * (len(ranks) > SHOWN)
    return f"process{'es' * (len(ranks) > 1)} {shown}"


_joined = ProcessInfo()  # this process, once it is connected to the others


def process_info() -> ProcessInfo:
  """Read from the environment which process this is.

  Raises:
    UserError: the environment is incomplete or contradicts itself.
  """
  address, *numbers = (os.environ.get(name) for name in EXPLICIT)
  # Only srun sets the number of tasks: a shell in an allocation is not a task.
  step = "SLURM_STEP_NUM_TASKS" in os.environ
  if any(numbers) or (address and not step and "WORLD_SIZE" not in os.environ):
    if address is None or not all(number and number.isdigit() for number in numbers):
      raise UserError(f"{', '.join(EXPLICIT[:2])} and {EXPLICIT[2]} must all be set, or none")
  elif step:
    numbers = [os.environ["SLURM_STEP_NUM_TASKS"], os.environ["SLURM_PROCID"]]
    address = address or _first_node()
  elif address:
    numbers = [os.environ["WORLD_SIZE"], os.environ.get("RANK", "0")]
  else:
    return ProcessInfo()
  count, rank = map(int, numbers)
  if rank >= count:
    raise UserError(f"{EXPLICIT[2]}={rank}: must be below {EXPLICIT[1]}={count}")
  return ProcessInfo(rank, count, address) if count > 1 else ProcessInfo()


def _first_node() -> str:
  """Return host:port of the first task of a Slurm step, by a list of nodes such as gpu[03-05],a1.

  The port is JAX's own choice for the job plus the number of the step, so that steps differ.
  """
  prefix, number = re.match(r"([^\[,]+)(?:\[(\d+))?", os.environ["SLURM_STEP_NODELIST"]).groups("")
  job, step = (int(os.environ.get(f"SLURM_{name}_ID", 0)) for name in ("JOB", "STEP"))
  return f"{prefix}{number}:{(job + step) % 2**12 + 65536 - 2**12}"


def join(identity: Any, timeout: float) -> None:
  """Connect to the other processes, if there are any; call it before JAX is used.

  `timeout` is in seconds.

  Raises:
    UserError: the other processes do not come, or train a run of another `identity`.
  """
  info = process_info()
  if info.count == 1:
    return
  if _joined.count == 1:
    _connect(info, timeout)
  if len({*_gathered([zlib.crc32(repr(identity).encode())]).tolist()}) > 1:
    raise UserError(
      f"{info.count} processes were started together for different runs; distributed=off lets "
      "each train its own"
    )


def _connect(info: ProcessInfo, timeout: float) -> None:
  """Connect to the others in a thread, so that a signal ends this process while it waits."""
  import jax

  global _joined
  jax.config.update("jax_enable_preemption_service", False)  # it would take SIGTERM for itself
  host, _, port = info.address.rpartition(":")
  here = "127.0.0.1" if host in ("127.0.0.1", "localhost") else "[::]"
  connected: futures.Future[None] = futures.Future()

  def initialize() -> None:
    try:
      jax.distributed.initialize(
        info.address,
        info.count,
        info.rank,
        cluster_detection_method="deactivate",
        initialization_timeout=math.ceil(timeout) + 60,  # at which JAX would abort with a trace
        heartbeat_timeout_seconds=HEARTBEAT,
        coordinator_bind_address=f"{here}:{port}",
      )
      connected.set_result(None)
    except Exception as error:
      connected.set_exception(error)

  threading.Thread(target=initialize, daemon=True).start()
  who = f"process {info.rank} of {info.count}"
  if not futures.wait([connected], SOON).done:
    log.info("%s waits for %s at %s", who, info.others, info.address)
    if not futures.wait([connected], timeout).done:
      raise UserError(
        f"{who} waited {timeout:g} s (distributed_timeout) for {info.others} at {info.address}: "
        "start them all within that time, with the same command"
      )
  if error := connected.exception():
    raise UserError(
      f"{who} cannot meet {info.others} at {info.address}: {str(error).partition(chr(10))[0]}"
    ) from error
  if info.rank:
    log.addFilter(lambda record: record.levelno >= logging.ERROR)  # the main process logs the rest
  _joined = info
  atexit.register(part)


def part() -> None:
  """Wait until all processes have come to their end, so that none counts as lost when it ends."""
  import jax

  if _joined.count > 1:
    jax.distributed.shutdown()


@contextlib.contextmanager
def explained() -> Iterator[None]:
  """Raise a UserError if the block fails because another process has ended.

  Where no operation fails by it, JAX ends this process itself after `HEARTBEAT` seconds.
  """
  try:
    yield
  except Exception as error:  # of a class that depends on the operation
    if not COLLECTIVES.search(str(error)):
      raise
    raise UserError(
      f"process {_joined.rank} of {_joined.count}: another one has ended; the same command goes on "
      "from what is saved"
    ) from error


def is_main_process() -> bool:
  """Return True in the one process that writes files and prints."""
  return _joined.rank == 0


@contextlib.contextmanager
def main_process_first() -> Iterator[None]:
  """Run the block in the main process first, then in the others.

  Raises:
    UserError: in the others, if the main process fails in the block.
  """
  if _joined.count == 1:
    yield
  elif is_main_process():
    done = False
    try:
      yield
      done = True
    finally:
      _gathered([done])
  else:
    if not _gathered([False])[0]:
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

  return jax.tree.map(get, arrays) if _joined.count > 1 else jax.device_get(arrays)


def _greatest(mine: int) -> Any:
  """Return the greatest `mine` of all processes, as an array, without waiting for it."""
  import jax
  import jax.numpy as jnp
  import numpy as np
  from jax.sharding import Mesh, NamedSharding, PartitionSpec

  sharding = NamedSharding(Mesh(np.array(jax.devices()), ("devices",)), PartitionSpec("devices"))
  numbers = np.full(jax.local_device_count(), mine, np.int32)
  return jnp.max(jax.make_array_from_process_local_data(sharding, numbers))


def _gathered(numbers: Sequence[int]) -> Any:
  """Gather numbers from each process, int [processes x numbers]."""
  import numpy as np
  from jax.experimental import multihost_utils

  return multihost_utils.process_allgather(np.array(numbers, np.uint32)).ravel()


def save_only(number: int, frame: Any) -> None:
  """Handle a signal at which a run is saved and goes on; where nothing is trained, ignore it."""


class StopRequests:
  """The requests to stop or to save, by signals to any process of a run, within the context.

  After the first signal to stop, the earlier handlers are back in place. A signal that was ignored,
  as Ctrl-C is in the background jobs of a script, stays ignored.
  """

  def __init__(self):
    self._received: list[int] = []
    self._save = False
    self._before: dict[int, Any] = {}
    self._pending: collections.deque[Any] = collections.deque()

  def __enter__(self) -> Self:
    heard = [number for number in SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
    self._before = {number: signal.signal(number, self._receive) for number in heard}
    return self

  def __exit__(self, *raised: Any) -> None:
    for number, handler in self._before.items():
      signal.signal(number, handler)
    if self._received and any(raised):
      import jax

      # A terminal's signal also ends the compiler that XLA may have started for a GPU.
      if isinstance(raised[1], jax.errors.JaxRuntimeError):
        signal.raise_signal(self._received[0])

  def _receive(self, number: int, frame: Any) -> None:
    if self._before[number] is save_only:
      self._save = True
    else:
      self._received.append(number)
      self.__exit__()

  def asked(self) -> int:
    """Return the request to obey after this step, equal in all processes; call it once per step.

    The request is SAVE, STOP, or 0 for none. With several processes, it is the greatest of their
    requests of `LATE` steps ago. A signal may come between any two lines, so keep the answer for
    the rest of the step.
    """
    save, self._save = self._save, False
    mine = STOP if self._received else SAVE * save
    if _joined.count == 1:
      return mine
    self._pending.append(_greatest(mine))
    return int(self._pending.popleft()) if len(self._pending) > LATE else 0

  def obey(self, step: int, steps: int) -> None:
    """End the process as the signal would have done, if any process received one."""
    mine = STOP * bool(self._received)
    if (mine if _joined.count == 1 else _greatest(mine)) < STOP:
      return
    log.info("stopped at step %d of %d, which is saved", step, steps)
    part()
    number = self._received[0] if self._received else signal.SIGTERM
    signal.raise_signal(number)
    sys.exit(128 + number)  # if the signal is ignored, as by schedulers' wrappers
