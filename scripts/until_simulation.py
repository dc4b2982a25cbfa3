"""Measures sweeps that end by themselves (`until=told`), and writes the table into docs/until.md.

    python scripts/until_simulation.py

Scores of seeds are drawn from distributions with a standard deviation of 1, in which one group is
the baseline. A sweep looks after each round from three seeds on, up to twenty.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from tabulate import tabulate

from posexp import storage
from posexp.reporting.anytime import log_evidence
from posexp.reporting.significance import LEVEL
from posexp.sweeps.jobs import MOST_SEEDS
from posexp.sweeps.until import FIRST

PAGE = Path(__file__).parent.parent / "docs" / "until.md"
BLOCK = re.compile(r"(<!-- simulation -->\n).*?(<!-- end -->)", re.S)
SWEEPS = 1_000
GROUPS = (2, 4, 12)
FAR = 2.0  # standard deviations between one group and all others

Draw = Callable[[np.random.Generator, tuple[int, int]], np.ndarray]


def _two_modes(random: np.random.Generator, shape: tuple[int, int]) -> np.ndarray:
  return random.choice([-1.0, 1.0], shape) + random.normal(0, 0.1, shape)


def _alike(random: np.random.Generator, shape: tuple[int, int]) -> np.ndarray:
  """Draw scores of which half the variance is that of the seed, which all groups share."""
  return (random.normal(0, 1, (1, shape[1])) + random.normal(0, 1, shape)) / math.sqrt(2)


KINDS: dict[str, Draw] = {
  "normal": lambda random, shape: random.normal(0, 1, shape),
  "skewed (exponential)": lambda random, shape: random.exponential(1, shape),
  "two modes": _two_modes,
  "normal, seeds alike": _alike,
}


def told(scores: np.ndarray, shift: float) -> np.ndarray:
  """Return the seed at which each group is told to differ from the first one by more or less than a
  shift, MOST_SEEDS + 1 if it never is, from scores [groups, seeds].
  """
  base, found = scores[0], np.full(len(scores) - 1, MOST_SEEDS + 1)
  enough = math.log((len(scores) - 1) / LEVEL)
  for at, own in enumerate(scores[1:]):
    for count in range(FIRST, MOST_SEEDS + 1):
      if log_evidence(own[:count], base[:count], (shift,))[0] >= enough:
        found[at] = count
        break
  return found


def rows() -> Iterator[list[str]]:
  """Yield a row for each distribution and number of groups."""
  for name, draw in KINDS.items():
    for groups in GROUPS:
      random = np.random.default_rng(groups)
      wrong = early = outside = 0
      ends = []
      for _ in range(SWEEPS):
        scores = draw(random, (groups, MOST_SEEDS))
        wrong += bool((told(scores, 0.0) <= MOST_SEEDS).any())
        scores[1] += FAR
        one = scores[:2]
        # Only the group that is far away, at the level of all comparisons.
        found = told(np.vstack([one, np.tile(scores[0], (groups - 2, 1))]), 0.0)[0]
        outside += bool((told(scores, FAR)[0]) <= MOST_SEEDS)
        ends.append(found)
        early += found < 8
      yield [
        name,
        str(groups),
        f"{100 * wrong / SWEEPS:.1f}",
        f"{100 - 100 * outside / SWEEPS:.1f}",
        f"{np.median(ends):.0f}" if np.median(ends) <= MOST_SEEDS else f"over {MOST_SEEDS}",
        f"{100 * early / SWEEPS:.0f}",
      ]


def main() -> None:
  """Write the table."""
  heads = ["seeds", "groups", "told wrongly (%)", "intervals hold (%)", "seeds needed, median"]
  table = tabulate([*rows()], [*heads, "in fewer than 8 (%)"], "pipe", disable_numparse=True)
  text = BLOCK.sub(lambda found: f"{found[1]}\n{table}\n\n{found[2]}", PAGE.read_text())
  storage.write(PAGE, text)


if __name__ == "__main__":
  main()
