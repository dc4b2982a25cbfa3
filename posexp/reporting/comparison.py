"""Two runs, or two groups of runs, compared on the same examples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from posexp.reporting import scores, significance
from posexp.reporting.grouping import distinguishing, label, value_of
from posexp.reporting.predictions import Columns, Prediction, paired, read_pairs
from posexp.reporting.significance import Measure
from posexp.reporting.text import short
from posexp.runs import Run
from posexp.tasks import bleu

FACTS = ("parameters", "flops_per_token", "devices")  # of a summary, shown if they differ
NAME = 24  # letters that the name of a run may have
SAMPLES = 1000  # of the bootstrap


def compare(a: Path, b: Path, split: str, examples: int) -> dict[str, Any]:
  """All that is known of two runs, or of the seeds that two groups share, with plain values only.

  Raises:
    UserError: a run is missing, not finished, or not comparable to the other.
  """
  pairs, notes = paired(a, b)
  columns, rows = read_pairs(pairs, split)
  first = pairs[0]
  names = _names(first)
  measures = [
    [_measures(side, columns, first[0].settings.get("task.target") or "") for side in pair]
    for pair in rows
  ]
  headline = scores.headline([run for pair in pairs for run in pair])
  about = headline.metric.name if headline else None
  known = [
    run.settings | {key: run.summary[key] for key in FACTS if key in run.summary} for run in first
  ]
  return {
    "a": {"name": names[0], "run": str(a)},
    "b": {"name": names[1], "run": str(b)},
    "items": columns.items,
    "split": split,
    "examples": len(rows[0][0]),
    "seeds": [[run.seed for run in pair] for pair in pairs],
    "notes": notes,
    "differs": {
      key: [each.get(key) for each in known]
      for key in known[0] | known[1]
      if known[0].get(key) != known[1].get(key)
    },
    "metric": about if about in columns.metrics else columns.metrics[0],
    "metrics": _compared(columns, rows, measures),
    "shown": _most_different(rows[0], measures[0], columns)[:examples],
  }


def _names(runs: tuple[Run, Run]) -> list[str]:
  """Short names for two runs, by the first option in which they differ."""
  keys = distinguishing(runs)
  names = [short(label({key: value_of(run, key) for key in keys}, [run]), NAME) for run in runs]
  return names if names[0] != names[1] else [f"{run.encoding} seed={run.seed}" for run in runs]


def _measures(rows: Sequence[Prediction], columns: Columns, language: str) -> dict[str, Measure]:
  """Each metric of a run's predictions, all from 0 to 100."""
  answers, references = [row.answer for row in rows], [row.reference for row in rows]
  found = {}
  for name in columns.metrics:
    if name in ("bleu", "chrf"):
      import sacrebleu

      metric = bleu.bleu(language) if name == "bleu" else sacrebleu.CHRF()
      found[name] = significance.corpus_measure(metric, answers, references)
    else:
      found[name] = significance.share_measure(_right(rows, columns))
  return found


def _right(rows: Sequence[Prediction], columns: Columns) -> np.ndarray:
  """Which answers equal their reference, bool [N]; blanks around a translation do not count."""
  around = None if columns.kind == "translation" else ""
  return np.array([row.answer.strip(around) == row.reference.strip(around) for row in rows])


def _compared(
  columns: Columns,
  rows: Sequence[tuple[list[Prediction], list[Prediction]]],
  measures: Sequence[Sequence[Mapping[str, Measure]]],
) -> dict[str, Any]:
  """What is known of each metric: both scores, their difference and p, and the same over seeds."""
  flat = [each for pair in measures for side in pair for each in side.values()]
  drawn = iter(significance.resample(flat, SAMPLES))
  resampled = [[{name: next(drawn) for name in side} for side in pair] for pair in measures]
  result = {}
  for name in columns.metrics:
    sides = [[pair[side][name] for pair in resampled] for side in (0, 1)]
    a, b = map(significance.mean, sides)
    found = {"a": a.interval, "b": b.interval, "difference": (a - b).interval}
    found["p"] = significance.bootstrap_p(a - b)
    if name not in ("bleu", "chrf") and len(rows) == 1:
      found["mcnemar"] = significance.mcnemar(*(_right(side, columns) for side in rows[0]))
      found["p"] = found["mcnemar"]["p"]
    if len(rows) > 1:
      over, p = significance.paired_t(*([each.score for each in side] for side in sides))
      found["over_seeds"] = {"value": over.mean, "low": over.low, "high": over.high, "p": p}
    result[name] = found
  return result


def _most_different(
  rows: tuple[list[Prediction], list[Prediction]],
  measures: Sequence[Mapping[str, Measure]],
  columns: Columns,
) -> list[dict[str, Any]]:
  """The examples that tell two runs apart, the clearest first: by chrF of a sentence, or, of those
  that one run alone has right, by loss."""
  a, b = rows
  if "chrf" in columns.metrics:
    chrf = [[side["chrf"].score(one) for one in side["chrf"].statistics] for side in measures]
    by = {index: one - other for index, (one, other) in enumerate(zip(*chrf, strict=True))}
    by = {index: difference for index, difference in by.items() if difference}
  else:
    alone = np.flatnonzero(_right(a, columns) != _right(b, columns))
    by = {index: b[index].loss - a[index].loss for index in alone.tolist()}
  return [
    {"index": i, "source": a[i].source, "reference": a[i].reference}
    | {"a": a[i].answer, "b": b[i].answer}
    for i in sorted(by, key=lambda index: (-abs(by[index]), index))
  ]
