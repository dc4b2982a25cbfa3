"""The results of a task: groups, the best first, compared with a baseline, and their costs."""

from __future__ import annotations

import dataclasses
import functools
import math
import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from posexp.errors import UserError, counted
from posexp.reporting import grouping, scores
from posexp.reporting.grouping import Difference, Group
from posexp.reporting.significance import (
  FEWEST,
  LEVEL,
  Estimate,
  holm,
  paired_t,
  permutation,
  seeds_needed,
)
from posexp.reporting.text import did_you_mean
from posexp.runs import Run
from posexp.runs.metrics import Score

COSTS = {  # heading -> key of the summary
  "parameters": "parameters",
  "FLOPs/token": "flops_per_token",
  "steps": "stopped_at",
  "seconds": "time/seconds",
  "compile s": "time/compile_seconds",
  "parents' steps": "parent_steps",
  "parents' seconds": "time/parent_seconds",
  "peak MiB": "memory/peak_bytes",
}


@dataclasses.dataclass
class Results:
  """The results of a task: its groups, the best first, those without a mean last."""

  task: str
  score: Score
  by: list[str]
  groups: list[Group]
  baseline: Group | None  # None where no group has a mean
  never_begun: list[Run]  # that failed before their first row, and are in no group
  rule: str = ""  # by which the baseline was chosen among several groups
  chosen: bool = False  # whether a user chose the options of `by`

  @property
  def title(self) -> str:
    return f"{self.task}: {self.score.title} by {', '.join(self.by)}"

  @property
  def runs(self) -> list[Run]:
    return [run for group in self.groups for run in group.runs]

  @property
  def ranked(self) -> list[Group]:
    """The groups that have a mean."""
    return [group for group in self.groups if group.estimate.n]

  @functools.cached_property
  def gated(self) -> bool:
    """Whether the score counts of those runs alone that have learned the task."""
    return grouping.gated(self.runs, self.score)

  @functools.cached_property
  def differing(self) -> list[str]:
    """The options in which its runs differ."""
    return grouping.differing(self.runs)

  @functools.cached_property
  def unequal(self) -> list[str]:
    """The differences of groups with a mean, beyond what is compared: options of the task, the
    model and the training that are not in `by`, those of `uncrossed`, "seeds"."""
    runs = [run for group in self.ranked for run in group.counted.values()]
    found = [
      key
      for key in grouping.differing(runs)
      if key not in self.by and key.partition(".")[0] in ("task", "model", "train")
    ]
    seeds = {frozenset(group.repeats) for group in self.ranked}
    return [*found, *self.uncrossed, *["seeds"] * (len(seeds) > 1)]

  @functools.cached_property
  def uncrossed(self) -> list[str]:
    """The options, other than those of encodings and those that a user asked for, that take other
    values in some groups than in others that are alike but for them."""
    encodings = {"encoding", *(run.encoding for run in self.runs)}
    found = []
    for key in [] if self.chosen else self.by:
      values: dict[tuple[str, ...], set[str]] = {}
      for group in self.ranked:
        others = tuple(value for other, value in group.values.items() if other != key)
        values.setdefault(others, set()).add(group.values[key])
      if key.partition(".")[0] not in encodings and len({*map(frozenset, values.values())}) > 1:
        found.append(key)
    return found

  @functools.cached_property
  def costs(self) -> dict[Path, dict[str, float | None]]:
    """The costs of each run, by its path."""
    return {run.path: costs(run) for run in self.runs}

  @functools.cached_property
  def rows(self) -> list[dict[str, Any]]:
    """A row for each run: its group, state and path, the options that differ, scores, costs."""
    measured, rows = scores.measured(self.runs), []
    for group in self.groups:
      counted = {run.path for run in group.counted.values()}
      for run in group.runs:
        row = {"task": self.task, "group": group.label, "seed": run.seed, "state": run.state}
        row |= {"failure": run.failure, "counted": run.path in counted, "path": str(run.path)}
        row |= {"learned": run.learned(self.score.split)} if self.gated else {}
        row |= {key: grouping.value_of(run, key) for key in self.differing}
        row |= {key: run.score(key) for key in measured}
        rows.append(row | self.costs[run.path])
    return rows

  def shown(self, found: Estimate, sign: str = "") -> str:
    """Return a mean with half of its interval, "92.50 ± 4.21", or with both of its ends where it
    need not be in the middle; `sign` is "+" for differences.
    """
    mean = self.score.number(found.mean, sign)
    if found.low is not None and (
      self.gated or abs(found.low + found.high - 2 * found.mean) > 1e-6 * found.half
    ):
      return f"{mean} ({self.score.number(found.low)} to {self.score.number(found.high)})"
    return mean if found.half is None else f"{mean} ± {self.score.number(found.half)}"


