"""The runs of a sweep on several devices of one machine: a process for each, one run at a time."""

from __future__ import annotations

import functools
import json
import logging
import logging.config
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent import futures
from concurrent.futures import BrokenExecutor, Future, ProcessPoolExecutor
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from posexp.config import plugins
from posexp.errors import UserError, near
from posexp.sweeps.sweep import FAILED, RUNNING, Member, Report, Train, attempt, forget

log = logging.getLogger("posexp")

SECONDS = 1.0  # between two looks at the progress of the runs
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
  """For each worker the variables that bind it to its device.

  Raises:
    UserError: JAX finds no device.
  """
  env = os.environ | {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
  asked = subprocess.run([sys.executable, "-c", ASK], capture_output=True, text=True, env=env)
  if asked.returncode:
    said = asked.stderr.strip() or f"asked for them, it ended with {asked.returncode}"
    raise UserError(f"JAX finds no device: {said.splitlines()[-1]}")
  platform, count = json.loads(asked.stdout.splitlines()[-1])
  if platform not in VISIBLE:
    return [{}] * min(1 if workers == "auto" else workers, runs)
  workers = min(count if workers == "auto" else workers, runs)
  seen = os.environ.get(VISIBLE[platform])
  names = seen.split(",") if seen else [str(number) for number in range(count)]
  on_each = -(-workers // count)
  common = ALONE if platform == "tpu" else {}
  if on_each > 1 and platform == "gpu":
    common = {"XLA_PYTHON_CLIENT_MEM_FRACTION": f"{SHARE / on_each:.3f}"}
  return [common | {VISIBLE[platform]: names[number % count]} for number in range(workers)]


def train_in_workers(
  members: Sequence[Member], train: Train, bound_to: Sequence[dict[str, str]], cfg: DictConfig
) -> Iterator[Report | None]:
  """Train the runs in as many processes as there are elements of `bound_to`, its variables.

  Each process is a pool of its own. If it dies, only its run fails, if it had one, and another
  takes its place.
  """
  folder = Path(cfg.hydra.sweep.dir)
  folder.mkdir(parents=True, exist_ok=True)
  files = [folder / f"worker-{number}.log" for number in range(len(bound_to))]
  logs = OmegaConf.to_container(cfg.hydra.job_logging, resolve=True)
  waiting, idle = deque(members), deque(range(len(bound_to)))
  pools: dict[int, ProcessPoolExecutor] = {}  # by the number of the worker
  busy: dict[Future, tuple[Member, int]] = {}

  def begun(member: Member, number: int) -> Future:
    if number in pools:
      try:
        return pools[number].submit(_train, train, member)
      except BrokenExecutor:  # killed between two runs
        log.warning("an idle process died, and another begins; see %s", near(files[number]))
    begin = functools.partial(_begin, bound_to[number], str(files[number]), logs, plugins.files())
    spawn = multiprocessing.get_context("spawn")
    pools[number] = ProcessPoolExecutor(1, mp_context=spawn, initializer=begin)
    return pools[number].submit(_train, train, member)

  try:
    while waiting or busy:
      while waiting and idle:
        member, number = waiting.popleft(), idle.popleft()
        busy[begun(member, number)] = member, number
        yield member, RUNNING, ""
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


_groups: set[str] = set()  # in the process of a worker: those of the runs that it has trained


def _begin(device: dict[str, str], file: str, logs: dict[str, Any], own: list[Path]) -> None:
  """In the process of a worker, before its first run; `own` are files of plugins."""
  os.environ.update(device)  # before JAX looks for devices
  os.setsid()  # Ctrl-C in the terminal is for the parent, who passes it on
  with open(file, "a") as out:
    os.dup2(out.fileno(), 1)
    os.dup2(out.fileno(), 2)
  signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
  threading.Thread(target=_end_with_parent, daemon=True).start()
  logging.config.dictConfig(logs)
  plugins.load(own)


def _train(train: Train, member: Member) -> tuple[str, str]:
  """In the process of a worker: as `attempt`."""
  try:
    forget(_groups, member)
    return attempt(train, member)
  except SystemExit:
    return FAILED, "its process was asked to end"
  finally:
    if not multiprocessing.parent_process().is_alive():
      os._exit(128 + signal.SIGTERM)  # nobody hears the answer


def _end_with_parent() -> None:
  """Have this process save and leave when its parent is gone, however that came."""
  multiprocessing.parent_process().join()
  os.kill(os.getpid(), signal.SIGTERM)
