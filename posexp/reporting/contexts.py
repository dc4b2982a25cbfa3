"""What language models gain from context, and how they hold on beyond their training length."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from posexp.reporting.grouping import Group
from posexp.reporting.results import Results
from posexp.reporting.significance import estimate
from posexp.reporting.text import MISSING, Table, listed
from posexp.runs.context_losses import BEFORE, EXCESS, LEAST_GAIN
from posexp.runs.run import Run

GAIN, SLOPE, HOLDS_TO = "context/gain", "context/slope", "context/holds_to"
COLUMNS = {  # headings by the key of a summary
  GAIN: f"gain over {BEFORE} tokens (bits per byte)",
  SLOPE: "beyond a segment: nats per doubling",
  HOLDS_TO: f"{EXCESS} nats above its minimum (tokens)",
}


def context_table(results: Results) -> Table:
  """Return a row for each group: means over seeds with half of their intervals.

  Lengths have geometric means and both ends of the interval. Where a seed does not lose so much up
  to the longest context that was measured, their mean is a lower bound.
  """
  kept = [key for key in COLUMNS if any(run.score(key) is not None for run in results.runs)]
  groups = [group for group in results.groups if group.counted and kept]
  rows = [[group.label, *(_cell(group, key) for key in kept)] for group in groups]
  return ["", *(COLUMNS[key] for key in kept)], rows


def of_little_gain(results: Results) -> Iterator[str]:
  """Yield a sentence if groups hardly use their context."""
  found = {group.label: _values(group, GAIN) for group in results.ranked}
  if little := [label for label, each in found.items() if each and np.mean(each) < LEAST_GAIN]:
    yield (
      f"More context than {BEFORE} tokens gains less than {LEAST_GAIN} bits per byte with "
      f"{listed(little, 8)}: models that hardly use their context say little about order, memory "
      "and length."
    )


def _values(group: Group, key: str) -> list[float]:
  values = (run.score(key) for run in group.counted.values())
  return [each for each in values if each is not None]


def _cell(group: Group, key: str) -> str:
  values = _values(group, key)
  if not values:
    return MISSING
  if key == HOLDS_TO:
    found = estimate(np.log2(values))
    mean, low, high = (f"{2.0**each:,.0f}" for each in found.ends)
    if any(map(_holds, group.counted.values())):
      return f"≥ {mean}"
    return f"{mean} ({low} to {high})" if found.half else mean
  found = estimate(values)
  return f"{found.mean:+.4f}" + (f" ± {found.half:.4f}" if found.half else "")


def _holds(run: Run) -> bool:
  """Return whether a run holds up to the longest context that was measured."""
  name = "context/loss/"
  contexts = [int(key.removeprefix(name)) for key in run.summary if key.startswith(name)]
  return run.score(HOLDS_TO) == max(contexts, default=0)
