"""The runs of a task in groups that differ in some options, and what the runs of a group mix."""

from __future__ import annotations

import dataclasses
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from posexp.config.schema import flat
from posexp.errors import UserError, counted
from posexp.reporting.significance import Difference, Estimate, estimate
from posexp.reporting.text import MISSING, did_you_mean, short
from posexp.runs import FILES, Run
from posexp.runs.identity import PARTIAL, number, spelled
from posexp.runs.metrics import METRICS, Score
from posexp.runs.metrics import score as score_of

FOLD = "task.fold"  # the option that repeats a measurement, as the seed does
PATHS = tuple(f"task.{name}" for name in FILES)  # where data are says nothing of what they are

Repeat = tuple[int, Any]  # a seed, and a fold if there are some


@dataclasses.dataclass
class Group:
  """Runs with the same values of the options they are grouped by, and their results."""

  values: dict[str, str]
  label: str
  runs: list[Run]  # all of them
  repeats: dict[Repeat, Run]  # those that have the score, one of a kind; of a mixed group none
  mixed: dict[str, Counter]  # other options in which they differ: how many runs have which value
  estimate: Estimate = dataclasses.field(default_factory=Estimate)
  difference: Difference = dataclasses.field(default_factory=Difference)
  costs: dict[str, float] = dataclasses.field(default_factory=dict)

  def of(self, values: Sequence[float], most: float | None = None) -> Estimate:
    """Return the estimate of values of its repeats, without an interval if the sweep looked at
    scores before it added seeds, since a t interval does not hold then.
    """
    if len(values) == len(self.repeats):
      values = [*by_fold(dict(zip(self.repeats, values, strict=True))).values()]
    estimated = estimate(values, most)
    looked_at = any(run.looked_at for run in self.runs)
    return estimated._replace(low=None, high=None) if looked_at else estimated

  @property
  def folds(self) -> bool:
    """Whether its repeats are folds, each with the mean of its seeds."""
    return any(fold is not None for _, fold in self.repeats)

  def learned(self, score: Score) -> list[Run]:
    """Return the repeats that have learned their task; all of them if the score has no gate."""
    return [run for run in self.repeats.values() if run.learned(score.split) is not False]


def value_of(run: Run, key: str) -> str:
  """Return the value of an option as one types it."""
  return spelled(run.settings.get(key, run.facts.get(key, MISSING)))


def chosen(runs: Sequence[Run], where: Sequence[str]) -> list[Run]:
  """Return the runs that have all of these values, each typed as OPTION=VALUE, of whatever option.

  Raises:
    UserError: no run has such an option, or such a value of it.
  """
  if not where:
    return list(runs)
  found = [(run, flat(run.config) | {"task": run.task} | run.facts | run.settings) for run in runs]
  for typed in where:
    key, equals, value = typed.partition("=")
    if not equals:
      raise UserError(f"--where {typed}: write it as OPTION=VALUE, as in encoding=rpr")
    having = [(run, options) for run, options in found if key in options]
    kept = [(run, options) for run, options in having if _is(options[key], value)]
    if not kept:
      values = dict.fromkeys(spelled(options[key]) for _, options in having)
      known = list(dict.fromkeys(option for run in runs for option in run.settings))
      hint = f"there are {', '.join(values)}" if values else did_you_mean(key, known)
      raise UserError(f"--where {typed}: no run has that; {hint}")
    found = kept
  return [run for run, _ in found]


def _is(own: Any, asked: str) -> bool:
  """Return whether an option has a value as it is typed: 1e-3 is 0.001, and true is True."""
  if spelled(own).lower() == asked.lower():
    return True
  wanted = number(asked)
  return wanted is not None and not isinstance(own, str) and number(str(own)) == wanted


def text_size(run: Run) -> str | None:
  """Return how many bytes of text a language model was tested on, or None of any other model."""
  size = run.score("test/bytes")
  return None if size is None else f"{size:,.0f}"


def split_by(runs: Sequence[Run], keys: Sequence[str]) -> dict[tuple[str, ...], list[Run]]:
  """Return runs by their values of some options, in the order in which they come."""
  parts: dict[tuple[str, ...], list[Run]] = {}
  for run in runs:
    parts.setdefault(tuple(value_of(run, key) for key in keys), []).append(run)
  return parts


def differing(runs: Sequence[Run]) -> list[str]:
  """Return the options in which runs differ.

  Options of an encoding are compared only among the runs with that encoding, and those that only
  some encodings depend on among these.
  """
  runs = [*{id(run.settings): run for run in runs}.values()]  # settings of seeds are one object
  encodings = {run.encoding for run in runs}
  options = []
  for key in dict.fromkeys(key for run in runs for key in run.settings if key != FOLD):
    section = key.partition(".")[0]
    asked = [run for run in runs if section not in encodings or run.encoding == section]
    if key in PARTIAL:
      asked = [run for run in asked if key in run.settings]
    first, *others = (run.settings.get(key, MISSING) for run in asked)
    # Comparing is faster than writing, and True equals 1.
    if any(
      (type(other) is not type(first) or other != first) and spelled(other) != spelled(first)
      for other in others
    ):
      options.append(key)
  return options


def distinguishing(runs: Sequence[Run]) -> list[str]:
  """Return the fewest options that make the same groups as all options in which runs differ.

  Options that others explain are left out: where `train.steps` changes with `encoding` alone,
  `encoding` will do.
  """
  encodings = {run.encoding for run in runs}
  # What the encoding is, before all else.
  keys = sorted(
    differing(runs), key=lambda key: key != "encoding" and key.partition(".")[0] not in encodings
  )
  kept: list[str] = []
  groups = 1
  for key in keys:
    finer = len(split_by(runs, [*kept, key]))
    if finer > groups and key not in PATHS:
      kept.append(key)
      groups = finer
  return kept or ["encoding"]


