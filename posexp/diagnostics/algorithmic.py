"""Diagnostics: each isolates one use of order, within and beyond the lengths of training."""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Annotated, ClassVar

import numpy as np

from posexp.config.checks import Count, Name, between
from posexp.diagnostics.diagnostic import Diagnostic, Length


@dataclasses.dataclass(frozen=True)
class Majority(Diagnostic):
  """The more frequent of two symbols; a control, which needs no order."""

  name: Name = "majority"
  blind: ClassVar[float] = 1.0  # counting needs no order

  def draw(self, random, n):
    ones = int(random.integers(n + 1))
    while 2 * ones == n:
      ones = int(random.integers(n + 1))
    return random.permutation(np.arange(n) < ones).astype(int), np.array([int(2 * ones > n)])


@dataclasses.dataclass(frozen=True)
class EvenPairs(Diagnostic):
  """The difference of the first and the last of n bits, 0 or 1 (Delétang et al. 2023)."""

  name: Name = "even_pairs"

  def draw(self, random, n):
    x = random.integers(2, size=n)
    return x, x[:1] ^ x[-1:]

  def chance(self, n):
    """Return the accuracy of the likelier answer by the number of ones, which needs no order."""
    if n == 1:
      return 1.0
    ways = [math.comb(n - 2, ones - 1) if 0 < ones < n else 0 for ones in range(n + 1)]
    total = [math.comb(n, ones) for ones in range(n + 1)]
    return sum(max(2 * w, t - 2 * w) for w, t in zip(ways, total, strict=True)) / 2**n


@dataclasses.dataclass(frozen=True)
class Parity(Diagnostic):
  """The parity of the number of ones; a negative control, which no model should extrapolate."""

  name: Name = "parity"
  blind: ClassVar[float] = 1.0  # counting needs no order

  def draw(self, random, n):
    x = random.integers(2, size=n)
    return x, np.array([x.sum() % 2])


@dataclasses.dataclass(frozen=True)
class Tally(Diagnostic):
  """One symbol n times, to write n times: counting and stopping (Kazemnejad et al. 2023)."""

  symbols: ClassVar[int] = 16
  blind: ClassVar[float] = 1.0  # counting needs no order
  name: Name = "tally"

  def draw(self, random, n):
    x = np.full(n, random.integers(self.symbols))
    return x, x


@dataclasses.dataclass(frozen=True)
class Copy(Diagnostic):
  """n symbols of `kinds`, to write again, with `reverse` from the last one on; with `distinct` each
  symbol occurs at most once (Huang et al. 2024)."""

  name: Name = "copy"
  kinds: Count = 8
  distinct: bool = False
  reverse: bool = False

  def __post_init__(self):
    if self.distinct and self.kinds < (most := self.most):
      raise ValueError(f"kinds must be at least {most} for distinct symbols, not {self.kinds}")
    super().__post_init__()

  @property
  def symbols(self) -> int:
    return self.kinds

  def draw(self, random, n):
    x = random.permutation(self.kinds)[:n] if self.distinct else random.integers(self.kinds, size=n)
    return x, x[::-1] if self.reverse else x

  def chance(self, n):
    """Return the number of bags over that of inputs, as all orders of a bag are equally likely."""
    if self.distinct:
      return 1 / math.factorial(n)
    return math.comb(n + self.kinds - 1, n) / self.kinds**n


@dataclasses.dataclass(frozen=True)
class Addition(Diagnostic):
  """Two numbers of n digits and their sum, which has one digit more, all padded with zeros.

  With `reversed` the least digit comes first. With `hints` each digit follows a symbol for its
  place, counted from a random one, so that digits of one significance share it (Zhou et al. 2024).
  """

  name: Name = "addition"
  longest: Length = 8
  lengths: tuple[int, ...] = (2, 4, 6, 8, 9, 10, 11, 12, 14, 16, 20)
  base: Annotated[int, between(2, 36)] = 10
  reversed: bool = True
  hints: bool = True

  @property
  def symbols(self) -> int:
    return self.base + 1 + (self.most + 1) * self.hints

  def draw(self, random, n):
    a, b = random.integers(self.base, size=(2, n))  # the least digit first
    total, carry = [], 0
    for digit in [*(a + b).tolist(), 0]:
      carry, left = divmod(digit + carry, self.base)
      total.append(left)
    places = self.symbols - self.base - 1
    first = int(random.integers(places - n)) if self.hints else 0

    def written(digits) -> list[int]:
      shown = [*enumerate(np.asarray(digits).tolist())]
      marked = [(self.base + 1 + first + place, digit) for place, digit in shown]
      order = marked if self.reversed else marked[::-1]
      return [part for pair in order for part in (pair if self.hints else pair[1:])]

    plus = [self.base]
    return np.array(written(a) + plus + written(b)), np.array(written(total))

  def chance(self, n):
    """Return how often the best guess of a sum is right if the order of all digits is unknown.

    It is counted over all pairs of numbers if they are at most a million, and else 0.
    """
    return likeliest_sum(self.base, n)


