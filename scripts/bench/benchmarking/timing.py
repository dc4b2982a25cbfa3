"""Times in rounds: everything once in each, so that what else the machine does falls on all."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple, TypeVar

import numpy as np

Key = TypeVar("Key")


class Spent(NamedTuple):
  """Seconds."""

  wall: float
  cpu: float  # of all threads of the process


Timed = Callable[[int], Spent]  # does the work so many times


def timed(work: Callable[[int], None]) -> Timed:
  """Return the work with its times."""

  def run(calls: int) -> Spent:
    wall, cpu = time.perf_counter(), time.process_time()
    work(calls)
    return Spent(time.perf_counter() - wall, time.process_time() - cpu)

  return run


def rounds(
  works: Mapping[Key, Timed], count: int, seconds: float
) -> tuple[dict[Key, list[Spent]], bool]:
  """For each of the works the times of one call, by round; and whether all rounds were made.

  A round takes about so many seconds of each, in another order every time, and each is done once
  before its time is taken: it finds the caches as itself has left them, as a training step does.
  Ctrl-C leaves the rounds that are whole.
  """
  found: dict[Key, list[Spent]] = {key: [] for key in works}
  order = list(works)
  try:
    once = {key: max(work(1).wall, 1e-6) for key, work in works.items()}
    calls = {key: max(1, math.ceil(seconds / wall)) for key, wall in once.items()}
    for index in range(count):
      now = {}
      for place in np.random.default_rng(index).permutation(len(order)):
        key = order[place]
        works[key](1)
        spent = works[key](calls[key])
        now[key] = Spent(spent.wall / calls[key], spent.cpu / calls[key])
      for key, spent in now.items():
        found[key].append(spent)
  except KeyboardInterrupt:
    return found, False
  return found, True


class Middle(NamedTuple):
  """A median, and the quartiles about it."""

  median: float
  low: float
  high: float


def middle(values) -> Middle:
  """Of some numbers."""
  low, median, high = np.quantile(np.asarray(values, float), (0.25, 0.5, 0.75)).tolist()
  return Middle(median, low, high)


def ratios(these: list[Spent], those: list[Spent], part: str) -> Middle:
  """Return how much longer these take than those, round by round."""
  return middle(
    [getattr(a, part) / max(getattr(b, part), 1e-9) for a, b in zip(these, those, strict=True)]
  )
