"""The runs of a task in groups that differ in some options, and what the runs of a group mix."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from posexp.config import show
from posexp.errors import UserError
from posexp.reporting.significance import Estimate
from posexp.reporting.text import did_you_mean
from posexp.runs import FILES, Run

REPEATS = ("task.fold",)  # options that repeat a measurement, as the seed does
PATHS = tuple(f"task.{name}" for name in FILES)  # where data are says nothing of what they are
ABSENT = "—"  # the value of an option that a run does not have

Repeat = tuple[int, Any]  # a seed, and a fold if there are some


@dataclasses.dataclass
class Group:
  """Runs with the same values of the options they are grouped by, and their results."""

  values: dict[str, str]
  label: str
  runs: list[Run]  # all of them
  counted: dict[Repeat, Run]  # those whose score counts
  mixed: dict[str, Counter]  # other options in which they differ: how many runs have which value
  repeated: int = 0  # runs with a seed that another run of the group has, of the same settings
  unscored: int = 0  # finished runs without the score
  estimate: Estimate | None = None  # None if no run counts
  difference: Difference | None = None  # None for the baseline, and where nothing can be compared
  costs: dict[str, float] = dataclasses.field(default_factory=dict)

  def scores(self, key: str) -> dict[Repeat, float]:
    """By seed; of a mixed group by run."""
    return {repeat: run.score(key) for repeat, run in self.counted.items()}

  @property
  def ranked(self) -> bool:
    """Whether its mean can be ranked: a mean over different settings has no rank."""
    return self.estimate is not None and not self.mixed


@dataclasses.dataclass
class Difference:
  """A group less the baseline, on the seeds that both have; Holm's p and the seeds needed come once
  all groups are tested."""

  n: int | None
  estimate: Estimate | None = None  # None without shared seeds
  p: float | None = None  # None of one seed, and where all seeds give the same difference
  holm: float | None = None  # p, corrected for all groups that were tested
  needed: int | None = None  # pairs of seeds for a power of 80 %; None if beyond all reason
  significant: bool = False


def value_of(run: Run, key: str) -> str:
  """The value of an option as one types it, the same for 1 and 1.0."""
  value = run.settings.get(key, ABSENT)
  if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
    value = int(value)
  return show(value)


def split_by(runs: Sequence[Run], keys: Sequence[str]) -> dict[tuple[str, ...], list[Run]]:
  """Runs by their values of some options, in the order in which they come."""
  parts: dict[tuple[str, ...], list[Run]] = {}
  for run in runs:
    parts.setdefault(tuple(value_of(run, key) for key in keys), []).append(run)
  return parts


def differing(runs: Sequence[Run]) -> list[str]:
  """The options in which runs differ, where a run could have them; no paths and no repeats."""
  runs = {id(run.settings): run for run in runs}.values()  # which seeds share
  encodings = {run.encoding for run in runs}
  found = []
  for key in dict.fromkeys(key for run in runs for key in run.settings):
    section = key.partition(".")[0]
    if key in PATHS or key in REPEATS:
      continue
    asked = [run for run in runs if section not in encodings or run.encoding == section]
    if len({value_of(run, key) for run in asked}) > 1:
      found.append(key)
  return found


def distinguishing(runs: Sequence[Run]) -> list[str]:
  """The fewest options that make the same groups as all options in which runs differ.

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
    if finer > groups:
      kept.append(key)
      groups = finer
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
      raise UserError(f"--by {key}: no run has such an option; {did_you_mean(key, keys, same)}")


def grouped(runs: Sequence[Run], by: Sequence[str], score: str) -> list[Group]:
  """The groups of a task's runs, in the order in which their folders stand."""
  groups = []
  for values, members in split_by(runs, by).items():
    named = dict(zip(by, values, strict=True))
    groups.append(_group(named, label(named, members), members, score))
  labels = Counter(group.label for group in groups)
  for group in groups:  # two options with one last name
    if labels[group.label] > 1:
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


def _group(values: dict[str, str], label: str, runs: list[Run], score: str) -> Group:
  finished = [run for run in runs if run.state == "finished"]
  scored = [run for run in finished if run.score(score) is not None]
  mixed = _mixed(scored, values)
  counted: dict[Repeat, Run] = {}
  for index, run in enumerate(scored):
    counted.setdefault((run.seed, index if mixed else run.settings.get("task.fold")), run)
  repeated, unscored = len(scored) - len(counted), len(finished) - len(scored)
  return Group(values, label, runs, counted, mixed, repeated, unscored)


def _mixed(runs: Sequence[Run], by: Mapping[str, str]) -> dict[str, Counter]:
  """What keeps the runs of a group from being repeats of one: options, steps, or the data, which is
  all else that the digest in a run's path covers."""
  mixed = {
    key: Counter(value_of(run, key) for run in runs) for key in differing(runs) if key not in by
  }
  steps = Counter(str(run.summary["steps"]) for run in runs if "steps" in run.summary)
  if len(steps) > 1:
    mixed["steps"] = steps
  digests = Counter(run.digest for run in runs if run.digest)
  folds: dict[Any, set[str]] = {}
  for run in runs:
    folds.setdefault(run.settings.get("task.fold"), set()).add(run.digest or "")
  explained = len(folds) > 1 and all(len(of_fold - {""}) <= 1 for of_fold in folds.values())
  if not mixed and len(digests) > 1 and not explained:
    mixed["data"] = digests
  return mixed


def matching(groups: Sequence[Group], asked: str) -> list[Group]:
  """The groups that a typed name means: a label, or values such as "rpr,rpr.k=4"."""
  wanted = set(asked.replace(",", " ").split())
  exact = [group for group in groups if group.label == asked]
  return exact or [group for group in groups if wanted <= _names(group)]


def _names(group: Group) -> set[str]:
  """What a group can be called: its encodings, its values, and options with their values."""
  names = {run.encoding for run in group.runs} | set(group.values.values())
  for key, value in group.values.items():
    names |= {f"{key}={value}", f"{key.rpartition('.')[2]}={value}"}
  return names


def default_baseline(groups: Sequence[Group]) -> Group | None:
  """The baseline, where none was named: sinusoidal or none if each is one group, or else the first
  in the order of the values that they are grouped by."""
  ranked = [group for group in groups if group.counted and not group.mixed]
  for encoding in ("sinusoidal", "none"):
    found = [group for group in ranked if {run.encoding for run in group.runs} == {encoding}]
    if len(found) == 1:
      return found[0]
  return min(ranked, key=lambda each: list(map(sortable, each.values.values())), default=None)


def number(text: str) -> float | None:
  """A value as a finite number, if it is one."""
  try:
    value = float(text)
  except ValueError:
    return None
  return value if math.isfinite(value) else None


def sortable(value: str) -> tuple[bool, float, str]:
  """Numbers by size, before names."""
  size = number(value)
  return size is None, size or 0.0, value
