"""A text in lanes of segments, as a recurrent language model reads it.

A text of N tokens has N − 1 targets, each token but the first. Segment j has T targets from jT on.
A lane is a run of neighboring segments, and a step takes the next segment of every lane.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator
from typing import Literal, NamedTuple

import numpy as np

from posexp.data.batches import Batch
from posexp.language.vocabulary import END

LEAST = 32  # fewest segments of a lane in evaluation, so that few segments lack a memory


class Plan(NamedTuple):
  """The segments of a pass, in the order in which they are read."""

  start: np.ndarray  # int64 [n]: the place of the first token
  count: np.ndarray  # type: ignore[assignment]  # int64 [n]: targets
  fresh: np.ndarray  # bool [n]: a document begins, and tokens before it are out of sight


@dataclasses.dataclass(frozen=True)
class Stream:
  """The tokens of a split, with the way to cut them.

  With documents="stream", tokens see all tokens before them; with "mask", only those of their own
  document; with "reset", each document begins a segment with an empty memory.
  """

  tokens: np.ndarray  # int [N], END before each document
  segment: int
  documents: Literal["stream", "reset", "mask"] = "stream"

  @functools.cached_property
  def starts(self) -> np.ndarray:
    """The places where documents begin, int64 [documents]."""
    return np.flatnonzero(self.tokens == END)

  @property
  def targets(self) -> int:
    """The number of tokens that are predicted."""
    return len(self.tokens) - 1

  def plan(self, random: np.random.Generator | None = None) -> Plan:
    """Return all segments: of the text from its beginning or, with `random`, drawn for an epoch.

    When drawn, the text begins anywhere and wraps around at its end; with "reset", the documents
    are shuffled instead.
    """
    if self.documents == "reset":
      return self._by_document(random)
    first = int(random.integers(self.targets)) if random else 0
    place = np.arange(0, self.targets, self.segment)
    count = np.minimum(self.targets - place, self.segment)
    return Plan((place + first) % self.targets, count, np.zeros(len(place), bool))

  def _by_document(self, random: np.random.Generator | None) -> Plan:
    ends = np.append(self.starts[1:], self.targets)
    order = np.arange(len(ends)) if random is None else random.permutation(len(ends))
    begin, targets = self.starts[order], (ends - self.starts)[order]
    segments = -(-targets // self.segment)
    of = np.repeat(np.arange(len(order)), segments)
    number = np.arange(len(of)) - np.repeat(segments.cumsum() - segments, segments)
    place = number * self.segment
    return Plan(begin[of] + place, np.minimum(targets[of] - place, self.segment), number == 0)

  def batch(self, plan: Plan, rows: np.ndarray, fresh: bool) -> Batch:
    """Return a batch of the segments `rows` int [B]; rows beyond the plan are padding.

    It has tokens and labels int32 [B,T], mask bool [B,T] of the targets, weight float32 [B], fresh
    bool [B], index int32 [B] (−1 for padding) and, with "mask", documents int32 [B,T]. `fresh` is
    True if all lanes begin here.
    """
    real = rows < len(plan.start)
    row = np.where(real, rows, 0)
    count = np.where(real, plan.count[row], 0)
    place = (plan.start[row, None] + np.arange(self.segment)) % self.targets
    mask = np.arange(self.segment) < count[:, None]
    batch = {
      "tokens": np.where(mask, self.tokens[place], END).astype(np.int32),
      "labels": np.where(mask, self.tokens[place + 1], END).astype(np.int32),
      "mask": mask,
      "weight": real.astype(np.float32),
      "fresh": plan.fresh[row] | fresh,
      "index": np.where(real, rows, -1).astype(np.int32),
    }
    if self.documents == "mask":
      document = np.searchsorted(self.starts, place, side="right")
      batch["documents"] = document.astype(np.int32)
    return batch

  @functools.cached_property
  def segments(self) -> int:
    """The number of segments in a pass."""
    return len(self.plan().start)

  def steps(self, lanes: int) -> int:
    """Count the steps of a pass."""
    return -(-self.segments // lanes)

  def training(self, lanes: int, *, seed: int, start: int) -> Iterator[Batch]:
    """Yield batches without end from step `start` on, a pure function of (seed, step)."""
    steps = self.steps(lanes)
    epoch, done = divmod(start, steps)
    while True:
      plan = self.plan(np.random.default_rng([seed, epoch]))
      for step in range(done, steps):
        yield self.batch(plan, np.arange(lanes) * steps + step, step == 0)
      epoch, done = epoch + 1, 0

  def evaluation(self, rows: int, most: int | None = None) -> Iterator[Batch]:
    """Yield every segment once, or the first `most`, in batches of `rows`.

    A short text gets fewer lanes than rows, so that few of its segments lack a memory.
    """
    plan = self.plan()
    if most is not None:
      plan = Plan(*(each[:most] for each in plan))
    total = len(plan.start)
    lanes = min(rows, max(1, total // LEAST))
    steps = -(-total // lanes)
    for step in range(steps):
      chosen = np.full(rows, total)
      chosen[:lanes] = np.arange(lanes) * steps + step
      yield self.batch(plan, chosen, step == 0)

  def totals(self, of_token: np.ndarray) -> np.ndarray:
    """Sum a number of each token, int [V], over each segment's targets: int64 [segments]."""
    start, count, _ = self.plan()
    before = np.concatenate([[0], np.cumsum(of_token[self.tokens], dtype=np.int64)])
    return before[start + count + 1] - before[start + 1]
