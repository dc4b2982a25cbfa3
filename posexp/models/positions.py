"""Where the tokens of a batch stand: one after another, far apart at random, or all shifted.

Any encoding takes any positions, so this is a choice beside that of the encoding. Training on
positions from a reach that is longer than its texts lets a model meet the positions of longer ones.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Annotated, Literal

import jax
import jax.numpy as jnp
from jax import Array

from posexp.config.checks import between, check
from posexp.encodings.rngs import Rngs
from posexp.encodings.sinusoids import REACH

KINDS = {  # and what each may do in evaluation
  "consecutive": ("consecutive",),
  "randomized": ("drawn", "spaced", "consecutive"),
  "shifted": ("consecutive",),
}


@dataclasses.dataclass(frozen=True)
class Positions:
  """The options of a run's positions.

  `consecutive`: 0, 1, 2, … `randomized`: n tokens stand at n positions that are drawn
  from the `reach` first ones without replacement, and sorted (Ruoss et al. 2023). `shifted`: the
  positions are consecutive from an offset that is drawn from those that keep the batch, with its
  padding, below `reach` (SHAPE, Kiyono et al. 2021). Each training step has one draw, which
  sequences of one length share.

  In `evaluation` randomized positions are `drawn` as well, once and for all, as in the authors'
  code; `spaced` evenly over the reach; or `consecutive`.
  """

  kind: Literal["consecutive", "randomized", "shifted"] = "consecutive"
  reach: Annotated[int, between(1, REACH)] | None = None
  evaluation: Literal["drawn", "spaced", "consecutive"] = "consecutive"

  def __post_init__(self):
    check(self)
    if self.evaluation not in KINDS[self.kind]:
      choices = " or ".join(KINDS[self.kind])
      raise ValueError(f"evaluation must be {choices} where kind={self.kind}")
    if self.kind == "consecutive" and self.reach is not None:
      raise ValueError("reach is for positions=randomized and positions=shifted")
    if self.kind != "consecutive" and self.reach is None:
      raise ValueError(f"reach must be given where kind={self.kind}")

  def training(self, mask: Array, key: Callable[[], Array]) -> Array | None:
    """Draw positions int [1 or B,L] for mask bool [B,L], in which tokens come before padding.

    None means that they are consecutive. `key` gives a random key where one is needed. Padding
    may be longer than `reach`, and stands at the last position.

    Raises:
      ValueError: there are more tokens than positions, as far as is known while compiling.
    """
    if self.kind == "consecutive":
      return None
    self.check(mask)
    if self.kind == "randomized":
      return drawn(mask, key(), self.reach)
    length = mask.shape[1]
    last = max(self.reach - length, 0)
    first = jax.random.randint(key(), (), 0, last + 1)
    return jnp.minimum(jnp.arange(length)[None] + first, self.reach - 1)

  def evaluating(self, mask: Array) -> Array | None:
    """Return the positions of evaluation, as `training` does; they do not depend on padding."""
    if self.evaluation == "consecutive":
      return None
    self.check(mask)
    if self.evaluation == "drawn":
      return drawn(mask, jax.random.key(0), self.reach)
    return spaced(mask, self.reach)

  def of(self, mask: Array, rngs: Rngs | None) -> Array | None:
    """Return training positions if there are `rngs`, else evaluation positions."""
    return self.evaluating(mask) if rngs is None else self.training(mask, rngs.positions)

  def limit(self, of_encoding: int | None) -> int | None:
    """Return the longest readable sequence, given the encoding's limit; None if unlimited."""
    reach = self.reach if self.evaluation != "consecutive" else None
    return min((bound for bound in (of_encoding, reach) if bound is not None), default=None)

  def check(self, mask: Array) -> None:
    """Raise ValueError if a mask, known at trace time, has more tokens than there are positions."""
    if not isinstance(mask, jax.core.Tracer) and (count := mask.sum(1).max()) > self.reach:
      raise ValueError(f"reach={self.reach} positions, but texts of {count} tokens")


CONSECUTIVE = Positions()


def drawn(mask: Array, key: Array, reach: int) -> Array:
  """Return, for n tokens, the first n of a random order of all positions, sorted: int [B,L]."""
  length = mask.shape[1]
  order = jax.random.permutation(key, reach)[:length]
  order = jnp.pad(order, (0, length - len(order)), constant_values=reach - 1)
  chosen = jnp.arange(length) < mask.sum(1, keepdims=True)
  # Padding stands at the last position: at one that exists, for a NaN would come through the mask.
  return jnp.sort(jnp.where(chosen, order, reach - 1), axis=1)


def spaced(mask: Array, reach: int) -> Array:
  """Return the position ⌊i · reach / n⌋ of token i of n: int [B,L]."""
  count = jnp.maximum(mask.sum(1, keepdims=True), 1)
  i = jnp.arange(mask.shape[1])
  # Not i · reach, which int32 might not hold.
  return jnp.minimum(i * (reach // count) + i * (reach % count) // count, reach - 1)
