"""The costs of training a run: seconds, tokens per second, compilation and memory.

time/seconds              training with its evaluations, over all sessions of the run
time/cpu_seconds          the same in seconds of all cores together
time/tokens_per_second    non-padding tokens since the last row, excluding evaluation and waiting
                          for compilation; on a CPU, compiling other shapes at the same time slows
                          the first steps
time/compile_seconds      time that steps waited for their program to be compiled; near 0 if an
                          earlier run of the process compiled it
time/input_seconds        time that devices waited for batches, at most
time/first_step_seconds   from the start of the process, or of the job in a sweep, to the end of
                          the first step
memory/temporary_bytes    memory of a device that the step needs besides inputs and outputs,
                          according to the compiler
memory/peak_bytes         the most memory of a device in use, if it counts that (GPU, TPU); left out
                          if an earlier run of the process used as much
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import platform
import re
import statistics
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import posexp
from posexp.machine import SET
from posexp.runs.metrics import COST, RATE

if TYPE_CHECKING:
  from jax.sharding import Mesh

  from posexp.data.batches import Batch
  from posexp.training.step import State, Step

# Taken by the first job, whose user has waited for the imports and the command line, too.
_process = [posexp.BEGUN]


def job_begins() -> float:
  """Return the time at which this job began; a process's first job begins with the process."""
  return _process.pop() if _process else time.perf_counter()


def of_run(history: Sequence[Mapping[str, Any]]) -> dict[str, float]:
  """Return the costs of a run, from its rows: the last of each, and the median of its rates."""
  costs: dict[str, float] = {}
  for row in history:
    costs |= {name: row[name] for name in row if name.startswith(COST)}
  if rates := [row[RATE] for row in history if RATE in row]:
    costs[RATE] = statistics.median(rates)
  return costs


class Meter:
  """A counter of the costs of a run while it is trained."""

  def __init__(self, history: Sequence[Mapping[str, Any]], step: Step, mesh: Mesh, begun: float):
    self.step = step
    self.devices = mesh.local_devices
    self.earlier = of_run(history)  # in sessions before this one
    self.begun = begun
    self.entered, self.worked = time.perf_counter(), time.process_time()
    self.compiled = step.seconds
    self.waited = 0.0
    self.peak = self._peak()
    self.restart()

  def restart(self) -> None:
    """Restart the count, after something other than training."""
    self.since, self.compiling, self.tokens = time.perf_counter(), self.step.seconds, 0

  def next(self, batches: Iterator[tuple[Batch, int]], state: State) -> tuple[Batch, int]:
    """Return the next batch and its tokens; count the wait if devices have finished all steps."""
    since = time.perf_counter()
    batch = next(batches)
    if state.step.is_ready():
      self.waited += time.perf_counter() - since
    return batch

  def count(self, tokens: int, state: State) -> None:
    """Count a step on this many tokens."""
    self.tokens += tokens
    if "time/first_step_seconds" not in self.earlier:
      state.step.block_until_ready()
      self.earlier["time/first_step_seconds"] = time.perf_counter() - self.begun

  def read(self) -> dict[str, float]:
    """Return the costs since the beginning and since the last row, for a row of the log."""
    now, compiling = time.perf_counter(), self.step.seconds
    rate = self.tokens / (now - self.since - (compiling - self.compiling))
    row = self.spent() | {RATE: rate, "memory/temporary_bytes": self.step.temporary_bytes}
    self.restart()
    peak = self._peak()
    return row | ({"memory/peak_bytes": peak} if peak > self.peak else {})

  def spent(self) -> dict[str, float]:
    """Return the seconds since the beginning of the run's first session."""
    here = {
      "time/seconds": time.perf_counter() - self.entered,
      "time/cpu_seconds": time.process_time() - self.worked,
      "time/compile_seconds": self.step.seconds - self.compiled,
      "time/input_seconds": self.waited,
    }
    seconds = {name: self.earlier.get(name, 0.0) + value for name, value in here.items()}
    first = "time/first_step_seconds"
    return seconds | {first: self.earlier[first]}

  def _peak(self) -> int:
    """Return the peak of bytes in use; 0 if devices do not count them."""
    return max((device.memory_stats() or {}).get("peak_bytes_in_use", 0) for device in self.devices)


# Their versions change a result's last digits.
PACKAGES = ("jax", "jaxlib", "flax", "optax", "numpy")


def versions() -> str:
  """Return the versions that decide a result: "posexp 0.2.0, jax 0.10.2, …, Python 3.11.7".

  In a checkout the version of posexp is followed by the commit, and by a plus if files differ from
  it: "posexp 0.2.0 (1a2b3c4d5e+)". "sums xla" are those of `posexp.machine`, in another order.
  """
  checkout, commit = Path(posexp.__file__).parents[1], ""
  if (checkout / ".git").exists():  # else it is an installed package
    describe = ["git", "-C", str(checkout), "describe", "--always", "--abbrev=10", "--exclude=*"]
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
      done = subprocess.run([*describe, "--dirty=+"], capture_output=True, text=True, timeout=5)
      commit = done.stdout.strip()
  parts = [f"posexp {posexp.__version__}{f' ({commit})' if commit else ''}"]
  parts += [f"{name} {importlib.metadata.version(name)}" for name in PACKAGES]
  parts += ["sums xla"] * (SET in os.environ.get("XLA_FLAGS", ""))
  return ", ".join([*parts, f"Python {platform.python_version()}"])


def machine() -> dict[str, Any]:
  """Return a summary's facts on the machine: its processor, or else architecture, and versions."""
  return {"processor": _processor(), "cores": os.cpu_count(), "versions": versions()}


def _processor() -> str:
  """Return the processor with its family and model: many of one name round differently."""
  try:
    said = Path("/proc/cpuinfo").read_text()
  except OSError:  # another system than Linux
    said = ""
  names = ("model name", "cpu family", "model")
  known = [re.search(rf"^{name}\s*:\s*(.+)$", said, re.MULTILINE) for name in names]
  name, *kind = [each[1].strip() if each else "" for each in known]
  if all(kind):
    name += f" family {kind[0]} model {kind[1]}"
  return name or platform.processor() or platform.machine()
