"""Try what users of Slurm meet, on real clusters as sites set them up: `make slurm`."""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from slurm_node import SETUPS, Node, Setup, install, said

MINUTE = 60.0  # seconds in which a command must say what has become of a run
PATIENCE = 900.0  # seconds for what takes long by itself: to be queued, trained, queued again
AT_ONCE = 5  # cases
STEPS, LONG = 1000, 3000
MANY = 100  # runs
PLUGIN = '''\
"""A task that takes time and no processor."""

import dataclasses
import time
from typing import ClassVar

import posexp


@dataclasses.dataclass(frozen=True)
class Slow(posexp.Diagnostic):
  """The last of n symbols."""

  symbols: ClassVar[int] = 8
  name: str = "slow"

  def draw(self, random, n):
    time.sleep(0.003)
    x = random.integers(self.symbols, size=n)
    return x, x[-1:]


TASKS = {"slow": Slow}
'''
RUN = [
  "plugins=slow.py", "task=slow", "task.lengths=[2,3]", "task.longest=3", "task.examples=40",
  "encoding=rpr", "rpr.k=2", "model=tiny", "train=diagnostic", "train.batch_size=8",
  "train.log_every=50", "train.warmup=20", "wandb.mode=disabled",
]  # fmt: skip
JOBS = ["-m", "hydra/launcher=slurm", "hydra.launcher.cpus_per_task=1", "hydra.launcher.mem_gb=1.5"]


