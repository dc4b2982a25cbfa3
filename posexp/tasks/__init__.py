"""The tasks, by the names that `kind` gives them in configs/task.

A task is a frozen dataclass of options, checked when it is made, with

- `score`, the metric that chooses the checkpoint; more is better;
- `data_digest()`, of the user's own files, or None where the options pin the data;
- `toy()`, the `models.Kind` of a tiny model, to see whether an encoding can be built for it;
- `table(summary)`, the lines of the final result;
- `prepare(folder)`, which gives the data, ready for a model:
  - `sizes`, `about`, `notes`, `item`, `unit` and `shown`, for what is said of it;
  - `kind` (`models.Kind`) and `longest`; `word_counts`;
  - `rows_of`, `steps_per_epoch`, `batches` and `evaluation`, by `batch_size`; `texts`;
  - `predict`, `scores`, `measure` and `conclude`, of an `evaluation.Snapshot`.
"""

from collections.abc import Mapping
from typing import Any

from posexp.config import build, look_up, plugins
from posexp.tasks.classification import TextClassification
from posexp.tasks.translation import Corpus, Numbers

TASKS = {"text_classification": TextClassification, "translation": Corpus, "numbers": Numbers}


def make_task(config: Mapping[str, Any]) -> Any:
  """The task that a run's config describes.

  Raises:
    UserError: there is no such kind of task, an option of it is wrong, or it is a plugin's and not
      loaded as the run was trained with it.
  """
  plugins.check("task", config)
  section = dict(config.get("task") or {})
  cls = look_up(plugins.table("task", TASKS), section.pop("kind", None), "task.kind")
  return build(cls, section, where="task")
