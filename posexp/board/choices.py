"""What the trials of a row choose in a column: a rate for each value of the encoding's option, and
of these values the better one, where they differ.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from posexp.board.suite import TRACKS, Budget, Column
from posexp.runs import Run, trials
from posexp.runs.metrics import score
from posexp.runs.trials import Point

RATE = "train.learning_rate"
FACTOR = 2.0  # by which rates grow


@dataclasses.dataclass(frozen=True)
class Choice:
  """What some trials of a row choose in a column."""

  column: Column
  score: str  # of validation at the lengths of training
  default: Point | None  # with the best rate, and the option as it is before tuning
  other: Point | None  # with the best rate, and the alternative of the option
  rates: list[float]  # that were tried, from the smallest on
  is_tuned: bool  # whether the alternative was tried, if there is one

  @classmethod
  def of(cls, runs: Sequence[Run], default: Mapping[str, Any], column: Column) -> Choice | None:
    """Return the choice of some trials; None if all have diverged, or are at a single rate so far.

    Args:
      runs: those of a row in the column.
      default: the option that is tuned, with its value before.
      column: that of the runs.
    """
    (tuning,) = trials.tunings([run for run in runs if run.trial]) or [None]
    if tuning is None or tuning.score is None or RATE not in tuning.points[0].values:
      return None
    most = max(len(point.runs) for point in tuning.points)
    whole = [point for point in tuning.points if len(point.runs) == most]
    first = [p for p in whole if all(p.values.get(k, v) == v for k, v in default.items())]
    groups = (first, [point for point in whole if point not in first])
    default_best, other = (dataclasses.replace(tuning, points=group).best for group in groups)
    rates = sorted({point.values[RATE] for point in whole})
    is_tuned = bool(groups[1]) or not default
    return cls(column, tuning.score.key, default_best, other, rates, is_tuned)

  @property
  def best(self) -> list[Point]:
    """The point with the best rate for each value of the option."""
    return [point for point in (self.default, self.other) if point is not None]

  def next_rate(self, budget: Budget) -> float | None:
    """Return the rate that has to be tried next: one beyond an edge at which a best point lies, as
    far as the suite goes; None if there is none.
    """
    grid = [self.column.learning_rate * each for each in budget.rates]
    for rate, begin, factor in (
      (self.rates[-1], max(grid), FACTOR),
      (self.rates[0], min(grid), 1 / FACTOR),
    ):
      steps = round(abs(math.log2(rate * factor / begin)))
      if steps <= budget.doublings and any(p.values[RATE] == rate for p in self.best):
        return float(f"{rate * factor:g}")
    return None

  def at_edge(self, point: Point) -> bool:
    """Return whether a smaller or a greater rate than all that were tried may be better."""
    return point.values[RATE] in (self.rates[0], self.rates[-1])

  def of_track(self, track: str) -> list[Point]:
    """Return the points chosen in a track: one, or both where trials cannot tell them apart. A
    tuned track has none before the alternative has been tried.
    """
    if track == TRACKS[0]:
      return [self.default] if self.default else []
    if not self.is_tuned:
      return []
    if len(self.best) < 2:
      return self.best
    key = self.score if track == TRACKS[1] else str(self.column.validation_beyond)
    scores = [[run.score(key) for run in point.runs] for point in self.best]
    if any(None in each for each in scores):
      return self.best
    means = [*map(statistics.fmean, scores)]
    spread = statistics.fmean(statistics.variance(s) if len(s) > 1 else 0.0 for s in scores) ** 0.5
    if abs(means[0] - means[1]) <= spread + 1e-9:
      return self.best
    sign = 1 if score(key).metric.higher_is_better else -1
    return [self.best[sign * (means[1] - means[0]) > 0]]

  def results(self, option: bool) -> list[Point]:
    """Return the points that are trained with all seeds: those that a track of the column chooses
    or, without `option`, the default track alone.
    """
    tracks = self.column.tracks if option else TRACKS[:1]
    return [p for p in self.best if any(p in self.of_track(track) for track in tracks)]
