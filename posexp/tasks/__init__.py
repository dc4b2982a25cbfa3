"""The tasks, by the names that `kind` gives them in configs/task."""

from posexp.tasks.classification import TextClassification

TASKS = {"text_classification": TextClassification}
