"""The names under which a report shows groups and tasks to people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

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
    content: bytes | str | None = text
    if text.endswith((".yaml", ".yml")) and (content := reading.read(Path(text))) is None:
      raise UserError(f"--labels {text}: there is no such file")
    labels = reading.parse_yaml(content, loader=reading.LOADER_OF_TEXTS) or {}
  except ValueError as error:
    raise UserError(f"--labels {text}: {one_line(str(error))}") from None
  if not isinstance(labels, Mapping):
    raise UserError(f"--labels {text}: write a mapping, as in {{none: no positions}}")
  return {name: one_line(str(label)) for name, label in labels.items()}


def rename(tasks: Sequence[Results], asked: Labels) -> list[str]:
  """Give groups and tasks their labels; return a note for each label that is not used.

  Labels that a user asked for come first. Those that experiments declare are used where all runs of
  a group, or of a task, declare the same one and nothing else is called so: a run that somebody
  else trained renames nothing but itself.

  Raises:
    UserError: no group and no task has a name that was asked for, or two would have one label.
  """
  named: list[tuple[Any, str, list[Run]]] = [(results, "task", results.runs) for results in tasks]
  named += [(group, "label", group.runs) for task in tasks for group in task.groups]
  names = dict.fromkeys(getattr(each, field) for each, field, _ in named)
  if missing := [name for name in asked if name not in names]:
    why = "there is no such group or task"
    raise UserError(f"--labels {missing[0]}: {why}; {did_you_mean(missing[0], [*names])}")
  called: dict[str, set[str]] = {}  # by label, the names that would become it
  notes, used = [], []
  for each, field, runs in named:
    name = getattr(each, field)
    labels = {asked[name]} if name in asked else {declared(run).get(name, "") for run in runs}
    if len(labels) > 1:
      notes.append(f"{name} keeps its name: only some of its runs declare another, or not the same")
    elif label := labels.pop() if labels else "":
      called.setdefault(label, set()).add(name)
      used.append((each, field, name, label))
  for each, field, name, label in used:
    taken = label != name and (label in names or len(called[label]) > 1 or label in asked.values())
    if taken and name not in asked:
      notes.append(
        f"{name} keeps its name: its runs declare {label}, which has another meaning here"
      )
    else:
      setattr(each, field, label)
  titles = [task.task for task in tasks]
  if twice := next((title for title in titles if titles.count(title) > 1), None):
    raise UserError(f"labels: two tasks are called {twice}")
  for task in tasks:
    shown = [group.label for group in task.groups]
    if twice := next((name for name in shown if shown.count(name) > 1), None):
      raise UserError(f"labels: two groups of {task.task} are called {twice}")
  return [*dict.fromkeys(notes)]


def declared(run: Run) -> Labels:
  """Return the labels that a run's experiment declares, by names of groups and tasks."""
  labels = run.config.get("labels")
  pairs = labels.items() if isinstance(labels, Mapping) else ()
  return {str(name): one_line(str(label)) for name, label in pairs}
