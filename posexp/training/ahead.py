"""A training step that is compiled ahead of the batches that need it, and counts what that takes.

It is compiled explicitly for each new shape of a batch.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any

import jax
from jax import Array

from posexp.data.examples import Batch
from posexp.data.side_by_side import cores
from posexp.status import doing
from posexp.training.devices import check_memory


class Step:
  """The training step: (state, batch, key of dropout) -> state; the old state is donated."""

  def __init__(self, update: Any):
    self.jitted = update
    # XLA compiles on several cores: on two cores, two programs at a time save nothing.
    self.threads = ThreadPoolExecutor(max(1, cores() // 2))
    self._lowered: list[Future[Any]] = []  # the last program that was begun
    self._begun: dict[tuple[int, ...], Future[int]] = {}  # by the shape of the batches
    self._temporary: dict[tuple[int, ...], int] = {}  # bytes, by shapes that were called
    self.seconds = 0.0  # for which calls waited for compilation in this process

  @property
  def temporary_bytes(self) -> int:
    """The most bytes that a step needs on a device besides its inputs and outputs."""
    return max(self._temporary.values(), default=0)

  def begin(self, state: Any, batches: Iterable[Batch], key: Array) -> None:
    """Begin to compile the step for such batches, on threads.

    State and batches are given by their shapes and devices (`jax.ShapeDtypeStruct`).
    """
    for batch in batches:
      if (shape := batch["mask"].shape) not in self._begun:
        lowered = self.threads.submit(self.jitted.lower, state, batch, key)
        self._lowered = [lowered]
        self._begun[shape] = self.threads.submit(self._compile, lowered.result)

  def await_xla(self) -> None:
    """Wait until the last program begun is traced and handed to XLA, which needs no Python.

    Tracing anything else meanwhile would slow down both.
    """
    wait(self._lowered)  # an error is raised where the step is called

  def _compile(self, lowered: Callable[[], Any]) -> int:
    """Compile a step; return the bytes it needs on a device besides its inputs and outputs."""
    # The jitted function finds this program, and is faster to call than the program.
    program = lowered().compile()
    return getattr(program.memory_analysis(), "temp_size_in_bytes", 0)

  def __call__(self, state: Any, batch: Batch, key: Array) -> Any:
    if (shape := batch["mask"].shape) not in self._temporary:
      jax.block_until_ready(state)  # the time of steps before this one is not that of compiling
      doing(f"compiling a step on texts of {shape[1]} tokens")
      since = time.perf_counter()
      begun = self._begun.get(shape)
      lower = functools.partial(self.jitted.lower, state, batch, key)
      temporary = begun.result() if begun else self._compile(lower)
      self.seconds += time.perf_counter() - since
      what = f"train.batch_size: a step on {shape[0]:,} rows of {shape[1]:,} tokens"
      check_memory(temporary, what, "lower it, or raise train.accumulate")
      self._temporary[shape] = temporary
    return self.jitted(state, batch, key)
