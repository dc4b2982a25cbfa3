"""Relative effective context lengths of language models (Dai et al. 2019)."""

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
LEAST_GAIN = 0.01  # of the perplexity


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

  `group` has the nats [N] of each model by context, of the same targets. Beginning with the
  shortest, a longer context is taken as long as it lowers the perplexity, of the share of targets
  that are hardest for the best model with the context so far, by a hundredth or more.
  """
  own = group[member]
  contexts = sorted(own)
  for context, longer in itertools.pairwise(contexts):
    best = np.min([each[context] for each in group if context in each], axis=0).astype(np.float64)
    hard = np.argsort(-best, kind="stable")[: max(1, round(share * len(best)))]
    base = best[hard].mean()
    gained = np.minimum(best, own[longer])[hard].mean()
    if 1 - math.exp(gained - base) < LEAST_GAIN:
      return EffectiveLength(context, False)
  return EffectiveLength(contexts[-1], True)


def effective_lengths(runs: Sequence[Run], name: str) -> dict[str, list[EffectiveLength]]:
  """Return the lengths for each share of the targets, by short names of runs, which are one group.

  Raises:
    UserError: a run has not been measured, or not on the same targets, or with other contexts.
  """
  if len(runs) < 2:
    raise UserError("--recl compares runs with each other: name two or more")
  found = [read_context_losses(run.path, name) for run in runs]
  if None in found:
    raise UserError(
      f"{runs[found.index(None)].path} has no losses of {name} by context; python -m "
      "posexp.evaluate RUN --context 100,200,300 measures them"
    )
  most = max((each.nats for each in found), key=len)
  for run, each in zip(runs, found, strict=True):
    same = each.text == found[0].text and np.array_equal(each.place, found[0].place)
    # One whose positions end was measured with the shorter contexts alone.
    if not same or [*each.nats] != [*most][: len(each.nats)]:
      raise UserError(
        f"{run.path} and {runs[0].path} were measured on other targets or texts, or with other "
        "contexts: measure runs of one task, with the same --context and --positions"
      )
  nats = [each.nats for each in found]
  return {
    title: [relative_effective_length(nats, member, share) for share in SHARES]
    for member, title in enumerate(names_of(runs, CELL))
  }


def length_table(found: Mapping[str, Sequence[EffectiveLength]]) -> str:
  """Return a row for each run."""
  heads = ["relative effective context length", *(f"r = {share:g}" for share in SHARES)]
  return tabulated((heads, [[title, *map(str, each)] for title, each in found.items()]), "plain")
