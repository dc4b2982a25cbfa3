"""The runs of a sweep on several devices of one machine: a process for each, one run at a time."""

from __future__ import annotations

import contextlib
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
from collections.abc import Callable, Iterator, Sequence
from multiprocessing import connection
from pathlib import Path
from typing import Any, NamedTuple, Self

from omegaconf import DictConfig, OmegaConf

from posexp.errors import UserError, near
from posexp.sweeps.sweep import DONE, FAILED, RUNNING, Member, failure

log = logging.getLogger("posexp")

SECONDS = 1.0  # between two looks at the progress of the runs
ASK = """
import json, jax
devices = jax.local_devices()
platform = devices[0].platform
if platform == "gpu" and "rocm" in devices[0].client.platform_version.lower():
  platform = "rocm"
chips = {tuple(device.coords) for device in devices} if platform == "tpu" else devices
print(json.dumps([platform, len(chips)]))
"""
VISIBLE = {
  "gpu": "CUDA_VISIBLE_DEVICES",
  "rocm": "ROCR_VISIBLE_DEVICES",
  "tpu": "TPU_VISIBLE_CHIPS",
}
ALONE = {"TPU_CHIPS_PER_PROCESS_BOUNDS": "1,1,1", "TPU_PROCESS_BOUNDS": "1,1,1"}
SHARE = 0.9  # of a GPU's memory, for the workers on it together


def places(workers: int | str, runs: int) -> list[dict[str, str]]:
  """For each worker the variables that bind it to its device.

  Raises:
    UserError: JAX finds no device.
  """
  quiet = os.environ | {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
  asked = subprocess.run([sys.executable, "-c", ASK], capture_output=True, text=True, env=quiet)
  if asked.returncode:
    raise UserError(f"JAX finds no device: {asked.stderr.strip().splitlines()[-1]}")
  platform, devices = json.loads(asked.stdout.splitlines()[-1])
  if platform not in VISIBLE:
    return [{}] * min(1 if workers == "auto" else workers, runs)
  workers = min(devices if workers == "auto" else workers, runs)
  seen = os.environ.get(VISIBLE[platform])
  names = seen.split(",") if seen else [str(number) for number in range(devices)]
  each = -(-workers // devices)
  memory = {"XLA_PYTHON_CLIENT_MEM_FRACTION": f"{SHARE / each:.3f}"}
  shared = memory if each > 1 and platform != "tpu" else {}
  bounds = ALONE if platform == "tpu" else {}
  return [
    shared | bounds | {VISIBLE[platform]: names[number % devices]} for number in range(workers)
  ]


class Worker(NamedTuple):
  """A worker, as its parent sees it."""

  process: Any
  pipe: connection.Connection
  log: Path


class WorkerPool:
  """A `posexp.sweeps.supervise.Pool` of processes of this machine, one at each place.

  A worker whose process dies takes only its run with it: another one is spawned in its place.
  """

  def __init__(
    self, job: Callable[[dict[str, Any]], Any], places: Sequence[dict[str, str]], cfg: DictConfig
  ):
    self.job = job
    self.places = places
    self.folder = Path(cfg.hydra.sweep.dir)
    self.folder.mkdir(parents=True, exist_ok=True)
    self.logging = OmegaConf.to_container(cfg.hydra.job_logging, resolve=True)
    self.waiting: deque[Member] = deque()
    self.workers: dict[int, Worker] = {}  # by place
    self.busy: dict[int, Member] = {}

  def __enter__(self) -> Self:
    return self

  def __exit__(self, kind: type | None, *rest: Any) -> None:
    if kind is not None and self.busy:
      log.info("stopping: what is in training is saved first")
    try:
      self._stop(at_once=kind is not None)
    except (KeyboardInterrupt, SystemExit):  # who asks twice does not wait
      self._stop(at_once=True)
      raise

  def _stop(self, at_once: bool) -> None:
    for worker in self.workers.values():
      if at_once:
        worker.process.terminate()
      worker.pipe.close()
    for worker in self.workers.values():
      worker.process.join()

  def start(self, members: Sequence[Member]) -> None:
    self.waiting.extend(members)

  def reports(self) -> Iterator[tuple[Member, str, str, str]]:
    for place in range(len(self.places)):
      if self.waiting and place not in self.busy:
        if place not in self.workers:
          self.workers[place] = self._spawn(place)
        member = self.busy[place] = self.waiting.popleft()
        with contextlib.suppress(OSError):  # of one that is dead, as is found below
          self.workers[place].pipe.send((member.config, member.path))
        yield member, RUNNING, "", ""
    places = {self.workers[place].pipe: place for place in self.busy}
    for pipe in connection.wait(list(places), SECONDS):
      place = places[pipe]
      try:
        report = pipe.recv()
      except (EOFError, OSError):
        report = (FAILED, _end(self.workers.pop(place)), "")
      yield self.busy.pop(place), *report

  def _spawn(self, place: int) -> Worker:
    spawn = multiprocessing.get_context("spawn")
    ours, its = spawn.Pipe()
    file = self.folder / f"worker-{place}.log"
    process = spawn.Process(
      target=_work, args=(self.job, its, self.places[place], str(file), self.logging)
    )
    process.start()
    its.close()
    return Worker(process, ours, file)


def _end(worker: Worker) -> str:
  """How the process of a worker has ended."""
  worker.process.join()
  status = worker.process.exitcode
  how = f"was killed by {signal.Signals(-status).name}" if status < 0 else f"left with {status}"
  return f"its process {how}; what it said is in {near(worker.log)}"


def _work(
  job: Callable[[dict[str, Any]], Any],
  pipe: connection.Connection,
  place: dict[str, str],
  file: str,
  log_config: dict[str, Any],
) -> None:
  """In the process of a worker: does the job on each config of the pipe, until it is closed."""
  os.environ.update(place)  # before JAX looks for devices
  os.setsid()  # Ctrl-C in the terminal is for the parent, who passes it on
  with open(file, "a") as out:
    os.dup2(out.fileno(), 1)
    os.dup2(out.fileno(), 2)
  signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
  threading.Thread(target=_end_with_parent, daemon=True).start()
  logging.config.dictConfig(log_config)
  while True:
    try:
      config, path = pipe.recv()
    except EOFError:
      return
    try:
      job(config)
    except Exception as error:
      reason, where = failure(error, path)
      if not (where or isinstance(error, UserError)):
        log.exception("failed")
        where = file
      pipe.send((FAILED, reason, where))
    else:
      pipe.send((DONE, "", ""))


def _end_with_parent() -> None:
  """Has this process save and leave when its parent is gone, however that came."""
  multiprocessing.parent_process().join()
  os.kill(os.getpid(), signal.SIGTERM)
