"""Trials of tuned sweeps: which options they chose, and results with fixed and with tuned options.

A trial is a run in `trials/` of the runs with fixed options that it is to improve. All trials there
count, whichever sweep has trained them: they are what was spent on that group.
"""

from __future__ import annotations

import dataclasses
import functools
import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from posexp.config.schema import flat
from posexp.errors import counted
from posexp.reporting import grouping
from posexp.reporting.grouping import as_typed, number
from posexp.reporting.results import Results
from posexp.reporting.text import MISSING, Section, Table, listed, tabulated
from posexp.runs import BOOKKEEPING, Run
from posexp.runs.metrics import Score, declared, score

FIXED, TUNED = "fixed", "tuned"  # follow the name of a task, of results with such options


class Point(NamedTuple):
  """Trials with the same options, one for each seed."""

  values: dict[str, Any]  # of the options that were tuned
  runs: list[Run]
  mean: float | None  # validation score; None before all trials have ended, and if one diverged
  loss: float | None = None  # of validation, by which equal scores are told apart

  @property
  def typed(self) -> str:
    """The options as they are typed."""
    return " ".join(f"{key}={as_typed(value)}" for key, value in self.values.items())


@dataclasses.dataclass(frozen=True)
class Tuning:
  """All trials of a group of runs."""

  fixed: str | None  # the digest of the group's runs with fixed options
  settings: dict[str, Any]  # of the group, without the options that were tuned
  points: list[Point]
  score: Score | None  # by which points are compared; None before a trial has ended
  label: str

  @property
  def task(self) -> str:
    return str(self.settings["task.name"])

  @functools.cached_property
  def best(self) -> Point | None:
    """The point with the best mean of those with the most seeds, if there is any.

    Of equals, as where all are right, it is that with the lower validation loss, then the first.
    """
    most = max(len(point.runs) for point in self.points)
    sound = [each for each in self.points if each.mean is not None and len(each.runs) == most]
    sign = 1 if self.score is None or self.score.metric.higher_is_better else -1
    return max(sound, key=lambda each: (sign * each.mean, -(each.loss or 0.0)), default=None)

  def among(self, values: Mapping[str, Any]) -> Tuning:
    """Return the trials that have some values of the options that were tuned."""
    if not values:
      return self
    tried = {key: value for key, value in values.items() if key in self.points[0].values}
    kept = [p for p in self.points if all(p.values[key] == tried[key] for key in tried)]
    return dataclasses.replace(self, points=kept)

  @property
  def tuned(self) -> str | None:
    """The digest of the runs with the options of the best point."""
    return self.best.runs[0].digest if self.best else None

  @property
  def edges(self) -> list[str]:
    """The options of numbers whose chosen value is the least or the greatest that was tried.

    Two values of an option of the encoding itself are no range: they have no edge. Where all points
    are equal, there is no best value.
    """
    found: list[str] = []
    if len({point.mean for point in self.points}) < 2:
      return found
    for key, value in self.best.values.items() if self.best else ():
      tried = {number(as_typed(point.values[key])) for point in self.points}
      ranged = None not in tried and len(tried) > 1 + key.startswith(
        f"{self.settings['encoding']}."
      )
      if ranged and number(as_typed(value)) in (min(tried), max(tried)):
        found.append(f"{key}={as_typed(value)}")
    return found


def tunings(runs: Sequence[Run]) -> list[Tuning]:
  """Return what the trials among some runs have found for each group."""
  groups: dict[tuple[str, str | None], list[Run]] = {}
  for run in runs:
    if run.trial:
      groups.setdefault((run.task, run.trial), []).append(run)
  found = [_tuning(members) for members in groups.values()]
  tasks: dict[str, list[Run]] = {}
  for each in found:
    shown = dataclasses.replace(each.points[0].runs[0], settings=each.settings)
    tasks.setdefault(each.task, []).append(shown)
  labels = {task: iter(grouping.names_of(shown, 100)) for task, shown in tasks.items()}
  return [dataclasses.replace(each, label=next(labels[each.task])) for each in found]


def _tuning(trials: Sequence[Run]) -> Tuning:
  kept = [{k: v for k, v in run.config.items() if k not in UNTUNED} for run in trials]
  options = dict(zip([run.path for run in trials], map(flat, kept), strict=True))
  every = dict.fromkeys(key for each in options.values() for key in each)
  tuned = [k for k in every if len({as_typed(each.get(k)) for each in options.values()}) > 1]
  named = (run.summary for run in trials if "headline" in (run.summary or {}))
  of = next((score(each["headline"][0], declared([each])) for each in named), None)
  seeds: dict[str | None, list[Run]] = {}
  for run in sorted(trials, key=lambda run: run.seed):
    seeds.setdefault(run.digest, []).append(run)
  points = []
  for runs in seeds.values():
    mean = _mean(runs, of.key) if of else None
    values = {key: options[runs[0].path].get(key) for key in tuned}
    points.append(Point(values, runs, mean, _mean(runs, "validation/loss")))
  # Numbers by their size, and texts by the alphabet.
  points.sort(key=lambda each: [(number(v) or 0.0, v) for v in map(as_typed, each.values.values())])
  settings = {key: value for key, value in trials[0].settings.items() if key not in tuned}
  return Tuning(trials[0].trial, settings, points, of, "")


