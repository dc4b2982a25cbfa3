"""The table of metrics: their titles, formats and directions. A new metric is one row.

Rows that a task of one's own declares stand in the summary.json of its runs, so that whoever reads
the folder knows them without the task's code.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple


class Metric(NamedTuple):
  """A row of the table of metrics. A user's own task may add rows."""

  name: str  # in summary.json: `exact_match` of `beyond/exact_match/7`
  title: str
  format: str = ".4f"  # of a value in a run's own output
  higher_is_better: bool = True
  percent: bool = False  # a share, which reports show in points of a hundred

  @property
  def decimals(self) -> int:
    """The number of digits after the point, in reports."""
    return 2 if self.percent else len(format(0.0, self.format).partition(".")[2])


COST = ("time/", "memory/")  # prefixes of the costs of a run, which differ between equal runs
RATE = "time/tokens_per_second"

# Facts of a summary: where, by what and until when a run was trained.
PLACE = ("devices", "processor", "cores", "versions", "ended")

METRICS = {
  metric.name: metric
  for metric in (
    Metric("accuracy", "accuracy", percent=True),
    Metric("macro_f1", "macro F1", percent=True),
    Metric("exact_match", "exact match", percent=True),
    Metric("oracle_end", "exact match but for the end", percent=True),
    Metric("reach", "reach", ".1f"),  # as runs/lengths.py defines both
    Metric("area", "area under exact match", percent=True),
    Metric("f1", "F1", percent=True),
    Metric("recall", "recall", percent=True),
    Metric("precision", "precision", percent=True),
    Metric("unlabeled_f1", "unlabeled F1", percent=True),
    Metric("bleu", "BLEU", ".2f"),
    Metric("chrf", "chrF", ".2f"),
    Metric("loss", "loss", higher_is_better=False),
    Metric("perplexity", "perplexity", ".3f", higher_is_better=False),
    Metric("nll", "nll", higher_is_better=False),
    Metric("bits_per_byte", "bits per byte", higher_is_better=False),
    Metric("bits_per_char", "bits per character", higher_is_better=False),
    Metric("gain", "gain in bits per byte"),
    Metric("slope", "loss per doubling of the context", "+.4f", higher_is_better=False),
    Metric("holds_to", "context that it holds to", ",.0f"),
    Metric("word_perplexity", "perplexity per word", ".2f", higher_is_better=False),
  )
}

OUT_OF = {"bleu": 100.0, "chrf": 100.0}  # the largest values of metrics that are no shares
SIGNED = ("gain", "slope")  # metrics of which values may be negative


def is_metric(row: Any) -> bool:
  """Return whether a row of a summary describes a metric."""
  try:
    metric = Metric(**row)
  except TypeError:
    return False
  return all(map(isinstance, metric, (str, str, str, bool, bool))) and is_format(metric.format)


def is_format(text: str) -> bool:
  """Return whether a format suits a number, with at most 9 decimals in at most 99 letters."""
  if len(text) > 8 or re.search(r"\.\d\d|\d{3}", text):
    return False
  try:
    return len(format(0.0, text)) < 100
  except ValueError:
    return False


class Score(NamedTuple):
  """A key of summary.json or metrics.jsonl, such as `beyond/exact_match/7`, and its metric."""

  key: str
  metric: Metric
  split: str = ""  # what stands before the metric: "beyond"
  part: str = ""  # what stands after it, a part of the split: "7"

  @property
  def title(self) -> str:
    """The score in words: "beyond exact match (7)"."""
    title = f"{self.split.replace('/', ' ')} {self.metric.title}".strip()
    return f"{title} ({self.part})" if self.part else title

  @property
  def unit(self) -> str:
    """The unit of differences."""
    return "points" if self.metric.percent else self.metric.title

  @property
  def factor(self) -> float:
    """The factor by which a value is multiplied to be shown."""
    return 100.0 if self.metric.percent else 1.0

  @property
  def most(self) -> float | None:
    """The upper bound, or infinity, of a score that is never negative; None for other scores."""
    if self.metric.percent:
      return 1.0
    known = self.metric in METRICS.values() and self.metric.name not in SIGNED
    return OUT_OF.get(self.metric.name, math.inf) if known else None

  def number(self, value: float, sign: str = "") -> str:
    """Return a value as tables show it; `sign` is "+" for differences."""
    return format(self.factor * value, f"{sign}z.{self.metric.decimals}f")


def score(key: str, table: Mapping[str, Metric] = METRICS) -> Score:
  """Describe a metric; one that the table lacks is named by its key, and the highest is best."""
  names = key.split("/")
  for at, name in enumerate(names):
    if name in table:
      return Score(key, table[name], "/".join(names[:at]), "/".join(names[at + 1 :]))
  return Score(key, Metric(key, key))


def results(summary: Mapping[str, Any]) -> dict[str, Any]:
  """Return a summary without the costs and the place of the training."""
  return {k: v for k, v in summary.items() if not k.startswith(COST) and k not in PLACE}


def declared(summaries: Iterable[Mapping[str, Any] | None]) -> dict[str, Metric]:
  """Return METRICS and the rows that tasks have declared in the summaries of their runs."""
  table = dict(METRICS)
  for summary in summaries:
    for row in (summary or {}).get("metrics", ()):
      table.setdefault(row["name"], Metric(**row))
  return table
