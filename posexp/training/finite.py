"""What is said of a loss, or of a metric, that is no finite number."""

from __future__ import annotations

import math
from numbers import Real
from typing import Any

from posexp.errors import NotFinite
from posexp.training.evaluation import LOOK, SMALLER

START = f"the model overflows with the weights that it starts from; {LOOK}"


def check_finite(metrics: dict[str, Any]) -> dict[str, Any]:
  """Return the metrics; NotFinite if one is not finite, for it is no result."""
  for name, value in metrics.items():
    if isinstance(value, Real) and not math.isfinite(value):
      raise NotFinite(
        f"{name} is {value}, which is no result; the task must measure a finite number there"
      )
  return metrics


def not_finite(step: int) -> NotFinite:
  """Return the error for a loss that no training comes back from."""
  if step == 1:  # no weight has changed yet
    return NotFinite(f"the loss is not finite at step 1, before any option of train acts: {START}")
  return NotFinite(
    f"the loss is not finite at step {step}; what was saved before is kept: {SMALLER}; if they "
    f"change nothing, {LOOK}"
  )
