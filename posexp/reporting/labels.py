"""The names under which a report shows groups and tasks to people."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from posexp import reading
from posexp.errors import UserError
from posexp.reporting.results import Results
from posexp.reporting.text import did_you_mean, one_line
from posexp.runs import Run

Labels = Mapping[str, str]


def read(text: str) -> Labels:
  """Return labels that were typed as a mapping in YAML, or the path of a file with one.

  Raises:
    UserError: it is neither.
  """
  try:
    found: bytes | str | None = text
    if text.endswith((".yaml", ".yml")) and (found := reading.read(Path(text))) is None:
      raise UserError(f"--labels {text}: there is no such file")
    labels = reading.parse_yaml(found) or {}
  except ValueError as error:
    raise UserError(f"--labels {text}: {one_line(str(error))}") from None
  if not isinstance(labels, Mapping):
    raise UserError(f"--labels {text}: write a mapping, as in {{none: no positions}}")
  return {str(name): one_line(str(label)) for name, label in labels.items()}


def of_runs(runs: Iterable[Run]) -> Labels:
  """Return the labels that the experiments of runs have declared."""
  found: dict[str, str] = {}
  for run in runs:
    given = run.config.get("labels")
    for name, label in given.items() if isinstance(given, Mapping) else ():
      found.setdefault(str(name), one_line(str(label)))
  return found


def rename(tasks: Sequence[Results], asked: Labels, declared: Labels) -> None:
  """Give groups and tasks their labels; those that were asked for come first.

  Raises:
    UserError: no group and no task has a name that was asked for, or two would have one label.
  """
  names = dict.fromkeys(group.label for each in tasks for group in each.groups)
  names |= dict.fromkeys(each.task for each in tasks)
  if missing := [name for name in asked if name not in names]:
    why = "there is no such group or task"
    raise UserError(f"--labels {missing[0]}: {why}; {did_you_mean(missing[0], [*names])}")
  labels = {**declared, **asked}
  for each in tasks:
    for group in each.groups:
      group.label = labels.get(group.label, group.label)
    shown = [group.label for group in each.groups]
    if twice := next((name for name in shown if shown.count(name) > 1), None):
      raise UserError(f"labels: two groups of {each.task} are called {twice}")
    each.task = labels.get(each.task, each.task)
