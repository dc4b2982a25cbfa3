"""Trials of tuned sweeps, and which options they chose.

A trial is a run in `trials/` of the runs with fixed options that it is to improve. All trials there
count, whichever sweep has trained them: they are what was spent on that group.
"""

from __future__ import annotations

import dataclasses
import functools
import statistics
from collections.abc import Sequence
from typing import Any, NamedTuple

from posexp.config.schema import flat
from posexp.runs.identity import BOOKKEEPING, NEUTRAL, number, spelled
from posexp.runs.metrics import Score, declared, score
from posexp.runs.run import Run

UNTUNED = (*BOOKKEEPING, "init", "task")  # sections of a config in which trials have no choice


class Point(NamedTuple):
  """Trials with the same options, one for each seed."""

  values: dict[str, Any]  # of the options that were tuned
  runs: list[Run]
  mean: float | None  # validation score; None before all trials have ended, and if one diverged
  loss: float | None = None  # of validation, by which equal scores are told apart

  @property
  def typed(self) -> str:
    """The options as they are typed."""
    return " ".join(f"{key}={spelled(value)}" for key, value in self.values.items())


@dataclasses.dataclass(frozen=True)
class Tuning:
  """All trials of a group of runs."""

  fixed: str | None  # the digest of the group's runs with fixed options
  settings: dict[str, Any]  # of the group, without the options that were tuned
  points: list[Point]
  score: Score | None  # by which points are compared; None before a trial has ended
  label: str = ""  # that tables give it

  @property
  def task(self) -> str:
    return str(self.settings["task.name"])

  @functools.cached_property
  def best(self) -> Point | None:
    """The point with the best mean, among those with the most seeds; None if there is none.

    Among equal means, as where every answer is right, the lowest validation loss decides, then the
    order.
    """
    most = max((len(point.runs) for point in self.points), default=0)
    sound = [point for point in self.points if point.mean is not None and len(point.runs) == most]
    sign = 1 if self.score is None or self.score.metric.higher_is_better else -1
    return max(sound, key=lambda each: (sign * each.mean, -(each.loss or 0.0)), default=None)

  @property
  def tuned(self) -> str | None:
    """The digest of the runs with the options of the best point."""
    return self.best.runs[0].digest if self.best else None

  @property
  def edges(self) -> list[str]:
    """Numeric options whose chosen value is the smallest or the largest that was tried.

    At least two values of an option must have been tried, and three of an option of the encoding
    itself. If all points have the same mean, none has an edge.
    """
    typed: list[str] = []
    if len({point.mean for point in self.points}) < 2:
      return typed
    for key, value in self.best.values.items() if self.best else ():
      tried = {number(spelled(point.values[key])) for point in self.points}
      ranged = None not in tried and len(tried) > 1 + key.startswith(
        f"{self.settings['encoding']}."
      )
      if ranged and number(spelled(value)) in (min(tried), max(tried)):
        typed.append(f"{key}={spelled(value)}")
    return typed


def tunings(runs: Sequence[Run]) -> list[Tuning]:
  """Return the trials among some runs, one group of runs after the other."""
  groups: dict[tuple[str, str | None], list[Run]] = {}
  for run in runs:
    if run.trial:
      groups.setdefault((run.task, run.trial), []).append(run)
  return [_tuning(members) for members in groups.values()]


def _tuning(trials: Sequence[Run]) -> Tuning:
  kept = [{k: v for k, v in run.config.items() if k not in UNTUNED} for run in trials]
  options = dict(zip([run.path for run in trials], map(flat, kept), strict=True))
  every = dict.fromkeys(key for option in options.values() for key in option)
  for key in every:  # what older runs were without has the value by which they are the same runs
    for option in options.values():
      option.setdefault(key, NEUTRAL.get(key, (None,))[0])
  tuned = [k for k in every if len({spelled(each[k]) for each in options.values()}) > 1]
  named = (run.summary for run in trials if "headline" in (run.summary or {}))
  of = next((score(each["headline"][0], declared([each])) for each in named), None)
  seeds: dict[str | None, dict[int, Run]] = {}  # of copies in several folders one, ended if one is
  for run in sorted(trials, key=lambda run: (run.seed, run.summary is None)):
    seeds.setdefault(run.digest, {}).setdefault(run.seed, run)
  points = []
  for runs in map(list, map(dict.values, seeds.values())):
    mean = _mean(runs, of.key) if of else None
    values = {key: options[runs[0].path][key] for key in tuned}
    points.append(Point(values, runs, mean, _mean(runs, "validation/loss")))
  # Numbers by their size, and texts by the alphabet.
  points.sort(key=lambda each: [(number(v) or 0.0, v) for v in map(spelled, each.values.values())])
  settings = {key: value for key, value in trials[0].settings.items() if key not in tuned}
  return Tuning(trials[0].trial, settings, points, of)


def _mean(runs: Sequence[Run], key: str) -> float | None:
  """Return the mean of a score, None if a run lacks it."""
  scores = [run.score(key) for run in runs]
  return None if None in scores else statistics.fmean(scores)
