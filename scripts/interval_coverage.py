"""Measures how often 95 % intervals hold the truth, and writes the table into docs/report.md.

    python scripts/interval_coverage.py

Scores of seeds are drawn from distributions of which the mean is known. The intervals are those of
reports: of a mean, of the difference of two groups, and of a difference over seeds and examples.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from tabulate import tabulate

from posexp import storage
from posexp.reporting import significance
from posexp.reporting.significance import contrast, estimate

PAGE = Path(__file__).parent.parent / "docs" / "report.md"
BLOCK = re.compile(r"(<!-- coverage -->\n).*?(<!-- end -->)", re.S)
SEEDS = (3, 4, 5, 6, 8, 10)
DRAWS = 4_000
EXAMPLES = 200

Draw = Callable[[np.random.Generator, tuple[int, ...]], np.ndarray]


class Kind(NamedTuple):
  """A distribution of scores of seeds."""

  name: str
  draw: Draw
  mean: float
  most: float = 1.0  # the largest score
  holds: bool = True  # whether intervals of five seeds hold the truth as often as they say


def two_modes(share: float) -> Draw:
  """Return a draw of scores near 95 %, with such a probability, or else near 5 %."""

  def draw(random, shape):
    high = random.random(shape) < share
    return np.where(high, random.beta(19, 1, shape), random.beta(1, 19, shape))

  return draw


KINDS = (
  Kind("losses: normal", lambda random, shape: random.normal(2, 0.05, shape), 2, math.inf),
  Kind(
    "losses: skewed, lognormal with σ = 0.5",
    lambda random, shape: 0.1 * np.exp(random.normal(0, 0.5, shape)),
    0.1 * math.exp(0.125),
    math.inf,
  ),
  Kind("shares: normal, 80 ± 2 %", lambda random, shape: random.normal(0.8, 0.02, shape), 0.8),
  Kind("shares: skewed, 30 ± 20 %", lambda random, shape: random.beta(1.2, 2.8, shape), 0.3),
  Kind("shares: any from 0 to 100 %", lambda random, shape: random.random(shape), 0.5),
  Kind(
    "ceiling: 0.5 % of 1,000 examples wrong",
    lambda random, shape: 1 - random.binomial(1000, 0.005, shape) / 1000,
    0.995,
  ),
  Kind(
    "ceiling: normal, 99.5 ± 0.5 %, at most 100 %",
    lambda random, shape: np.minimum(random.normal(0.995, 0.005, shape), 1),
    0.994583,
  ),
  Kind(
    "ceiling: 0.5 % wrong, lognormal with σ = 0.7",
    lambda random, shape: 1 - 0.005 * np.exp(random.normal(0, 0.7, shape)),
    1 - 0.005 * math.exp(0.245),
  ),
  Kind("two modes: half of the seeds near 95 %, half near 5 %", two_modes(0.5), 0.5),
  Kind("two modes: four of five near 95 %", two_modes(0.8), 0.77, holds=False),
  Kind("two modes: nine of ten near 95 %", two_modes(0.9), 0.86, holds=False),
)


def of_means(kind: Kind, n: int, draws: int) -> float:
  """Return in how many per cent of draws the interval of a mean over n seeds holds the truth.

  Where all seeds are equal, there is no interval, and it does not.
  """
  scores = kind.draw(np.random.default_rng(n), (draws, n))
  found = (estimate(score, kind.most) for score in scores)
  return share((each.low, each.high, kind.mean) for each in found if each.low is not None) / draws


def of_differences(kind: Kind, n: int, draws: int, shared: float = 0.0) -> float:
  """Return in how many per cent of draws the interval of a difference of n and n seeds holds 0.

  `shared` is the share of the variance of normal scores that both groups have in common.
  """
  random = np.random.default_rng(n)
  a, b = (kind.draw(random, (draws, n)) for _ in range(2))
  if shared:
    both, mean = kind.draw(random, (draws, n)) - kind.mean, kind.mean
    a, b = (
      mean + math.sqrt(shared) * both + math.sqrt(1 - shared) * (each - mean) for each in (a, b)
    )
  return share(_interval(*each, kind.most) for each in zip(a, b, strict=True)) / draws


def _interval(a: np.ndarray, b: np.ndarray, most: float) -> tuple[float, float, float]:
  found = contrast(dict(enumerate(a)), dict(enumerate(b)), most)
  return (*found.ends(), 0.0)


def share(intervals: Iterator[tuple[float, float, float]]) -> float:
  """Return a hundred times how many intervals (low, high) hold their truth."""
  return 100.0 * sum(low - 1e-12 <= truth <= high + 1e-12 for low, high, truth in intervals)


def over_examples(n: int, draws: int, luck: float) -> dict[str, float]:
  """Return in how many per cent of draws intervals of a difference hold 0, by their method.

  Two groups of n seeds are right or wrong on the same examples, which are drawn anew with the
  seeds; some examples are easier for the one group, others for the other. Of what a run does by
  chance on an example, its seed decides a share of `luck`, the same for both groups.
  """
  random, found = np.random.default_rng(n), {}
  for _ in range(draws):
    easy, common = random.normal(1, 1.5, EXAMPLES), random.normal(0, 1.7, (n, EXAMPLES))
    rights = []
    for _ in range(2):
      logits = easy + random.normal(0, 1, EXAMPLES) + random.normal(0, 0.1, (n, 1))
      own = random.normal(0, 1.7, (n, EXAMPLES))
      logits += math.sqrt(luck) * common + math.sqrt(1 - luck) * own
      rights.append((logits > 0).astype(float))
    a, b = rights
    seeds = contrast(dict(enumerate(a.mean(1))), dict(enumerate(b.mean(1))), 1.0)
    together = significance.over_examples(*map(dict, map(enumerate, rights)), seeds.paired)
    both = seeds.over_examples(together / EXAMPLES, EXAMPLES)
    chosen = random.integers(0, n, (2, 200, n))
    times = random.multinomial(EXAMPLES, np.full(EXAMPLES, 1 / EXAMPLES), 200) / EXAMPLES
    drawn = [
      ((one @ times.T)[each, np.arange(200)[:, None]]).mean(1)
      for one, each in zip(rights, chosen, strict=True)
    ]
    ends = {
      "over seeds": seeds.ends(),
      "over seeds and examples": both.ends(),
      "percentile bootstrap of both": tuple(np.quantile(drawn[0] - drawn[1], [0.025, 0.975])),
    }
    for name, (low, high) in ends.items():
      found[name] = found.get(name, 0) + share(iter([(low, high, 0.0)])) / draws
  return found


def table() -> str:
  """Return the coverage of all kinds of scores by the number of seeds, in Markdown."""
  rows = []
  for kind in KINDS:
    rows.append([kind.name, *(of_means(kind, n, DRAWS) for n in SEEDS)])
  for kind in KINDS:
    name = f"difference, {kind.name}"
    rows.append([name, *(of_differences(kind, n, DRAWS) for n in SEEDS)])
  for shared in (0.5, 0.9):
    name = f"difference, losses: normal, {100 * shared:.0f} % of the variance shared"
    rows.append([name, *(of_differences(KINDS[0], n, DRAWS, shared) for n in SEEDS)])
  for luck in (0.0, 0.9):
    found = [over_examples(n, DRAWS // 8, luck) for n in SEEDS]
    shared = f", {100 * luck:.0f} % of luck shared" if luck else ""
    for name in found[0]:
      of = f"difference on other examples{shared}, {name}"
      rows.append([of, *(each[name] for each in found)])
  heads = ["scores of seeds", *(f"n = {n}" for n in SEEDS)]
  return tabulate(rows, heads, "pipe", floatfmt=".1f")


if __name__ == "__main__":
  text = table()
  print(text)
  page = PAGE.read_text(encoding="utf-8")
  storage.write(PAGE, BLOCK.sub(lambda found: f"{found[1]}\n{text}\n\n{found[2]}", page))
