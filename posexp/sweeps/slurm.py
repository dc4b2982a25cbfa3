"""The runs of a sweep as jobs of a Slurm cluster: submitted once by submitit, and watched."""

from __future__ import annotations

import logging
import logging.config
import signal
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from omegaconf import DictConfig, OmegaConf

from posexp.config import plugins
from posexp.errors import UserError, near
from posexp.sweeps.sweep import FAILED, RUNNING, WAITING, Member, Report, Train, attempt

log = logging.getLogger("posexp")

SECONDS = 10.0  # between two looks at the jobs
QUEUED = ("PENDING", "REQUEUED", "PREEMPTED", "UNKNOWN")
SHARED = {  # options that submitit has for all clusters; it wants "slurm_" before the others
  "timeout_min", "cpus_per_task", "gpus_per_node", "tasks_per_node", "mem_gb", "nodes", "name",
  "stderr_to_stdout",
}  # fmt: skip


def train_by_slurm(
  members: Sequence[Member], train: Train, cfg: DictConfig
) -> Iterator[Report | None]:
  """Train each run in a Slurm job. The jobs do not depend on this process.

  The job of a run is noted in the folder of the sweep, so that the command typed again finds what
  is still queued instead of submitting it twice.
  """
  submitit = _submitit()
  folder = Path(cfg.hydra.sweep.dir)
  output = folder / ".submitit/%j"  # what a job prints and returns
  notes = {
    member: folder / "slurm" / member.path.relative_to(member.config["runs"]) for member in members
  }
  ids = {member: note.read_text("utf-8") for member, note in notes.items() if note.exists()}
  jobs = {member: submitit.SlurmJob(output, number) for member, number in ids.items()}
  jobs = {m: known for m, known in jobs.items() if not known.done() and known.state != "UNKNOWN"}
  if left := [member for member in members if member not in jobs]:
    for member, number in zip(left, _submit(left, train, output, cfg), strict=True):
      jobs[member] = submitit.SlurmJob(output, number)
      notes[member].parent.mkdir(parents=True, exist_ok=True)
      notes[member].write_text(number, "utf-8")
  try:
    while jobs:
      time.sleep(SECONDS)
      submitit.SlurmJob.watcher.update()
      for member, known in list(jobs.items()):
        if known.done():
          del jobs[member]
          yield member, *_outcome(known)
        elif (state := WAITING if known.state in QUEUED else RUNNING) != member.state:
          yield member, state, f"Slurm has queued job {known.job_id} again"
      yield None
  finally:
    if jobs:
      arrays = " ".join(dict.fromkeys(known.job_id.partition("_")[0] for known in jobs.values()))
      log.info("the jobs go on; the same command shows them again, `scancel %s` ends them", arrays)


def _submit(members: Sequence[Member], train: Train, output: Path, cfg: DictConfig) -> list[str]:
  """Submit the runs as one array; return the ids of their jobs."""
  submitit = _submitit()
  launcher = OmegaConf.to_container(cfg.hydra.launcher, resolve=True)
  options = {key: value for key, value in launcher.items() if value not in (None, {})}
  task = ResumableTraining(train, OmegaConf.to_container(cfg.hydra.job_logging, resolve=True))
  try:
    executor = submitit.AutoExecutor(
      output, cluster="slurm", slurm_max_num_timeout=options.pop("max_num_timeout")
    )
    executor.update_parameters(
      **{key if key in SHARED else f"slurm_{key}": value for key, value in options.items()}
    )
    ids = [submitted.job_id for submitted in executor.map_array(task, members)]
  except RuntimeError as error:
    lines = [line for line in str(error).splitlines() if line.strip()]
    raise UserError(f"Slurm takes no jobs: {lines[-1]}") from error
  except NameError as error:
    raise UserError(f"hydra.launcher: {str(error).partition('. ')[0]}") from error
  log.info("submitted %d as job %s", len(ids), ids[0].partition("_")[0])
  return ids


def _outcome(job: Any) -> tuple[str, str]:
  try:
    return job.result()
  except Exception:  # submitit's own, of several lines
    said = near(job.paths.stderr)
    return FAILED, f"Slurm's job {job.job_id} ended as {job.state}; what it said is in {said}"


class ResumableTraining:
  """What a job does: it trains the run of a member, and goes on with it when queued again."""

  def __init__(self, train: Train, logs: dict[str, Any]):
    self.train = train
    self.logs = logs
    self.plugins = plugins.files()

  def __call__(self, member: Member) -> tuple[str, str]:
    logging.config.dictConfig(self.logs)
    plugins.load(self.plugins)
    # It comes before USR2 when another job takes the place, and is no reason to end for good.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    return attempt(self.train, member)

  def checkpoint(self, member: Member) -> Any:
    """Return what is to be done in the next turn, when time is up; submitit asks."""
    member.config["rerun"] = False
    return _submitit().helpers.DelayedSubmission(self, member)


def _submitit() -> ModuleType:
  try:
    import submitit
  except ImportError as error:
    raise UserError(
      "hydra/launcher=slurm needs submitit, which is not installed: pip install 'posexp[slurm]'"
    ) from error
  return submitit
