"""Whether two systems differ by more than chance, over seeds, over examples, or over both."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from scipy import special

from posexp.errors import UserError, counted
from posexp.judging.files import Side
from posexp.reporting.significance import (
  LEVEL,
  POWER,
  Contrast,
  contrast,
  holm,
  mcnemar,
  over_examples,
  widest,
)
from posexp.reporting.text import p_value

MOST = 100_000  # seeds or examples that are still said to be needed


class Test(NamedTuple):
  """One test of a difference."""

  over: str  # "5 seeds", "1,000 examples" or "both"
  how: str  # the name of the test
  low: float | None  # the 95 % interval; None where nothing varies
  high: float | None
  p: float
  needed: Callable[[float], int | None] | None = None  # seeds or examples that find a difference


@dataclasses.dataclass
class Judged:
  """The difference a − b of two sides, with its tests."""

  a: Side
  b: Side
  difference: float
  tests: list[Test]
  notes: list[str]
  p: float = 1.0  # the largest of the tests, corrected for all comparisons

  @property
  def kind(self) -> str:
    """ "told", "not told" or "not tested"."""
    if not self.tests:
      return "not tested"
    sure = all(test.low is None or not test.low <= 0 <= test.high for test in self.tests)
    return "told" if sure and self.p < LEVEL else "not told"

  def within(self, margin: float | None) -> bool:
    """Return whether every interval lies within a margin to both sides of 0."""
    known = [test for test in self.tests if test.low is not None]
    return bool(known) and margin is not None and all(
      -margin < test.low and test.high < margin for test in known
    )  # fmt: skip


def judge(sides: Sequence[Side]) -> list[Judged]:
  """Compare each side with the first one; p is corrected for all of them (Holm 1979).

  Raises:
    UserError: less is better in one of two sides alone, or they share no examples though both name
      them.
  """
  verdicts = [_judged(side, sides[0]) for side in sides[1:]]
  tested = [verdict for verdict in verdicts if verdict.tests]
  for difference, p in zip(tested, holm([max(t.p for t in e.tests) for e in tested]), strict=True):
    difference.p = p
  return verdicts


def _judged(a: Side, b: Side) -> Judged:
  if a.lower != b.lower:
    less, more = (a, b) if a.lower else (b, a)
    raise UserError(
      f"less is better of {less.metric} in {less.name}, and more of {more.metric} in {more.name}; "
      "name the same column by --score, or say by --lower or --higher what holds for both"
    )
  shared, notes = _shared(a, b)
  if guessed := " and ".join(dict.fromkeys(each.metric for each in (a, b) if not each.told)):
    notes.append(f"more is taken as better, as {guessed} does not say so; if less is, add --lower")
  if a.metric != b.metric:
    notes.append(f"the score of {a.name} is {a.metric}, that of {b.name} {b.metric}")
  tables = [_table(side, shared) for side in (a, b)]
  by_seed = [
    {
      key if each.named else f"{at} {key}": row.mean()
      for key, row in zip(each.seeds, t, strict=True)
    }
    for at, (each, t) in enumerate(zip((a, b), tables, strict=True))
  ]
  tests, over = [], None
  if min(map(len, tables)) > 1:
    over = contrast(by_seed[0], by_seed[1])
    tests.append(_over_seeds(over))
    both = by_seed[0].keys() & by_seed[1].keys()
    if over.paired and len(both) < max(map(len, by_seed)):
      tables = [t[[key in both for key in s]] for s, t in zip(by_seed, tables, strict=True)]
      by_seed = [{key: s[key] for key in s if key in both} for s in by_seed]
      notes.append(f"compared over the {len(both)} seeds that both have, which pairs them")
  if len(shared) > 1:
    tests.append(_over_examples(*tables))
    if over is not None:
      one, other = (dict(zip(s, t, strict=True)) for s, t in zip(by_seed, tables, strict=True))
      moved = over_examples(one, other, over.paired) / len(shared)
      wider = over.over_examples(moved, len(shared))
      tests.append(Test("both", "the variance of seeds and of examples", *widest(over, wider)))
  elif min(map(len, tables)) == 1 < max(map(len, tables)):
    notes.append("one of the two has a single score, of which no spread is known")
  if len(shared) > 1 and over is None:
    who = "one seed each" if max(map(len, tables)) == 1 else "one of the two has a single seed"
    notes.append(f"{who}: what another seed would give is not in this test")
  return Judged(a, b, float(tables[0].mean() - tables[1].mean()), tests, notes)


def _shared(a: Side, b: Side) -> tuple[list[str], list[str]]:
  """Return the examples that all seeds of both sides have, and a note if others are left out.

  If neither side names its examples, this is [""].

  Raises:
    UserError: fewer than two examples are shared.
  """
  if a.examples == [""] and b.examples == [""]:
    return [""], []
  whole = [
    example
    for example in a.examples
    if all((seed, example) in side.scores for side in (a, b) for seed in side.seeds)
  ]
  if len(whole) < 2 or "" in whole:
    raise UserError(
      f"{a.name} and {b.name} share {counted(len(whole), 'example')}; --example names the column "
      "by which both know them"
    )
  left = len({*a.examples, *b.examples}) - len(whole)
  return whole, [f"{counted(left, 'example')} left out, which not all have"] if left else []


def _table(side: Side, examples: Sequence[str]) -> np.ndarray:
  """Return scores [seeds, examples]."""
  return np.array([[side.scores[seed, example] for example in examples] for seed in side.seeds])


def _ends(found: Contrast) -> tuple[float | None, float | None]:
  return found.ends() if found.error else (None, None)


def _over_seeds(found: Contrast) -> Test:
  how = "paired t test" if found.paired else "Welch's t test"
  variance = found.error**2 * found.n[0]  # of a difference of one seed each
  if not found.paired:
    variance = float(np.diag(found.covariance) @ found.n)

  def needed(least: float) -> int | None:
    if not found.error:
      return _of_orders(found.paired)
    return _count(lambda n: (n - 1) * (1 if found.paired else 2), variance, least)

  n = found.n[0] if found.n[0] == found.n[1] else f"{found.n[0]} and {found.n[1]}"
  return Test(f"{n} seeds", how, *_ends(found), found.p(), needed)


def _over_examples(a: np.ndarray, b: np.ndarray) -> Test:
  """Return McNemar's exact test of right and wrong answers of one seed, or else a paired t test."""
  one, other = (table.mean(axis=0) for table in (a, b))
  off = one - other
  count, variance = len(off), float(off.var(ddof=1))
  error = math.sqrt(variance / count)
  how, p = "paired t test", 2.0 ** (1 - count) if off.any() else 1.0  # of signs that are all equal
  if error:
    p = float(2 * special.stdtr(count - 1, -abs(off.mean()) / error))
  if len(a) == len(b) == 1 and {*one.tolist(), *other.tolist()} <= {0.0, 1.0}:
    how, p = "McNemar's exact test", mcnemar(one == 1, other == 1)["p"]
  reach = float(special.stdtrit(count - 1, 1 - LEVEL / 2)) * error
  ends = (float(off.mean()) - reach, float(off.mean()) + reach) if error else (None, None)

  def needed(least: float) -> int | None:
    return _count(lambda n: n - 1, variance, least) if error else _of_orders(paired=True)

  return Test(f"{count:,} examples", how, *ends, p, needed)


