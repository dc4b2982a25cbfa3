"""Diagnostics: what order is worth, isolated, and what is left of it beyond the training length."""

from __future__ import annotations

import dataclasses
import math
from typing import Annotated, ClassVar

import numpy as np

from posexp.config.checks import Count, Name, between
from posexp.tasks.diagnostic import Diagnostic, Length


@dataclasses.dataclass(frozen=True)
class Majority(Diagnostic):
  """Which of two symbols stands there more often; a control, for which no order is needed."""

  name: Name = "majority"

  def draw(self, random, n):
    ones = int(random.integers(n + 1))
    while 2 * ones == n:
      ones = int(random.integers(n + 1))
    return random.permutation(np.arange(n) < ones).astype(int), np.array([int(2 * ones > n)])

  def chance(self, n):
    return 1.0  # counting needs no order


@dataclasses.dataclass(frozen=True)
class EvenPairs(Diagnostic):
  """Whether the first and the last of n bits differ (Delétang et al. 2023)."""

  name: Name = "even_pairs"

  def draw(self, random, n):
    x = random.integers(2, size=n)
    return x, x[:1] ^ x[-1:]

  def chance(self, n):
    """By the number of ones, which order does not change: the likelier answer of each."""
    if n == 1:
      return 1.0
    ways = [math.comb(n - 2, ones - 1) if 0 < ones < n else 0 for ones in range(n + 1)]
    total = [math.comb(n, ones) for ones in range(n + 1)]
    return sum(max(2 * w, t - 2 * w) for w, t in zip(ways, total, strict=True)) / 2**n


@dataclasses.dataclass(frozen=True)
class Parity(Diagnostic):
  """Whether the number of ones is odd; a negative control, which nobody should extrapolate."""

  name: Name = "parity"

  def draw(self, random, n):
    x = random.integers(2, size=n)
    return x, np.array([x.sum() % 2])

  def chance(self, n):
    return 1.0  # counting needs no order


@dataclasses.dataclass(frozen=True)
class Tally(Diagnostic):
  """One symbol n times, to be written n times: counting and stopping (Kazemnejad et al. 2023)."""

  symbols: ClassVar[int] = 16
  name: Name = "tally"

  def draw(self, random, n):
    x = np.full(n, random.integers(self.symbols))
    return x, x


@dataclasses.dataclass(frozen=True)
class Copy(Diagnostic):
  """n symbols of `kinds`, to be written again, from the last one on with `reverse`; `distinct` ones
  stand there once each (Huang et al. 2024)."""

  name: Name = "copy"
  kinds: Count = 8
  distinct: bool = False
  reverse: bool = False

  def __post_init__(self):
    if self.distinct and self.kinds < (most := max(self.lengths, default=0)):
      raise ValueError(f"kinds must be at least {most} for distinct symbols, not {self.kinds}")
    super().__post_init__()

  @property
  def symbols(self) -> int:
    return self.kinds

  def draw(self, random, n):
    x = random.permutation(self.kinds)[:n] if self.distinct else random.integers(self.kinds, size=n)
    return x, x[::-1] if self.reverse else x


@dataclasses.dataclass(frozen=True)
class Addition(Diagnostic):
  """Two numbers of n digits and their sum, which has one digit more, all padded with zeros.

  Digits stand from the least on with `reversed`. With `hints` each stands behind a symbol that says
  its place, from a random one on, so that digits of one significance share it (Zhou et al. 2024).
  """

  name: Name = "addition"
  longest: Length = 8
  lengths: tuple[int, ...] = (2, 4, 6, 8, 9, 10, 11, 12, 14, 16, 20)
  base: Annotated[int, between(2, 36)] = 10
  reversed: bool = True
  hints: bool = True

  @property
  def symbols(self) -> int:
    places = max(self.longest, *self.lengths) + 1
    return self.base + 1 + places * self.hints

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
      return [each for pair in order for each in (pair if self.hints else pair[1:])]

    plus = [self.base]
    return np.array(written(a) + plus + written(b)), np.array(written(total))


@dataclasses.dataclass(frozen=True)
class Recall(Diagnostic):
  """`pairs` of a key and its value, n fillers, and a key again: its value (Arora et al. 2023)."""

  KINDS: ClassVar[int] = 32
  symbols: ClassVar[int] = 3 * KINDS
  question: ClassVar[int] = 1
  name: Name = "recall"
  longest: Length = 32
  lengths: tuple[int, ...] = (8, 16, 32, 48, 64, 96, 128, 192, 256)
  pairs: Annotated[int, between(1, 32)] = 4

  def draw(self, random, n):
    keys, values = (random.permutation(self.KINDS)[: self.pairs] for _ in range(2))
    pairs = np.stack([keys, self.KINDS + values], axis=1).ravel()
    asked = int(random.integers(self.pairs))
    fillers = 2 * self.KINDS + random.integers(self.KINDS, size=n)
    key, value = keys[asked : asked + 1], values[asked : asked + 1]
    return np.concatenate([pairs, fillers, key]), self.KINDS + value

  def chance(self, n):
    return 1 / self.pairs


@dataclasses.dataclass(frozen=True)
class Induction(Diagnostic):
  """n symbols, a mark before one of them, and the mark again: that symbol (Gu & Dao 2023)."""

  KINDS: ClassVar[int] = 16
  symbols: ClassVar[int] = KINDS + 1
  question: ClassVar[int] = 1
  name: Name = "induction"

  def draw(self, random, n):
    x, place = random.integers(self.KINDS, size=n), int(random.integers(n))
    return np.append(np.insert(x, place, self.KINDS), self.KINDS), x[place : place + 1]

  def chance(self, n):
    """That of the symbol which stands there most often, in 10,000 draws."""
    counts = np.random.default_rng(0).multinomial(n, [1 / self.KINDS] * self.KINDS, size=10_000)
    return float(counts.max(axis=1).mean() / n)


@dataclasses.dataclass(frozen=True)
class MissingDuplicate(Diagnostic):
  """n bits twice, of which one is hidden: that one (Delétang et al. 2023)."""

  symbols: ClassVar[int] = 3
  name: Name = "missing_duplicate"

  def draw(self, random, n):
    x, place = np.tile(random.integers(2, size=n), 2), int(random.integers(2 * n))
    return np.where(np.arange(2 * n) == place, 2, x), x[place : place + 1]

  def chance(self, n):
    return 1.0  # the number of ones is odd where a one is missing


@dataclasses.dataclass(frozen=True)
class BucketSort(Diagnostic):
  """n of five symbols, to be written in order (Delétang et al. 2023)."""

  symbols: ClassVar[int] = 5
  name: Name = "bucket_sort"

  def draw(self, random, n):
    x = random.integers(self.symbols, size=n)
    return x, np.sort(x)

  def chance(self, n):
    return 1.0  # counting needs no order
