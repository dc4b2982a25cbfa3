"""How far a model extrapolates to longer inputs, from its scores by length."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

from posexp.runs.run import Run

REACHED = 0.9  # exact match up to the length that a model reaches
SPLITS = ("test", "beyond")  # lengths of training, and others
METRIC = "exact_match"


def reach(by_length: Mapping[int, float]) -> int:
  """Return the largest length up to which exact match is `REACHED` or more throughout; or 0."""
  within = itertools.takewhile(lambda pair: pair[1] >= REACHED, sorted(by_length.items()))
  return max((length for length, _ in within), default=0)


def area(by_length: Mapping[int, float]) -> float:
  """Return the area under a score over the logarithm of the length, from the shortest to the
  longest one, as a share of the largest area that there can be.

  Between two lengths, the score is a line over the logarithm. Unlike a mean over lengths, the area
  hardly depends on which ones are tested.
  """
  pairs = sorted(by_length.items())
  whole = math.log(pairs[-1][0] / pairs[0][0])
  parts = (
    math.log(long / short) * (low + high) / 2
    for (short, low), (long, high) in itertools.pairwise(pairs)
  )
  return sum(parts) / whole if whole else pairs[0][1]


def extrapolation(summary: Mapping[str, Any], longest: int = 0) -> dict[str, float]:
  """Return `beyond/reach` and `beyond/area` of a summary that has exact match by length.

  The area begins at the longest tested length of training, if there is one, and is of those above
  it and above `longest`. A number that cannot be computed is left out, and so are both if parts are
  not lengths.
  """
  by_split: list[dict[int, float]] = []
  for split in SPLITS:
    name = f"{split}/{METRIC}/"
    parts = {key.removeprefix(name): each for key, each in summary.items() if key.startswith(name)}
    if None in parts.values() or not all(part.isdecimal() for part in parts):
      return {}
    by_split.append({int(part): value for part, value in parts.items()})
  within, beyond = by_split
  scores: dict[str, float] = {"beyond/reach": reach(within | beyond)} if within or beyond else {}
  longer = {n: score for n, score in beyond.items() if n > max([longest, *within])}
  if longer:
    begin = {max(within): within[max(within)]} if within else {}
    scores["beyond/area"] = area(begin | longer)
  return scores


def with_extrapolation(runs: Sequence[Run]) -> list[Run]:
  """Add to summaries of older runs how far these extrapolate."""
  return [
    dataclasses.replace(run, summary=extrapolation(run.summary) | run.summary)
    if run.summary is not None and "beyond/area" not in run.summary
    else run
    for run in runs
  ]
