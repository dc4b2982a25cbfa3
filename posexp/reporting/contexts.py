"""How models hold on beyond their training length, and what language models gain from context."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from posexp.errors import UserError
from posexp.reporting.grouping import Group, names_of
from posexp.reporting.results import Results
from posexp.reporting.significance import estimate
from posexp.reporting.text import CELL, MISSING, Table, listed, tabulated
from posexp.runs import Run
from posexp.runs.context_losses import BEFORE, EXCESS, LEAST_GAIN, read_context_losses
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


SHARES = (1.0, 0.5, 0.1)  # of the targets, those that are hardest with little context
LEAST_DROP = 0.01  # of the perplexity


class EffectiveLength(NamedTuple):
  """A relative effective context length."""

  tokens: int
  reached_end: bool  # a longer context might still help: none was measured

  def __str__(self) -> str:
    return f"≥ {self.tokens:,}" if self.reached_end else f"{self.tokens:,}"


def relative_effective_length(
  group: Sequence[Mapping[int, np.ndarray]], member: int, share: float
) -> EffectiveLength:
  """Return how long a context is of use to one model of a group (Dai et al. 2019, appendix C).

  `group` has the nats [N] of each model by context, for the same targets. Contexts are tried from
  the shortest to the longest, and the answer is the last one before a longer context gains too
  little. The gain is the drop in perplexity, which must be a hundredth or more, on the hardest
  `share` of the targets: those on which even the best model does worst with the shorter context.
  """
  own = group[member]
  contexts = sorted(own)
  for context, longer in itertools.pairwise(contexts):
    best = np.min([nats[context] for nats in group if context in nats], axis=0).astype(np.float64)
    hard = np.argsort(-best, kind="stable")[: max(1, round(share * len(best)))]
    base = best[hard].mean()
    gained = np.minimum(best, own[longer])[hard].mean()
    if 1 - math.exp(gained - base) < LEAST_DROP:
      return EffectiveLength(context, False)
  return EffectiveLength(contexts[-1], True)


def effective_lengths(runs: Sequence[Run], name: str) -> dict[str, list[EffectiveLength]]:
  """Return the lengths for each share of the targets, by short names of runs, which are one group.

  Raises:
    UserError: a run has not been measured, or not on the same targets, or with other contexts.
  """
  if len(runs) < 2:
    raise UserError("--recl compares runs with each other: name two or more")
  losses = [read_context_losses(run.path, name) for run in runs]
  if None in losses:
    raise UserError(
      f"{runs[losses.index(None)].path} has no losses of {name} by context; python -m "
      "posexp.context RUN --at 100,200,300 measures them"
    )
  most = max((loss.nats for loss in losses), key=len)
  for run, loss in zip(runs, losses, strict=True):
    same = loss.text == losses[0].text and np.array_equal(loss.place, losses[0].place)
    # One whose positions end was measured with the shorter contexts alone.
    if not same or [*loss.nats] != [*most][: len(loss.nats)]:
      raise UserError(
        f"{run.path} and {runs[0].path} were measured on other targets or texts, or with other "
        "contexts: measure runs of one task, with the same --at and --positions"
      )
  nats = [each.nats for each in losses]
  return {
    title: [relative_effective_length(nats, member, share) for share in SHARES]
    for member, title in enumerate(names_of(runs, CELL))
  }


def length_table(found: Mapping[str, Sequence[EffectiveLength]]) -> str:
  """Return a row for each run, from its lengths by its name."""
  heads = ["relative effective context length", *(f"r = {share:g}" for share in SHARES)]
  return tabulated((heads, [[title, *map(str, each)] for title, each in found.items()]), "plain")
