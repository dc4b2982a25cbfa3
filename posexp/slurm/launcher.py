"""The runs of a sweep as jobs of a Slurm cluster.

A job is the command line as it was typed, with a variable that names the folder of its submission.
The command finds there which run to train, and writes there how the run ended.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import logging
import math
import os
import pickle
import re
import secrets
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from filelock import FileLock
from omegaconf import DictConfig, OmegaConf

from posexp import reading, storage
from posexp.config import build
from posexp.config.checks import Count, Positive, Whole
from posexp.errors import UserError, near
from posexp.sweeps.supervise import Launcher
from posexp.sweeps.sweep import DONE, FAILED, RUNNING, WAITING, Context, Member, Report, Train

log = logging.getLogger("posexp")

JOB = "POSEXP_JOB"  # the variable of a job: the folder of its submission
SECONDS = 10.0  # between two looks at the jobs
LOOKS = 4  # after which a shared disk must show the result of a job that is gone
WAITS = "PENDING", "SUSPENDED", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "SPECIAL_EXIT"
QUEUED = "None", "Priority", "Resources", "BeginTime", "JobArrayTaskLimit"  # why a job may wait
FAILS = "CANCELLED", "FAILED", "OUT_OF_MEMORY", "PREEMPTED", "TIMEOUT", "NODE_FAIL", "DEADLINE"
ENDS = *FAILS, "BOOT_FAIL", "REVOKED", "COMPLETED", ""
KILLED = re.compile(rb"Out Of Memory|oom[-_]kill")  # Slurm's words in what a job says
SUSPENDED, AGAIN = "suspended by Slurm", "queued again by Slurm"  # why runs wait
TAIL = 10_000  # bytes of that which are searched


@dataclasses.dataclass(frozen=True)
class Numbers:
  """The options of `hydra.launcher` whose types are checked; the others are texts for sbatch."""

  timeout_min: Count
  signal_delay_s: Whole
  max_num_timeout: Whole
  array_parallelism: Count
  cpus_per_task: Count | None
  nodes: Count | None
  tasks_per_node: Count | None
  mem_gb: Positive | None
  setup: list[str] | None
  additional_parameters: dict[str, Any] | None

  def __post_init__(self):
    if self.signal_delay_s >= (turn := 60 * self.timeout_min):
      raise ValueError(
        f"signal_delay_s={self.signal_delay_s} ends a turn of {turn} s, which is "
        f"timeout_min={self.timeout_min}, as soon as it begins: give fewer seconds, or more minutes"
      )


def options(cfg: DictConfig) -> dict[str, Any]:
  """Return the options of `hydra.launcher`; UserError if one has a wrong type."""
  given = OmegaConf.to_container(cfg.hydra.launcher, resolve=True)
  numbers = {field.name: given.get(field.name) for field in dataclasses.fields(Numbers)}
  return given | vars(build(Numbers, numbers, "hydra.launcher"))


@dataclasses.dataclass(frozen=True)
class Job:
  """An element of an array of jobs, by the folder of the submission and its number there."""

  place: Path
  number: int

  @functools.cached_property
  def array(self) -> str:
    """The id that Slurm gave the array, as in 12; "" if there is none."""
    return (reading.read(self.place / "id") or b"").decode().partition(";")[0].strip()

  @property
  def id(self) -> str:
    return f"{self.array}_{self.number}"

  @property
  def result(self) -> tuple[str, str] | None:
    """The state in which the run ended and the reason, once the job has written them."""
    text = reading.read(self.place / f"{self.number}.json")
    return tuple(reading.parse(text)) if text else None


class Slurm(Launcher):
  """The jobs of a sweep in arrays of Slurm."""

  variable = JOB

  def check(self, cfg: DictConfig) -> None:
    """Raise UserError if an option has a wrong type."""
    options(cfg)

  def train(self, members: Sequence[Member], cfg: DictConfig) -> Iterator[Report | None]:
    """Train each run in a Slurm job. The jobs do not depend on this process.

    The folder of a submission names its runs. So the command that is typed again, or in two
    terminals at once, finds the job of a run instead of submitting it twice.
    """
    jobs = _submitted(members, cfg)
    gone = dict.fromkeys(jobs, 0)  # for how many looks in a row Slurm has not known a job
    warned, told = "", set[str]()
    try:
      while jobs:
        try:
          yield from _news(jobs, gone, told)
          warned = ""
        except UserError as error:
          if warned != (warned := str(error)):
            log.warning("%s; the jobs go on", warned)
        yield None
        if jobs:
          time.sleep(SECONDS)
    finally:
      if jobs:
        arrays = " ".join(dict.fromkeys(job.array for job in jobs.values()))
        log.info(
          "the jobs go on; the same command shows them again, `scancel %s` ends them", arrays
        )

  def work(self, train: Train, place: Path) -> int:
    """Train the run of this process's job, and write into `place` how that ended.

    Returns the exit status.
    """
    from posexp.training.processes import save_only  # slow to import, and a sweep may be refused

    members, context, turns = pickle.loads((place / "work").read_bytes())
    begun = int(os.environ.get("SLURM_RESTART_COUNT", "0"))  # how often before
    number = int(os.environ["SLURM_ARRAY_TASK_ID"])
    main, member = os.environ.get("SLURM_PROCID", "0") == "0", members[number]
    file = place / f"{number}.json"
    if main:
      storage.remove(file)  # of an earlier turn
    # A run that is finished in a later turn was so before the first, which did not remove it.
    member.config["rerun"] = member.config["rerun"] and (not begun or member.finished)
    signal.signal(signal.SIGTERM, save_only)
    signal.signal(signal.SIGUSR2, lambda *_: sys.exit(128 + signal.SIGUSR2))
    try:
      result = context.attempt(train, member)
    except SystemExit:
      result = _queued_again(begun, turns) if main else None
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)
    if main and result:
      storage.write(file, json.dumps(result))
    return 0


def _news(jobs: dict[Member, Job], gone: dict[Member, int], told: set[str]) -> Iterator[Report]:
  """Yield the changes of the runs' states, and drop the jobs that have ended.

  Why Slurm lets jobs wait is said once for all of them; `told` has what has been said.

  Raises:
    UserError: Slurm does not answer.
  """
  states = _states(jobs.values())
  for member, job in list(jobs.items()):
    state, why = states[job]
    gone[member] = gone[member] + 1 if state in ENDS else 0
    if state not in ENDS:
      news = _waits_or_runs(member, state, why)
      if news[0] == RUNNING or news[1] in (SUSPENDED, AGAIN):
        if news != (member.state, member.reason):
          yield member, *news
        continue
      member.reason = news[1]
      if member.reason and why not in told:
        log.info("waiting in Slurm's queue (%s); `scontrol show job %s` says more", why, job.id)
        told.add(why)
    elif (result := job.result) or state in FAILS or gone[member] >= LOOKS:
      del jobs[member]
      yield member, *(result or _ended(member, job, state))


def _states(jobs: Collection[Job]) -> dict[Job, tuple[str, str]]:
  """Return the state of each job and the reason, from the controller of Slurm; "" if it knows none.

  The controller needs no accounting, knows which jobs are suspended, held or queued again, and
  forgets a job some minutes after its end, which the accounting keeps.

  Raises:
    UserError: it does not answer.
  """
  arrays, said = ",".join({job.array for job in jobs} - {""}), ""
  try:
    if arrays:
      said = _asked("squeue", "-h", "-r", "-t", "all", "-o", "%i %T %r", "-j", arrays)
  except UserError as error:
    if "Invalid job id" not in str(error):  # Slurm's answer if it knows none of them
      raise
  found: dict[str, Any] = {line.split()[0]: line.split(" ", 2)[1:] for line in said.splitlines()}
  states = {job: found.get(job.id, ("", "")) for job in jobs}
  # A job that is completing may be queued again, unless it has written a result.
  over = (job for job, (state, _) in states.items() if state == "COMPLETING" and job.result)
  return states | dict.fromkeys(over, ("COMPLETED", ""))


def _waits_or_runs(member: Member, state: str, why: str) -> tuple[str, str]:
  """Return the state of a run whose job has not ended, and the reason if it waits for one."""
  if state not in WAITS:
    return RUNNING, ""
  if state == "SUSPENDED":
    return WAITING, SUSPENDED
  if member.state != WAITING or member.reason == SUSPENDED:
    return WAITING, AGAIN
  if why not in QUEUED:
    return WAITING, f"in Slurm's queue ({why})"
  return WAITING, AGAIN if member.reason == AGAIN else ""


def _ended(member: Member, job: Job, end: str) -> tuple[str, str]:
  """Return the state of a run whose job is gone without a result, and the reason."""
  if member.finished and not member.config["rerun"]:
    return DONE, ""
  with contextlib.suppress(UserError):  # there may be no accounting
    end = end or _asked("sacct", "-nXPo", "State", "-j", job.id).partition(" ")[0].strip()
  how = f"Slurm ended it as {end}" if end in FAILS else "it is gone from Slurm without a result"
  how += "" if end in FAILS else "; perhaps it was cancelled"
  file = job.place / f"{job.id}.log"
  if end == "OUT_OF_MEMORY" or _was_killed(job, file):
    how += " (Out Of Memory: give it more by hydra.launcher.mem_gb)"
  said = f"; what it said is in {near(file)}" if file.exists() else ""
  return FAILED, f"{how}{said}"


def _was_killed(job: Job, file: Path) -> bool:
  """Return whether a job, or one of its steps, was killed for taking more memory than it had.

  Slurm says so in the job's output or in the accounting.
  """
  with contextlib.suppress(OSError), file.open("rb") as said:
    said.seek(max(file.stat().st_size - TAIL, 0))
    if KILLED.search(said.read(TAIL)):
      return True
  with contextlib.suppress(UserError):
    return "OUT_OF_MEMORY" in _asked("sacct", "-nPo", "State", "-j", job.id)
  return False


def _submitted(members: Sequence[Member], cfg: DictConfig) -> dict[Member, Job]:
  """Return the jobs of the runs: those that Slurm has already, and arrays of all others.

  Raises:
    UserError: Slurm does not answer, or takes no jobs.
  """
  folder = Path(cfg.hydra.sweep.dir).absolute() / "jobs"
  folder.mkdir(parents=True, exist_ok=True)
  with FileLock(folder / ".lock"):
    known: dict[str, Job] = {}
    for file in sorted(folder.glob("*/runs"), key=lambda file: file.stat().st_mtime):
      known |= {run: Job(file.parent, i) for i, run in enumerate(reading.parse(reading.read(file)))}
    runs = {member: str(member.path.relative_to(member.config["runs"])) for member in members}
    jobs = {member: known[run] for member, run in runs.items() if run in known}
    states = _states(jobs.values())
    jobs = {member: job for member, job in jobs.items() if states[job][0] not in ENDS}
    left, launcher = [member for member in members if member not in jobs], options(cfg)
    turns, arrays = launcher.pop("max_num_timeout"), _arrays(left)
    launcher["array_parallelism"] = max(launcher["array_parallelism"] // max(len(arrays), 1), 1)
    for array in arrays:
      place = folder / secrets.token_hex(4)
      # Before there are jobs: a kill leaves none unknown.
      storage.write(place / "runs", json.dumps([runs[member] for member in array]))
      (place / "work").write_bytes(pickle.dumps((array, Context.of(cfg), turns)))
      try:
        _submit(len(array), place, launcher)
      except UserError as error:
        if array is arrays[0]:
          raise
        rest = "those before go on, and the same command submits the others once there is room"
        raise UserError(f"{error}; {rest}") from error
      jobs |= {member: Job(place, number) for number, member in enumerate(array)}
  return jobs


def _arrays(members: Sequence[Member]) -> list[Sequence[Member]]:
  """Divide runs into arrays of about equal size, none larger than the cluster accepts."""
  said = ""
  with contextlib.suppress(UserError):  # `sbatch` says what is wrong
    said = _asked("scontrol", "show", "config") if members else ""
  limit = re.search(r"^MaxArraySize\s*=\s*(\d+)", said, re.MULTILINE)
  count = math.ceil(len(members) / max(int(limit[1]) if limit else len(members), 1))
  size = math.ceil(len(members) / max(count, 1))
  return [members[begin : begin + size] for begin in range(0, len(members), max(size, 1))]


def _submit(jobs: int, place: Path, launcher: Mapping[str, Any]) -> None:
  """Submit an array of `jobs` jobs with the folder `place`, into which sbatch writes its id."""
  rest = dict(launcher)
  take = rest.pop
  setup, own, memory = take("setup") or [], take("additional_parameters") or {}, take("mem_gb")
  flags = {
    "job_name": take("name"),
    "time": take("timeout_min"),
    "signal": f"USR2@{take('signal_delay_s')}",
    "array": f"0-{jobs - 1}%{take('array_parallelism')}",
    "ntasks_per_node": take("tasks_per_node"),
    "mem": memory and f"{round(memory * 1024)}M",
    "requeue": True,  # also where the cluster does so only if asked
    "open_mode": "append",
    "output": f"{place}/".replace("%", "%%") + "%A_%a.log",
  }
  typed = [
    f"--{name.replace('_', '-')}" + f"={value}" * (value is not True)
    for name, value in (flags | rest | own).items()
    if value is not None and value is not False
  ]
  cpus = "${SLURM_CPUS_PER_TASK:+--cpus-per-task=$SLURM_CPUS_PER_TASK}"  # which srun does not heed
  srun = f"srun --unbuffered --kill-on-bad-exit {cpus}"
  command = f"{srun} {shlex.join([sys.executable, *sys.orig_argv[1:]])}"
  script = "\n".join(["#!/bin/bash", *setup, f"export {JOB}={shlex.quote(str(place))}", command])
  # The variables of a job in which the command is typed would contradict those of its jobs.
  env = {k: v for k, v in os.environ.items() if k == "SLURM_CONF" or not k.startswith("SLURM_")}
  try:
    with (place / "id").open("wb") as out:
      _asked("sbatch", "--parsable", *typed, input=script, stdout=out, env=env)
  except UserError as error:
    shutil.rmtree(place)
    raise UserError(f"Slurm takes no jobs: {error}") from error
  log.info("submitted %d as job %s", jobs, Job(place, 0).array)


def _asked(*command: str, **given: Any) -> str:
  """Return the output of a command of Slurm; UserError with its last line if it fails."""
  given = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True} | given
  try:
    done = subprocess.run(command, **given)
  except OSError as error:
    raise UserError(f"{command[0]}: {error.strerror}; is this a machine of a cluster?") from error
  if done.returncode:
    lines = [line for line in done.stderr.splitlines() if line and not line.startswith("Try ")]
    raise UserError([f"{command[0]} ended with {done.returncode}", *lines][-1])
  return done.stdout


def _queued_again(begun: int, turns: int) -> tuple[str, str] | None:
  """Have Slurm queue this job again; return the failure if that cannot be."""
  why = f"hydra.launcher.max_num_timeout={turns}"
  if begun < turns:
    try:
      _asked("scontrol", "requeue", os.environ["SLURM_JOB_ID"])
      return None
    except UserError as error:
      why = str(error)
  return FAILED, f"its time is up, and it is not queued again ({why}); what it reached is saved"
