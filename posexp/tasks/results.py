"""Scores, rows and tables that tasks make of predictions and of summaries.

Shapes: N examples of a split.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from tabulate import tabulate

from posexp.runs.metrics import METRICS, Metric, Score, score

Outputs = dict[str, np.ndarray]  # arrays [N] or [N,...] over all examples of a split


def result_table(
  metrics: Sequence[Metric], summary: Mapping[str, Any], splits: Iterable[str], names: Iterable[str]
) -> Iterator[str]:
  """Yield a line for each of the metrics `names` that a split has, with a column per split."""
  for title, *cells in result_rows(metrics, summary, splits, names):
    yield f"{title:<24}" + "".join(map("{:>12}".format, cells))


def result_rows(
  metrics: Sequence[Metric],
  summary: Mapping[str, Any],
  splits: Iterable[str],
  names: Iterable[str],
  of: str = "",
) -> Iterator[list[str]]:
  """Yield the rows of `result_table`. `of` begins the keys of metrics in the summary."""
  if not of:
    yield [f"at step {summary['step']:,}", *splits]
  for name in names:
    metric = metric_of(metrics, name)
    values = [summary.get(f"{of}{split}/{name}") for split in splits]
    if values.count(None) < len(values):
      yield [
        metric.title,
        *("" if value is None else format(value, metric.format) for value in values),
      ]


def aligned(rows: Iterable[Sequence[str]]) -> Iterator[str]:
  """Yield the lines of a table, its first column to the left and the others to the right."""
  rows = [*rows]
  align = ["left", *["right"] * (max(map(len, rows)) - 1)]
  yield from tabulate(rows, tablefmt="plain", colalign=align, disable_numparse=True).splitlines()


def parts(summary: Mapping[str, Any], key: str) -> list[str]:
  """Return the names of the parts of a split in which a metric was measured: "7" for key/7."""
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


def guessing(counts: np.ndarray, smoothing: float = 0.0) -> float:
  """Return the mean loss in nats of guessing by the shares of the answers, from their counts.

  With `smoothing` it is the loss against smoothed labels, a class for each of the counts.
  """
  shares = (1 - smoothing) * counts / max(counts.sum(), 1) + smoothing / len(counts)
  shares = shares[shares > 0]
  return float(-(shares * np.log(shares)).sum())


def unsmoothed(loss: float, counts: np.ndarray, smoothing: float) -> float:
  """Return a loss against smoothed labels on the scale of `guessing`, where 0 is the least."""
  least = guessing(np.eye(len(counts))[0], smoothing)
  return guessing(counts) * (loss - least) / ((guessing(counts, smoothing) - least) or 1.0)


def prefixed(split: str, metrics: Mapping[str, Any]) -> dict[str, Any]:
  """Prefix the names of metrics with their split, as in a summary."""
  return {f"{split}/{name}": value for name, value in metrics.items()}


def perplexity(nats: float) -> float:
  """Return the perplexity of a loss per token, which is capped at 700 nats."""
  return math.exp(min(nats, 700))  # a float64 holds hardly more


def score_of(metrics: Sequence[Metric], key: str) -> Score:
  """Return the meaning of a key of rows or of a summary, such as "validation/accuracy".

  `metrics` are those of the task, which may name some differently than METRICS.
  """
  return score(key, METRICS | {metric.name: metric for metric in metrics})


def metric_of(metrics: Sequence[Metric], name: str) -> Metric:
  """Return the meaning of the name of a metric."""
  return score_of(metrics, name).metric
