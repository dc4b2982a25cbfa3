"""Scores of groups by length, those of training and longer ones: what heat maps show."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from posexp.reporting import scores
from posexp.reporting.grouping import Group
from posexp.reporting.results import Results
from posexp.reporting.significance import Estimate, over_seeds
from posexp.runs import Run
from posexp.runs.metrics import METRICS, Score
from posexp.tasks.diagnostic import REACHED

SPLITS = ("test", "beyond")


class Cell(NamedTuple):
  """What a group scores at a length."""

  values: list[float]  # of the seeds that count, which may be none
  runs: int  # that have a score there, whether it counts or not

  @property
  def mean(self) -> float | None:
    return float(np.mean(self.values)) if self.values else None

  @property
  def found(self) -> Estimate:
    """The mean and its interval, which takes a thousand times as long."""
    return over_seeds(self.values) if self.values else Estimate(0)

  @property
  def state(self) -> str:
    """ "measured", "not learned", or "not applicable": where no run has a score."""
    return "measured" if self.values else "not learned" if self.runs else "not applicable"


class Grid(NamedTuple):
  """A score by group and length; the farthest reaching group comes first."""

  task: str
  groups: list[Group]
  lengths: list[Score]  # the columns, all lengths of training before longer ones
  trained: int  # how many of these are of training
  cells: list[list[Cell]]  # by group and length
  chance: list[float | None]  # by length: the level of a model that is blind to order

  @property
  def titles(self) -> list[str]:
    """Of columns."""
    return [each.part for each in self.lengths]

  @property
  def places(self) -> np.ndarray:
    """Where columns stand on an axis: at their length, the middle of a range, float [lengths]."""
    return np.array([np.mean([*map(int, re.findall(r"\d+", part))]) for part in self.titles])


def grid(results: Results) -> Grid | None:
  """The score of a task by length; None where it is not measured in and beyond training by it, or
  where what is beyond training is not so by its length."""
  parts = scores.by_part(results.score, results.runs)
  if not all(split in parts and scores.lengths(parts[split]) for split in SPLITS):
    return None
  lengths = [score for split in SPLITS for score in parts[split]]
  if len({score.part for score in lengths}) < len(lengths):
    return None
  groups = [group for group in results.groups if group.repeats]
  rows = [[_cell(group, score) for score in lengths] for group in groups]
  order = sorted(range(len(groups)), key=lambda row: _order(groups[row], lengths), reverse=True)
  chance = [_chance(results.runs, score) for score in lengths]
  ranked, cells = [groups[row] for row in order], [rows[row] for row in order]
  return Grid(results.task, ranked, lengths, len(parts["test"]), cells, chance)


def _cell(group: Group, score: Score) -> Cell:
  values, every = (
    [value for run in runs if (value := run.score(score.key)) is not None]
    for runs in (group.counting(score), group.repeats.values())
  )
  return Cell(values, len(every))


def _order(group: Group, lengths: Sequence[Score]) -> tuple[int, float]:
  """How many lengths from the first on are reached, by the seeds that learned, and the sum of their
  scores."""
  runs = group.counting(lengths[-1])
  if not runs:
    return -1, 0.0
  means = np.mean([[run.score(score.key) or 0.0 for score in lengths] for run in runs], axis=0)
  return int(np.cumprod(means >= REACHED).sum()), float(means.sum())


def _chance(runs: Sequence[Run], score: Score) -> float | None:
  return next((value for run in runs if (value := run.score(f"chance/{score.key}"))), None)


class Reaches(NamedTuple):
  """How far groups reach in each of several tasks."""

  tasks: list[str]
  labels: list[str]
  cells: dict[tuple[str, str], Cell]  # by task and label
  longest: dict[str, float]  # the largest length that a task was tested at


def reaches(grids: Sequence[Grid]) -> Reaches:
  """Of the groups of several tasks that have a `reach`, the farthest reaching first.

  Groups of different tasks are the same where they have the same label.
  """
  key = Score("beyond/reach", METRICS["reach"], "beyond")
  cells = {
    (each.task, group.label): _cell(group, key)
    for each in grids
    for group in each.groups
    if any(run.score(key.key) is not None for run in group.runs)
  }
  tasks = list(dict.fromkeys(task for task, _ in cells))
  longest = {each.task: float(each.places.max()) for each in grids}

  def order(label: str) -> float:
    found = [(task, cells[task, label]) for task in tasks if (task, label) in cells]
    return sum((cell.mean or 0.0) / longest[task] for task, cell in found)

  labels = list(dict.fromkeys(label for _, label in cells))
  return Reaches(tasks, sorted(labels, key=order, reverse=True), cells, longest)
