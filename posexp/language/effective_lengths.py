"""Relative effective context lengths: how long a context is of use to each model of a group."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from posexp.errors import UserError
from posexp.reporting.grouping import names_of
from posexp.reporting.text import CELL, tabulated
from posexp.runs import Run
from posexp.runs.context_losses import read_context_losses

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
  first, most = max(zip(runs, losses, strict=True), key=lambda pair: len(pair[1].nats))
  for run, loss in zip(runs, losses, strict=True):
    same = loss.text == most.text and np.array_equal(loss.place, most.place)
    # One whose positions end was measured with the shorter contexts alone.
    if not same or [*loss.nats] != [*most.nats][: len(loss.nats)]:
      raise UserError(
        f"{run.path} and {first.path} were measured on other targets or texts, or with other "
        "contexts: measure runs of one task, with the same --at and --positions"
      )
  nats = [each.nats for each in losses]
  return {
    title: [relative_effective_length(nats, member, share) for share in SHARES]
    for member, title in enumerate(names_of(runs, CELL))
  }


def table(found: Mapping[str, Sequence[EffectiveLength]]) -> str:
  """Return a row for each run, from its lengths by its name."""
  heads = ["relative effective context length", *(f"r = {share:g}" for share in SHARES)]
  return tabulated((heads, [[title, *map(str, each)] for title, each in found.items()]), "plain")
