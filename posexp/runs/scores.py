"""The scores that runs have measured, and the one that their task is about."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from posexp.runs.metrics import COST, Score, declared, score
from posexp.runs.run import Run

# Runs of earlier versions name no headline where their task was one of these kinds, or else a
# diagnostic.
EARLIER = {
  "text_classification": ("test/accuracy", "test/macro_f1"),
  "who_acts": ("test/accuracy", "test/macro_f1"),
  "translation": ("test/bleu", "test/chrf"),
  "numbers": ("test/exact_match", "beyond/exact_match"),
  "language_modeling": ("test/bits_per_byte", "test/perplexity"),
}
DIAGNOSTIC = ("beyond/exact_match", "test/exact_match")


def measured(runs: Iterable[Run]) -> dict[str, Score]:
  """Return the scores of finished runs by key, in their order."""
  runs = list(runs)
  table = declared(run.summary for run in runs)
  return {
    key: score(key, table)
    for key in dict.fromkeys(key for run in runs for key in run.summary or {})
    if "/" in key and not key.startswith(COST) and any(run.score(key) is not None for run in runs)
  }


def headline(runs: Sequence[Run]) -> Score | None:
  """Return the score that the task of these runs is about; None if they have none.

  It is the first of their `headline` that they have measured, or else the first of the test split.
  """
  scores = measured(runs)
  said = (run.summary["headline"] for run in runs if "headline" in (run.summary or {}))
  named = next(said, EARLIER.get(runs[0].settings["task.kind"], DIAGNOSTIC))
  tested = [each for each in scores.values() if (each.split, each.part) == ("test", "")]
  chosen = [*(scores[key] for key in named if key in scores), *tested, *scores.values()]
  return chosen[0] if chosen else None


def by_part(of: Score, runs: Iterable[Run]) -> dict[str, list[Score]]:
  """Return the scores of a metric in the parts of each split: {"beyond": [6, 7]}.

  Lengths ("6", "11-15") are in the order of their size.
  """
  of_split: dict[str, list[Score]] = {}
  for other in measured(runs).values():
    if other.metric == of.metric and other.part and other.split and "/" not in other.split:
      of_split.setdefault(other.split, []).append(other)
  for parts in of_split.values():
    if lengths(parts):
      parts.sort(key=lambda each: int(re.match(r"\d+", each.part).group()))
  return {split: parts for split, parts in of_split.items() if len(parts) > 1}


def lengths(parts: Sequence[Score]) -> bool:
  """Return whether the parts of a split are lengths, and not groups with names."""
  return all(re.match(r"\d", part.part) for part in parts)
