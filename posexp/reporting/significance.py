"""Estimates over seeds, and whether two systems differ by more than chance.

Scores of several seeds give t intervals and paired t tests; those that lie near 0 or 1, a bootstrap
or their range, and permutation tests. The predictions of two runs on the same
examples give a paired bootstrap (Koehn 2004), whose draws are those of sacrebleu's `PairedTest`,
and McNemar's exact test.
"""

from __future__ import annotations

import bisect
import functools
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy import special

LEVEL = 0.05
POWER = 0.8
MANY = 5  # seeds, from which on a bootstrap over them says more than their range
FEWEST = 3  # seeds, from which on their differences say how many would be needed
MOST_SEEDS = 1000  # beyond which it does not matter how many would be needed
SEED = 12345  # of the bootstrap: sacrebleu's default
DRAWS = 9999  # of scores of seeds: scipy's default


class Estimate(NamedTuple):
  """A mean over n runs; sd needs two runs, and an interval needs two that differ."""

  n: int = 0
  mean: float | None = None  # of no run
  sd: float | None = None
  low: float | None = None
  high: float | None = None

  @property
  def half(self) -> float | None:
    """Half the interval."""
    return None if self.high is None else (self.high - self.low) / 2

  @property
  def ends(self) -> np.ndarray:
    """The mean and both ends of the interval, float [3]; NaN for what there is not."""
    return np.array([self.mean, self.low, self.high], float)


def estimate(values: Sequence[float], scale: float = 0.0) -> Estimate:
  """Return the mean, the standard deviation (n − 1) and the 95 % t interval of the mean.

  Values that differ by less than 1e-9 of `scale`, or of the largest of them, count as equal.
  """
  if len(values) == 0:
    return Estimate()
  n, mean = len(values), float(np.mean(values))
  if n < 2:
    return Estimate(n, mean)
  if np.ptp(values) <= 1e-9 * max(scale, np.abs(values).max()):
    return Estimate(n, mean, 0.0)
  with np.errstate(over="ignore"):
    sd = float(np.std(values, ddof=1))
  half = float(special.stdtrit(n - 1, 1 - LEVEL / 2)) * sd / math.sqrt(n)
  return Estimate(n, mean, sd, mean - half, mean + half)


def over_seeds(values: Sequence[float]) -> Estimate:
  """Return what `estimate` does for scores that are near 0 with some seeds and near 1 with others.

  The interval is that of a percentile bootstrap over seeds, which does not leave the range of their
  values; or, of fewer than MANY seeds, this range.
  """
  found = estimate(values)
  if found.low is None:
    return found
  low, high = min(values), max(values)
  if found.n >= MANY:
    means = np.asarray(values, float)[_draws(found.n)].mean(axis=1)
    low, high = np.quantile(means, [LEVEL / 2, 1 - LEVEL / 2])
  return found._replace(low=float(low), high=float(high))


@functools.lru_cache(maxsize=32)
def _draws(n: int) -> np.ndarray:
  """Return draws of n values with replacement, int [DRAWS,n]: those of scipy.stats.bootstrap."""
  return np.random.default_rng(SEED).integers(0, n, (DRAWS, n))


def permutation(a: Sequence[float], b: Sequence[float]) -> tuple[Estimate, float | None]:
  """Return the difference of the means of a and b over their own seeds, without an interval, and
  the two-sided p of a permutation test, exact for up to 7 seeds of each; None of fewer than two.
  """
  found = Estimate(min(len(a), len(b)), float(np.mean(a) - np.mean(b)))
  if found.n < 2:
    return found, None
  dealt = np.array([*a, *b], float)[_deals(len(a), len(b))]
  chance = dealt[:, : len(a)].mean(axis=1) - dealt[:, len(a) :].mean(axis=1)
  # What is equal must count as such, however the sums were rounded.
  equal = 1e-12 * np.abs(dealt[0]).max()
  strayed = min((chance <= found.mean + equal).sum(), (chance >= found.mean - equal).sum())
  itself = len(chance) == DRAWS  # all ways have what was found among them, draws need not
  return found, float(min(1, 2 * (strayed + itself) / (len(chance) + itself)))


@functools.lru_cache(maxsize=32)
def _deals(a: int, b: int) -> np.ndarray:
  """Return ways to deal a + b values into a and b of them, int [ways,a+b].

  These are all ways, or DRAWS of them if there are more, as scipy.stats.permutation_test draws.
  """
  n = range(a + b)
  if math.comb(a + b, a) > DRAWS:
    draw = np.random.default_rng(SEED)
    return np.array([draw.permutation(len(n)) for _ in range(DRAWS)])
  return np.array(
    [[*one, *(each for each in n if each not in one)] for one in itertools.combinations(n, a)]
  )


