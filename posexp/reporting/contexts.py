"""What language models gain from context, and how they hold on beyond their training length."""

from __future__ import annotations

from collections.abc import Iterator

from posexp.reporting.grouping import Group
from posexp.reporting.results import Results
from posexp.reporting.significance import Estimate, estimate
from posexp.reporting.text import MISSING, Table, listed
from posexp.runs.context_losses import BEFORE, EXCESS, LEAST_GAIN
from posexp.runs.run import Run

COLUMNS = {  # key of a summary -> heading, and format of a number
  "context/gain": (f"gain over {BEFORE} tokens (bits per byte)", "+.4f"),
  "context/slope": ("beyond a segment: nats per doubling", "+.4f"),
  "context/holds_to": (f"{EXCESS} nats above its minimum (tokens)", ",.0f"),
}


def context_table(results: Results) -> Table:
  """Return a row for each group: means over seeds with half of their intervals.

  Where a seed has not lost so much at its longest context, the mean of the last column is a bound.
  """
  kept = [key for key in COLUMNS if any(run.score(key) is not None for run in results.runs)]
  groups = [group for group in results.groups if group.counted and kept]
  rows = [[group.label, *(_cell(group, key) for key in kept)] for group in groups]
  return ["", *(COLUMNS[key][0] for key in kept)], rows


def of_little_gain(results: Results) -> Iterator[str]:
  """Yield a sentence if groups hardly use their context."""
  found = {group.label: _mean(group, "context/gain") for group in results.ranked}
  known = {label: each.mean for label, each in found.items() if each.n}
  if little := [label for label, gain in known.items() if gain < LEAST_GAIN]:
    yield (
      f"More context than {BEFORE} tokens gains less than {LEAST_GAIN} bits per byte with "
      f"{listed(little, 8)}: models that hardly use their context say little about order, memory "
      "and length."
    )


def _mean(group: Group, key: str) -> Estimate:
  values = (run.score(key) for run in group.counted.values())
  return estimate([each for each in values if each is not None])


def _cell(group: Group, key: str) -> str:
  found, form = _mean(group, key), COLUMNS[key][1]
  if found.mean is None:
    return MISSING
  bound = key == "context/holds_to" and any(map(_holds, group.counted.values()))
  half = f" ± {found.half:{form.lstrip('+')}}" if found.half else ""
  return f"{'≥ ' if bound else ''}{found.mean:{form}}{half}"


def _holds(run: Run) -> bool:
  """Return whether a run holds on up to the longest context that was measured."""
  name = "context/loss/"
  contexts = [int(key.removeprefix(name)) for key in run.summary if key.startswith(name)]
  return run.score("context/holds_to") == max(contexts, default=0)
