"""Trials of tuned sweeps: which options they chose, and results with fixed and with tuned options.

A trial is a run in `trials/` of the runs with fixed options that it is to improve. All trials that
stand there count, whichever sweep has trained them: they are what was spent on that group.
"""

from __future__ import annotations

import dataclasses
import functools
import statistics
from collections.abc import Iterator, Sequence
from typing import Any

from posexp.config.schema import flat
from posexp.errors import counted
from posexp.reporting import grouping
from posexp.reporting.grouping import as_typed, number
from posexp.reporting.results import Results
from posexp.reporting.text import MISSING, Section, Table, listed, tabulated
from posexp.runs import BOOKKEEPING, Run
from posexp.runs.metrics import Score, declared, score

FIXED, TUNED = "fixed", "tuned"  # what follows the name of a task, of results with such options


@dataclasses.dataclass(frozen=True)
class Point:
  """Trials with the same options, one for each seed."""

  values: dict[str, Any]  # of the options that were tuned
  runs: list[Run]
  mean: float | None  # of the validation scores; None before all have ended, and if one diverged

  @property
  def typed(self) -> str:
    """The options as they are typed."""
    return " ".join(f"{key}={as_typed(value)}" for key, value in self.values.items())


@dataclasses.dataclass(frozen=True)
class Tuning:
  """All trials of a group of runs."""

  fixed: str  # the digest of the group's runs with fixed options
  settings: dict[str, Any]  # of the group, without the options that were tuned
  points: list[Point]
  score: Score | None  # by which trials are chosen; None before one has ended
  label: str = ""

  @property
  def runs(self) -> list[Run]:
    return [run for point in self.points for run in point.runs]

  @property
  def task(self) -> str:
    return str(self.settings["task.name"])

  @functools.cached_property
  def best(self) -> Point | None:
    """The point with the best mean of those with the most seeds, of equals the first; if any."""
    most = max(len(point.runs) for point in self.points)
    sound = [each for each in self.points if each.mean is not None and len(each.runs) == most]
    sign = 1 if self.score is None or self.score.metric.higher_is_better else -1
    return max(sound, key=lambda each: sign * each.mean, default=None)

  @property
  def tuned(self) -> str | None:
    """The digest of the runs with the options of the best point."""
    return self.best.runs[0].digest if self.best else None

  @property
  def edges(self) -> list[str]:
    """The options of numbers whose chosen value is the least or the greatest that was tried.

    Two values of an option of the encoding itself are no range: they have no edge.
    """
    found, encoding = [], str(self.settings["encoding"])
    for key, value in self.best.values.items() if self.best else ():
      tried = {number(as_typed(point.values[key])) for point in self.points}
      ranged = None not in tried and len(tried) > 1 + key.startswith(f"{encoding}.")
      if ranged and number(as_typed(value)) in (min(tried), max(tried)):
        found.append(f"{key}={as_typed(value)}")
    return found


def tunings(runs: Sequence[Run]) -> list[Tuning]:
  """Return what each group of the trials among some runs has found, with a label for each."""
  groups: dict[tuple[str, str], list[Run]] = {}
  for run in runs:
    if run.trial:
      groups.setdefault((run.task, run.trial), []).append(run)
  found = [_tuning(members) for members in groups.values()]
  for task in {each.task for each in found}:
    own = [each for each in found if each.task == task]
    one = [dataclasses.replace(each.runs[0], settings=each.settings) for each in own]
    keys = grouping.distinguishing(one)
    for tuning, run in zip(own, one, strict=True):
      values = {key: grouping.value_of(run, key) for key in keys}
      label = grouping.label(values, [run])
      found[found.index(tuning)] = dataclasses.replace(tuning, label=label)
  return found


def _tuning(trials: Sequence[Run]) -> Tuning:
  options = {
    run.path: flat({k: v for k, v in run.config.items() if k not in BOOKKEEPING}) for run in trials
  }
  every = dict.fromkeys(key for each in options.values() for key in each)
  tuned = [
    key
    for key in every
    if len({as_typed(each.get(key, MISSING)) for each in options.values()}) > 1
    and not key.startswith("init.")
  ]
  score_of = next((s for run in trials if (s := _score(run))), None)
  points: dict[str, list[Run]] = {}
  for run in trials:
    points.setdefault(str(run.digest), []).append(run)
  made = [
    Point(
      {key: options[members[0].path].get(key) for key in tuned},
      sorted(members, key=lambda run: run.seed),
      _mean(members, score_of),
    )
    for members in points.values()
  ]
  order = {key: [number(as_typed(each.values[key])) for each in made] for key in tuned}
  made.sort(
    key=lambda each: [
      (as_typed(each.values[key]), 0.0)
      if None in order[key]
      else ("", number(as_typed(each.values[key])))
      for key in tuned
    ]
  )
  settings = {key: value for key, value in trials[0].settings.items() if key not in tuned}
  return Tuning(str(trials[0].trial), settings, made, score_of)


