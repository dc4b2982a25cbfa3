"""Two runs, or two groups of runs, compared on the same examples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from posexp.errors import UserError
from posexp.reporting import scores, significance
from posexp.reporting.grouping import differing, label, value_of
from posexp.reporting.predictions import Columns, Prediction, paired, read_pairs
from posexp.reporting.significance import Measure
from posexp.reporting.text import one_line
from posexp.runs import Run
from posexp.tasks import bleu

FACTS = ("parameters", "flops_per_token", "d_ff", "devices")  # of a summary, if they differ
NAME = 24  # letters that the name of a run may have


def compare(
  a: Path, b: Path, split: str, metric: str | None, samples: int, examples: int
) -> dict[str, Any]:
  """All that is known of two runs, or of the seeds that two groups share, with plain values only.

  `metric` is what the verdict is about; by default the task's headline.

  Raises:
    UserError: a run is missing, not finished, or not comparable to the other.
  """
  pairs, notes = paired(a, b)
  columns, rows = read_pairs(pairs, split)
  if metric not in (None, *columns.metrics):
    known = ", ".join(columns.metrics)
    raise UserError(f"--metric {metric}: for {columns.kind} it is one of {known}")
  first = pairs[0]
  config = _different(*(run.settings for run in first))
  names = _names(first, config)
  measures = [
    [_measures(side, columns, first[0].settings.get("task.target") or "") for side in pair]
    for pair in rows
  ]
  headline = scores.headline([run for pair in pairs for run in pair])
  about = headline.metric.name if headline else None
  return {
    "a": {"name": names[0], "run": str(a)},
    "b": {"name": names[1], "run": str(b)},
    "task": columns.kind,
    "items": columns.items,
    "split": split,
    "examples": len(rows[0][0]),
    "seeds": [[run.seed for run in pair] for pair in pairs],
    "notes": notes,
    "samples": samples,
    "config": config,
    "facts": _different(*({k: run.summary[k] for k in FACTS if k in run.summary} for run in first)),
    "metric": metric or (about if about in columns.metrics else columns.metrics[0]),
    "metrics": _compared(columns, rows, measures, samples),
    "shown": _most_different(rows[0], measures[0], columns)[:examples],
  }


def _different(a: Mapping[str, Any], b: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
  """The values of both where they differ; a side that lacks the key is left out."""
  absent = object()
  return {
    key: {side: each[key] for side, each in (("a", a), ("b", b)) if key in each}
    for key in {**a, **b}
    if a.get(key, absent) != b.get(key, absent)
  }


def _names(runs: tuple[Run, Run], config: Mapping[str, Any]) -> list[str]:
  """Short names for two runs: the encodings, or else the one thing that differs."""
  encodings = [run.encoding for run in runs]
  if encodings[0] != encodings[1]:
    return encodings
  if not config and runs[0].seed != runs[1].seed:
    return [f"{run.encoding} seed={run.seed}" for run in runs]
  options = [{key: value_of(run, key) for key in differing(runs)} for run in runs]
  names = [one_line(label(each, [run])) for each, run in zip(options, runs, strict=True)]
  if len(config) == 1 and names[0] != names[1] and max(map(len, names)) <= NAME:
    return names
  return [f"{encodings[0]} {side}" for side in "AB"]


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
  samples: int,
) -> dict[str, Any]:
  """What is known of each metric: both scores, their difference and p, and the same over seeds."""
  flat = [each for pair in measures for side in pair for each in side.values()]
  drawn = iter(significance.resample(flat, samples))
  resampled = [[{name: next(drawn) for name in side} for side in pair] for pair in measures]
  result = {}
  for name in columns.metrics:
    sides = [[pair[side][name] for pair in resampled] for side in (0, 1)]
    a, b = map(significance.mean, sides)
    difference = a - b
    found = {
      "a": a.interval,
      "b": b.interval,
      "difference": difference.interval,
      "p": significance.bootstrap_p(difference),
      "test": "paired bootstrap",
    }
    if name not in ("bleu", "chrf") and len(rows) == 1:
      test = significance.mcnemar(*(_right(side, columns) for side in rows[0]))
      found |= {"p": test["p"], "test": "McNemar", "mcnemar": test}
    if len(rows) > 1:
      seeds = [[each.score for each in side] for side in sides]
      estimate, p = significance.paired_t(*seeds)
      found["over_seeds"] = {"n": estimate.n, "difference": estimate.mean, "low": estimate.low}
      found["over_seeds"] |= {"high": estimate.high, "p": p, "a": seeds[0], "b": seeds[1]}
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
    kind = "chrf"
    chrf = [[side["chrf"].score(one) for one in side["chrf"].statistics] for side in measures]
    by = {index: one - other for index, (one, other) in enumerate(zip(*chrf, strict=True))}
  else:
    kind = "loss"
    alone = np.flatnonzero(_right(a, columns) != _right(b, columns))
    by = {index: b[index].loss - a[index].loss for index in alone.tolist()}
  order = sorted(by, key=lambda index: (-abs(by[index]), index))
  return [
    {"index": i, "source": a[i].source, "reference": a[i].reference}
    | {"a": a[i].answer, "b": b[i].answer, kind: by[i]}
    for i in order
    if by[i] or kind == "loss"
  ]
