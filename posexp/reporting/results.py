"""What the runs of a task amount to: estimates, differences to a baseline, costs."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from posexp.config import nearest
from posexp.errors import UserError
from posexp.reporting import grouping, scores
from posexp.reporting.grouping import Group, Repeat
from posexp.reporting.intervals import LEVEL, Estimate, estimate, holm, needed
from posexp.reporting.significance import over_seeds
from posexp.runs import Run
from posexp.runs.metrics import Score

MEASURED = ("time/", "memory/")  # whatever else of this kind a summary has is a cost too
COSTS = {  # name -> heading
  "parameters": "parameters",
  "flops_per_token": "FLOPs/token",
  "steps": "steps",
  "seconds": "seconds",
  "steps_per_second": "steps/s",
  "tokens_per_second": "tokens/s",
  "time/compile_seconds": "compile s",
  "time/first_step_seconds": "first step s",
  "memory/temporary_bytes": "temporaries MiB",
  "memory/peak_bytes": "peak MiB",
}


class Difference(NamedTuple):
  """A group less the baseline, on the seeds that both have."""

  n: int
  mean: float | None = None  # None without shared seeds
  low: float | None = None
  high: float | None = None
  p: float | None = None  # None of one seed, and where all seeds give the same difference
  holm: float | None = None  # p, corrected for all groups that were tested
  needed: int | None = None  # pairs of seeds for a power of 80 %; None if beyond all reason

  @property
  def half(self) -> float | None:
    """Half the interval."""
    return None if self.high is None else (self.high - self.low) / 2

  @property
  def sure(self) -> bool:
    """Whether it is more than chance."""
    return self.holm is not None and self.holm < LEVEL


@dataclasses.dataclass
class Row:
  """A group and what is known of it."""

  group: Group
  score: Estimate | None  # None if no run counts
  against: Difference | None  # None of the baseline itself, and of what cannot be tested
  costs: dict[str, float]

  @property
  def label(self) -> str:
    return self.group.label


@dataclasses.dataclass
class Section:
  """A task: its groups, the best first."""

  task: str
  metric: Score
  by: list[str]
  rows: list[Row]
  baseline: Row | None
  named: bool  # the baseline was named by the user

  @property
  def runs(self) -> list[Run]:
    return [run for row in self.rows for run in row.group.runs]

  @property
  def tests(self) -> int:
    """How many differences were tested."""
    return sum(row.against is not None and row.against.p is not None for row in self.rows)


def sections(
  runs: Sequence[Run], by: Sequence[str] | None, metric: str | None, baseline: str | None
) -> tuple[list[Section], list[str]]:
  """A section for each task, and notes on tasks that have none.

  Raises:
    UserError: no run has the metric, or an option of `by`, or no group is the baseline.
  """
  scores.check(runs, metric)
  if by is not None:
    grouping.check_by(by, runs)
  tasks: dict[str, list[Run]] = {}
  for run in runs:
    tasks.setdefault(run.task, []).append(run)
  found, notes = [], []
  for task, members in tasks.items():
    asked = scores.chosen(members, metric)
    if asked is None:
      what = metric or "a score"
      notes.append(f"task {task} is left out: none of its {len(members)} runs has {what}")
      continue
    keys = list(by) if by is not None else grouping.telling(members)
    found.append(_section(task, members, keys, asked, baseline))
  if not found:
    raise UserError("no task has a finished run with a score")
  if baseline is not None and not any(each.named for each in found):
    raise _no_baseline(baseline, found)
  return found, notes


def _section(
  task: str, runs: list[Run], by: list[str], metric: Score, baseline: str | None
) -> Section:
  groups = grouping.grouped(runs, by, metric.key)
  means = {id(g): float(np.mean(list(g.scores(metric.key).values()))) for g in groups if g.counted}
  sign = -1 if metric.metric.higher_is_better else 1
  # Means over different settings have no rank.
  groups.sort(key=lambda g: (id(g) not in means, bool(g.mixed), sign * means.get(id(g), 0.0)))
  base, named = _baseline(groups, baseline, task)
  against = _differences(groups, base, metric.key)
  rows = [
    Row(group, _estimate(group, metric.key), against.get(id(group)), _costs(group))
    for group in groups
  ]
  chosen = next((row for row in rows if row.group is base), None)
  return Section(task, metric, by, rows, chosen, named)


def _estimate(group: Group, metric: str) -> Estimate | None:
  scores = list(group.scores(metric).values())
  if not scores:
    return None
  found = estimate(scores)
  # The spread of different settings says nothing of chance.
  return found._replace(sd=None, low=None, high=None) if group.mixed else found


def _baseline(groups: list[Group], asked: str | None, task: str) -> tuple[Group | None, bool]:
  if asked is None:
    return grouping.natural(groups), False
  found = grouping.matching(groups, asked)
  if len(found) > 1:
    labels = ", ".join(group.label for group in found)
    raise UserError(f"--baseline {asked}: there are {len(found)} such groups in {task}: {labels}")
  return (found[0], True) if found else (grouping.natural(groups), False)


def _no_baseline(asked: str, found: Sequence[Section]) -> UserError:
  labels = list(dict.fromkeys(row.label for section in found for row in section.rows))
  close = nearest(asked, labels)
  shown = ", ".join(labels[:8]) + (" and others" if len(labels) > 8 else "")
  hint = f"did you mean {close}?" if close else f"the groups are {shown}"
  return UserError(f"--baseline {asked}: it is no group; {hint}")


def shared(a: Group, b: Group) -> list[Repeat]:
  """The seeds that both have."""
  return sorted(a.counted.keys() & b.counted.keys(), key=str)


def _differences(groups: list[Group], base: Group | None, metric: str) -> dict[int, Difference]:
  found: dict[int, Difference] = {}
  if base is None or base.mixed:
    return found
  reference, spread = base.scores(metric), {}
  for group in groups:
    if group is base or group.mixed or not group.counted:
      continue
    repeats, scores = shared(group, base), group.scores(metric)
    pairs = [(scores[each], reference[each]) for each in repeats]
    if len(pairs) > 1:
      test = over_seeds(*zip(*pairs, strict=True))
      found[id(group)] = Difference(
        test["n"], test["difference"], test["low"], test["high"], test["p"]
      )
      spread[id(group)] = float(np.std(np.subtract(*np.transpose(pairs)), ddof=1))
    else:
      found[id(group)] = Difference(len(pairs), *(a - b for a, b in pairs))
  tested = {key: each.p for key, each in found.items() if each.p is not None}
  for key, p in zip(tested, holm(list(tested.values())), strict=True):
    each = found[key]
    # At the strictest of Holm's levels, by which what has been found needs no more seeds.
    more = needed(each.mean, spread[key], LEVEL / len(tested)) if p >= LEVEL else None
    found[key] = each._replace(holm=p, needed=more)
  return found


def _costs(group: Group) -> dict[str, float]:
  """The mean of each cost over the runs that count."""
  collected: dict[str, list[float]] = {}
  for run in group.counted.values():
    for name, value in costs(run).items():
      collected.setdefault(name, []).append(value)
  return {name: statistics.fmean(values) for name, values in collected.items()}


def spent(rows: Sequence[Row]) -> dict[str, str]:
  """The costs that are known of any group, by name, with their headings."""
  found = dict.fromkeys(name for row in rows for name in row.costs)
  known = [*(name for name in COSTS if name in found), *(n for n in found if n not in COSTS)]
  return {name: COSTS.get(name) or name.rpartition("/")[2].replace("_", " ") for name in known}


def costs(run: Run) -> dict[str, float]:
  """What a finished run cost. Rates are those of training: of its rows, and of all its steps."""
  steps = run.score("stopped_at") or run.score("steps")
  seconds = run.score("time/seconds")
  stepping = seconds and seconds - (run.score("time/compile_seconds") or 0)
  rates = [row["time/tokens_per_second"] for row in run.history if "time/tokens_per_second" in row]
  rates = [rate for rate in rates if isinstance(rate, int | float)]
  found = {
    "parameters": run.score("parameters"),
    "flops_per_token": run.score("flops_per_token"),
    "steps": steps,
    "seconds": seconds,
    "steps_per_second": steps / stepping if steps and stepping else None,
    "tokens_per_second": statistics.median(rates) if rates else None,
  }
  for name in run.summary or {}:
    if name.startswith(MEASURED) and name != "time/seconds":
      found[name] = run.score(name)
      if found[name] is not None and name.startswith("memory/"):
        found[name] /= 2**20
  return {name: value for name, value in found.items() if value is not None}
