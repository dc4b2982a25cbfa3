"""The results of a task: groups, the best first, compared with a baseline, and their costs."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Sequence

from posexp.errors import UserError
from posexp.reporting import grouping, scores
from posexp.reporting.grouping import Difference, Group, Repeat
from posexp.reporting.significance import LEVEL, estimate, holm, paired_t, seeds_needed
from posexp.reporting.text import did_you_mean
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


@dataclasses.dataclass
class Results:
  """What is known of a task: its groups, the best first."""

  task: str
  score: Score
  by: list[str]
  groups: list[Group]
  baseline: Group | None
  named: bool  # the baseline was named by the user

  @property
  def title(self) -> str:
    return f"{self.task}: {self.score.title} by {', '.join(self.by)}"

  @property
  def runs(self) -> list[Run]:
    return [run for group in self.groups for run in group.runs]

  @property
  def tests(self) -> int:
    """How many differences were tested."""
    return sum(g.difference is not None and g.difference.p is not None for g in self.groups)

  @property
  def costs(self) -> dict[str, str]:
    """The costs that are known of any group, by name, with their headings."""
    found = dict.fromkeys(name for group in self.groups for name in group.costs)
    known = [*(name for name in COSTS if name in found), *(n for n in found if n not in COSTS)]
    return {name: COSTS.get(name) or name.rpartition("/")[2].replace("_", " ") for name in known}


def results(
  runs: Sequence[Run], by: Sequence[str] | None, key: str | None, baseline: str | None
) -> tuple[list[Results], list[str]]:
  """The results of each task, and notes on tasks that have none.

  Raises:
    UserError: no run has the score `key`, or an option of `by`, or no group is the baseline.
  """
  scores.check(runs, key)
  if by is not None:
    grouping.check_by(by, runs)
  tasks: dict[str, list[Run]] = {}
  for run in runs:
    tasks.setdefault(run.task, []).append(run)
  found, notes = [], []
  for task, members in tasks.items():
    score = scores.chosen(members, key)
    if score is None:
      what = key or "a score"
      notes.append(f"task {task} is left out: none of its {len(members)} runs has {what}")
      continue
    keys = list(by) if by is not None else grouping.distinguishing(members)
    found.append(_of_task(task, members, keys, score, baseline))
  if not found:
    raise UserError("no task has a finished run with a score")
  if baseline is not None and not any(each.named for each in found):
    labels = list(dict.fromkeys(group.label for each in found for group in each.groups))
    hint = did_you_mean(baseline, labels)
    raise UserError(f"--baseline {baseline}: it is no group; {hint}")
  return found, notes


def _of_task(
  task: str, runs: list[Run], by: list[str], score: Score, baseline: str | None
) -> Results:
  groups = grouping.grouped(runs, by, score.key)
  for group in groups:
    group.costs = _mean_costs(group)
    if group.counted:
      group.estimate = estimate(list(group.scores(score.key).values()))
    if group.mixed:  # the spread of different settings says nothing of chance
      group.estimate = group.estimate._replace(sd=None, low=None, high=None)
  sign = -1 if score.metric.higher_is_better else 1
  groups.sort(key=lambda g: (not g.counted, bool(g.mixed), g.counted and sign * g.estimate.mean))
  named = grouping.matching(groups, baseline) if baseline is not None else []
  if len(named) > 1:
    labels = ", ".join(group.label for group in named)
    raise UserError(
      f"--baseline {baseline}: there are {len(named)} such groups in {task}: {labels}"
    )
  base = named[0] if named else grouping.default_baseline(groups)
  if base is not None and not base.mixed:
    others = [group for group in groups if group is not base and group.ranked]
    _compare(others, base, score.key)
  return Results(task, score, by, groups, base, bool(named))


def shared(a: Group, b: Group) -> list[Repeat]:
  """The seeds that both have."""
  return sorted(a.counted.keys() & b.counted.keys(), key=str)


def _compare(groups: list[Group], base: Group, key: str) -> None:
  """Tests the groups against the baseline, on the seeds that they share with it."""
  reference = base.scores(key)
  for group in groups:
    repeats, own = shared(group, base), group.scores(key)
    group.difference = Difference(len(repeats))
    if repeats:
      pairs = [own[each] for each in repeats], [reference[each] for each in repeats]
      group.difference.estimate, group.difference.p = paired_t(*pairs)
  tested = [group.difference for group in groups if group.difference.p is not None]
  for each, p in zip(tested, holm([each.p for each in tested]), strict=True):
    each.holm, each.significant = p, p < LEVEL
    if not each.significant:
      # At the strictest of Holm's levels, by which what has been found needs no more seeds.
      each.needed = seeds_needed(each.estimate.mean, each.estimate.sd, LEVEL / len(tested))


def _mean_costs(group: Group) -> dict[str, float]:
  """The mean of each cost over the runs that count."""
  collected: dict[str, list[float]] = {}
  for run in group.counted.values():
    for name, value in costs(run).items():
      collected.setdefault(name, []).append(value)
  return {name: statistics.fmean(values) for name, values in collected.items()}


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
