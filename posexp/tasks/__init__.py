"""The tasks, by the names that `kind` gives them in configs/task; `contract` says what one is."""

from collections.abc import Mapping
from typing import Any

from posexp.config import build, look_up, plugins
from posexp.errors import UserError
from posexp.runs.metrics import is_metric
from posexp.tasks.contract import Task
from posexp.tasks.text_classification import TextClassification
from posexp.tasks.who_acts import WhoActs

TASKS = {
  "text_classification": TextClassification,
  "who_acts": WhoActs,
}


def tasks() -> Mapping[str, type[Task]]:
  """Return all tasks by name: built-in ones, those of wings, and plugins."""
  return plugins.table("task", TASKS)


def make_task(config: Mapping[str, Any]) -> Task:
  """Return the task that a run's config describes.

  Raises:
    UserError: there is no such kind of task, an option of it is wrong, or it is a plugin's and not
      loaded as the run was trained with it.
  """
  plugins.check("task", config)
  section = dict(config.get("task") or {})
  cls = look_up(tasks(), kind := section.pop("kind", None), "task.kind")
  for each in cls.metrics:
    if not is_metric(each._asdict()):
      raise UserError(
        f"task.kind={kind}: the metric {each.name!r} has the format {each.format!r}; write one of "
        "numbers with at most 9 decimals, such as .4f"
      )
  return build(cls, section, where="task")
