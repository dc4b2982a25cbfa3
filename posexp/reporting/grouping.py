"""Runs of a task in groups that differ in what was asked about, and what stands in their way."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from posexp.config import nearest, show
from posexp.errors import UserError
from posexp.runs import FILES, Run

REPEATS = ("task.fold",)  # what repeats a measurement, beside the seed
PATHS = tuple(f"task.{name}" for name in FILES)  # where data are says nothing of what they are
ABSENT = "—"  # the value of an option that a run does not have

Repeat = tuple[int, Any]  # a seed, and a fold if there are some


@dataclasses.dataclass
class Group:
  """Runs with the same values of what they are grouped by."""

  values: dict[str, str]
  label: str
  runs: list[Run]  # all of them
  counted: dict[Repeat, Run]  # those whose score counts
  mixed: dict[str, Counter]  # in what else they differ, and how many runs have which value
  several: int = 0  # runs with a seed that another run of the group has, of the same settings
  unscored: int = 0  # finished runs without the metric

  def scores(self, metric: str) -> dict[Repeat, float]:
    """By seed; of a mixed group by run."""
    return {key: run.score(metric) for key, run in self.counted.items()}


def canonical(value: Any) -> str:
  """A value as one types it, the same for 1 and 1.0."""
  if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
    value = int(value)
  return show(value)


def value_of(run: Run, key: str) -> str:
  """What a run has for an option."""
  return canonical(run.settings[key]) if key in run.settings else ABSENT


def differing(runs: Sequence[Run]) -> list[str]:
  """The options in which runs differ, where a run could have them; no paths and no repeats."""
  encodings = {run.encoding for run in runs}
  keys = dict.fromkeys(key for run in runs for key in run.settings)
  found = []
  for key in keys:
    section = key.partition(".")[0]
    if key in PATHS or key in REPEATS:
      continue
    asked = [run for run in runs if section not in encodings or run.encoding == section]
    if len({value_of(run, key) for run in asked}) > 1:
      found.append(key)
  return found


def telling(runs: Sequence[Run]) -> list[str]:
  """Options by which runs fall into the groups that all options in which they differ make.

  What others already tell apart is left out: where `train.steps` changes with `encoding` alone,
  `encoding` will do.
  """
  encodings = {run.encoding for run in runs}
  # What the encoding is, before all else.
  keys = sorted(
    differing(runs), key=lambda key: key != "encoding" and key.partition(".")[0] not in encodings
  )
  kept: list[str] = []
  parts = {(): list(runs)}
  for key in keys:
    finer: dict[tuple[str, ...], list[Run]] = {}
    for values, members in parts.items():
      for run in members:
        finer.setdefault((*values, value_of(run, key)), []).append(run)
    if len(finer) > len(parts):
      kept.append(key)
      parts = finer
  return kept or ["encoding"]


def confounded(groups: Sequence[Group], by: Sequence[str]) -> list[str]:
  """The options in which groups differ beside those that they are grouped by."""
  known = {key for group in groups for key in group.mixed} | set(by)
  runs = [run for group in groups for run in group.counted.values()]
  return [key for key in differing(runs) if key not in known]


def check_by(by: Sequence[str], runs: Sequence[Run]) -> None:
  """Raises UserError, with the nearest name, if no run has such an option."""
  keys = list(dict.fromkeys(key for run in runs for key in run.settings))
  for key in by:
    if key in ("seed", *REPEATS):
      raise UserError(f"--by {key}: it repeats a measurement, and groups are means over it")
    if key not in keys:
      same = [each for each in keys if each.rpartition(".")[2] == key.rpartition(".")[2]]
      close = same[:3] or [each for each in [nearest(key, keys)] if each]
      hint = f"; did you mean {' or '.join(close)}?" if close else ""
      raise UserError(f"--by {key}: no run has such an option{hint}")


def grouped(runs: Sequence[Run], by: Sequence[str], metric: str) -> list[Group]:
  """The groups of a task's runs, in the order in which their folders stand."""
  parts: dict[tuple[str, ...], list[Run]] = {}
  for run in runs:
    parts.setdefault(tuple(value_of(run, key) for key in by), []).append(run)
  groups = []
  for values, members in parts.items():
    given = dict(zip(by, values, strict=True))
    groups.append(_group(given, label(given, members), members, metric))
  names = Counter(group.label for group in groups)
  for group in groups:  # two options with one last name
    if names[group.label] > 1:
      group.label = " ".join(f"{key}={value}" for key, value in group.values.items())
  return groups


