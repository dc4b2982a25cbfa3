"""When a run logs a row, and when it evaluates."""

from __future__ import annotations

import math
from typing import NamedTuple

from posexp.errors import UserError, counted
from posexp.tasks.contract import Data
from posexp.training.setup import Setup


class Rhythm(NamedTuple):
  """The steps, counted from 1, at which training logs a row and evaluates."""

  steps: int  # the last one is evaluated
  log_every: int
  evaluate_every: int

  @classmethod
  def of(cls, setup: Setup, data: Data) -> Rhythm:
    """Return the schedule of a run; without `train.evaluate_every` it evaluates after each epoch.

    Raises:
      UserError: there are fewer evaluations than checkpoints that the run is to average.
    """
    options, steps = setup.training, setup.steps(data)
    every = options.evaluate_every or data.steps_per_epoch(options.batch_size)
    if (options.average or 0) > (evaluations := math.ceil(steps / every)):
      raise UserError(
        f"train.average={options.average}: of {steps:,} steps the run is evaluated "
        f"{counted(evaluations, 'time')}; lower it or train.evaluate_every"
      )
    return cls(steps, options.log_every, every)

  def evaluates(self, step: int) -> bool:
    return step % self.evaluate_every == 0 or step == self.steps

  def logs(self, step: int) -> bool:
    """Return whether there is a row, as each evaluation has one."""
    return step % self.log_every == 0 or self.evaluates(step)

  def rows(self, until: int) -> dict[int, bool]:
    """Return the steps that have a row, up to one, and whether it is that of an evaluation."""
    return {step: self.evaluates(step) for step in range(1, until + 1) if self.logs(step)}
