"""The results of a task: groups, the best first, compared with a baseline, and their costs."""

from __future__ import annotations

import dataclasses
import functools
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from posexp.errors import UserError
from posexp.reporting import anytime, grouping
from posexp.reporting.grouping import Group
from posexp.reporting.paired_predictions import moved, tested_on
from posexp.reporting.significance import (
  LEVEL,
  Difference,
  Estimate,
  estimate,
  holm,
  over_examples,
  widest,
)
from posexp.reporting.text import did_you_mean
from posexp.runs import Run, scores
from posexp.runs.metrics import RATE, Score
from posexp.runs.trained import Trained, trained

COSTS = {  # heading -> key of the summary
  "parameters": "parameters",
  "FLOPs/token": "flops_per_token",
  "steps": "stopped_at",
  "seconds": "time/seconds",
  "compile s": "time/compile_seconds",
  "parents' steps": "parent_steps",
  "parents' seconds": "time/parent_seconds",
  "peak MiB": "memory/peak_bytes",
  "tokens/s": RATE,
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
  same: Group | None = None  # a part of the baseline, against its rest, if a user asked for it
  margin: float | None = None  # of runs that were looked at: differences within it count as equal
  other_data: list[Group] = dataclasses.field(default_factory=list)  # groups that are not compared

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
  def looked_at(self) -> bool:
    """Whether some seeds were trained because of what others had shown."""
    return any(run.looked_at for run in self.runs)

  @functools.cached_property
  def gated(self) -> bool:
    """Whether the score says little of runs that have not learned the task."""
    return grouping.gated(self.runs, self.score)

  @functools.cached_property
  def differing(self) -> list[str]:
    """The options in which its runs differ."""
    return grouping.differing(self.runs)

  @functools.cached_property
  def unequal(self) -> list[str]:
    """The respects in which a comparison of the groups with a mean is unequal.

    These are options of task, model and training that differ, except those in `by`; the options in
    `uncrossed`; and "seeds" if groups have different seeds.
    """
    runs = [run for group in self.ranked for run in group.repeats.values()]
    options = [
      key
      for key in grouping.differing(runs)
      if key not in self.by and key.partition(".")[0] in ("task", "model", "train")
    ]
    seeds = {frozenset(group.repeats) for group in self.ranked}
    return [*options, *self.uncrossed, *["seeds"] * (len(seeds) > 1)]

  @functools.cached_property
  def uncrossed(self) -> list[str]:
    """The options of `by` whose values were not combined with all values of the others. Options of
    encodings are left out, and so is everything if a user chose `by`."""
    encodings = {"encoding", *(run.encoding for run in self.runs)}
    options = []
    for key in [] if self.chosen else self.by:
      values: dict[tuple[str, ...], set[str]] = {}
      for group in self.ranked:
        others = tuple(value for other, value in group.values.items() if other != key)
        values.setdefault(others, set()).add(group.values[key])
      if key.partition(".")[0] not in encodings and len({*map(frozenset, values.values())}) > 1:
        options.append(key)
    return options

  @functools.cached_property
  def trained(self) -> dict[Path, Trained]:
    """How far each run with the score was trained, by its path, as far as its rows show that."""
    scored = [run for run in self.runs if run.score(self.score.key) is not None]
    return {run.path: state for run in scored if (state := trained(run))}

  def cut_short(self, runs: Iterable[Run]) -> bool:
    """Whether most of some runs were cut short, so that scores show how fast they learn."""
    known = [self.trained[run.path] for run in runs if run.path in self.trained]
    return 2 * sum(state.cut_short for state in known) > len(known)

  @functools.cached_property
  def costs(self) -> dict[Path, dict[str, float | None]]:
    """The costs of each run, by its path."""
    return {run.path: costs(run) for run in self.runs}

  @functools.cached_property
  def rows(self) -> list[dict[str, Any]]:
    """A row for each run: its group, state and path, the options that differ, scores, costs."""
    measured, rows = scores.measured(self.runs), []
    for group in self.groups:
      counted = {run.path for run in group.repeats.values()}
      for run in group.runs:
        row = {"task": self.task, "group": group.label, "seed": run.seed, "state": run.state}
        row |= {"failure": run.failure, "counted": run.path in counted, "path": str(run.path)}
        row |= {"learned": run.learned(self.score.split)} if self.gated else {}
        row |= {key: grouping.value_of(run, key) for key in self.differing}
        row |= {key: run.score(key) for key in measured}
        rows.append(row | self.costs[run.path])
    return rows

  @property
  def tested(self) -> list[Group]:
    """The groups whose difference to the baseline was tested."""
    return [group for group in self.ranked if group.difference.p is not None]

  def detectable(self, group: Group) -> float | None:
    """Return the smallest difference to the baseline that these seeds find with a power of 80 %, at
    the strictest level of Holm's correction.
    """
    contrast = group.difference.contrast
    return contrast.detectable(LEVEL / len(self.tested)) if contrast and contrast.error else None

  def of_learned(self, group: Group) -> Estimate:
    """Return the estimate of a group from its seeds that have learned the task."""
    scored = [run.score(self.score.key) for run in group.learned(self.score)]
    return estimate(scored, self.score.most)

  @property
  def doubtful(self) -> list[Group]:
    """The groups that change sides of the baseline if seeds that have not learned are left out."""
    base = self.of_learned(self.baseline).mean if self.baseline else None

    def turned(group: Group) -> bool:
      own, every = self.of_learned(group).mean, group.estimate.mean
      return None not in (own, base) and (own - base) * (every - self.baseline.estimate.mean) < 0

    return [group for group in self.ranked if turned(group)]

  @functools.cached_property
  def over_examples(self) -> dict[str, Estimate]:
    """The differences to the baseline for other seeds and other test examples, too, by the groups'
    labels; without groups that have no scores of single examples, or of others."""
    tested = [group for group in self.ranked if group.difference.contrast]
    base = moved(self.baseline.repeats, self.score) if tested else None
    wider: dict[str, Estimate] = {}
    for group in tested if base else ():
      own, contrast = moved(group.repeats, self.score), group.difference.contrast
      if own is None or own.of != base.of:
        continue
      together = over_examples(own.by_run, base.by_run, contrast.paired) / own.count
      found = contrast.over_examples(together, own.count)
      if found.error:
        wider[group.label] = Estimate(
          min(contrast.n), contrast.mean, None, *widest(contrast, found)[:2]
        )
    return wider

  def shown(self, found: Estimate, sign: str = "") -> str:
    """Return a mean with half of its interval, "92.50 ± 4.21", or with both of its ends where it
    is not in the middle; `sign` is "+" for differences.
    """
    mean = self.score.number(found.mean, sign)
    if found.low is None:
      return mean
    halves = {self.score.number(half) for half in (found.mean - found.low, found.high - found.mean)}
    if len(halves) == 1:
      return f"{mean} ± {halves.pop()}"
    return f"{mean} ({self.score.number(found.low, sign)} to {self.score.number(found.high, sign)})"


def results(
  runs: Sequence[Run],
  by: Sequence[str] | None = None,
  key: str | None = None,
  baseline: str | None = None,
  same: bool = False,
) -> list[Results]:
  """Return the results of each task that has the score `key`, by default its headline.

  `same` also compares the baseline with itself.

  Raises:
    UserError: no run has the score, or an option of `by`, or no group has the label `baseline`.
  """
  measured = scores.measured(runs)
  if not measured:
    raise UserError(
      "none of the runs has finished, and scores are measured at the end: "
      f"{grouping.standing(runs)}; the command that began them goes on"
    )
  _check("--metric", key, measured, "no run has such a metric")
  options = dict.fromkeys(option for run in runs for option in (*run.settings, *run.facts))
  for each in by or ():
    _check("--by", each, options, "no option by which runs can be grouped")
  listed = []
  for task, members in grouping.by_task(runs).items():
    score = scores.headline(members) if key is None else scores.measured(members).get(key)
    if score is not None:
      listed.append(_of_task(task, members, score, by, baseline))
      if same:
        listed[-1].same = against_itself(listed[-1])
  labels = [group.label for each in listed for group in each.ranked]
  _check("--baseline", baseline, labels, "it is no group with a mean")
  return listed


def _check(flag: str, asked: str | None, names: Iterable[str], problem: str) -> None:
  """Raise UserError if a flag asks for a name that does not exist; None asks for nothing."""
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
  made = Results(task, score, keys, groups, None, never_begun, chosen=bool(by))
  for group in groups:
    rows = [made.costs[run.path] for run in group.repeats.values()]
    for heading in rows[0] if rows else ():
      if known := [row[heading] for row in rows if row[heading] is not None]:
        group.costs[heading] = float(np.mean(known))
  headline = scores.headline(runs)
  if made.looked_at and headline is not None and score.key == headline.key:
    last = max((run for run in runs if run.looked_at), key=lambda run: run.seed)
    margin = last.config.get("margin")
    made.margin = None if margin is None else margin / score.factor
  if made.ranked:
    made.baseline = next((group for group in made.ranked if group.label == baseline), None)
    if made.baseline is None:
      made.baseline, made.rule = grouping.default_baseline(
        made.ranked, score, by_score=not made.looked_at
      )
    base, sizes = made.baseline, {}  # of texts, by which language models can be compared
    for group in made.ranked:
      sizes[group.label] = grouping.text_size(next(iter(group.repeats.values())))
    # Language models are compared by the sizes of their texts.
    by_fold = {} if sizes[base.label] else {fold: run for (_, fold), run in base.repeats.items()}
    of = {fold: tested_on(run, score) for fold, run in by_fold.items()}
    for group in made.ranked:
      if group is base or sizes[group.label] != sizes[base.label]:
        continue
      if _other_data(group, base, score, of):
        made.other_data.append(group)
      else:
        comparisons = (len(made.ranked) - 1) * made.looked_at
        group.difference = between(made, group.repeats, base.repeats, comparisons)
    tested = [] if made.looked_at else [group.difference for group in made.tested]
    for difference, p in zip(tested, holm([each.p for each in tested]), strict=True):
      difference.holm = p
  return made


def _other_data(a: Group, b: Group, score: Score, of: Mapping[Any, str | None]) -> bool:
  """Return whether group a was tested on other examples than b, whose digests are `of`, by fold,
  though no option says so.
  """
  options = grouping.differing([*a.repeats.values(), *b.repeats.values()])
  if any(key.startswith("task.") and key not in grouping.PATHS for key in options):
    return False
  (_, fold), run = next(iter(a.repeats.items()))
  digests = {of.get(fold), tested_on(run, score) if of.get(fold) else None}
  return len(digests - {None}) > 1


def between(
  results: Results, a: Mapping[Any, Run], b: Mapping[Any, Run], looks: int = 0
) -> Difference:
  """Return the difference of two groups by seed, one of `looks` comparisons if there were looks; it
  is not tested if most runs were cut short, of all groups or of these two.
  """
  key, most = results.score.key, results.score.most
  own, base = ({each: run.score(key) or 0.0 for each, run in side.items()} for side in (a, b))
  if looks:
    found = anytime.difference(own, base, most, looks)
  else:
    found = Difference.of(grouping.by_fold(own), grouping.by_fold(base), most)
  if results.cut_short(results.runs) or results.cut_short([*a.values(), *b.values()]):
    return Difference(Estimate(*found.estimate[:2]))
  return found


def against_itself(results: Results) -> Group | None:
  """Return a part of the baseline with its difference to the rest (A/A), which is due to chance.

  The part is the second runs, where seeds were run twice, or else every other seed. None if there
  are too few runs to divide.
  """
  base, score = results.baseline, results.score
  if base is None or len(base.repeats) < 2:
    return None
  kept = [*base.repeats.values()]
  again = {
    (run.seed, run.settings.get(grouping.FOLD)): run
    for run in base.runs
    if run.score(score.key) is not None and all(run.summary != each.summary for each in kept)
  }
  if len(again) > 1:
    a, b, how = again, base.repeats, "run twice"
  else:
    seeds = sorted(base.repeats)
    a, b = ({key: base.repeats[key] for key in seeds[at::2]} for at in (0, 1))
    how = " against ".join("seeds " + ", ".join(str(key[0]) for key in side) for side in (a, b))
  estimated = base.of([run.score(score.key) for run in a.values()], score.most)
  return dataclasses.replace(
    base,
    label=f"A/A: {base.label}, {how}",
    repeats=a,
    estimate=estimated,
    difference=between(results, a, b, int(results.looked_at)),
  )


def costs(run: Run) -> dict[str, float | None]:
  """Return the costs of a run, by heading; tokens/s is the median over training."""
  known = {heading: run.score(key) for heading, key in COSTS.items()}
  if known["tokens/s"] is None:  # as in summaries of earlier versions
    rates = [row[RATE] for row in run.history if _finite(row.get(RATE))]
    known["tokens/s"] = statistics.median(rates) if rates else None
  if known["peak MiB"] is not None:
    known["peak MiB"] /= 2**20
  return known


def curve(runs: Sequence[Run], key: str) -> tuple[np.ndarray, np.ndarray]:
  """Return the steps at which all runs have logged a score, [S], and its values, [runs,S]."""
  histories = [
    {row["step"]: row[key] for row in run.history if _finite(row.get(key))} for run in runs
  ]
  steps = sorted(set.intersection(*map(set, histories))) if histories else []
  return np.array(steps), np.array([[history[step] for step in steps] for history in histories])


def _finite(value: object) -> bool:
  return isinstance(value, int | float) and math.isfinite(value)
