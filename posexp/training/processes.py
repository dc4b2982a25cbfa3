"""The processes that train a run together: which one this is, and how they act as one.

The environment tells their number: the tasks of a Slurm step (`srun -n 4 ...`), or else
JAX_COORDINATOR_ADDRESS (host:port of the main process), JAX_NUM_PROCESSES and JAX_PROCESS_ID. The
last two may come from Slurm, or from WORLD_SIZE and RANK, which Ray sets. All processes get the
same command and see the same folder of runs, in which only the main process writes.
"""

from __future__ import annotations

import atexit
import collections
import contextlib
import logging
import math
import os
import re
import select
import socket
import subprocess
import sys
import threading
import time
import zlib
from collections.abc import Iterator, Sequence
from concurrent import futures
from typing import Any, NamedTuple

from posexp.errors import UserError

log = logging.getLogger("posexp")

EXPLICIT = ("JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID")
SHOWN = 4  # ranks in a message
CONNECTING, SOON, GRACE = 10.0, 0.5, 1.0  # seconds
# The process in which the others meet. It outlives the main process a little where that is killed:
# JAX aborts, with a trace, in each process that no longer reaches it.
SERVICE = f"""
import sys, time
from jax._src.lib import _jax
service = _jax.get_distributed_runtime_service(sys.argv[1], int(sys.argv[2]))
if sys.stdin.readline():  # all have met
  sys.stdin.read()
  time.sleep({2 * GRACE})
"""
LATE = 3  # steps before a stop flag is read, so that no process waits for another


class ProcessInfo(NamedTuple):
  """One of the processes that train a run."""

  rank: int = 0  # 0 is the main process
  count: int = 1  # type: ignore[assignment]  # of a tuple
  address: str | None = None  # host:port of the main process, if there are several

  @property
  def others(self) -> str:
    """The ranks of the others, as in "process 1" or "processes 0, 2, 3"."""
    ranks = [str(rank) for rank in range(self.count) if rank != self.rank]
    shown = ", ".join(ranks[:SHOWN]) + ", ..." * (len(ranks) > SHOWN)
    return f"process{'es' * (len(ranks) > 1)} {shown}"


_joined = ProcessInfo()  # this process, once it is connected to the others
_partners: list[socket.socket] = []  # to the main process, or in this one to the others
_service: subprocess.Popen | None = None  # of the main process


def process_info() -> ProcessInfo:
  """Read from the environment which process this is.

  Raises:
    UserError: the environment is incomplete or contradicts itself.
  """
  address, *numbers = (os.environ.get(name) for name in EXPLICIT)
  # Only srun sets the number of tasks: a shell in an allocation is not a task.
  step = "SLURM_STEP_NUM_TASKS" in os.environ
  if any(numbers) or (address and not step and "WORLD_SIZE" not in os.environ):
    if address is None or not all(each and each.isdigit() for each in numbers):
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

  The port is that of JAX; another step of the job has another one.
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
  listening = None
  if not _several():
    _connect(info, timeout)
    if info.rank == 0:
      listening = socket.create_server((_interface(info), 0), backlog=info.count)
  port = listening.getsockname()[1] if listening else 0
  asked = _gathered([zlib.crc32(repr(identity).encode()), port]).reshape(info.count, 2)
  if port or (info.rank and not _partners):
    ranks = _partnered(info, listening, int(asked[0, 1]))
    threading.Thread(target=_watch, args=(ranks, info.count), daemon=True).start()
  if len({*asked[:, 0].tolist()}) > 1:
    raise UserError(
      f"{info.count} processes were started together for different runs; distributed=off lets "
      "each train its own"
    )


def _interface(info: ProcessInfo) -> str:
  """Return where the main process listens: to this machine alone, or "" for the whole network."""
  return "127.0.0.1" * info.address.startswith(("127.0.0.1:", "localhost:"))


