"""The runs of a sweep on several devices of one machine: a process for each, one run at a time."""

from __future__ import annotations

import contextlib
import dataclasses
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
from typing import Any, Self

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


def devices(workers: int | str, runs: int) -> list[dict[str, str]]:
  """For each worker the variables that bind it to its device.

  Raises:
    UserError: JAX finds no device.
  """
  env = os.environ | {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
  asked = subprocess.run([sys.executable, "-c", ASK], capture_output=True, text=True, env=env)
  if asked.returncode:
    raise UserError(f"JAX finds no device: {asked.stderr.strip().splitlines()[-1]}")
  platform, count = json.loads(asked.stdout.splitlines()[-1])
  if platform not in VISIBLE:
    return [{}] * min(1 if workers == "auto" else workers, runs)
  workers = min(count if workers == "auto" else workers, runs)
  seen = os.environ.get(VISIBLE[platform])
  names = seen.split(",") if seen else [str(number) for number in range(count)]
  on_each = -(-workers // count)
  common = ALONE if platform == "tpu" else {}
  if on_each > 1 and platform != "tpu":
    common = {"XLA_PYTHON_CLIENT_MEM_FRACTION": f"{SHARE / on_each:.3f}"}
  return [common | {VISIBLE[platform]: names[number % count]} for number in range(workers)]


@dataclasses.dataclass
class Worker:
  """A process that trains one run at a time, as its parent sees it."""

  process: Any
  pipe: connection.Connection
  log: Path
  member: Member | None = None  # what it trains

  @property
  def end(self) -> str:
    """How its process has ended."""
    self.process.join()
    code = self.process.exitcode
    how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"left with {code}"
    return f"its process {how}; what it said is in {near(self.log)}"


class WorkerPool:
  """A pool, as in `posexp.sweeps.supervise`, of processes of this machine, one for each device.

  A worker whose process dies takes only its run with it: another one is spawned in its place.
  """

  def __init__(
    self, job: Callable[[dict[str, Any]], Any], devices: Sequence[dict[str, str]], cfg: DictConfig
  ):
    self.job = job
    self.devices = devices
    self.folder = Path(cfg.hydra.sweep.dir)
    self.folder.mkdir(parents=True, exist_ok=True)
    self.log_config = OmegaConf.to_container(cfg.hydra.job_logging, resolve=True)
    self.waiting: deque[Member] = deque()
    self.workers: dict[int, Worker] = {}  # by the number of their device

  def __enter__(self) -> Self:
    return self

  def __exit__(self, kind: type | None, *rest: Any) -> None:
    if kind is not None and any(worker.member for worker in self.workers.values()):
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
    for number in range(len(self.devices)):
      worker = self.workers.get(number)
      if self.waiting and not (worker and worker.member):
        worker = self.workers[number] = worker or self._spawn(number)
        worker.member = self.waiting.popleft()
        with contextlib.suppress(OSError):  # of one that is dead, as is found below
          worker.pipe.send((worker.member.config, worker.member.path))
        yield worker.member, RUNNING, "", ""
    busy = {worker.pipe: number for number, worker in self.workers.items() if worker.member}
    for pipe in connection.wait(list(busy), SECONDS):
      worker = self.workers[busy[pipe]]
      member, worker.member = worker.member, None
      try:
        yield member, *pipe.recv()
      except (EOFError, OSError):
        del self.workers[busy[pipe]]
        yield member, FAILED, worker.end, ""

  def _spawn(self, number: int) -> Worker:
    spawn = multiprocessing.get_context("spawn")
    ours, its = spawn.Pipe()
    file = self.folder / f"worker-{number}.log"
    process = spawn.Process(
      target=_work, args=(self.job, its, self.devices[number], str(file), self.log_config)
    )
    process.start()
    its.close()
    return Worker(process, ours, file)


def _work(
  job: Callable[[dict[str, Any]], Any],
  pipe: connection.Connection,
  device: dict[str, str],
  file: str,
  log_config: dict[str, Any],
) -> None:
  """In the process of a worker: does the job on each config of the pipe, until it is closed."""
  os.environ.update(device)  # before JAX looks for devices
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
