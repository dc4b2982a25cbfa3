"""What tasks make of predictions and of summaries: scores, rows and the table of a result.

Shapes: N examples of a split.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from tabulate import tabulate

from posexp.errors import near
from posexp.runs import Broken, read_config, read_rows, read_summary
from posexp.runs.metrics import METRICS, Metric, Score, score
from posexp.runs.predictions import are_whole

if TYPE_CHECKING:
  from posexp.tasks.contract import Task

log = logging.getLogger("posexp")

Outputs = dict[str, np.ndarray]  # arrays [N] or [N,...] over all examples of a split


def finished(task: Task, folder: Path) -> dict[str, Any] | None:
  """Return the summary of a finished run; None where files of it are lost, damaged or changed, too.

  Training then makes these files again, from the best checkpoint.

  Raises:
    UserError: they cannot be read, or the rows of metrics.jsonl, which nothing makes again, were
      changed.
  """
  try:
    if (summary := read_summary(folder)) is None:
      return None
    config = read_config(folder)
    trial = config is not None and config.get("trial")  # which writes no predictions
    whole = config is not None and are_whole(folder, task.predicted(summary))
    if trial or (whole and [*task.table(summary)]):
      if damage := read_rows(folder)[1]:
        raise damage
      return summary
  except (Broken, LookupError, TypeError, ValueError):
    pass
  log.info("%s: lost or changed files of a finished run are made again", near(folder))
  return None


def result_table(
  task: Task, summary: Mapping[str, Any], splits: Iterable[str], names: Iterable[str]
) -> Iterator[str]:
  """Yield a line for each of the metrics `names` that a split has, with a column per split."""
  for title, *cells in result_rows(task, summary, splits, names):
    yield f"{title:<24}" + "".join(map("{:>12}".format, cells))


def result_rows(
  task: Task,
  summary: Mapping[str, Any],
  splits: Iterable[str],
  names: Iterable[str],
  of: str = "",
) -> Iterator[list[str]]:
  """Yield the rows of `result_table`. `of` begins the keys of metrics in the summary."""
  if not of:
    yield [f"at step {summary['step']:,}", *splits]
  for name in names:
    metric = metric_of(task, name)
    values = [summary.get(f"{of}{split}/{name}") for split in splits]
    if values.count(None) < len(values):
      yield [
        metric.title,
        *("" if each is None else format(each, metric.format) for each in values),
      ]


def aligned(rows: Iterable[Sequence[str]]) -> Iterator[str]:
  """Yield the lines of a table, its first column to the left and the others to the right."""
  rows = [*rows]
  align = ["left", *["right"] * (max(map(len, rows)) - 1)]
  yield from tabulate(rows, tablefmt="plain", colalign=align, disable_numparse=True).splitlines()


def parts(summary: Mapping[str, Any], key: str) -> list[str]:
  """Return the names of the parts of a split that a metric was measured of: "7" of key/7."""
  return [each.removeprefix(f"{key}/") for each in summary if each.startswith(f"{key}/")]


def rows_of(columns: Mapping[str, Iterable[Any]]) -> Iterator[dict[str, Any]]:
  """Yield the rows of predictions, with an `index`, from columns of one length, arrays or not."""
  lists = [each.tolist() if isinstance(each, np.ndarray) else each for each in columns.values()]
  for index, values in enumerate(zip(*lists, strict=True)):
    yield {"index": index} | dict(zip(columns, values, strict=True))


def by_row(found: Outputs, tokens: np.ndarray) -> Outputs:
  """Return the `loss` of each row, its `tokens` that count, and how many of them are `right`, from
  the `nll` and `right` of its tokens [N,L].
  """
  right = found["right"].sum(1)
  loss = found["nll"].sum(1, dtype=np.float64)
  return {"loss": loss, "tokens": tokens, "right": right, "answer": right}


def token_scores(found: Outputs, dtype: type | None = None) -> dict[str, float]:
  """Return the mean `loss` of a token in nats, and the share of tokens that are right.

  Losses are added up in `dtype`, by default their own.
  """
  tokens = found["tokens"].sum(dtype=np.int64)
  return {
    "loss": float(found["loss"].sum(dtype=dtype) / tokens),
    "accuracy": float(found["right"].sum(dtype=np.int64) / tokens),
  }


def prefixed(split: str, metrics: Mapping[str, Any]) -> dict[str, Any]:
  """Prefix the names of metrics with their split, as in a summary."""
  return {f"{split}/{name}": value for name, value in metrics.items()}


def perplexity(nats: float) -> float:
  """Return the perplexity of a loss per token; at most that of 700 nats."""
  return math.exp(min(nats, 700))  # a float64 holds hardly more


def score_of(task: Task, key: str) -> Score:
  """Return the meaning of a key of the task's rows or summary, such as "validation/accuracy"."""
  return score(key, METRICS | {metric.name: metric for metric in task.metrics})


def metric_of(task: Task, name: str) -> Metric:
  """Return the meaning of a metric of the task."""
  return score_of(task, name).metric


def declared(task: Task) -> dict[str, Any]:
  """Describe a user's own task for the summary, so that it is read without the task's code."""
  metrics = [metric._asdict() for metric in task.metrics if metric.name not in METRICS]
  return {"headline": list(task.headline)} | ({"metrics": metrics} if metrics else {})
