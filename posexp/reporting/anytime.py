"""Differences of two groups of seeds that hold however often one looks: anytime-valid inference.

If two groups score alike, every order of their scores is as likely as any other, whatever the
scores' distribution. The evidence of a difference is how much likelier the order is if those of one
group leave the ranks `exp(ratio)` times as readily (Plackett 1975; Savage 1956): a likelihood ratio
of ranks, the same as that of the log-rank test of ter Schure et al. (2024). It grows beyond 1/α at
any time with a probability of at most α (Ville 1939), so a sweep may look at it after every round
and stop. All scores less a shift are compared likewise, which leads to an interval for the shift.

Nothing is said of variances: neither skewed seeds nor such as either learn or do not mislead it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy import special

from posexp.reporting.significance import LEVEL, Difference, Estimate

# Two are enough: with the first, groups that differ by one standard deviation are told apart in the
# fewest seeds, with the second, such as do not overlap.
RATIOS = (2.0, 3.5)


def log_evidence(a: Sequence[float], b: Sequence[float], shifts: Sequence[float] = (0.0,)) -> Any:
  """Return the logarithm of the evidence against each shift [S] as the value of a − b, float64 [S].

  It is the mean over both directions of the difference, both directions of the ranks, and RATIOS.
  Equal scores are put in the order that gives the weakest evidence.
  """
  moved = np.asarray(a, float) - np.asarray(shifts, float)[:, None]
  values = np.hstack([moved, np.broadcast_to(np.asarray(b, float), (len(shifts), len(b)))])
  own = np.arange(len(a) + len(b)) < len(a)
  ratios = []
  for sign in (1, -1):
    for ahead in (own, ~own):
      order = np.lexsort((np.broadcast_to(ahead, values.shape), sign * values), axis=-1)
      for ratio in RATIOS:
        rates = np.where(ahead[order], math.exp(ratio), 1.0)
        left = np.cumsum(rates[:, ::-1], axis=1)  # the rates of all that have not left yet
        ratios.append(ratio * ahead.sum() - np.log(left).sum(axis=1))
  orders = special.gammaln(len(own) + 1)
  return special.logsumexp(ratios, axis=0) - math.log(len(ratios)) + orders


def bounds(a: Sequence[float], b: Sequence[float], level: float) -> tuple[float, float]:
  """Return the least and the greatest shift a − b against which the evidence is below 1/level.

  They are infinite as long as there are too few seeds.
  """
  steps = np.unique(np.subtract.outer(np.asarray(a, float), np.asarray(b, float)))
  between = np.hstack([steps[0] - 1, (steps[1:] + steps[:-1]) / 2, steps[-1] + 1])
  kept = np.flatnonzero(log_evidence(a, b, between) < -math.log(level))
  ends = np.hstack([-math.inf, steps, math.inf])
  return (ends[kept[0]], ends[kept[-1] + 1]) if len(kept) else (steps[0], steps[-1])


class Standing(NamedTuple):
  """What is known of a difference after some seeds."""

  low: float
  high: float
  p: float


def standing(a: Sequence[float], b: Sequence[float], level: float) -> Standing:
  """Return the joint result of looks at two groups: after their first seed, the first two, and so
  on.

  The intervals of all looks hold at once, so the result is their intersection, apart from looks
  that would leave it empty. Its p is that of the look with the most evidence.
  """
  low, high, most = -math.inf, math.inf, 0.0
  for count in range(1, max(len(a), len(b)) + 1):
    first, second = a[:count], b[:count]
    most = max(most, float(log_evidence(first, second)[0]))
    below, above = bounds(first, second, level)
    if max(low, below) <= min(high, above):  # groups of other shapes may leave nothing
      low, high = max(low, below), min(high, above)
  return Standing(low, high, math.exp(-most))


def difference(
  a: Mapping[Any, float], b: Mapping[Any, float], most: float | None, comparisons: int
) -> Difference:
  """Return the difference of two groups, from their scores by seed, in the order of the seeds.

  Its interval holds together with those of all `comparisons` (Bonferroni), and `holm` is p times
  their number.
  """
  own, base = ([side[key] for key in sorted(side)] for side in (a, b))
  low, high, p = standing(own, base, LEVEL / comparisons)
  mean = float(np.mean(own) - np.mean(base))
  widest = math.inf if most is None else most
  known = min(-low, high) < math.inf
  ends = (max(low, -widest), min(high, widest)) if known else (None, None)
  estimated = Estimate(min(len(own), len(base)), mean, None, *ends)
  return Difference(estimated, None, p, min(1.0, p * comparisons))