class Typed:
  """A command in training: what it prints, and when."""

  def __init__(self, folder: Path, *argv: str):
    command = [sys.executable, "-m", "posexp.train", *argv]
    self.process = subprocess.Popen(
      command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    self.lines: list[tuple[float, str]] = []
    self.reader = threading.Thread(target=self._read, daemon=True)
    self.reader.start()

  def _read(self) -> None:
    for line in self.process.stdout:
      self.lines.append((time.monotonic(), line.rstrip()))

  def until(self, pattern: str, limit: float = PATIENCE) -> re.Match[str]:
    """Return the first line with a pattern, which must come within so many seconds."""
    end = time.monotonic() + limit
    while True:
      over = self.process.poll() is not None or time.monotonic() > end
      if over:
        self.reader.join(5)
      for _, line in list(self.lines):
        if found := re.search(pattern, line):
          return found
      if over:
        raise AssertionError(f"no {pattern!r} within {limit:.0f} s in:\n{self.text}")
      time.sleep(0.2)

  def ends(self, status: int) -> str:
    """Wait for the end, which must have a status; return what was printed."""
    try:
      found = self.process.wait(PATIENCE)
    except subprocess.TimeoutExpired:
      self.process.kill()
      raise AssertionError(f"it does not end:\n{self.text}") from None
    self.reader.join(5)
    assert found == status, f"status {found}, not {status}:\n{self.text}"
    return self.text

  @property
  def text(self) -> str:
    return "\n".join(line for _, line in self.lines)


class Case:
  """A case in a folder of its own: what is typed there, and what must hold at the end."""

  def __init__(self, folder: Path, reference: Path):
    self.folder, self.reference = folder, reference
    self.name = re.sub(r"\W+", "-", f"{folder.parent.name} {folder.name}")
    self.slowest = 0.0  # seconds until a command said what had become of a run
    folder.mkdir(parents=True)
    (folder / "slow.py").write_text(PLUGIN)
    self.typed: list[Typed] = []

  def type(self, *options: str, steps: int = STEPS) -> Typed:
    """Type the command of a sweep."""
    name = f"hydra.launcher.name={self.name}"
    self.typed.append(Typed(self.folder, *RUN, *JOBS, name, f"train.steps={steps}", *options))
    return self.typed[-1]

  def news(self, typed: Typed, pattern: str) -> re.Match[str]:
    """Wait for a line that a command must print within a minute from now."""
    begun = time.monotonic()
    found = typed.until(pattern, MINUTE)
    self.slowest = max(self.slowest, time.monotonic() - begun)
    return found

  def jobs(self) -> list[str]:
    """Return the ids of all jobs that were ever submitted here, by Slurm."""
    return said("squeue", "-h", "-r", "-t", "all", "-n", self.name, "-o", "%i").split()

  def running(self, typed: Typed, step: int = 100) -> str:
    """Wait until the first run has taken so many steps; return the id of its job."""
    end = time.monotonic() + PATIENCE
    while self.step() < step:
      assert typed.process.poll() is None, typed.text
      assert time.monotonic() < end, f"nothing is trained:\n{typed.text}"
      time.sleep(0.2)
    return min(self.jobs(), key=lambda job: [*map(int, job.split("_"))])

  def step(self, seed: int = 0) -> int:
    """Return the last step in the metrics of a run."""
    for file in self.folder.glob(f"runs/slow/rpr/*/seed={seed}/metrics.jsonl"):
      lines = file.read_text().splitlines()
      return json.loads(lines[-1])["step"] if lines else 0
    return 0

  def saved(self, seed: int = 0) -> int:
    """Return the step of the newest checkpoint of a run."""
    found = self.folder.glob(f"runs/slow/rpr/*/seed={seed}/checkpoints/[0-9]*")
    return max((int(each.name) for each in found), default=0)

  def went_on(self, least: int, seed: int = 0) -> None:
    """Check that the last turn of a run began no earlier than at a step that was saved."""
    (log,) = self.folder.glob(f"runs/slow/rpr/*/seed={seed}/train.log")
    steps = [int(step) for step in re.findall(r"going on from step (\d+)", log.read_text())]
    last = max(steps, default=0)
    assert last >= least > 0, f"step {least} was saved, and the run went on from {last}"

  def check(self, jobs: int, seeds: int = 1, steps: int = STEPS) -> None:
    """Check how many jobs there were, and that the results are those of a local run."""
    found = self.jobs()
    assert len(found) == jobs, f"{len(found)} jobs instead of {jobs}: {found}"
    for seed in range(seeds):
      here, local = (self._results(each, seed, steps) for each in (self.folder, self.reference))
      assert here == local, f"seed {seed}: other numbers than those of a local run"

  @staticmethod
  def _results(folder: Path, seed: int, steps: int) -> list[dict[str, object]]:
    """Return the rows and the result of a run without what depends on the machine."""
    for path in folder.glob(f"runs/slow/rpr/*/seed={seed}"):
      summary = json.loads((path / "summary.json").read_text())
      if summary["stopped_at"] == steps:
        rows = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
        costs = ("time/", "memory/", "devices", "processor", "cores", "versions", "ended")
        return [
          {key: value for key, value in row.items() if not key.startswith(costs)}
          for row in [*rows, summary]
        ]
    raise AssertionError(f"no finished run of seed {seed} in {folder}")

  def queued_again(self, typed: Typed, limit: float = PATIENCE) -> None:
    """Wait until Slurm queues the job again; the run must go on from what it saved, and end well.

    What Slurm has queued again starts at once here; it would wait for two minutes.
    """
    typed.until("queued again by Slurm", limit)
    saved = self.saved()
    while typed.process.poll() is None:
      for job in self.jobs():
        start = ["scontrol", "update", f"JobId={job}", "StartTime=now"]
        subprocess.run(start, capture_output=True, check=False)
      time.sleep(1)
    typed.ends(0)
    self.went_on(saved)


ENDED = r"failed: (Slurm ended it as (CANCELLED|PREEMPTED)|it is gone)"


def finish(case: Case) -> None:
  case.type("seeds=2").ends(0)
  case.check(jobs=2, seeds=2)


def time_limit(case: Case) -> None:
  typed = case.type("hydra.launcher.timeout_min=2", "hydra.launcher.signal_delay_s=20", steps=LONG)
  case.running(typed)
  case.queued_again(typed)
  case.check(jobs=1, steps=LONG)


def scancel_running(case: Case) -> None:
  typed = case.type()
  job = case.running(typed)
  said("scancel", job)
  case.news(typed, ENDED)
  typed.ends(1)
  saved = case.saved()
  case.type().ends(0)
  case.went_on(saved)
  case.check(jobs=2)


def scancel_queued(case: Case) -> None:
  typed = case.type("seeds=2", "hydra.launcher.array_parallelism=1")
  job = case.running(typed).replace("_0", "_1")
  said("scancel", job)
  case.news(typed, ENDED)
  typed.ends(1)
  case.type("seeds=2").ends(0)
  case.check(jobs=3, seeds=2)


def kill_command(case: Case) -> None:
  typed = case.type()
  typed.until("submitted 1 as job")
  typed.process.send_signal(signal.SIGKILL)
  typed.ends(-signal.SIGKILL)
  assert "submitted" not in case.type().ends(0)
  case.check(jobs=1)


def same_command(case: Case) -> None:
  both = [case.type("seeds=2") for _ in range(2)]  # in two terminals at once
  case.running(both[0])
  third = case.type("seeds=2")
  third.until("^sweep ")
  case.news(third, "job 1/2: seed=0|job 1/2: done")
  texts = [each.ends(0) for each in (*both, third)]
  assert sum("submitted 2 as job" in text for text in texts) == 1, texts
  assert case.type("seeds=2").ends(0).count("finished already") == 2
  case.check(jobs=2, seeds=2)


def suspend(case: Case) -> None:
  typed = case.type()
  job = case.running(typed)
  said("scontrol", "suspend", job)
  case.news(typed, "suspended by Slurm")
  again = case.type()
  again.until("^sweep ")
  case.news(again, "suspended by Slurm")
  said("scontrol", "resume", job)
  for each in (typed, again):
    each.ends(0)
  case.check(jobs=1)


def failures(case: Case) -> None:
  typed = case.type(f"seeds={MANY}", "hydra.launcher.setup=[exit 3]")
  typed.until(f"submitted {MANY} as job")
  while said("squeue", "-h", "-n", case.name).strip():
    time.sleep(0.2)
  case.news(typed, f"error: {MANY} of {MANY} runs failed")
  text = typed.ends(1)
  assert text.count("failed: Slurm ended it as FAILED") == MANY, text


def preempted(case: Case, mode: str) -> None:
  typed = case.type(steps=LONG)
  case.running(typed)
  name = f"--job-name=urgent-{case.name}"
  said("sbatch", name, "-p", "urgent", "--exclusive", "--mem=100M", "--wrap", "sleep 20")
  if mode == "CANCEL":
    typed.until(ENDED, 2 * MINUTE)  # half a minute of it is Slurm's grace
    typed.ends(1)
    saved = case.saved()
    case.type(steps=LONG).ends(0)
    case.went_on(saved)
  else:
    case.queued_again(typed, 2 * MINUTE)
  case.check(jobs=2 if mode == "CANCEL" else 1, steps=LONG)


def memory(case: Case) -> None:
  typed = case.type("hydra.launcher.mem_gb=0.1")
  typed.until("failed: Slurm ended it as .*; what it said is in")
  typed.ends(1)


CASES: dict[str, Callable[[Case], None]] = {
  "finish": finish,
  "time limit": time_limit,
  "scancel, running": scancel_running,
  "scancel, queued": scancel_queued,
  "kill -9 of posexp": kill_command,
  "same command": same_command,
  "suspend": suspend,
  "a hundred failures": failures,
}
HERE = "here"
ALONE = ("preempted", "too much memory")  # cases of some set-ups, which touch all other jobs


def row(name: str, setup: Setup, folder: Path, reference: Path, chosen: list[str]) -> list[str]:
  """Return the cells of a set-up: the longest wait for news, or how a case failed."""

  def one(what: str, try_it: Callable[[Case], None]) -> str:
    case = Case(folder / name / what, reference)
    begun = time.monotonic()
    try:
      try_it(case)
    except Exception as error:
      print(f"{name}, {what}: {type(error).__name__}: {error}", flush=True)
      return "fails"
    finally:
      for each in case.typed:
        each.process.kill()
    print(f"{name}, {what}: holds, {time.monotonic() - begun:.0f} s", flush=True)
    return f"holds, {case.slowest:.0f} s" if case.slowest else "holds"

  together = [what for what in CASES if what in chosen]
  with ThreadPoolExecutor(AT_ONCE) as pool:
    found = list(pool.map(one, together, map(CASES.__getitem__, together)))
  if ALONE[0] in chosen:
    mode = setup.preempts
    found.append(one(ALONE[0], lambda case: preempted(case, mode)) if mode else "")
  if ALONE[1] in chosen:
    found.append(one(ALONE[1], memory) if setup.memory else "")
  return found


def tried(setups: list[str], folder: Path, cases: list[str]) -> list[str]:
  """Try the cases in each set-up; return the table, in Markdown."""
  reference = Case(folder / "local/runs", folder)
  local = (STEPS, ["seeds=2"]), (LONG, [])
  for each in [Typed(reference.folder, *RUN, f"train.steps={n}", *rest) for n, rest in local]:
    each.ends(0)
  columns = [each for each in (*CASES, *ALONE) if each in cases]
  table = [f"| | {' | '.join(columns)} |", "|---" * (len(columns) + 1) + "|"]
  node = Node(folder / "node")
  for name in setups:
    setup = SETUPS.get(name, Setup())
    try:
      if name != HERE:
        node.start(setup)
      cells = row(name, setup, folder, reference.folder, columns)
    finally:
      if name != HERE:
        node.stop()
    table.append(f"| {name} | {' | '.join(cells)} |")
    print("", *table, "", sep="\n", flush=True)
  return table


def main() -> None:
  """Run the command line."""
  every = [*CASES, *ALONE]
  parser = argparse.ArgumentParser("scripts/slurm.py", description=__doc__)
  option = parser.add_argument
  about = f"some of {', '.join(SETUPS)}, with commas; {HERE}: the cluster that this machine is of"
  option("--setups", default=",".join(SETUPS), help=about)
  option("--cases", default=";".join(every), help=f"some of {', '.join(every)}, with semicolons")
  option("--keep", type=Path, metavar="FOLDER", help="keep all files there")
  args = parser.parse_args()
  setups, cases = args.setups.split(","), args.cases.split(";")
  for each, known in [(one, [*SETUPS, HERE]) for one in setups] + [(one, every) for one in cases]:
    if each not in known:
      parser.error(f"{each}: there are {', '.join(known)}")
  if set(setups) - {HERE}:
    if os.geteuid() or not shutil.which("apt-get"):
      parser.error(f"a cluster is set up on Debian or Ubuntu, by root; or try --setups {HERE}")
    install()
  posexp = [str(Path(__file__).resolve().parents[1]), os.environ.get("PYTHONPATH", "")]
  os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, posexp))
  folder = (args.keep or Path(tempfile.mkdtemp(prefix="posexp-slurm-"))).absolute()
  try:
    table = tried(setups, folder, cases)
  finally:
    if not args.keep:
      shutil.rmtree(folder, ignore_errors=True)
  sys.exit(any("fails" in line for line in table))


if __name__ == "__main__":
  main()
