"""Verdicts on claims about the difference of two groups, computed from its interval."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from posexp.reporting.significance import FEWEST, LEVEL, Contrast, holm
from posexp.runs.metrics import Score

KINDS = ("greater", "less", "equal", "not greater", "not less")
SINGLE = KINDS[:3]  # what a difference is
HOLDS, FAILS, UNCLEAR = "holds", "does not hold at this size", "cannot be told"


class Claim(NamedTuple):
  """A claim that a difference is greater than a margin, less than minus the margin, equal to 0
  within the margin, or not the first or the second.
  """

  contrast: Contrast | None  # the difference; None of single seeds
  kind: str  # one of KINDS
  margin: float  # the largest difference that does not matter, in the unit of the score


class Verdict(NamedTuple):
  """What the seeds say of a claim, at the level 0.05 for its whole family."""

  verdict: str  # HOLDS, FAILS or UNCLEAR
  left: tuple[str, ...]  # the kinds that the 95 % interval leaves possible
  p: float | None  # of the difference where the verdict would turn
  holm: float | None  # p, corrected for the claims of the family


def margin(text: str, score: Score, baseline: float) -> float:
  """Return a margin in the unit of a score, from "0.5 BLEU", "1 points" or "25 % of the errors",
  which are those of a baseline with such a mean.

  Raises:
    ValueError: the text says something else, or has another unit than the score.
  """
  found = re.fullmatch(r"(\d+(?:\.\d+)?) (.+)", text)
  number, unit = (float(found[1]), found[2]) if found else (0.0, "")
  if unit == "% of the errors" and score.metric.percent and number:
    return number / 100 * (1 - baseline)
  if unit != score.unit or not number:
    raise ValueError(f"{text!r} is no margin in {score.unit}")
  return number / score.factor


def left(found: Contrast | None, within: float) -> tuple[str, ...]:
  """Return which kinds of difference the 95 % interval leaves possible."""
  if found is None or (not found.error and min(found.n) < FEWEST):
    return SINGLE
  low, high = found.ends()
  possible = {"greater": high > within, "less": low < -within}
  possible["equal"] = low <= within and high >= -within
  return tuple(kind for kind in SINGLE if possible[kind])


def verdicts(family: Sequence[Claim]) -> list[Verdict]:
  """Return the verdicts on claims that are corrected together (Holm 1979).

  A claim holds if the whole interval agrees with it and fails if none of it does; otherwise it
  cannot be told. The interval is that of the level at which Holm's correction tests the claim.
  """
  found = [_nearest(claim) for claim in family]
  corrected = iter(holm([p for _, p in found if p is not None]))
  verdicts = []
  for claim, (verdict, p) in zip(family, found, strict=True):
    whole = None if p is None else next(corrected)
    sure = whole is not None and whole < LEVEL
    possible = left(claim.contrast, claim.margin)
    verdicts.append(Verdict(verdict if sure else UNCLEAR, possible, p, whole))
  return verdicts


def _nearest(claim: Claim) -> tuple[str, float | None]:
  """Return the verdict on what was measured, and the p of a difference where it would turn."""
  found, kind, margin = claim
  if found is None:
    return UNCLEAR, None
  if kind == "equal":
    if abs(found.mean) < margin:
      return HOLDS, max(found.p(margin), found.p(-margin))
    return FAILS, found.p(margin if found.mean > 0 else -margin)
  turn = margin if kind.endswith("greater") else -margin
  holds = found.mean > turn if kind in ("greater", "not less") else found.mean < turn
  return HOLDS if holds else FAILS, found.p(turn)


class Column(NamedTuple):
  """What a score can show in a set-up, in the unit of its summary."""

  floor: float  # the score of what knows nothing of what the claims are about
  ceiling: float  # the best score that there can be
  control: Contrast | None  # a difference that must be seen before others are believed
  least: float  # how large it must be

  @property
  def seen(self) -> bool:
    """Whether the control is surely larger than it must be, toward the ceiling."""
    kind = "greater" if self.ceiling > self.floor else "less"
    return verdicts([Claim(self.control, kind, self.least)])[0].verdict == HOLDS

  def room(self, kind: str, baseline: float) -> float:
    """Return how far a group can differ from the baseline in the direction that a claim is about;
    toward the nearer end if it is about both.
    """
    low, high = sorted((self.floor, self.ceiling))
    above, below = high - baseline, baseline - low
    if kind == "equal":
      return min(above, below)
    return above if kind.endswith("greater") else below

  def blind(self, claim: Claim, baseline: float, finds: float) -> str:
    """Return why a claim cannot be told with such a score, or nothing.

    `finds` is the smallest difference that the seeds of the claim detect.
    """
    if not self.seen:
      return "the control is not seen"
    clear = finds < abs(claim.contrast.mean) if claim.contrast else False
    return "" if clear or self.room(claim.kind, baseline) > finds else "too little room"