def label(values: Mapping[str, str], runs: Sequence[Run]) -> str:
  """Return a short name: "rpr k=4" for encoding=rpr, rpr.k=4; options that runs lack are
  left out.
  """
  encodings = {run.encoding for run in runs}
  ends = Counter(key.rpartition(".")[2] for key in values)
  parts = [*encodings] if len(encodings) == 1 else []
  for key, value in values.items():
    end = key.rpartition(".")[2]
    if key != "encoding" and value != MISSING:
      parts.append(f"{end if ends[end] == 1 else key}={value}")
  return " ".join(parts) or "all others"


def names_of(runs: Sequence[Run], most: int) -> list[str]:
  """Return a name for each run: the options in which they differ, in at most so many letters, or
  else their seeds, or letters.
  """
  keys = distinguishing(runs)
  labels = [short(label({key: value_of(run, key) for key in keys}, [run]), most) for run in runs]
  seeds = [f"{name} seed={run.seed}" for name, run in zip(labels, runs, strict=True)]
  letters = [f"{chr(ord('A') + place)}: {run.encoding}" for place, run in enumerate(runs)]
  return next((names for names in (labels, seeds) if len({*names}) == len(runs)), letters)


def grouped(runs: Sequence[Run], by: Sequence[str], score: Score) -> list[Group]:
  """Return the groups of a task's runs, in the order in which their folders stand."""
  groups = []
  for values, members in split_by(runs, by).items():
    named = dict(zip(by, values, strict=True))
    scored = [run for run in members if run.score(score.key) is not None]
    mixed = _mixed(scored, by)
    repeats: dict[Repeat, Run] = {}
    for run in [] if mixed else scored:
      repeats.setdefault((run.seed, run.settings.get(FOLD)), run)
    group = Group(named, label(named, members), members, repeats, mixed)
    group.estimate = group.of([run.score(score.key) for run in repeats.values()], score.most)
    groups.append(group)
  return groups


def by_fold(values: Mapping[Repeat, float]) -> dict[Repeat, float]:
  """Return the mean of each fold over its seeds, where there are folds.

  The seeds of a fold are tested on the same texts, so that they say little of other texts.
  """
  kept: dict[Repeat, list[float]] = {}
  for (seed, fold), value in values.items():
    kept.setdefault((seed if fold is None else -1, fold), []).append(value)
  return {repeat: statistics.fmean(every) for repeat, every in kept.items()}


def gated(runs: Sequence[Run], score: Score) -> bool:
  """Return whether a score says little of runs that have not learned their task."""
  return any(run.learned(score.split) is not None for run in runs)


def _mixed(runs: Sequence[Run], by: Sequence[str]) -> dict[str, Counter]:
  """Return why the runs of a group are no repeats of one run: options in which they differ, or else
  their data, which the digests in their paths cover, too.
  """
  keys = [key for key in differing(runs) if key not in (*by, *PATHS)]
  mixed = {key: Counter(value_of(run, key) for run in runs) for key in keys}
  digests = {(run.settings.get(FOLD), run.digest) for run in runs if run.digest}
  if len(texts := Counter(map(text_size, runs))) > 1:
    mixed["bytes of text"] = Counter({MISSING if k is None else k: n for k, n in texts.items()})
  if not mixed and len(digests) > len({fold for fold, _ in digests}):
    mixed["data"] = Counter(run.digest for run in runs if run.digest)
  return mixed


def default_baseline(
  groups: Sequence[Group], score: Score, by_score: bool = True
) -> tuple[Group, str]:
  """Return the baseline where none was named, and by which rule it was chosen among several.

  It is the group with the encoding `sinusoidal` or, without such a group, with `none`. If several
  groups have that encoding, it is the best of them on validation or, if scores may not decide, the
  first. If no group has either encoding, or all groups have the same one of them, it is the first
  of all. Groups stand in the order of the values that they are grouped by, numbers by size and
  before names.
  """

  def order(group: Group) -> list[tuple[bool, float, str]]:
    return [(number(value) is None, number(value) or 0.0, value) for value in group.values.values()]

  for encoding in ("sinusoidal", "none"):
    found = [group for group in groups if {run.encoding for run in group.runs} == {encoding}]
    if len(found) == 1:
      return found[0], ""
    if 0 < len(found) < len(groups) and not by_score:
      return min(found, key=order), f"of {len(found)} groups of {encoding} the first in their order"
    if 0 < len(found) < len(groups):
      best, title = _best(found, score)
      return best, f"of {len(found)} groups of {encoding} the best by {title}"
  return min(groups, key=order), "the first in the order of its options" if len(groups) > 1 else ""


def _best(groups: Sequence[Group], score: Score) -> tuple[Group, str]:
  """Return the best group, and by which score: on validation, if all runs have one."""
  name, table = score.metric.name, METRICS | {score.metric.name: score.metric}
  for key in (f"validation/{name}", "validation/loss", score.key):
    values = [[run.score(key) for run in group.repeats.values()] for group in groups]
    if not any(None in value for value in values):
      break
  of = score_of(key, table)
  sign = 1 if of.metric.higher_is_better else -1
  means = [sign * sum(value) / len(value) for value in values]
  return groups[means.index(max(means))], of.title


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


def left_out(runs: Sequence[Run], kept: Iterable[str], metric: str | None) -> list[str]:
  """Return a note on tasks with finished runs that are not `kept`, as none has the metric."""
  lack = by_task([run for run in runs if run.summary is not None]).keys() - {*kept}
  return [f"Without {metric}, and so not shown: {', '.join(sorted(lack))}."] * bool(metric and lack)
