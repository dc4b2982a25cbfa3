"""How models hold on beyond their training length, and what language models gain from context."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from posexp.reporting.grouping import Group
from posexp.reporting.results import Results
from posexp.reporting.significance import estimate
from posexp.reporting.text import MISSING, Table, listed
from posexp.runs import Run
from posexp.runs.context_losses import BEFORE, EXCESS, LEAST_GAIN
from posexp.runs.lengths import REACHED
from posexp.runs.metrics import score

GAIN, SLOPE, HOLDS_TO = "context/gain", "context/slope", "context/holds_to"
REACH, AREA = "beyond/reach", "beyond/area"
COLUMNS = {  # headings by the key of a summary
  GAIN: f"gain over {BEFORE} tokens (bits per byte)",
  SLOPE: "beyond a segment: nats per doubling",
  HOLDS_TO: f"{EXCESS} nats above its minimum (tokens)",
  REACH: f"reach: {100 * REACHED:.0f} % up to length",
  AREA: "area over log length (%)",
}


def context_table(results: Results) -> Table:
  """Return a row for each group: means over seeds with half of their intervals.

  The context to which models hold has geometric means and both ends of the interval. Where a seed
  holds up to the longest context or length that was measured, the mean is a lower bound.
  """
  kept = [key for key in COLUMNS if any(run.score(key) is not None for run in results.runs)]
  groups = [group for group in results.groups if group.repeats and kept]
  rows = [[group.label, *(_cell(group, key) for key in kept)] for group in groups]
  return ["", *(COLUMNS[key] for key in kept)], rows


def of_little_gain(results: Results) -> Iterator[str]:
  """Yield a sentence if groups hardly use their context."""
  gains = {group.label: _values(group, GAIN) for group in results.ranked}
  if little := [label for label, gain in gains.items() if gain and np.mean(gain) < LEAST_GAIN]:
    yield (
      f"More context than {BEFORE} tokens gains less than {LEAST_GAIN} bits per byte with "
      f"{listed(little, 8)}: models that hardly use their context say little about order, memory "
      "and length."
    )


def _values(group: Group, key: str) -> list[float]:
  values = (run.score(key) for run in group.repeats.values())
  return [value for value in values if value is not None]


def _cell(group: Group, key: str) -> str:
  values = _values(group, key)
  if not values:
    return MISSING
  if key == HOLDS_TO:
    estimated = estimate(np.log2(values))
    mean, low, high = (f"{2.0**end:,.0f}" for end in estimated.ends)
    if any(_holds(run, key, "context/loss/") for run in group.repeats.values()):
      return f"≥ {mean}"
    return f"{mean} ({low} to {high})" if estimated.half else mean
  if key in (REACH, AREA):
    of = score(key)
    estimated = estimate(values, of.most)
    mean, *ends = (of.number(end) for end in estimated.ends if not np.isnan(end))
    least = any(_holds(run, key, "beyond/exact_match/") for run in group.repeats.values())
    return ("≥ " if least else "") + mean + (f" ({' to '.join(ends)})" if ends else "")
  estimated = estimate(values)
  return f"{estimated.mean:+.4f}" + (f" ± {estimated.half:.4f}" if estimated.half else "")


def _holds(run: Run, key: str, name: str) -> bool:
  """Return whether a run holds up to the longest length with a key that begins with `name`."""
  lengths = [int(each.removeprefix(name)) for each in run.summary if each.startswith(name)]
  return run.score(key) == max(lengths, default=0)
