"""The options of a search for a translation."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Annotated

from posexp.config.checks import Count, at_least, at_most, check

if TYPE_CHECKING:
  from jax import Array

Beam = Annotated[Count, at_most(100)]
Penalty = Annotated[float, at_least(0)]


@dataclasses.dataclass(frozen=True)
class Search:
  """The options of a search.

  Each row keeps its `beam` best hypotheses by log p / ((5 + n)/6)^length_penalty (Wu et al. 2016,
  eq. 14) for n tokens including [EOS]. A hypothesis of `max_length` tokens is cut there, without
  [EOS]. The default is 2s + 8 for a source of s tokens including its [EOS], so that padding does
  not matter. No hypothesis is longer than the encoding has positions.
  """

  beam: Beam = 4
  length_penalty: Penalty = 0.6
  max_length: Count | None = None

  def __post_init__(self):
    check(self)

  def most(self, source: Array | int) -> Array | int:
    """Return the most tokens of a hypothesis, given the number of tokens of its source."""
    return 2 * source + 8 if self.max_length is None else self.max_length

  def rank(self, score: Array, length: Array) -> Array:
    """Return the score that ranks hypotheses: log p, corrected for length."""
    return score / ((5 + length) / 6) ** self.length_penalty
