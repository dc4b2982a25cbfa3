"""The runs of a sweep as jobs of a Slurm cluster: submitted once, watched through the queue."""

from __future__ import annotations

import json
import logging
import logging.config
import pickle
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, Self

from omegaconf import DictConfig, OmegaConf

from posexp.errors import UserError, near
from posexp.sweeps.sweep import DONE, FAILED, RUNNING, WAITING, Member, failure

log = logging.getLogger("posexp")

SECONDS = 10.0  # between two looks at the queue
ABSENT = 2  # looks that do not find a job, before it counts as ended
ENDED = {
  "BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY",
  "PREEMPTED", "REVOKED", "TIMEOUT",
}  # fmt: skip
SHARED = {  # options that submitit has for all clusters; it wants "slurm_" before the others
  "timeout_min", "cpus_per_task", "gpus_per_node", "tasks_per_node", "mem_gb", "nodes", "name",
  "stderr_to_stdout",
}  # fmt: skip


class SlurmPool:
  """A pool, as in `posexp.sweeps.supervise`, of Slurm jobs.

  They do not depend on this process. The job of a run is noted in the folder of the sweep, so that
  the command typed again finds what is still queued instead of submitting it twice.
  """

  def __init__(self, job: Callable[[dict[str, Any]], Any], cfg: DictConfig):
    _submitit()
    self.task = Task(job, OmegaConf.to_container(cfg.hydra.job_logging, resolve=True))
    self.options = OmegaConf.to_container(cfg.hydra.launcher, resolve=True)
    self.folder = Path(cfg.hydra.sweep.dir)
    self.runs = Path(cfg.runs)
    self.members: dict[str, Member] = {}  # by the id of their job
    self.absent: dict[str, int] = {}  # how often the queue did not list a job, by its id

  def __enter__(self) -> Self:
    return self

  def __exit__(self, kind: type | None, *rest: Any) -> None:
    if kind is not None and self.members:
      ids = " ".join(dict.fromkeys(job.partition("_")[0] for job in self.members))
      log.info("the jobs go on; the same command shows them again, `scancel %s` ends them", ids)

  def start(self, members: Sequence[Member]) -> None:
    queued = self._queue() or {}
    for member in members:
      note = self._note(member)
      job = note.read_text("utf-8") if note.exists() else ""
      if queued.get(job, "COMPLETED") not in ENDED:
        self.members[job] = member
    if left := [member for member in members if member not in self.members.values()]:
      self._submit(left)

  def _submit(self, members: Sequence[Member]) -> None:
    submitit = _submitit()
    options = {key: value for key, value in self.options.items() if value not in (None, {})}
    timeouts = options.pop("max_num_timeout")
    try:
      executor = submitit.AutoExecutor(
        cluster="slurm", folder=self._output("%j"), slurm_max_num_timeout=timeouts
      )
      executor.update_parameters(
        **{key if key in SHARED else f"slurm_{key}": value for key, value in options.items()}
      )
      columns = zip(*((m.config, m.path) for m in members), strict=True)
      jobs = executor.map_array(self.task, *columns)
    except (RuntimeError, submitit.core.utils.FailedSubmissionError) as error:
      lines = [line for line in str(error).splitlines() if line.strip()]
      raise UserError(f"Slurm takes no jobs: {lines[-1]}") from error
    except NameError as error:
      raise UserError(f"hydra.launcher: {str(error).partition('. ')[0]}") from error
    log.info("submitted %d as job %s", len(jobs), jobs[0].job_id.partition("_")[0])
    for member, job in zip(members, jobs, strict=True):
      self.members[job.job_id] = member
      note = self._note(member)
      note.parent.mkdir(parents=True, exist_ok=True)
      note.write_text(job.job_id, "utf-8")

  def _output(self, job: str) -> str:
    """The folder of what a job prints and returns."""
    return str(self.folder / ".submitit" / job)

  def _note(self, member: Member) -> Path:
    """The file that keeps the id of the job of a run."""
    return self.folder / "slurm" / member.path.relative_to(self.runs)

  @staticmethod
  def _queue() -> dict[str, str] | None:
    """The states of the user's jobs, some ended ones too; None if Slurm does not answer."""
    asked = ["squeue", "--me", "--array", "--noheader", "--states=all", "--format=%i %T"]
    try:
      listed = subprocess.run(asked, capture_output=True, text=True, timeout=60, check=True)
    except FileNotFoundError as error:
      raise UserError("there is no Slurm on this machine: squeue is not found") from error
    except subprocess.SubprocessError:
      return None
    return dict(line.split()[:2] for line in listed.stdout.splitlines())

  def reports(self) -> Iterator[tuple[Member, str, str, str]]:
    time.sleep(SECONDS)
    queued = self._queue()
    if queued is None:
      return
    for job, member in list(self.members.items()):
      state = queued.get(job, "")
      self.absent[job] = 0 if state else self.absent.get(job, 0) + 1
      if state in ENDED or self.absent[job] >= ABSENT:
        del self.members[job]
        yield member, *self._outcome(job, state)
      elif state:
        ours = WAITING if state in ("PENDING", "REQUEUED") else RUNNING
        if ours != member.state:
          yield member, ours, f"Slurm has queued job {job} again", ""

  def _outcome(self, job: str, state: str) -> tuple[str, str, str]:
    folder = Path(self._output(job))
    result = folder / f"{job}_0_result.pkl"
    if not result.exists():
      how = f"ended as {state}" if state else "is gone"
      said = near(folder / f"{job}_0_log.err")
      return FAILED, f"Slurm's job {job} {how} before the run did; what it said is in {said}", ""
    outcome, text = pickle.loads(result.read_bytes())
    if outcome == "success":
      return DONE, "", ""
    *_, last = text.strip().splitlines()
    return FAILED, *json.loads(last.partition(": ")[2])


def _submitit() -> ModuleType:
  try:
    import submitit
  except ImportError as error:
    raise UserError(
      "hydra/launcher=slurm needs submitit, which is not installed: pip install 'posexp[slurm]'"
    ) from error
  return submitit


class Failed(Exception):
  """A run failed: its `sweep.failure`, which submitit hands on with the traceback."""


class Task:
  """What a job does: it trains the run of a config, and goes on with it when queued again."""

  def __init__(self, job: Callable[[dict[str, Any]], Any], log_config: dict[str, Any]):
    self.job = job
    self.log_config = log_config

  def __call__(self, config: dict[str, Any], path: Path) -> None:
    logging.config.dictConfig(self.log_config)
    # It comes before USR2 when another job takes the place, and is no reason to end for good.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
      self.job(config)
    except Exception as error:
      if not isinstance(error, UserError):
        log.exception("failed")
      raise Failed(json.dumps(failure(error, path))) from error

  def checkpoint(self, config: dict[str, Any], path: Path) -> Any:
    """What is to be done in the next turn, when time is up; submitit asks."""
    return _submitit().helpers.DelayedSubmission(self, config | {"rerun": False}, path)