def label(values: Mapping[str, str], runs: Sequence[Run]) -> str:
  """A short name: "rpr k=4" for encoding=rpr, rpr.k=4."""
  encodings = {run.encoding for run in runs}
  parts = sorted(encodings) if len(encodings) == 1 else []
  for key, value in values.items():
    section, _, last = key.rpartition(".")
    asked = any(each.startswith(f"{section}.") for each in runs[0].settings)
    if key == "encoding" or (value == ABSENT and not asked):
      continue  # an option of another encoding
    parts.append(f"{last}={value}")
  return " ".join(parts) or "all others"


def _group(values: dict[str, str], label: str, runs: list[Run], metric: str) -> Group:
  finished = [run for run in runs if run.state == "finished"]
  scored = [run for run in finished if run.score(metric) is not None]
  mixed = {
    key: Counter(value_of(run, key) for run in scored)
    for key in differing(scored)
    if key not in values
  }
  steps = Counter(str(run.summary["steps"]) for run in scored if "steps" in run.summary)
  if len(steps) > 1:
    mixed["steps"] = steps
  digests = Counter(run.digest for run in scored if run.digest)
  if not mixed and len(digests) > 1 and not _by_fold(scored):
    mixed["data"] = digests  # all that a digest covers beside the settings
  counted: dict[Repeat, Run] = {}
  several = 0
  for index, run in enumerate(scored):
    repeat = (run.seed, run.settings.get("task.fold"))
    if mixed:
      counted[(run.seed, index)] = run
    elif repeat in counted:
      several += 1
    else:
      counted[repeat] = run
  unscored = len(finished) - len(scored)
  return Group(values, label, runs, counted, mixed, several, unscored)


def _by_fold(runs: Sequence[Run]) -> bool:
  """Whether every digest belongs to one fold, which explains that there are several."""
  folds: dict[Any, set[str]] = {}
  for run in runs:
    folds.setdefault(run.settings.get("task.fold"), set()).add(run.digest or "")
  return len(folds) > 1 and all(len(digests - {""}) <= 1 for digests in folds.values())


def matching(groups: Sequence[Group], asked: str) -> list[Group]:
  """The groups that a typed name means: a label, or values such as "rpr,rpr.k=4"."""
  if exact := [group for group in groups if group.label == asked]:
    return exact
  wanted = [part for part in asked.replace(",", " ").split() if part]
  return [group for group in groups if all(_has(group, part) for part in wanted)]


def _has(group: Group, part: str) -> bool:
  key, equals, value = part.partition("=")
  if not equals:
    return part in {run.encoding for run in group.runs} or part in group.values.values()
  return any(
    value == given and key in (name, name.rpartition(".")[2])
    for name, given in group.values.items()
  )


def natural(groups: Sequence[Group]) -> Group | None:
  """The baseline, where none was named: sinusoidal or none if each is one group, or else the
  first in the order of what they are grouped by."""
  counted = [group for group in groups if group.counted and not group.mixed]
  for encoding in ("sinusoidal", "none"):
    found = [g for g in counted if {run.encoding for run in g.runs} == {encoding}]
    if len(found) == 1:
      return found[0]
  return min(counted, key=lambda g: [sortable(value) for value in g.values.values()], default=None)


def sortable(value: str) -> tuple[int, float, str]:
  """Numbers by size, before names."""
  try:
    return 0, float(value), value
  except ValueError:
    return 1, 0.0, value