def _score(run: Run) -> Score | None:
  """Return the score by which a trial counts, as its summary names it."""
  if not run.summary or "headline" not in run.summary:
    return None
  return score(run.summary["headline"][0], declared([run.summary]))


def _mean(runs: Sequence[Run], of: Score | None) -> float | None:
  values = [run.score(of.key) if of else None for run in runs]
  return None if None in values else statistics.fmean(values)


def tracks(runs: Sequence[Run], found: Sequence[Tuning]) -> list[Run]:
  """Return the runs that are no trials, those of tuned groups as results of two tasks.

  The runs with fixed options are of the task "mr (fixed)". Those with the options of the best trial
  are of "mr (tuned)", without the options that were tuned: each group has its own there. A run may
  be both. All others are of their task as before.
  """
  fixed = {(each.task, each.fixed): each for each in found}
  tuned = {(each.task, each.tuned): each for each in found}
  renamed: dict[tuple[int, str], dict[str, Any]] = {}

  def of(settings: dict[str, Any], kind: str) -> dict[str, Any]:
    """Return one object for all seeds."""
    name = f"{settings['task.name']} ({kind})"
    return renamed.setdefault((id(settings), kind), settings | {"task.name": name})

  made = []
  for run in [run for run in runs if not run.trial]:
    key = run.task, run.digest
    if key in fixed:
      made.append(dataclasses.replace(run, settings=of(run.settings, FIXED)))
    if key in tuned:
      made.append(dataclasses.replace(run, settings=of(tuned[key].settings, TUNED)))
    if key not in fixed and key not in tuned:
      made.append(run)
  return made


def tuned_table(task: str, found: Sequence[Tuning], results: Sequence[Results]) -> Table:
  """Return a row for each tuned group of a task: what was chosen, and the results with fixed and
  with tuned options.
  """
  sides = {
    kind: [each for each in results if each.task == f"{task} ({kind})"] for kind in (FIXED, TUNED)
  }
  of = next((each.score for side in sides.values() for each in side), None)
  title = of.title if of else "result"
  rows = []
  for tuning in found:
    digests = {FIXED: tuning.fixed, TUNED: tuning.tuned}
    cells = [_result(sides[kind], digests[kind]) for kind in sides]
    best = tuning.best
    mean = MISSING if best is None else tuning.score.number(best.mean)
    seeds = max(len(point.runs) for point in tuning.points)
    trials = f"{len(tuning.points)} × {counted(seeds, 'seed')}"
    rows.append([tuning.label, trials, best.typed if best else MISSING, mean, *cells])
  valid = next((each.score.title for each in found if each.score), "validation")
  return ["", "trials", "chosen", valid, f"{title}, {FIXED}", f"{title}, {TUNED}"], rows


def _result(side: Sequence[Results], digest: str | None) -> str:
  """Return the mean of the runs with a digest, its interval and the number of seeds."""
  for results in side:
    for group in results.groups:
      if group.estimate.n and any(run.digest == digest for run in group.runs):
        return f"{results.shown(group.estimate)} (n = {group.estimate.n})"
  return MISSING


def trial_table(found: Sequence[Tuning]) -> Table:
  """Return a row for each trial of some groups, with the score of each seed on validation."""
  seeds = sorted({run.seed for each in found for run in each.runs})
  rows = []
  for tuning in found:
    for point in tuning.points:
      cells = {run.seed: _trial(run, tuning.score) for run in point.runs}
      mean = MISSING if point.mean is None else tuning.score.number(point.mean)
      chosen = "chosen" if point is tuning.best else ""
      cells = [cells.get(seed, MISSING) for seed in seeds]
      rows.append([tuning.label, point.typed, *cells, mean, chosen])
  return ["", "trial", *(f"seed {seed}" for seed in seeds), "mean", ""], rows


def _trial(run: Run, of: Score | None) -> str:
  if run.summary is None:
    return run.state if run.failure else f"at step {run.step:,}"
  return "diverged" if (value := run.score(of.key)) is None else of.number(value)


def notes(found: Sequence[Tuning]) -> Iterator[str]:
  """Yield what a reader of tuned results must know."""
  for each in found:
    if each.edges:
      yield (
        f"{each.label}: the best trial lies at the edge of what was tried "
        f"({', '.join(each.edges)}); values beyond it may be better."
      )
    if left := sum(run.summary is None for run in each.runs):
      yield f"{each.label}: {counted(left, 'trial')} not finished, so the choice may change."
  if len(counts := {len(each.points) for each in found}) > 1:
    most = max(counts)
    fewer = [f"{each.label} {len(each.points)}" for each in found if len(each.points) < most]
    yield (
      f"Groups were tuned by unequal numbers of trials: {listed(fewer, 8)}, others {most}; an "
      "encoding without an alternative of a main option has fewer."
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
