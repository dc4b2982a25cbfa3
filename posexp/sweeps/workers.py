"""The runs of a sweep on several devices of one machine: a process for each, one run at a time."""

from __future__ import annotations

import functools
import json
import logging
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent import futures
from concurrent.futures import BrokenExecutor, Future, ProcessPoolExecutor
from pathlib import Path
from types import FrameType

from omegaconf import DictConfig

from posexp import machine, storage
from posexp.errors import UserError, near
from posexp.sweeps.sweep import FAILED, RUNNING, Context, Member, Report, Train

log = logging.getLogger("posexp")

SECONDS = 1.0  # between two looks at the progress of the runs
# Runs in a process of its own, so that this one takes no device.
ASK = """
import json, jax
devices = jax.local_devices()
platform = devices[0].platform
chips = {tuple(device.coords) for device in devices} if platform == "tpu" else devices
print(json.dumps([platform, len(chips)]))
"""
VISIBLE = {"gpu": "CUDA_VISIBLE_DEVICES", "tpu": "TPU_VISIBLE_CHIPS"}
ALONE = {"TPU_CHIPS_PER_PROCESS_BOUNDS": "1,1,1", "TPU_PROCESS_BOUNDS": "1,1,1"}
SHARE = 0.9  # of a GPU's memory, for the workers on it together


def devices(workers: int | str, runs: int) -> list[dict[str, str]]:
  """Return for each worker the environment variables that bind it to its device.

  Raises:
    UserError: JAX finds no device.
  """
  env = os.environ | {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
  asked = subprocess.run([sys.executable, "-c", ASK], capture_output=True, text=True, env=env)
  if asked.returncode:
    said = asked.stderr.strip() or f"asked for them, it ended with {asked.returncode}"
    raise UserError(f"JAX finds no device: {said.splitlines()[-1]}")
  platform, count = json.loads(asked.stdout.splitlines()[-1])
  several = count if platform in VISIBLE else 1  # processors are not divided
  processes = min(several if isinstance(workers, str) else workers, runs)
  if platform not in VISIBLE:
    return [{}] * processes
  seen = os.environ.get(VISIBLE[platform])
  names = seen.split(",") if seen else [str(number) for number in range(count)]
  on_each = -(-processes // count)
  common = ALONE if platform == "tpu" else {}
  if on_each > 1 and platform == "gpu":
    common = {"XLA_PYTHON_CLIENT_MEM_FRACTION": f"{SHARE / on_each:.3f}"}
  return [common | {VISIBLE[platform]: names[number % count]} for number in range(processes)]


def train_in_workers(
  members: Iterable[Member | None],
  train: Train,
  bound_to: Sequence[dict[str, str]],
  cfg: DictConfig,
) -> Iterator[Report | None]:
  """Train the runs in several processes, one for each environment in `bound_to`.

  `members` yields the next run, or None while another run has to end first. Each process is a pool
  of its own: if it dies, only the run that it was training fails, and another takes its place.
  """
  folder = Path(cfg.hydra.sweep.dir)
  folder.mkdir(parents=True, exist_ok=True)
  files = [folder / f"worker-{number}.log" for number in range(len(bound_to))]
  context = Context.of(cfg)
  waiting, idle = iter(members), deque(range(len(bound_to)))
  pools: dict[int, ProcessPoolExecutor] = {}  # by the number of the worker
  busy: dict[Future, tuple[Member, int]] = {}

  def begun(member: Member, number: int) -> Future:
    if number not in pools:
      asked = {"initializer": _begin, "initargs": (bound_to[number], files[number])}
      spawn = multiprocessing.get_context("spawn")
      pools[number] = ProcessPoolExecutor(1, mp_context=spawn, **asked)
    try:
      return pools[number].submit(attempt, train, context, member)
    except BrokenExecutor:  # killed between two runs
      log.warning("an idle process died, and another begins; see %s", near(files[number]))
      del pools[number]
      return begun(member, number)

  try:
    while True:
      while idle and (member := next(waiting, None)) is not None:
        number = idle.popleft()
        busy[begun(member, number)] = member, number
        yield member, RUNNING, ""
      if not busy:
        return
      for future in futures.wait(busy, SECONDS, futures.FIRST_COMPLETED).done:
        member, number = busy.pop(future)
        idle.append(number)
        try:
          state, reason = future.result()
        except BrokenExecutor:
          del pools[number]
          state, reason = FAILED, f"its process died; what it said is in {near(files[number])}"
        yield member, state, reason
      yield None
  except BaseException:
    log.info("stopping: what is in training is saved first")
    for process in multiprocessing.active_children():
      process.terminate()
    raise
  finally:
    for pool in pools.values():
      pool.shutdown()


def end(number: int, frame: FrameType | None) -> None:
  """Exit with 128 + the number of a signal: a handler that lets the program clean up.

  While garbage is collected, JAX is called back, and what is raised there is lost. So a signal that
  arrives then is sent again a moment later.
  """
  if frame is not None and frame.f_code.co_name == "_xla_gc_callback":
    threading.Timer(0.01, os.kill, (os.getpid(), number)).start()
    return
  sys.exit(128 + number)


def _begin(device: dict[str, str], file: Path) -> None:
  """Prepare the process of a worker for its first run; it prints into a file."""
  os.environ.update(device)  # before JAX looks for devices
  machine.keep_freed()
  os.setsid()  # Ctrl-C in the terminal is for the parent, who passes it on
  with storage.appending(file) as out:
    os.dup2(out.fileno(), 1)
    os.dup2(out.fileno(), 2)
  leave_with_parent()


@functools.cache
def leave_with_parent() -> None:
  """Make this process save and exit when its parent is gone."""
  if multiprocessing.parent_process() is None:
    return

  def watch() -> None:
    while not _is_orphan():
      time.sleep(SECONDS)
    # To another thread, it would be heard only once the main thread has slept.
    signal.pthread_kill(threading.main_thread().ident, signal.SIGTERM)

  signal.signal(signal.SIGTERM, end)
  threading.Thread(target=watch, daemon=True).start()


def _is_orphan() -> bool:
  """Return whether the process that started this one is gone."""
  parent = multiprocessing.parent_process()
  return parent is not None and os.getppid() != parent.pid


def attempt(train: Train, context: Context, member: Member) -> tuple[str, str]:
  """Train a run in a child process, as `Context.attempt` does."""
  try:
    return context.attempt(train, member)
  except SystemExit:
    return FAILED, "its process was asked to end"
  finally:
    if _is_orphan():
      os._exit(128 + signal.SIGTERM)  # nobody hears the answer
