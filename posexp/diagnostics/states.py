"""Diagnostics that retrieve symbols from far back, or track a state through a text."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from typing import Annotated, ClassVar, Literal

import numpy as np

from posexp.config.checks import Count, Name, Share, between
from posexp.diagnostics.diagnostic import Diagnostic, Length


@dataclasses.dataclass(frozen=True)
class FlipFlop(Diagnostic):
  """The bit that was written last: n instructions to write or to ignore a bit (Liu et al. 2023).

  The first writes, each other one ignores with probability `ignore`. The last symbol asks. Reads in
  between, whose answers the authors' language also has, are left out.
  """

  WRITE, IGNORE, READ = 2, 3, 4
  symbols: ClassVar[int] = 5
  symbol_names: ClassVar[tuple[str, ...]] = ("0", "1", "w", "i", "r")
  question: ClassVar[int] = 1
  name: Name = "flip_flop"
  ignore: Share = 0.8

  def draw(self, random, n):
    bits, ignored = random.integers(2, size=n), random.random(n) < self.ignore
    ignored[0] = False
    order = np.stack([np.where(ignored, self.IGNORE, self.WRITE), bits], axis=1).ravel()
    return np.append(order, self.READ), bits[~ignored][-1:]

  def chance(self, n):
    """Return the expected share of the more frequent bit, since any bit may be the last."""
    return sum(math.comb(n, ones) * max(ones, n - ones) for ones in range(n + 1)) / (n * 2**n)


@functools.cache
def products_of(group: str) -> np.ndarray:
  """Return the number of the product p∘q of permutations number p and q, int [G,G].

  They are numbered in order: those of three things for `s3`, the even ones of five for `a5`.
  """
  things = {"s3": 3, "a5": 5}[group]
  every = [*itertools.permutations(range(things))]
  if group == "a5":
    inversions = {p: sum(a > b for a, b in itertools.combinations(p, 2)) for p in every}
    every = [p for p, count in inversions.items() if count % 2 == 0]
  number = {p: i for i, p in enumerate(every)}
  return np.array([[number[tuple(p[i] for i in q)] for q in number] for p in number])


@functools.cache
def guessed(group: str) -> np.ndarray:
  """Return whether the best guess from a prefix's bag is the prefix's product, bool [40,1000].

  The prefixes, of 1 to 40 permutations, are those of 1,000 random words. The guess is the most
  frequent product of 100 random orders of the bag.
  """
  random, table = np.random.default_rng(0), products_of(group)
  words = random.integers(len(table), size=(40, 1000))
  right = np.empty(words.shape, bool)
  for n in range(1, len(words) + 1):
    orders = random.permuted(np.repeat(words[:n, :, None], 101, axis=2), axis=0)
    orders[:, :, 0] = words[:n]
    products = functools.reduce(lambda before, each: table[each, before], orders)
    counts = (products[:, 1:, None] == np.arange(len(table))).sum(1)
    right[n - 1] = counts.argmax(1) == products[:, 0]
  return right


@dataclasses.dataclass(frozen=True)
class GroupWords(Diagnostic):
  """The product of n permutations, of three things or the even ones of five (Liu et al. 2023).

  The later permutation is applied to the product of the earlier ones. The word problem of `a5` is
  complete for NC¹, that of `s3` is not (Barrington 1989). As a `tagger`, which is what the paper
  trains, a model gives the product of the permutations so far at each of them; in the other forms
  it gives the last product alone, and hardly learns it.
  """

  name: Name = "group_words"
  group: Literal["s3", "a5"] = "s3"
  longest: Length = 8
  lengths: tuple[int, ...] = (2, 4, 6, 8, 9, 10, 12, 14, 16, 20, 24, 32)
  form: Literal["decoder", "encoder", "tagger"] = "tagger"  # type: ignore[assignment]

  @property
  def symbols(self) -> int:
    return len(products_of(self.group))

  def draw(self, random, n):
    x, table = random.integers(self.symbols, size=n), products_of(self.group)
    y = np.array([*itertools.accumulate(x, lambda before, each: table[each, before])])
    return x, y if self.form == "tagger" else y[-1:]

  def chance(self, n):
    """Return the exact match of guesses from the bag of symbols, or of each prefix for a tagger.

    From 40 symbols on it does not depend on n.
    """
    right = guessed(self.group)[: min(n, 40)]
    return float((right.all(0) if self.form == "tagger" else right[-1]).mean())


@dataclasses.dataclass(frozen=True)
class SelectiveCopy(Diagnostic):
  """The `items` among n blanks, in their order (Gu & Dao 2023); each is one of `kinds`."""

  name: Name = "selective_copy"
  longest: Length = 32
  lengths: tuple[int, ...] = (8, 16, 32, 48, 64, 96, 128, 192, 256)
  items: Count = 4
  kinds: Count = 8

  @property
  def symbols(self) -> int:
    return self.kinds + 1

  def draw(self, random, n):
    y = random.integers(self.kinds, size=self.items)
    x = np.full(n + self.items, self.kinds)
    x[np.sort(random.permutation(len(x))[: self.items])] = y
    return x, y

  def chance(self, n):
    """Return the number of bags over that of answers, as all orders of a bag are equally likely."""
    return math.comb(self.items + self.kinds - 1, self.items) / self.kinds**self.items


@dataclasses.dataclass(frozen=True)
class MostFrequent(Diagnostic):
  """The symbol that occurs more often than any other of `kinds`; a control like majority."""

  name: Name = "most_frequent"
  kinds: Annotated[int, between(2, 1000)] = 8
  blind: ClassVar[float] = 1.0  # counting needs no order

  @property
  def symbols(self) -> int:
    return self.kinds

  def draw(self, random, n):
    while True:
      x = random.integers(self.kinds, size=n)
      counts = np.bincount(x)
      if (counts == counts.max()).sum() == 1:
        return x, counts.argmax(keepdims=True)


@dataclasses.dataclass(frozen=True)
class IndirectIndexing(Diagnostic):
  """The symbol that stands d places left of a given one, among n that differ.

  After Gopalakrishnan et al. 2025: the place is found by content, and then by position. d is at
  most `shifts`.
  """

  question: ClassVar[int] = 2
  name: Name = "indirect_indexing"
  shortest: Length = 2
  kinds: Count = 128
  shifts: Count = 8

  def __post_init__(self):
    most, least = self.most, min(self.shortest, *self.lengths)
    if self.kinds < most:
      raise ValueError(f"kinds must be at least {most} for symbols that differ, not {self.kinds}")
    if least < 2:
      raise ValueError("shortest and lengths must be at least 2: one symbol has none to its left")
    super().__post_init__()

  @property
  def symbols(self) -> int:
    return self.kinds + self.shifts

  def draw(self, random, n):
    x = random.permutation(self.kinds)[:n]
    shift = int(random.integers(1, min(self.shifts, n - 1) + 1))
    place = int(random.integers(shift, n))
    asked = [x[place], self.kinds + shift - 1]
    return np.append(x, asked), x[place - shift : place - shift + 1]

  def chance(self, n):
    return 1 / (n - 1)


@dataclasses.dataclass(frozen=True)
class VariableTracking(Diagnostic):
  """The value of a variable that was set to another one, and so on (Hsieh et al. 2024, RULER).

  Each of `chains` sets a variable to a value and then, `hops` times, a new variable to the last
  one. Assignments of all chains are mixed, in the order of each chain, with n fillers between them.
  The last variable of one chain is asked for.
  """

  KINDS: ClassVar[int] = 32  # of variables, of values and of fillers
  symbols: ClassVar[int] = 3 * KINDS
  question: ClassVar[int] = 1
  name: Name = "variable_tracking"
  longest: Length = 32
  lengths: tuple[int, ...] = (8, 16, 32, 48, 64, 96, 128, 192, 256)
  chains: Annotated[int, between(1, 16)] = 2
  hops: Annotated[int, between(0, 31)] = 1

  def __post_init__(self):
    if (needed := self.chains * (self.hops + 1)) > self.KINDS:
      raise ValueError(
        f"chains={self.chains} of hops={self.hops} need {needed} variables, and there are "
        f"{self.KINDS}"
      )
    super().__post_init__()

  def draw(self, random, n):
    shape = self.chains, self.hops + 1
    variables = random.permutation(self.KINDS)[: math.prod(shape)].reshape(shape)
    values = self.KINDS + random.permutation(self.KINDS)[: self.chains]
    sources = np.concatenate([values[:, None], variables[:, :-1]], axis=1)
    turns = random.permutation(np.repeat(np.arange(self.chains), self.hops + 1))
    next_of = [iter(zip(*pair, strict=True)) for pair in zip(variables, sources, strict=True)]
    fillers = 2 * self.KINDS + random.integers(self.KINDS, size=n)
    gaps = np.sort(random.integers(n + 1, size=len(turns)))
    x: list[int] = []
    for part, chain in itertools.zip_longest(np.split(fillers, gaps), turns.tolist()):
      x += [*part.tolist(), *(() if chain is None else next(next_of[chain]))]
    asked = int(random.integers(self.chains))
    return np.array([*x, variables[asked, -1]]), values[asked : asked + 1]

  def chance(self, n):
    return 1 / self.chains
