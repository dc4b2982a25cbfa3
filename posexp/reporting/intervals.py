"""Means over seeds, paired differences, and what a test of them could have seen."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from posexp.reporting.significance import LEVEL

POWER = 0.8
MOST = 1000  # seeds, beyond which it does not matter how many there would have to be


class Estimate(NamedTuple):
  """A mean over n runs; sd needs two, and an interval needs two that differ."""

  n: int
  mean: float
  sd: float | None = None
  low: float | None = None
  high: float | None = None


def estimate(values: Sequence[float]) -> Estimate:
  """Mean, standard deviation (n − 1) and the 95 % t interval of the mean."""
  from scipy import special

  n, mean = len(values), float(np.mean(values))
  if n < 2:
    return Estimate(n, mean)
  if np.ptp(values) <= 1e-12 * max(np.abs(values).max(), 1e-12):
    return Estimate(n, mean, 0.0)
  sd = float(np.std(values, ddof=1))
  half = float(special.stdtrit(n - 1, 1 - LEVEL / 2)) * sd / math.sqrt(n)
  return Estimate(n, mean, sd, mean - half, mean + half)


def holm(p: Sequence[float]) -> list[float]:
  """p values corrected for there being several (Holm 1979), in the same order."""
  adjusted, largest = [0.0] * len(p), 0.0
  for rank, index in enumerate(sorted(range(len(p)), key=p.__getitem__)):
    largest = max(largest, min(1.0, (len(p) - rank) * p[index]))
    adjusted[index] = largest
  return adjusted


def power(n: int, effect: float, level: float) -> float:
  """How probably a two-sided paired t test with n pairs finds a difference of `effect` sd."""
  from scipy import special

  bound, shift = special.stdtrit(n - 1, 1 - level / 2), effect * math.sqrt(n)
  found = 1 - special.nctdtr(n - 1, shift, bound) + special.nctdtr(n - 1, shift, -bound)
  return float(found) if math.isfinite(found) else 1.0  # where the shift is beyond all tables


def needed(difference: float, sd: float, level: float = LEVEL) -> int | None:
  """The fewest pairs with which such a difference is found with a power of 80 %; None if that is
  more than MOST."""
  if not sd:
    return 2
  low, high, effect = 2, MOST, abs(difference) / sd
  if power(high, effect, level) < POWER:
    return None
  while low < high:
    middle = (low + high) // 2
    if power(middle, effect, level) < POWER:
      low = middle + 1
    else:
      high = middle
  return low
