"""Whether two systems differ on the same examples by more than chance, and by how much.

A measure's score is a function of sums over the examples, so that it can be taken anew of examples
drawn with replacement (the paired bootstrap: Koehn 2004). The draws are those of sacrebleu's
`PairedTest`, and so are the intervals of single scores and `sacrebleu_p`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

SEED = 12345  # sacrebleu's default
LEVEL = 0.05


class Measure(NamedTuple):
  """What a score takes of each example; `score` maps its sum over examples, [K], to a number."""

  statistics: np.ndarray  # float64 [N, K]
  score: Callable[[np.ndarray], float]


class Interval(NamedTuple):
  """An estimate between the ends of its 95 % interval."""

  value: float
  low: float
  high: float


class Resampled(NamedTuple):
  """A score of all examples, and of each sample of them."""

  score: float
  samples: np.ndarray  # float64 [samples]

  @property
  def interval(self) -> Interval:
    """Between the percentiles 2.5 and 97.5 of the samples, as sacrebleu takes them."""
    ordered, cut = np.sort(self.samples), len(self.samples) // 40
    return Interval(self.score, float(ordered[cut]), float(ordered[len(ordered) - cut - 1]))

  def __sub__(self, other: Resampled) -> Resampled:
    return Resampled(self.score - other.score, self.samples - other.samples)


def of_metric(metric: Any, hypotheses: Sequence[str], references: Sequence[str]) -> Measure:
  """A metric of sacrebleu on a corpus."""
  # sacrebleu has no public name for what its own significance tests are made of.
  statistics = metric._extract_corpus_statistics(hypotheses, [references])
  return Measure(
    np.asarray(statistics, float),
    lambda sums: metric._compute_score_from_stats(list(map(int, sums))).score,
  )


def of_share(right: np.ndarray) -> Measure:
  """The per cent of examples that are right, from bool [N]."""
  statistics = np.stack([right, np.ones(len(right))], axis=1).astype(float)
  return Measure(statistics, lambda sums: float(100 * sums[0] / sums[1]))


def resample(measures: Sequence[Measure], samples: int) -> list[Resampled]:
  """Each measure on all examples and on `samples` draws of them, which all measures share."""
  joined = np.concatenate([each.statistics for each in measures], axis=1)
  ends = np.cumsum([each.statistics.shape[1] for each in measures])[:-1]
  draw, count = np.random.default_rng(SEED), len(joined)
  sums = np.empty((samples, joined.shape[1]))
  for row in sums:  # one at a time, since all indices of a large corpus do not fit in memory
    row[:] = np.bincount(draw.choice(count, size=count), minlength=count) @ joined
  return [
    Resampled(
      each.score(each.statistics.sum(0)), np.array([each.score(one) for one in part], float)
    )
    for each, part in zip(measures, np.split(sums, ends, axis=1), strict=True)
  ]


def mean(each: Sequence[Resampled]) -> Resampled:
  """The mean score of several runs, all on the same samples."""
  return Resampled(
    float(np.mean([one.score for one in each])), np.mean([one.samples for one in each], axis=0)
  )


def bootstrap_p(difference: Resampled) -> float:
  """How often samples stray from the difference that was found as far as this is from zero: the
  two-sided p of no difference."""
  found = abs(difference.score)
  # What is equal must count as such, however the sums were rounded.
  strayed = np.abs(difference.samples - difference.samples.mean()) >= found * (1 - 1e-9)
  return float((strayed.sum() + 1) / (len(strayed) + 1)) if found else 1.0


def sacrebleu_p(difference: Resampled) -> float:
  """The p of sacrebleu's paired bootstrap.

  It takes the mean of |difference| off |difference|, which makes it about half of `bootstrap_p`,
  and as small as can be for two equal systems.
  """
  sizes = np.abs(difference.samples)
  exceeded = int((sizes - sizes.mean() > abs(difference.score)).sum())
  return (exceeded + 1) / (len(sizes) + 1)


def mcnemar(a: np.ndarray, b: np.ndarray) -> dict[str, Any]:
  """McNemar's exact test of two systems that are right or wrong, bool [N] each.

  Returns:
    `a_alone` and `b_alone`, on how many examples one is right and the other wrong, and `p`.
  """
  from scipy import stats

  a_alone, b_alone = int((a & ~b).sum()), int((b & ~a).sum())
  discordant = a_alone + b_alone
  p = stats.binomtest(a_alone, discordant).pvalue if discordant else 1.0
  return {"a_alone": a_alone, "b_alone": b_alone, "p": float(p)}


def over_seeds(a: Sequence[float], b: Sequence[float]) -> dict[str, Any]:
  """The paired t test of the scores of two groups of runs, in the order of their seeds.

  Returns:
    `n`, `difference` (the mean), its interval `low` to `high`, and `p`; these three are None if the
    difference is the same with all seeds, which gives no idea of how much it varies.
  """
  from scipy import stats

  differences = np.subtract(a, b)
  found = {"n": len(differences), "difference": float(differences.mean())}
  if np.ptp(differences) <= 1e-9 * max(np.abs([*a, *b]).max(), 1e-9):
    return found | {"low": None, "high": None, "p": None}
  test = stats.ttest_rel(a, b)
  low, high = test.confidence_interval(1 - LEVEL)
  return found | {"low": float(low), "high": float(high), "p": float(test.pvalue)}