def _of_orders(paired: bool) -> int:
  """Return the least number of equal differences that an exact test of their order tells."""
  orders = (2**n if paired else math.comb(2 * n, n) for n in itertools.count())
  return next(n for n, count in enumerate(orders) if 2 / count < LEVEL)


def _count(freedom: Callable[[int], float], variance: float, least: float) -> int | None:
  """Return the least number, up to MOST, that finds a difference with a power of 80 %, or None."""

  def finds(n: int) -> bool:
    reach = special.stdtrit(freedom(n), 1 - LEVEL / 2)
    return special.nctdtrinc(freedom(n), 1 - POWER, reach) * math.sqrt(variance / n) <= least

  if not least or not finds(MOST):
    return None
  low, high = 1, MOST
  while high - low > 1:
    middle = (low + high) // 2
    low, high = (low, middle) if finds(middle) else (middle, high)
  return high


def sentence(found: Judged, margin: float | None, digits: int) -> str:
  """Return the verdict: which side is better, by how much, how surely, and what would tell."""
  better, worse = found.a.name, found.b.name
  sign = 1 if (found.difference > 0) != found.a.lower else -1
  if sign < 0:
    better, worse = worse, better
  by = f"{abs(found.difference):.{digits}f} {found.a.metric}"
  side = f"{'less' if found.a.lower else 'more'} is better"
  if found.kind == "not tested":
    return (
      f"{found.a.name} and {found.b.name} cannot be tested: they differ by {by} ({side}), and a "
      "score alone has no spread; give scores of several seeds, or of each example."
    )
  flip = 1 if found.difference > 0 else -1
  sure = [side]
  for test in found.tests:
    ends = "the same difference with each"
    if test.low is not None:
      low, high = sorted((flip * test.low, flip * test.high))
      ends = f"95 % {low:z.{digits}f} to {high:z.{digits}f}"
    sure.append(f"over {test.over}, {ends}, {p_value(test.p)}")
  said = "; ".join(sure)
  if found.kind == "told":
    equal = f", at most {margin:g} by each interval" if found.within(margin) else ""
    return f"{better} is better than {worse} by {by}{equal} ({said})."
  if found.within(margin):
    return f"{better} and {worse} are equal within {margin:g} ({by} for {better}; {said})."
  missing = _missing(found, margin, digits)
  return f"{better} and {worse} cannot be told apart: {by} for {better} ({said}).{missing}"


def _missing(found: Judged, margin: float | None, digits: int) -> str:
  """Return how many seeds and examples would tell the margin, or else this difference."""
  least = abs(found.difference) if margin is None else margin
  parts = []
  for test in found.tests:
    if test.needed is not None:
      count = test.needed(least)
      what = test.over.rpartition(" ")[2]
      parts.append(f"more than {MOST:,} {what}" if count is None else f"{count:,} {what}")
  what = f"a difference of {least:.{digits}f}"
  return (
    f" {what[0].upper()}{what[1:]} would take {' and '.join(parts)} (power 80 %)." if parts else ""
  )