@functools.cache
def likeliest_sum(base: int, n: int) -> float:
  """Return `Addition.chance` of numbers of n digits."""
  if (pairs := base ** (2 * n)) > 1_000_000:
    return 0.0
  digits = np.indices([base] * (2 * n)).reshape(2 * n, pairs)
  sums = base ** np.arange(n) @ (digits[:n] + digits[n:])
  bags = base ** np.arange(2 * n) @ np.sort(digits, axis=0)
  found, counts = np.unique(bags * 2 * base**n + sums, return_counts=True)
  _, begins = np.unique(found // (2 * base**n), return_index=True)
  return float(np.maximum.reduceat(counts, begins).sum() / pairs)


@dataclasses.dataclass(frozen=True)
class Recall(Diagnostic):
  """The value of a key: `pairs` of key and value, n fillers, and the key (Arora et al. 2023).

  A key may have several `values`, all of which are the answer, in their order. With `queries`, that
  many different keys are asked for, one after another. With `anywhere`, the pairs stand at random
  places among the fillers, so that longer texts have them at places and distances that training has
  not seen; in front of the fillers, they stand at the same places in texts of any length.
  """

  KINDS: ClassVar[int] = 32
  symbols: ClassVar[int] = 3 * KINDS
  name: Name = "recall"
  longest: Length = 32
  lengths: tuple[int, ...] = (8, 16, 32, 48, 64, 96, 128, 192, 256)
  pairs: Annotated[int, between(1, 32)] = 4
  values: Annotated[int, between(1, 32)] = 1
  queries: Annotated[int, between(1, 32)] = 1
  anywhere: bool = False

  def __post_init__(self):
    if self.queries > self.pairs:
      raise ValueError(f"queries={self.queries} are more than pairs={self.pairs}")
    if (needed := self.pairs * self.values) > self.KINDS:
      raise ValueError(
        f"pairs={self.pairs} of values={self.values} need {needed} values, and there are "
        f"{self.KINDS}"
      )
    super().__post_init__()

  @property
  def question(self) -> int:
    return self.queries

  def draw(self, random, n):
    keys = random.permutation(self.KINDS)[: self.pairs, None]
    values = random.permutation(self.KINDS)[: self.pairs * self.values].reshape(self.pairs, -1)
    values = self.KINDS + values
    one = self.queries == 1
    asked = [random.integers(self.pairs)] if one else random.permutation(self.pairs)[: self.queries]
    fillers = 2 * self.KINDS + random.integers(self.KINDS, size=n)
    pairs = np.concatenate([keys, values], axis=1)
    before = np.zeros(self.pairs, int)  # fillers that stand in front of each pair
    if self.anywhere:
      places = random.choice(n + self.pairs, self.pairs, replace=False)
      before = np.sort(places) - np.arange(self.pairs)
    text = np.insert(fillers, np.repeat(before, pairs.shape[1]), pairs.ravel())
    return np.concatenate([text, keys[asked, 0]]), values[asked].ravel()

  def chance(self, n):
    return 1 / math.perm(self.pairs * self.values, self.queries * self.values)


@dataclasses.dataclass(frozen=True)
class Induction(Diagnostic):
  """The symbol after a mark: n symbols, a mark before one, and the mark again (Gu & Dao 2023)."""

  KINDS: ClassVar[int] = 16
  symbols: ClassVar[int] = KINDS + 1
  question: ClassVar[int] = 1
  name: Name = "induction"

  def draw(self, random, n):
    x, place = random.integers(self.KINDS, size=n), int(random.integers(n))
    return np.append(np.insert(x, place, self.KINDS), self.KINDS), x[place : place + 1]

  def chance(self, n):
    """Return the mean share of the most frequent symbol, over 10,000 draws."""
    counts = np.random.default_rng(0).multinomial(n, [1 / self.KINDS] * self.KINDS, size=10_000)
    return float(counts.max(axis=1).mean() / n)


@dataclasses.dataclass(frozen=True)
class MissingDuplicate(Diagnostic):
  """The hidden bit of n bits that are written twice (Delétang et al. 2023)."""

  symbols: ClassVar[int] = 3
  name: Name = "missing_duplicate"
  blind: ClassVar[float] = 1.0  # the number of ones is odd if a one is missing

  def draw(self, random, n):
    x, place = np.tile(random.integers(2, size=n), 2), int(random.integers(2 * n))
    return np.where(np.arange(2 * n) == place, 2, x), x[place : place + 1]


@dataclasses.dataclass(frozen=True)
class BucketSort(Diagnostic):
  """n of five symbols, to write in order (Delétang et al. 2023)."""

  symbols: ClassVar[int] = 5
  name: Name = "bucket_sort"
  blind: ClassVar[float] = 1.0  # counting needs no order

  def draw(self, random, n):
    x = random.integers(self.symbols, size=n)
    return x, np.sort(x)
