"""Diagnostics: examples of many lengths; a model is trained on the short ones.

A diagnostic of your own inherits `Diagnostic`, says how many symbols it has, and draws an example.
"""

from __future__ import annotations

import dataclasses
import functools
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import numpy as np

from posexp.config.checks import Count, Name, between, check
from posexp.runs.lengths import REACHED, extrapolation
from posexp.runs.predictions import ANSWERS, write_predictions
from posexp.tasks.contract import ModelSpec, Snapshot, Task
from posexp.tasks.drawn import Answers, Example
from posexp.tasks.results import (
  Outputs,
  aligned,
  by_row,
  metric_of,
  parts,
  prefixed,
  rows_of,
  token_scores,
)

Length = Annotated[int, between(1, 4096)]
LENGTHS = (5, 10, 15, 20, 21, 22, 23, 24, 26, 28, 30, 32, 36, 40, 50, 60, 80, 100)
LEARNED = 0.95  # exact match at the lengths of training, below which longer ones say nothing
FURTHER = "validation_beyond"  # a split of lengths that are neither trained nor tested
DRAWS = 32  # of a length, by which the width of batches is chosen
BY_LENGTH = ("exact_match", "oracle_end", "accuracy")  # what is measured of each length


class Answering(Task):
  """A model writes the answer to an input, and only an answer without mistakes counts.

  The split `beyond`, where there is one, holds what training does not reach, such as longer ones.
  """

  score: ClassVar[str] = "validation/exact_match"
  headline: ClassVar[tuple[str, ...]] = ("beyond/exact_match", "test/exact_match")
  followed: ClassVar[tuple[str, ...]] = ("loss", "exact_match", "accuracy")
  prediction_columns = ANSWERS

  form: str  # "decoder", "encoder" or "tagger"
  symbols: int  # that inputs and answers have
  question: ClassVar[int] = 0  # the input's last symbols that a decoder reads behind SEP
  symbol_names: ClassVar[tuple[str, ...]] = ()  # if they are not called by their numbers

  def spec(self, vocab_size: int, classes: int, encoding, size, positions) -> Any:
    """Return a decoder, which a tagger is as well, or a classifier of BOS."""
    from posexp.models.classifier import ClassifierSpec
    from posexp.models.language_model import LanguageModelSpec

    if self.form == "encoder":
      return ClassifierSpec(vocab_size, classes, encoding, size, first=True, positions=positions)
    return LanguageModelSpec(vocab_size, encoding, size, positions)

  def smallest_model(self, encoding, size, positions) -> ModelSpec:
    return self.spec(2, 2, encoding, size, positions)

  def answers(self, data: Answers, split: str, found: Outputs) -> Outputs:
    """Return for every example, [N] each: `loss`, the `tokens` that count, how many are `right`,
    whether all are (`exact`), whether all but the end are (`oracle`), and its `length`.
    """
    lengths, examples = data.splits[split]
    if self.form == "encoder":
      right = found["answer"] == np.array([int(y[0]) for _, y in examples])
      found |= {"exact": right, "oracle": right, "right": right.astype(int)}
      return found | {"tokens": np.ones(len(right), int), "length": lengths}
    if self.form == "tagger":
      found = by_row(found, np.array([len(y) for _, y in examples]))
      exact = found["right"] == found["tokens"]
      return found | {"exact": exact, "oracle": exact, "length": lengths}
    tokens = np.array([len(y) + 1 for _, y in examples])
    ends = np.array([len(x) + len(y) + 1 for x, y in examples])  # where EOS is predicted
    last = found["right"][np.arange(len(ends)), ends]
    found = by_row(found, tokens)
    exact, oracle = found["right"] == tokens, found["right"] - last == tokens - 1
    return found | {"exact": exact, "oracle": oracle, "length": lengths}

  def scores(self, found: Outputs) -> dict[str, float]:
    """Return exact match with and without the end, token accuracy given the right tokens before,
    and nats per token.
    """
    shares = {"exact_match": found["exact"].mean(), "oracle_end": found["oracle"].mean()}
    return token_scores(found) | {name: float(value) for name, value in shares.items()}

  def predicted(self, summary: Mapping[str, Any]) -> Sequence[str]:
    return [split for split in ("test", "beyond") if f"{split}/loss" in summary]

  def conclude(self, data: Answers, snapshot: Snapshot, folder: Path) -> dict[str, Any]:
    """Return the metrics of test and beyond: means over lengths, and each length by itself."""
    summary: dict[str, Any] = {}
    for split in ("test", "beyond"):
      if split not in data.splits:
        continue
      predictions = self.predict(data, snapshot, split)
      summary |= prefixed(split, self.scores(predictions))
      for length in data.lengths[split]:
        chosen = predictions["length"] == length
        part = self.scores({name: prediction[chosen] for name, prediction in predictions.items()})
        for name in BY_LENGTH:
          summary[f"{split}/{name}/{length}"] = part[name]
        summary[f"chance/{split}/exact_match/{length}"] = data.blind[length]
      inputs, references = zip(*data.splits[split][1], strict=True)
      columns: dict[str, Any] = {"length": predictions["length"]}
      columns["input"] = map(data.written, inputs)
      columns |= {"reference": map(data.written, references)}
      columns |= {name: predictions[name] for name in ("right", "tokens", "exact")}
      write_predictions(folder, split, rows_of(columns))
    # Where no tested length is one of training, validation tells whether these were learned.
    within = "test" if "test" in data.splits else "validation"
    summary["gates"] = {"beyond": {"metric": f"{within}/exact_match", "least": LEARNED}}
    return summary

  def table(self, summary: Mapping[str, Any]) -> Iterator[str]:
    """Yield exact match by length, the gate, and how far the model reaches."""
    for split in ("test", "beyond"):
      keys = {metric_of(self.metrics, name).title: f"{split}/{name}" for name in BY_LENGTH}
      keys["blind to order"] = f"chance/{split}/exact_match"
      lengths = parts(summary, f"{split}/exact_match")
      for start in range(0, len(lengths), 12):
        some = lengths[start : start + 12]
        yield from aligned(
          [[f"{split}, length", *some]]
          + [
            [f"{title} (%)", *(f"{100 * summary[f'{key}/{length}']:.1f}" for length in some)]
            for title, key in keys.items()
          ]
        )
        yield ""
    within = summary.get("test/exact_match", summary["validation/exact_match"])
    beyond = "; scores beyond training say nothing" if "beyond/loss" in summary else ""
    yield (
      f"learned: {100 * within:.1f} % at the lengths of training"
      if within >= LEARNED
      else f"not learned: {100 * within:.1f} % at the lengths of training, where "
      f"{100 * LEARNED:.0f} % are asked for{beyond}"
    )
    if "beyond/reach" in summary:
      yield f"at least {100 * REACHED:.0f} % up to length {summary['beyond/reach']:.0f}"


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
    answer = self.draw(np.random.default_rng(0), self.most)[1]
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
