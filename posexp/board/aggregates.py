"""Means over several tasks with few seeds each (Agarwal et al. 2021): interquartile means, the
probability that one encoding is better than another, and whether two tasks rank encodings alike.

Scores are on one scale in all tasks, more is better, and each task has an array of its seeds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

SEED = 12345
DRAWS = 2000

Tasks = Sequence[np.ndarray]  # float [seeds] of each task


class Interval(NamedTuple):
  """A value with its 95 % interval and, where there is a test, its p."""

  value: float
  low: float
  high: float
  p: float | None = None


def interquartile_mean(values: np.ndarray) -> np.ndarray:
  """Return the mean of the middle half of values [..., N], as [...]."""
  cut = values.shape[-1] // 4
  return np.sort(values, axis=-1)[..., cut : values.shape[-1] - cut].mean(axis=-1)


def overall(tasks: Tasks) -> Interval:
  """Return the interquartile mean over all seeds of all tasks. Its interval comes from a bootstrap
  that draws the seeds of each task separately.
  """
  draw = np.random.default_rng(SEED)
  drawn = [task[draw.integers(len(task), size=(DRAWS, len(task)))] for task in tasks]
  ends = np.percentile(interquartile_mean(np.concatenate(drawn, axis=1)), [2.5, 97.5])
  return Interval(float(interquartile_mean(np.concatenate(tasks))), *map(float, ends))


def _better(a: np.ndarray, b: np.ndarray) -> np.ndarray:
  """Return how often numbers a [..., N] exceed b [..., M], as [...]; ties count half."""
  above = a[..., :, None] - b[..., None, :]
  return ((above > 0) + 0.5 * (above == 0)).mean(axis=(-1, -2))


def improvement(a: Tasks, b: Tasks) -> Interval:
  """Return the probability that a seed of `a` is better than one of `b`, as a mean over tasks.

  Its interval comes from a bootstrap that draws the seeds of each task separately, and p from a
  permutation test that deals the seeds of each task to both sides.
  """
  draw = np.random.default_rng(SEED)
  probability = float(np.mean([_better(x, y) for x, y in zip(a, b, strict=True)]))
  samples, chance = np.zeros((2, DRAWS))
  for x, y in zip(a, b, strict=True):
    drawn = (side[draw.integers(len(side), size=(DRAWS, len(side)))] for side in (x, y))
    samples += _better(*drawn)
    dealt = draw.permuted(np.tile(np.concatenate([x, y]), (DRAWS, 1)), axis=1)
    chance += _better(dealt[:, : len(x)], dealt[:, len(x) :])
  samples, strayed = samples / len(a), np.abs(chance / len(a) - 0.5)
  p = (np.sum(strayed >= abs(probability - 0.5) - 1e-9) + 1) / (DRAWS + 1)
  return Interval(probability, *map(float, np.percentile(samples, [2.5, 97.5])), float(p))


def reciprocal_ranks(means: np.ndarray) -> np.ndarray:
  """Return the mean reciprocal rank of each row, [R], from the means of rows in tasks [R,T];
  ties share the better rank.
  """
  ranks = 1 + (means[None] > means[:, None]).sum(axis=1)
  return (1 / ranks).mean(axis=1)


def rank_correlation(a: Tasks, b: Tasks) -> Interval | None:
  """Return Spearman's ρ between the means of rows under two conditions, given the seeds of each
  row; None for fewer than three rows, or equal ones.

  Its interval comes from a bootstrap that draws the seeds of each row separately. Draws in which
  all rows of a condition are equal are left out.
  """
  draw = np.random.default_rng(SEED)
  drawn = [[each[draw.integers(len(each), size=(DRAWS, len(each)))] for each in x] for x in (a, b)]
  means = [np.array([each.mean() for each in x])[None] for x in (a, b)]
  samples = [np.array([each.mean(axis=-1) for each in x]).T for x in drawn]
  (rho,) = _spearman(*means)
  if len(a) < 3 or np.isnan(rho):
    return None
  return Interval(float(rho), *map(float, np.nanpercentile(_spearman(*samples), [2.5, 97.5])))


def _spearman(a: np.ndarray, b: np.ndarray) -> np.ndarray:
  """Return Spearman's ρ of a and b [N, R], as [N]; NaN where all of a row are equal."""
  from scipy import stats  # half a second, which no table of one suite needs

  x, y = (stats.rankdata(np.round(side, 9), axis=-1) for side in (a, b))
  x, y = (side - side.mean(axis=-1, keepdims=True) for side in (x, y))
  with np.errstate(invalid="ignore"):
    return (x * y).sum(axis=-1) / np.sqrt((x**2).sum(axis=-1) * (y**2).sum(axis=-1))
