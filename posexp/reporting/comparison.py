"""Two runs, or two groups of runs, compared on the same examples."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from posexp.reporting import scores, significance
from posexp.reporting.grouping import names_of
from posexp.reporting.predictions import Prediction, paired, read_pairs
from posexp.reporting.significance import Measure
from posexp.runs import Run
from posexp.tasks import bleu

FACTS = ("parameters", "flops_per_token", "devices")  # of a summary, shown if they differ
NAME = 24  # letters that the name of a run may have
SAMPLES = 1000  # of the bootstrap

Measures = dict[str, Measure]  # by metric


def compare(a: Path, b: Path, split: str, examples: int) -> dict[str, Any]:
  """All that is known of two runs, or of the seeds that two groups share, with plain values only.

  Raises:
    UserError: a run is missing, not finished, or not comparable to the other.
  """
  pairs, notes = paired(a, b)
  columns, rows = read_pairs(pairs, split)
  first = pairs[0]
  names = names_of(first, NAME)
  language = first[0].settings.get("task.target") or ""
  measures = [[_measures(side, columns.metrics, language) for side in pair] for pair in rows]
  notes += _unspelled(pairs, measures, split)
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
    "metrics": {name: _compared(name, measures) for name in columns.metrics},
    "shown": _most_different(rows[0], measures[0])[:examples],
  }


def _unspelled(
  pairs: Sequence[tuple[Run, Run]], measures: Sequence[Sequence[Measures]], split: str
) -> list[str]:
  """Notes on language models whose results count more than their predictions can: the letters of
  words that a vocabulary lacks."""
  found = []
  for pair, sides in zip(pairs, measures, strict=True):
    for run, side in zip(pair, sides, strict=True):
      whole = run.score(f"{split}/bits_per_byte")
      if whole is None or "bits_per_byte" not in side:
        continue
      here = side["bits_per_byte"].score(side["bits_per_byte"].statistics.sum(0))
      if whole > 1.001 * here:
        found.append(
          f"{run.path}: {whole:.4f} bits per byte with the words that its vocabulary lacks, which "
          "do not count here"
        )
  return found


def _measures(rows: Sequence[Prediction], metrics: Sequence[str], language: str) -> Measures:
  """Each metric of a run's predictions; shares from 0 to 100."""
  answers, references = [row.answer for row in rows], [row.reference for row in rows]
  found = {}
  for name in metrics:
    if name in ("bleu", "chrf"):
      import sacrebleu

      metric = bleu.bleu(language) if name == "bleu" else sacrebleu.CHRF()
      found[name] = significance.corpus_measure(metric, answers, references)
    elif name == "bits_per_byte":
      bits = np.array([row.nats for row in rows]) / math.log(2)
      found[name] = significance.ratio_measure(bits, np.array([row.bytes for row in rows]))
    elif name == "f1":
      found[name] = significance.f1_measure(np.array([row.counts for row in rows]))
    else:
      found[name] = significance.share_measure(np.array([_right(row) for row in rows]))
  return found


def _right(row: Prediction) -> bool:
  """Whether an example is right: in its counts, where it has any."""
  if row.counts:
    return len(set(row.counts)) == 1
  return row.answer.strip() == row.reference.strip()


def _compared(name: str, pairs: Sequence[tuple[Measures, Measures]]) -> dict[str, Any]:
  """What is known of a metric: both scores, their difference and p, and the same over seeds."""
  measures = [side[name] for pair in pairs for side in pair]
  drawn = significance.resample(measures, SAMPLES)
  a, b = drawn[::2].mean(0), drawn[1::2].mean(0)
  sides = {"a": a, "b": b, "difference": a - b}
  found = {name: significance.interval(each) for name, each in sides.items()}
  found["p"] = significance.bootstrap_p(a - b)
  right = [each.right for each in measures]
  if right[0] is not None and len(pairs) == 1:
    found["mcnemar"] = significance.mcnemar(*right)
    found["p"] = found["mcnemar"]["p"]
  if len(pairs) > 1:
    over, p = significance.paired_t(drawn[::2, 0], drawn[1::2, 0])
    found["over_seeds"] = {"value": over.mean, "low": over.low, "high": over.high, "p": p}
  return found


def _most_different(
  rows: tuple[list[Prediction], list[Prediction]], measures: tuple[Measures, Measures]
) -> list[dict[str, Any]]:
  """The examples that tell two runs apart, by chrF, by which is right, by bits or by F1, the
  clearest first."""
  names = ("chrf", "accuracy", "bits_per_byte", "f1", "exact_match")
  name = next(each for each in names if each in measures[0])
  of = [side[name] for side in measures]
  one, other = (np.array([each.score(row) for row in each.statistics]) for each in of)
  difference = np.abs(one - other)
  a, b = rows
  return [
    {"index": i}
    | ({} if a[i].nats is not None else {"source": a[i].source})
    | {"reference": a[i].reference}
    | {"a": a[i].answer, "b": b[i].answer}
    for i in np.argsort(-difference, kind="stable").tolist()
    if difference[i]
  ]