def results(
  runs: Sequence[Run],
  by: Sequence[str] | None = None,
  key: str | None = None,
  baseline: str | None = None,
) -> list[Results]:
  """Return the results of each task that has the score `key`, by default its headline.

  Raises:
    UserError: no run has the score, or an option of `by`, or no group has the label `baseline`.
  """
  measured = scores.measured(runs)
  if not measured:
    raise UserError(
      f"none of the runs has finished, and scores are measured at the end: {standing(runs)}; the "
      "command that began them goes on"
    )
  _check("--metric", key, measured, "no run has such a metric")
  options = dict.fromkeys(option for run in runs for option in (*run.settings, *run.facts))
  for each in by or ():
    _check("--by", each, options, "no option by which runs can be grouped")
  found = []
  for task, members in by_task(runs).items():
    score = scores.headline(members) if key is None else scores.measured(members).get(key)
    if score is not None:
      found.append(_of_task(task, members, score, by, baseline))
  labels = [group.label for each in found for group in each.ranked]
  _check("--baseline", baseline, labels, "it is no group with a mean")
  return found


def _check(flag: str, asked: str | None, names: Iterable[str], problem: str) -> None:
  """Raise UserError if what a flag asks for, other than None, is none of the names."""
  if asked is not None and asked not in names:
    raise UserError(f"{flag} {asked}: {problem}; {did_you_mean(asked, [*dict.fromkeys(names)])}")


def _of_task(
  task: str, runs: list[Run], score: Score, by: Sequence[str] | None, baseline: str | None
) -> Results:
  begun = [run for run in runs if run.state != "failed" or run.step]
  never_begun = [run for run in runs if run.state == "failed" and not run.step]
  keys = list(dict.fromkeys(by or grouping.distinguishing(begun)))
  groups = grouping.grouped(begun, keys, score)
  sign = -1 if score.metric.higher_is_better else 1
  groups.sort(key=lambda each: sign * each.estimate.mean if each.estimate.n else math.inf)
  found = Results(task, score, keys, groups, None, never_begun, chosen=bool(by))
  for group in groups:
    rows = [found.costs[run.path] for run in (group.counted or group.repeats).values()]
    for heading in rows[0] if rows else ():
      if known := [row[heading] for row in rows if row[heading] is not None]:
        group.costs[heading] = float(np.mean(known))
  if found.ranked:
    found.baseline = next((group for group in found.ranked if group.label == baseline), None)
    if found.baseline is None:
      found.baseline, found.rule = grouping.default_baseline(found.ranked, score)
    _compare(found.ranked, found.baseline, score.key, paired=not found.gated)
  return found


def _compare(groups: Sequence[Group], base: Group, key: str, paired: bool) -> None:
  """Test the groups against the baseline: if `paired`, on the seeds that they share with it, if
  language models were tested on one text; or else on all that each has.
  """
  tested = []
  for group in groups:
    shared = [
      repeat
      for repeat, run in group.counted.items()
      if repeat in base.counted
      and grouping.text_size(run) == grouping.text_size(base.counted[repeat])
    ]
    if group is not base and (shared or not paired):
      sides = [
        [each.counted[repeat].score(key) for repeat in (shared if paired else each.counted)]
        for each in (group, base)
      ]
      test = paired_t if paired else permutation
      group.difference = Difference(*test(*sides))
      if group.difference.p is not None:
        tested.append(group.difference)
  for each, p in zip(tested, holm([each.p for each in tested]), strict=True):
    each.holm = p
    if p >= LEVEL and paired and each.estimate.n >= FEWEST:
      # At the strictest of Holm's levels, by which what has been found needs no more seeds.
      each.needed = seeds_needed(each.estimate.mean, each.estimate.sd, LEVEL / len(tested))


def by_task(runs: Sequence[Run]) -> dict[str, list[Run]]:
  """Return the runs of each task, by its name."""
  tasks: dict[str, list[Run]] = {}
  for run in runs:
    tasks.setdefault(run.task, []).append(run)
  return tasks


def standing(runs: Sequence[Run]) -> str:
  """Return where runs without a score stand: "2 unfinished, at steps 10 to 20; 1 failed: ..."."""
  parts = []
  if steps := sorted(run.step for run in runs if run.state == "unfinished"):
    at = f"steps {steps[0]:,} to {steps[-1]:,}" if steps[-1] > steps[0] else f"step {steps[0]:,}"
    parts.append(f"{len(steps)} unfinished, at {at}")
  if failures := Counter(run.failure[:120] for run in runs if run.state == "failed"):
    why, count = failures.most_common(1)[0]
    most = f", {count} of them" if len(failures) > 1 else ""
    parts.append(f"{failures.total()} failed{most}: {why}")
  if rest := len(runs) - len(steps) - failures.total():
    parts.append(f"{rest} finished without a score")
  return "; ".join(parts)


def unmeasured(runs: Sequence[Run]) -> list[str]:
  """Return a note on each task of which no run has finished."""
  return [
    f"{task}: none of {counted(len(members), 'run')} has finished: {standing(members)}."
    for task, members in by_task(runs).items()
    if all(run.summary is None for run in members)
  ]


def costs(run: Run) -> dict[str, float | None]:
  """Return what a run cost, by heading; tokens/s is the median over training."""
  found = {heading: run.score(key) for heading, key in COSTS.items()}
  _, rates = scores.curve([run], "time/tokens_per_second")
  found["tokens/s"] = statistics.median(rates[0].tolist()) if rates.size else None
  if found["peak MiB"] is not None:
    found["peak MiB"] /= 2**20
  return found