def _connect(info: ProcessInfo, timeout: float) -> None:
  """Connect to the others in a thread, so that a signal ends this process while it waits."""
  import jax

  global _joined, _service
  jax.config.update("jax_enable_preemption_service", False)  # it would take SIGTERM for itself
  connected: futures.Future[None] = futures.Future()
  if info.rank == 0:
    place = f"{_interface(info) or '[::]'}:{info.address.rpartition(':')[2]}"
    command = [sys.executable, "-c", SERVICE, place, str(info.count)]
    pipe, null = subprocess.PIPE, subprocess.DEVNULL
    _service = subprocess.Popen(command, stdin=pipe, stderr=null, start_new_session=True)

  def initialize() -> None:
    try:
      jax.distributed.initialize(
        info.address,
        info.count,
        info.rank,
        cluster_detection_method="deactivate",
        initialization_timeout=math.ceil(timeout) + 60,  # at which JAX would abort with a trace
        coordinator_bind_address="127.0.0.1:0",  # of a service that nobody asks
      )
      connected.set_result(None)
    except Exception as error:
      connected.set_exception(error)

  threading.Thread(target=initialize, daemon=True).start()
  who = f"process {info.rank} of {info.count}"
  ends, said = time.monotonic() + timeout, False
  while not futures.wait([connected], SOON).done:
    if _service and _service.poll():
      raise UserError(f"{who} cannot listen at {info.address}: is it another machine's?")
    if not said:
      log.info("%s waits for %s at %s", who, info.others, info.address)
      said = True
    if time.monotonic() > ends:
      raise UserError(
        f"{who} waited {timeout:g} s (distributed_timeout) for {info.others} at {info.address}: "
        "start them all within that time, with the same command"
      )
  if error := connected.exception():
    raise UserError(
      f"{who} does not find the others at {info.address} ({str(error).partition(chr(10))[0]})"
    ) from error
  if info.rank:
    log.addFilter(lambda record: record.levelno >= logging.ERROR)  # the main process logs the rest
  sys.excepthook = _leave
  _joined = info
  if _service:
    _service.stdin.write(b"\n")
    _service.stdin.flush()


def _partnered(
  info: ProcessInfo, listening: socket.socket | None, port: int
) -> dict[socket.socket, int]:
  """Connect the main process, which is `listening`, to each of the others, at its `port`.

  Returns the ranks of the processes that this one is connected to: none where that is not possible.
  JAX then notices a loss by itself, after a minute or two.
  """
  ranks: dict[socket.socket, int] = {}
  with contextlib.suppress(OSError):
    if listening:
      listening.settimeout(CONNECTING)
      while len(ranks) < info.count - 1:
        one, _ = listening.accept()
        ranks[one] = int.from_bytes(one.recv(4))
    else:
      one = socket.create_connection((info.address.rpartition(":")[0], port), CONNECTING)
      one.settimeout(None)
      one.sendall(info.rank.to_bytes(4))
      ranks[one] = 0
  _partners.extend(ranks)
  atexit.register(part)
  return ranks


def _watch(ranks: dict[socket.socket, int], count: int) -> None:
  """End this process with a sentence when a partner is gone; JAX would wait, and then abort."""
  while ranks:
    for one in select.select([*ranks], [], [])[0]:
      with contextlib.suppress(OSError):
        if one.recv(1):
          del ranks[one]  # it parts
          continue
      time.sleep(GRACE)  # this process may be about to end, and to say why
      why = (
        f"process {ranks[one]} of {count} has ended; the same command goes on from what is saved"
      )
      print(f"posexp: error: {why}", file=sys.stderr, flush=True)
      os._exit(1)


def part() -> None:
  """Tell the other processes that this one ends because all of them do."""
  for one in _partners:
    with contextlib.suppress(OSError):
      one.send(b".")


def _leave(*error: Any) -> None:
  """Print an exception and exit; else this process and the others would wait forever.

  If it came of another process's end, `_watch` says so instead.
  """
  time.sleep(2 * GRACE)
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

  return jax.tree.map(get, arrays) if _several() else jax.device_get(arrays)


class StopFlag:
  """A request to stop that any process may raise, and that all processes read at the same step."""

  def __init__(self):
    self._pending: collections.deque[Any] = collections.deque()

  def step(self, mine: int) -> int:
    """Return the greatest number of any process `LATE` steps ago; a single one gets its own.

    Call it in every step; `mine` is the number of this process.
    """
    if not _several():
      return mine
    self._pending.append(_greatest(mine))
    return int(self._pending.popleft()) if len(self._pending) > LATE else 0

  def read(self, mine: int) -> int:
    """Return the greatest number of any process by now."""
    return int(_greatest(mine)) if _several() else mine


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
