"""The results of a task: groups, the best first, compared with a baseline, and their costs."""

from __future__ import annotations

import dataclasses
import functools
import math
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from posexp.errors import UserError
from posexp.reporting import grouping, scores
from posexp.reporting.grouping import Difference, Group
from posexp.reporting.significance import LEVEL, Estimate, holm, paired_t, permutation, seeds_needed
from posexp.reporting.text import did_you_mean
from posexp.runs import Run
from posexp.runs.metrics import Score

COSTS = {  # heading -> key of the summary
  "parameters": "parameters",
  "FLOPs/token": "flops_per_token",
  "steps": "stopped_at",
  "seconds": "time/seconds",
  "compile s": "time/compile_seconds",
  "peak MiB": "memory/peak_bytes",
}


@dataclasses.dataclass
class Results:
  """What is known of a task: its groups, the best first, those without a mean last."""

  task: str
  score: Score
  by: list[str]
  groups: list[Group]
  baseline: Group | None  # None where no group has a mean
  never_begun: list[Run]  # that failed before their first row, and are in no group

  @property
  def title(self) -> str:
    return f"{self.task}: {self.score.title} by {', '.join(self.by)}"

  @property
  def runs(self) -> list[Run]:
    return [run for group in self.groups for run in group.runs]

  @property
  def ranked(self) -> list[Group]:
    """The groups that have a mean."""
    return [group for group in self.groups if group.estimate is not None]

  @functools.cached_property
  def gated(self) -> bool:
    """Whether the score counts of those runs alone that have learned the task."""
    return grouping.gated(self.runs, self.score)

  @functools.cached_property
  def differing(self) -> list[str]:
    """The options in which its runs differ."""
    return grouping.differing(self.runs)

  @functools.cached_property
  def costs(self) -> dict[Path, dict[str, float | None]]:
    """Those of each run, by its path."""
    return {run.path: costs(run) for run in self.runs}

  @functools.cached_property
  def rows(self) -> list[dict[str, Any]]:
    """Of each run: where it is, what came of it, its options that differ, scores and costs."""
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
    """A mean with half of its interval, "92.50 ± 4.21", or with both of its ends where it need not
    be in the middle; `sign` is "+" for differences."""
    mean = self.score.number(found.mean, sign)
    if self.gated and found.low is not None:
      return f"{mean} ({self.score.number(found.low)} to {self.score.number(found.high)})"
    return mean if found.half is None else f"{mean} ± {self.score.number(found.half)}"


def results(
  runs: Sequence[Run],
  by: Sequence[str] | None = None,
  key: str | None = None,
  baseline: str | None = None,
) -> list[Results]:
  """The results of each task that has the score `key`, by default its headline.

  Raises:
    UserError: no run has the score, or an option of `by`, or no group has the label `baseline`.
  """
  measured = scores.measured(runs)
  if not measured:
    raise UserError("none of the runs has finished: their scores are measured at the end")
  if key is not None and key not in measured:
    hint = did_you_mean(key, list(measured))
    raise UserError(f"--metric {key}: no run has such a metric; {hint}")
  options = list(dict.fromkeys(option for run in runs for option in run.settings))
  for each in by or ():
    if each not in options:
      hint = did_you_mean(each, options)
      raise UserError(f"--by {each}: no option by which runs can be grouped; {hint}")
  tasks: dict[str, list[Run]] = {}
  for run in runs:
    tasks.setdefault(run.task, []).append(run)
  found = []
  for task, members in tasks.items():
    score = scores.headline(members) if key is None else scores.measured(members).get(key)
    if score is not None:
      found.append(_of_task(task, members, score, by, baseline))
  labels = dict.fromkeys(group.label for each in found for group in each.ranked)
  if baseline is not None and baseline not in labels:
    hint = did_you_mean(baseline, list(labels))
    raise UserError(f"--baseline {baseline}: it is no group; {hint}")
  return found


def _of_task(
  task: str, runs: list[Run], score: Score, by: Sequence[str] | None, baseline: str | None
) -> Results:
  begun: list[Run] = []
  never_begun: list[Run] = []
  for run in runs:
    (begun if run.state != "failed" or run.step else never_begun).append(run)
  keys = list(by or grouping.distinguishing(begun))
  groups = grouping.grouped(begun, keys, score)
  sign = -1 if score.metric.higher_is_better else 1
  groups.sort(key=lambda each: sign * each.estimate.mean if each.estimate else math.inf)
  found = Results(task, score, keys, groups, None, never_begun)
  if found.ranked:
    named = [group for group in found.ranked if group.label == baseline]
    found.baseline = named[0] if named else grouping.default_baseline(found.ranked)
    for group in found.ranked:
      rows = [found.costs[run.path] for run in group.counted.values()]
      for heading in rows[0]:
        if known := [row[heading] for row in rows if row[heading] is not None]:
          group.costs[heading] = float(np.mean(known))
    _compare(found.ranked, found.baseline, score.key, paired=not found.gated)
  return found


def _compare(groups: Sequence[Group], base: Group, key: str, paired: bool) -> None:
  """Tests the groups against the baseline: if `paired`, on the seeds that they share with it, if
  language models were tested on one text; or else on all that each has."""
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
    if p >= LEVEL and paired:
      # At the strictest of Holm's levels, by which what has been found needs no more seeds.
      each.needed = seeds_needed(each.estimate.mean, each.estimate.sd, LEVEL / len(tested))


def costs(run: Run) -> dict[str, float | None]:
  """What a run cost, by heading; tokens/s is the median over training."""
  found = {heading: run.score(key) for heading, key in COSTS.items()}
  _, rates = scores.curve([run], "time/tokens_per_second")
  found["tokens/s"] = statistics.median(rates[0].tolist()) if rates.size else None
  if found["peak MiB"] is not None:
    found["peak MiB"] /= 2**20
  return found
