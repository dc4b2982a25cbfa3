"""What training a run costs: seconds, tokens per second, compilation and memory.

time/seconds              training with its evaluations, over all sessions of the run
time/tokens_per_second    real tokens since the row before, without evaluation and waiting for what
                          is compiled; on a CPU other shapes are compiled meanwhile, which slows
                          the first steps
time/compile_seconds      for which steps waited until their program was compiled; near 0 where an
                          earlier run of the process has compiled it
time/input_seconds        for which devices waited for a batch, at the most
time/first_step_seconds   from the start of the process, or of the job in a sweep, to the end of
                          the first step
memory/temporary_bytes    what the step needs on a device beside its inputs and outputs, according
                          to its compiler
memory/peak_bytes         the most that a device had in use, where it counts (GPU, TPU); left out
                          where an earlier run of the process had as much
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import posexp
from posexp.runs.metrics import COST

if TYPE_CHECKING:
  from jax.sharding import Mesh

  from posexp.data.examples import Batch
  from posexp.training.step import State, Step

_process = [posexp.BEGUN]


def job_begins() -> float:
  """The time at which this job began; the first job of a process begins with the process."""
  return _process.pop() if _process else time.perf_counter()


def of_run(history: Sequence[Mapping[str, Any]]) -> dict[str, float]:
  """What a run cost, from its rows."""
  found: dict[str, float] = {}
  for row in history:
    found |= {name: row[name] for name in row if name.startswith(COST)}
  found.pop("time/tokens_per_second", None)
  return found


class Meter:
  """Counts the costs of a run while it is trained."""

  def __init__(self, history: Sequence[Mapping[str, Any]], step: Step, mesh: Mesh, begun: float):
    self.step = step
    self.devices = mesh.local_devices
    self.earlier = of_run(history)  # in sessions before this one
    self.begun = begun
    self.entered = time.perf_counter()
    self.compiled = step.seconds
    self.waited = 0.0
    self.peak = self._peak()
    self.restart()

  def restart(self) -> None:
    """Begins to count anew, after something that was not training."""
    self.since, self.compiling, self.tokens = time.perf_counter(), self.step.seconds, 0

  def next(self, batches: Iterator[tuple[Batch, int]], state: State) -> tuple[Batch, int]:
    """The next batch and its tokens; devices that had done all steps before it have waited."""
    since = time.perf_counter()
    found = next(batches)
    if state.step.is_ready():
      self.waited += time.perf_counter() - since
    return found

  def count(self, tokens: int, state: State) -> None:
    """Counts a step on so many tokens."""
    self.tokens += tokens
    if "time/first_step_seconds" not in self.earlier:
      state.step.block_until_ready()
      self.earlier["time/first_step_seconds"] = time.perf_counter() - self.begun

  def read(self) -> dict[str, float]:
    """The costs since the beginning and since the last row, for a row of the log."""
    now, compiling = time.perf_counter(), self.step.seconds
    rate = self.tokens / (now - self.since - (compiling - self.compiling))
    self.restart()
    earlier = self.earlier.get
    row = {
      "time/seconds": earlier("time/seconds", 0.0) + now - self.entered,
      "time/tokens_per_second": rate,
      "time/compile_seconds": earlier("time/compile_seconds", 0.0) + compiling - self.compiled,
      "time/input_seconds": earlier("time/input_seconds", 0.0) + self.waited,
      "time/first_step_seconds": self.earlier["time/first_step_seconds"],
      "memory/temporary_bytes": self.step.temporary_bytes,
    }
    peak = self._peak()
    return row | ({"memory/peak_bytes": peak} if peak > self.peak else {})

  def _peak(self) -> int:
    """Bytes; 0 where devices do not count them."""
    return max((each.memory_stats() or {}).get("peak_bytes_in_use", 0) for each in self.devices)
