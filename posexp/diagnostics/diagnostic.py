"""Diagnostics: examples of many lengths; a model is trained on the short ones.

A diagnostic of your own inherits `Diagnostic`, says how many symbols it has, and draws an example.
"""

from __future__ import annotations

import dataclasses
import functools
import zlib
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import numpy as np

from posexp.config.checks import Count, Name, between, check
from posexp.diagnostics.answering import DRAWN, Answering, Answers, Example
from posexp.runs.lengths import extrapolation
from posexp.tasks.contract import Snapshot

Length = Annotated[int, between(1, 4096)]
LENGTHS = (5, 10, 15, 20, 21, 22, 23, 24, 26, 28, 30, 32, 36, 40, 50, 60, 80, 100)
FURTHER = "validation_beyond"  # a split of lengths that are neither trained nor tested
DRAWS = 32  # of a length, by which the width of batches is chosen


@dataclasses.dataclass(frozen=True)
class Drawn(Answers):
  """Examples of a diagnostic, made anew in each step of training."""

  task: Diagnostic
  tested: tuple[int, ...] = ()  # lengths to test, if they are not those of the task

  epoch: ClassVar[int] = 10_000  # since examples never end
  source: ClassVar[str] = "drawn anew in each step"

  @functools.cached_property
  def lengths(self):
    task = self.task
    trained = tuple(range(task.shortest, task.longest + 1))
    tested = self.tested or task.lengths
    within = tuple(n for n in tested if n in trained)
    beyond = tuple(n for n in tested if n not in trained)
    by_split = {"train": trained, "validation": trained, "test": within, "beyond": beyond}
    by_split |= {FURTHER: task.validated}
    return {split: each for split, each in by_split.items() if each}

  @functools.cached_property
  def blind(self):
    return {n: self.task.chance(n) for n in self.tested or self.task.lengths}

  def training(self, random, rows):
    lengths = random.choice(self.lengths["train"], rows)
    return [self.task.draw(random, length) for length in lengths.tolist()]

  def widest(self, length):
    random = np.random.default_rng(0)
    drawn = [self.task.draw(random, length) for _ in range(DRAWS)]
    for lengths, examples in self.splits.values():
      drawn += [examples[at] for at in np.flatnonzero(lengths == length)]
    return max(drawn, key=self.size_of)

  @functools.cached_property
  def splits(self):
    """Draw `task.examples` of each length; for validation that many in all, of mixed lengths."""
    by_split, count = {}, self.task.examples
    for split, choices in self.lengths.items():
      if split == "train":
        continue
      random = np.random.default_rng(zlib.crc32(f"{self.task.name} {split}".encode()))
      mixed = split in ("validation", FURTHER)
      lengths = random.choice(choices, count) if mixed else np.repeat(choices, count)
      by_split[split] = lengths, [self.task.draw(random, length) for length in lengths.tolist()]
    return by_split


@dataclasses.dataclass(frozen=True)
class Diagnostic(Answering):
  """Examples of lengths n from `shortest` to `longest`; tested at `lengths`, `examples` of each.

  Other lengths than these n are the split `beyond`. `form` is `decoder`, which writes the answer
  behind the input; `encoder`, a classifier, where the answer is one symbol; or `tagger`, a decoder
  that gives each symbol of the input an answer, where a task has them.
  """

  adjustable = ("shortest", "longest", "lengths", "examples")
  commands = ("lengths",)
  symbols: ClassVar[int] = 2
  blind: ClassVar[float] = 0.0  # exact match of the best guess that knows no order

  name: Name = "diagnostic"
  shortest: Length = 1
  longest: Length = 20
  lengths: tuple[int, ...] = LENGTHS
  examples: Count = 500
  validated: tuple[int, ...] = ()  # lengths a little beyond `longest`, of a second validation
  form: Literal["decoder", "encoder"] = "decoder"

  def draw(self, random: np.random.Generator, n: int) -> Example:
    """Return an input of length n and its answer: symbols from 0 on, int arrays."""
    raise NotImplementedError("a diagnostic must have a method draw")

  @property
  def most(self) -> int:
    """The greatest length of all examples."""
    return max(self.longest, *self.lengths, *self.validated)

  def chance(self, n: int) -> float:
    """Return the exact match of the best guess that knows no order, at length n."""
    return self.blind

  def __post_init__(self):
    check(self)
    if self.shortest > self.longest:
      raise ValueError(f"shortest must be at most longest={self.longest}, not {self.shortest}")
    if not self.lengths or min(self.lengths) < 1 or sorted(set(self.lengths)) != [*self.lengths]:
      raise ValueError("lengths must be numbers from 1 on, each larger than the one before")
    for n in self.validated:
      if not self.longest < n <= 1.5 * self.longest or n in self.lengths:
        raise ValueError(
          f"validated must hold lengths above longest={self.longest}, at most half as long again, "
          f"and none of lengths, not {n}"
        )
    drawn = self.draw(np.random.default_rng(0), self.most)
    if not isinstance(drawn, tuple) or [getattr(each, "ndim", None) for each in drawn] != [1, 1]:
      raise ValueError(DRAWN)
    answer = drawn[1]
    if self.form == "encoder" and len(answer) != 1:
      raise ValueError(f"form=encoder gives one symbol, and the answer has {len(answer)}")

  def prepare(self, folder: Path) -> Drawn:
    return Drawn(self)

  def measure(self, data: Answers, snapshot: Snapshot, split: str) -> dict[str, float]:
    """Return the metrics of a split; of validation, exact match a little beyond training, too."""
    metrics = super().measure(data, snapshot, split)
    if split == "validation" and self.validated:
      beyond = super().measure(data, snapshot, FURTHER)
      metrics |= {"exact_match/beyond": beyond["exact_match"]}
    return metrics

  def conclude(self, data: Answers, snapshot: Snapshot, folder: Path) -> dict[str, Any]:
    """Return the metrics of test and beyond, and how far the model reaches."""
    summary = super().conclude(data, snapshot, folder)
    return summary | extrapolation(summary, self.longest)
