"""Estimates over seeds, and whether two systems differ by more than chance.

Scores of several seeds give t intervals, on a scale on which an interval cannot leave the range
that a score has; `scripts/interval_coverage.py` measures how often they hold the truth. The
predictions of two runs on the same examples give a paired bootstrap (Koehn 2004), whose draws are
those of sacrebleu's `PairedTest`, and McNemar's exact test.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy import special

LEVEL = 0.05
POWER = 0.8
FEWEST = 3  # shared seeds, from which on differences may be paired
EQUAL = 1e-7  # the largest share of a score that differs by rounding (in float32) alone
GAIN = 0.5  # differences are paired where this leaves less than this share of their variance
FAR = 1e4  # standard errors, beyond which p is 0
SEED = 12345  # of the bootstrap: sacrebleu's default


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
    """The mean and both ends of the interval, float [3]; NaN for missing ones."""
    return np.array([self.mean, self.low, self.high], float)


def estimate(values: Sequence[float], most: float | None = None) -> Estimate:
  """Return the mean, the standard deviation (n − 1) and the 95 % t interval of the mean.

  The interval of scores from 0 to `most` stays between these. Values that differ by less than 1e-9
  of the largest count as equal.
  """
  if len(values) == 0:
    return Estimate()
  n, mean = len(values), statistics.fmean(values)  # the same in any order
  if n < 2:
    return Estimate(n, mean)
  sd = _deviation(values)
  if not sd:
    return Estimate(n, mean, 0.0)
  return Estimate(n, mean, sd, *_ends(mean, sd / math.sqrt(n), _quantile(n - 1), most))


def _deviation(values: Sequence[float], largest: float = 0.0) -> float:
  """Return the standard deviation; 0 of values that differ by rounding alone."""
  with np.errstate(over="ignore"):
    equal = np.ptp(values) <= EQUAL * max(largest, np.abs(values).max())
    return 0.0 if equal else float(np.std(values, ddof=1))


def _quantile(freedom: float, level: float = LEVEL) -> float:
  """Return how many standard errors a two-sided t interval reaches to each side."""
  return float(special.stdtrit(freedom, 1 - level / 2))


def _ends(
  mean: float, error: float, reach: float, most: float | None = None
) -> tuple[float, float]:
  """Return the ends of an interval that reaches so many standard errors to each side.

  For scores without a range, this is the t interval. For scores from 0 to `most`, which may be
  infinite, it is the smallest interval that holds two others: the t interval, cut off where scores
  end, and the interval that is symmetric on the scale log(mean / (1 − mean / most)), the logit of
  shares or the logarithm. The first is too short toward the middle of the range where scores are
  skewed; the second never reaches the ends of the range.
  """
  low, high = mean - reach * error, mean + reach * error
  room = None if most is None else mean * (1 - mean / most)
  if room is None or room <= 0:
    return low, high
  odds = (
    mean * mean / room * math.exp(min(max(shift, -300.0), 300.0))
    for shift in (-reach * error / room, reach * error / room)
  )
  ends = [odd / (1 + odd / most) for odd in odds]
  return min(ends[0], max(low, 0.0)), max(ends[1], min(high, most))


class Contrast(NamedTuple):
  """The difference a − b of the means of two groups, with the uncertainty of both."""

  a: float
  b: float
  covariance: np.ndarray  # of the two means, float [2,2]
  freedom: float  # degrees of freedom
  most: float | None  # the largest score, as in `estimate`
  n: tuple[int, int]  # seeds of each
  paired: bool

  @property
  def mean(self) -> float:
    return self.a - self.b

  @property
  def error(self) -> float:
    """The standard error of the difference."""
    (a, both), (_, b) = self.covariance
    left = a + b - 2 * both
    return math.sqrt(left) if left > max(1e-12 * (a + b), 0.0) else 0.0

  def ends(self, reach: float | None = None) -> tuple[float, float]:
    """Return the ends of the interval of the difference: by default of 95 %, or else so many
    standard errors to each side.

    It is the t interval of pairs, or else follows from the intervals of the two means (Zou and
    Donner 2008). For scores without a range, this is the t interval, too. A difference stays
    within the range of the scores.
    """
    reach = _quantile(self.freedom) if reach is None else reach
    below, above = 2 * (reach * self.error,)
    if not self.paired:
      errors = np.sqrt(np.maximum(np.diag(self.covariance), 0))
      a, b = (
        np.abs(np.subtract(_ends(mean, error, reach, self.most), mean))
        for mean, error in zip((self.a, self.b), errors, strict=True)
      )
      alike = self.covariance[0, 1] / (errors.prod() or 1.0)  # as both are of the same examples
      squares = a**2 + b[::-1] ** 2 - 2 * min(max(alike, -1.0), 1.0) * a * b[::-1]
      below, above = np.sqrt(np.maximum(squares, 0))
    most = math.inf if self.most is None else self.most
    return max(float(self.mean - below), -most), min(float(self.mean + above), most)

  def p(self, value: float = 0.0) -> float:
    """Return the two-sided p of the difference being `value`: the level of the widest interval
    that does not hold it.

    Where differences do not vary at all, it is that of a permutation test: of the signs of pairs,
    or of which group a score belongs to.
    """
    off = self.mean - value
    if not self.error:
      same = abs(off) <= EQUAL * max(abs(self.a), abs(self.b))
      orders = 2 ** self.n[0] if self.paired else math.comb(sum(self.n), self.n[0])
      return 1.0 if same else 2 / orders
    side, sign, low, high = (1, -1, 0.0, FAR) if off < 0 else (0, 1, 0.0, FAR)
    while high - low > 1e-12 * high:
      middle = (low + high) / 2
      outside = (self.ends(middle)[side] - value) * sign > 0
      low, high = (middle, high) if outside else (low, middle)
    return float(min(2 * special.stdtr(self.freedom, -high), 1.0))

  def detectable(self, level: float = LEVEL) -> float:
    """Return the smallest difference that a test at such a level finds with a power of 80 %.

    The wider side of the 95 % interval stands for the error: near the end of a scale, seeds that
    hardly vary tell less than their deviation says.
    """
    low, high = self.ends()
    error = max(self.mean - low, high - self.mean) / _quantile(self.freedom)
    reach = _quantile(self.freedom, level)
    return float(special.nctdtrinc(self.freedom, 1 - POWER, reach)) * error

  def over_examples(self, covariance: np.ndarray, count: int) -> Contrast:
    """Return the contrast for other seeds and `count` other examples, too.

    `covariance` [2,2] is that of the two means over draws of examples; it adds to that of the
    seeds. An interval is as long as the root of the sum of the squares of both intervals (Zou and
    Donner 2008), so never shorter than that of the seeds alone.
    """
    both = self._replace(covariance=self.covariance + covariance)
    moved = self._replace(covariance=covariance).error
    if not moved or not both.error:
      return both if moved else self
    own = _quantile(self.freedom) * self.error, _quantile(max(count - 1, 1)) * moved
    return both._replace(
      freedom=float(special.stdtridf(1 - LEVEL / 2, math.hypot(*own) / both.error))
    )


def widest(seeds: Contrast, both: Contrast) -> tuple[float | None, float | None, float]:
  """Return the ends of the interval that holds those of two contrasts, None where nothing varies,
  and the larger p.
  """
  p = max(seeds.p(), both.p())
  if not both.error:
    return None, None, p
  (low, high), (lower, higher) = seeds.ends(), both.ends()
  return min(low, lower), max(high, higher), p


def contrast(a: Mapping[Any, float], b: Mapping[Any, float], most: float | None = None) -> Contrast:
  """Return the difference of two groups, each with its scores by seed, two or more.

  Scores of the same seed are paired where that at least halves the variance of the difference: the
  paired t test. Otherwise, all scores count, as in Welch's t test.
  """
  sides = [np.array([*side.values()], float) for side in (a, b)]
  shared = [key for key in a if key in b]
  variances = np.array([_deviation(side) ** 2 / len(side) for side in sides])
  apart = float(variances.sum())
  if len(shared) >= FEWEST:
    pairs = np.array([[side[key] for key in shared] for side in (a, b)], float)
    spread = _deviation(pairs[0] - pairs[1], np.abs(pairs).max()) ** 2 / len(shared)
    if spread < GAIN * apart:
      variances = np.array([_deviation(pair) ** 2 / len(shared) for pair in pairs])
      both = (variances.sum() - spread) / 2
      covariance = np.array([[variances[0], both], [both, variances[1]]])
      counts = (len(shared), len(shared))
      own, base = map(float, pairs.mean(axis=1))
      return Contrast(own, base, covariance, counts[0] - 1.0, most, counts, True)
  counts = (len(a), len(b))
  parts = (variances**2 / np.subtract(counts, 1)).sum()
  freedom = apart**2 / parts if apart else sum(counts) - 2.0
  own, base = (float(side.mean()) for side in sides)
  return Contrast(own, base, np.diag(variances), float(freedom), most, counts, False)


def over_examples(
  a: Mapping[Any, np.ndarray], b: Mapping[Any, np.ndarray], paired: bool
) -> np.ndarray:
  """Return the covariance [2,2] of the means of two groups of runs over examples, or draws of them,
  without the part that the variance over runs already holds.

  This part is what single runs do by chance on single examples. Runs of one seed may have it in
  common, and then it is no part of their difference.

  Args:
    a: the scores of each run on examples, or on draws of them, float [N], by seed.
    b: likewise, of the other group.
    paired: whether the runs of the seeds that both have count alone.
  """
  shared = [key for key in a if key in b]
  if paired:
    a, b = ({key: side[key] for key in shared} for side in (a, b))
  sides = [{key: scores - scores.mean() for key, scores in side.items()} for side in (a, b)]
  means = [np.mean([*side.values()], axis=0) for side in sides]
  noise = np.diag([np.var([*side.values()], axis=0, ddof=1).mean() / len(side) for side in sides])
  if len(shared) > 1:
    one, other = (np.array([side[key] for key in shared]) for side in sides)
    common = ((one - one.mean(axis=0)) * (other - other.mean(axis=0))).mean(axis=1).sum()
    common *= len(shared) / (len(shared) - 1) / (len(a) * len(b))
    noise += common * (1 - np.eye(2))
  return np.cov(*means) - noise


@dataclasses.dataclass
class Difference:
  """A group minus the baseline. There is no test unless both have two seeds."""

  estimate: Estimate = dataclasses.field(default_factory=Estimate)
  contrast: Contrast | None = None
  p: float | None = None
  holm: float | None = None  # p, corrected for all groups that were tested

  @classmethod
  def of(cls, a: Mapping[Any, float], b: Mapping[Any, float], most: float | None) -> Difference:
    """Return the difference of two groups, from their scores by seed."""
    if min(len(a), len(b)) < 2:  # of the same seed, if both have it
      shared = [key for key in a if key in b]
      own, base = (np.mean([side[key] for key in shared or side]) for side in (a, b))
      return cls(Estimate(min(len(a), len(b)), float(own - base)))
    both = contrast(a, b, most)
    ends = both.ends() if both.error else (None, None)
    return cls(Estimate(min(both.n), both.mean, None, *ends), both, both.p())


def holm(p: Sequence[float]) -> list[float]:
  """Return p values corrected for there being several (Holm 1979), in the same order."""
  order = np.argsort(p, kind="stable")
  corrected = np.empty(len(p))
  steps = np.arange(len(p), 0, -1) * np.asarray(p, float)[order]
  corrected[order] = np.minimum(np.maximum.accumulate(steps), 1)
  return corrected.tolist()


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


def resample(measures: Sequence[Measure], samples: int) -> np.ndarray:
  """Return the scores of some measures [measures,1+samples]: first of all examples, then of draws
  of them, which all measures share.
  """
  draw, count = np.random.default_rng(SEED), len(measures[0].statistics)
  scores = np.empty((len(measures), 1 + samples))
  times = np.ones(count)
  for column in range(1 + samples):
    scores[:, column] = [measure.score(times @ measure.statistics) for measure in measures]
    times = np.bincount(draw.choice(count, size=count), minlength=count)
  return scores


def interval(resampled: np.ndarray) -> dict[str, float]:
  """Return the score as `value`, from `low` to `high`: the percentiles 2.5 and 97.5 of its samples,
  as sacrebleu takes them, from [1+samples].
  """
  score, ordered = resampled[0], np.sort(resampled[1:])
  cut = len(ordered) // 40
  return {"value": float(score), "low": float(ordered[cut]), "high": float(ordered[-cut - 1])}


def bootstrap_p(difference: np.ndarray) -> float:
  """Return the two-sided p of no difference, from [1+samples]: the share of samples that lie at
  least as far from the samples' mean as the difference that was found lies from zero.
  """
  observed, samples = abs(difference[0]), difference[1:]
  # What is equal must count as such, however the sums were rounded.
  strayed = np.abs(samples - samples.mean()) >= observed * (1 - 1e-9)
  return float((strayed.sum() + 1) / (len(strayed) + 1)) if observed else 1.0


def mcnemar(a: np.ndarray, b: np.ndarray) -> dict[str, Any]:
  """Return p of McNemar's exact test of two systems that are right or wrong, bool [N] each, and on
  how many examples one is right and the other wrong.
  """
  a_alone, b_alone = int((a & ~b).sum()), int((b & ~a).sum())
  tail = float(special.bdtr(min(a_alone, b_alone), a_alone + b_alone, 0.5))
  return {"a_alone": a_alone, "b_alone": b_alone, "p": min(2 * tail, 1.0)}