def paired_t(a: Sequence[float], b: Sequence[float]) -> tuple[Estimate, float | None]:
  """Return the mean of a − b over seeds with its interval, and the two-sided p of the paired t
  test.

  There is neither interval nor p of one seed, nor where the difference is the same with all seeds,
  which gives no idea of how much it varies.
  """
  found = estimate(np.subtract(a, b), scale=np.abs([*a, *b]).max())
  if found.low is None:
    return found, None
  t = found.mean / (found.sd / math.sqrt(found.n))
  return found, float(2 * special.stdtr(found.n - 1, -abs(t)))


def holm(p: Sequence[float]) -> list[float]:
  """Return p values corrected for there being several (Holm 1979), in the same order."""
  order = np.argsort(p, kind="stable")
  corrected = np.empty(len(p))
  steps = np.arange(len(p), 0, -1) * np.asarray(p, float)[order]
  corrected[order] = np.minimum(np.maximum.accumulate(steps), 1)
  return corrected.tolist()


def power(n: int, effect: float, level: float) -> float:
  """Return how probably a two-sided paired t test with n pairs finds a difference of
  `effect` sd.
  """
  bound, shift = special.stdtrit(n - 1, 1 - level / 2), effect * math.sqrt(n)
  found = 1 - special.nctdtr(n - 1, shift, bound) + special.nctdtr(n - 1, shift, -bound)
  return float(found) if math.isfinite(found) else 1.0  # where the shift is beyond all tables


def seeds_needed(difference: float, sd: float, level: float = LEVEL) -> int | None:
  """Return the fewest pairs with which such a difference is found with a power of 80 %; None if
  that is more than MOST_SEEDS.
  """
  if not sd:
    return 2
  counts, effect = range(2, MOST_SEEDS + 1), abs(difference) / sd
  place = bisect.bisect_left(counts, POWER, key=lambda n: power(n, effect, level))
  return counts[place] if place < len(counts) else None


class Measure(NamedTuple):
  """The statistics of examples that make a score; `score` maps their sum, [K], to a number."""

  statistics: np.ndarray  # float64 [N,K]
  score: Callable[[np.ndarray], float]
  right: np.ndarray | None = None  # bool [N], where the score is the share of these


def corpus_measure(metric: Any, hypotheses: Sequence[str], references: Sequence[str]) -> Measure:
  """Return a metric of sacrebleu on a corpus."""
  # sacrebleu has no public name for what its own significance tests are made of.
  statistics = metric._extract_corpus_statistics(hypotheses, [references])
  return Measure(
    np.asarray(statistics, float),
    lambda sums: metric._compute_score_from_stats(list(map(int, sums))).score,
  )


def ratio_measure(amounts: np.ndarray, sizes: np.ndarray) -> Measure:
  """Return a sum over examples by the sum of their sizes, from [N] each."""
  statistics = np.stack([amounts, sizes], axis=1).astype(float)
  return Measure(statistics, lambda sums: float(sums[0] / max(sums[1], 1.0)))


def share_measure(right: np.ndarray) -> Measure:
  """Return the per cent of examples that are right, from bool [N]."""
  return ratio_measure(100 * right, np.ones(len(right)))._replace(right=right)


def resample(measures: Sequence[Measure], samples: int) -> np.ndarray:
  """Return the scores of some measures [measures,1+samples]: first of all examples, then of draws
  of them, which all measures share.
  """
  draw, count = np.random.default_rng(SEED), len(measures[0].statistics)
  found = np.empty((len(measures), 1 + samples))
  times = np.ones(count)
  for column in range(1 + samples):
    found[:, column] = [each.score(times @ each.statistics) for each in measures]
    times = np.bincount(draw.choice(count, size=count), minlength=count)
  return found


def interval(resampled: np.ndarray) -> dict[str, float]:
  """Return the score as `value`, from `low` to `high`: the percentiles 2.5 and 97.5 of its samples,
  as sacrebleu takes them, from [1+samples].
  """
  score, ordered = resampled[0], np.sort(resampled[1:])
  cut = len(ordered) // 40
  return {"value": float(score), "low": float(ordered[cut]), "high": float(ordered[-cut - 1])}


def bootstrap_p(difference: np.ndarray) -> float:
  """Return the two-sided p of no difference, from [1+samples]: how often samples stray from the
  difference that was found as far as this is from zero.
  """
  found, samples = abs(difference[0]), difference[1:]
  # What is equal must count as such, however the sums were rounded.
  strayed = np.abs(samples - samples.mean()) >= found * (1 - 1e-9)
  return float((strayed.sum() + 1) / (len(strayed) + 1)) if found else 1.0


def mcnemar(a: np.ndarray, b: np.ndarray) -> dict[str, Any]:
  """Return p of McNemar's exact test of two systems that are right or wrong, bool [N] each, and on
  how many examples one is right and the other wrong.
  """
  a_alone, b_alone = int((a & ~b).sum()), int((b & ~a).sum())
  tail = float(special.bdtr(min(a_alone, b_alone), a_alone + b_alone, 0.5))
  return {"a_alone": a_alone, "b_alone": b_alone, "p": min(2 * tail, 1.0)}