def _mean(runs: Sequence[Run], key: str) -> float | None:
  """Return the mean of a score, None if a run lacks it."""
  scores = [run.score(key) for run in runs]
  return None if None in scores else statistics.fmean(scores)


UNTUNED = (*BOOKKEEPING, "init", "task")  # sections of a config in which trials have no choice


def tracks(runs: Sequence[Run], found: Sequence[Tuning]) -> list[Run]:
  """Return the runs that are no trials, those of tuned groups as results of two tasks.

  The runs with fixed options are of the task "mr (fixed)". Those with the options of the best trial
  are of "mr (tuned)", without the options that were tuned: each group has its own there. A run may
  be both. All others are of their task as before.
  """
  finals: dict[tuple[str, str | None], list[Run]] = {}
  for run in runs:
    if not run.trial:
      finals.setdefault((run.task, run.digest), []).append(run)
  made, used = [], set()
  for each in found:
    for kind, digest in ((FIXED, each.fixed), (TUNED, each.tuned)):
      own = finals.get((each.task, digest), []) if digest else []
      settings = own[0].settings if own and kind == FIXED else each.settings
      settings = settings | {"task.name": f"{each.task} ({kind})"}  # one object for all seeds
      made += [dataclasses.replace(run, settings=settings) for run in own]
      used.add((each.task, digest))
  return [*(run for key, own in finals.items() if key not in used for run in own), *made]


def tuned_table(task: str, found: Sequence[Tuning], results: Sequence[Results]) -> Table:
  """Return a row for each tuned group of a task: what was chosen, and the results with fixed and
  with tuned options.
  """
  sides = {each.task.removeprefix(f"{task} ").strip("()"): each for each in results}
  sides = {kind: sides[kind] for kind in (FIXED, TUNED) if kind in sides}
  rows = []
  for each in found:
    digests = {FIXED: each.fixed, TUNED: each.tuned}
    seeds = counted(max(len(point.runs) for point in each.points), "seed")
    row = [each.label, f"{len(each.points)} × {seeds}", each.best.typed if each.best else MISSING]
    row.append(each.score.number(each.best.mean) if each.best else MISSING)
    rows.append([*row, *(_result(sides[kind], digests[kind]) for kind in sides)])
  valid = next((each.score.title for each in found if each.score), "validation")
  return ["", "trials", "chosen", valid, *(f"{sides[k].score.title}, {k}" for k in sides)], rows


def _result(results: Results, digest: str | None) -> str:
  """Return the mean of the runs with a digest, its interval and the number of seeds."""
  for group in results.ranked:
    if any(run.digest == digest for run in group.runs):
      return f"{results.shown(group.estimate)} (n = {group.estimate.n})"
  return MISSING


def trial_table(found: Sequence[Tuning]) -> Table:
  """Return a row for each trial of some groups, with the score of each seed on validation."""
  seeds = sorted({run.seed for each in found for point in each.points for run in point.runs})
  rows = []
  for each in found:
    for point in each.points:
      cells = {run.seed: _trial(run, each.score) for run in point.runs}
      mean = MISSING if point.mean is None else each.score.number(point.mean)
      last = [mean, "chosen" if point is each.best else ""]
      rows.append([each.label, point.typed, *(cells.get(seed, MISSING) for seed in seeds), *last])
  return ["", "trial", *(f"seed {seed}" for seed in seeds), "mean", ""], rows


def _trial(run: Run, of: Score | None) -> str:
  if run.summary is None:
    return "failed" if run.failure else f"at step {run.step:,}"
  return "diverged" if (value := run.score(of.key)) is None else of.number(value)


def notes(found: Sequence[Tuning]) -> Iterator[str]:
  """Yield what a reader of tuned results must know."""
  at_edges: dict[str, list[str]] = {}
  for each in found:
    if each.edges:
      at_edges.setdefault(", ".join(each.edges), []).append(each.label)
  for edges, names in at_edges.items():
    yield (
      f"{listed(names, 8)}: the best trial lies at the edge of what was tried ({edges}); "
      "values beyond it may be better."
    )
  for each in found:
    if left := sum(run.summary is None for point in each.points for run in point.runs):
      yield f"{each.label}: {counted(left, 'trial')} not finished, so the choice may change."
  counts = [sum(len(point.runs) for point in each.points) for each in found]
  if len({*counts}) > 1:
    pairs = zip(found, counts, strict=True)
    fewer = [f"{each.label} {count}" for each, count in pairs if count < max(counts)]
    yield (
      f"Groups were tuned by unequal numbers of trials: {listed(fewer, 8)}, others {max(counts)}."
    )
  if of := next((each.score for each in found if each.score), None):
    yield (
      f"Trials were chosen by their mean {of.title} at seeds of their own, and were never tested; "
      "results are of other seeds."
    )


def sections(found: Sequence[Tuning], results: Sequence[Results]) -> list[Section]:
  """Return what a report says of each task that was tuned, with every trial."""
  made = []
  for task in dict.fromkeys(each.task for each in found):
    own = [each for each in found if each.task == task]
    title, table = f"{task}: {FIXED} and {TUNED} options", tuned_table(task, own, results)
    made.append(Section(title, table, [*notes(own)], trial_table(own)))
  return made


def means(found: Sequence[Tuning], results: Sequence[Results]) -> Iterator[str]:
  """Yield the lines of the results of tuned tasks, for the end of a sweep."""
  for each in sections(found, results):
    yield from ("", each.title, *tabulated(each.table, "plain").splitlines(), *each.notes)
