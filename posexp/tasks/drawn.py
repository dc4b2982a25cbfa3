"""Examples drawn at random: an input, and the answer that a decoder writes after it.

A row is BOS x SEP y EOS, where y and EOS count; for a classifier, BOS x with the class y; or, for a
tagger, BOS x with an answer for each symbol. If the input ends with a question, SEP precedes the
question: BOS x SEP question y EOS.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Iterator, Sequence
from typing import ClassVar, Protocol

import numpy as np

from posexp.data.batches import GRANULE, Batch, numbered
from posexp.errors import UserError
from posexp.tasks.contract import Data, ModelSpec

PAD, BOS, SEP, EOS = range(4)
FIRST = 4  # the token of symbol 0

Example = tuple[np.ndarray, np.ndarray]  # symbols of the input and of the answer, int each


class Form(Protocol):
  """The part of a task that decides how a model reads and answers examples."""

  question: ClassVar[int]  # the input's last symbols that a decoder reads behind SEP
  symbol_names: ClassVar[tuple[str, ...]]  # if they are not called by their numbers

  @property
  def form(self) -> str:
    """Whether a "decoder" writes the answer, or an "encoder" or a "tagger" gives it."""

  @property
  def symbols(self) -> int:
    """The number of symbols that inputs and answers have."""

  def spec(self, vocab_size: int, classes: int, encoding, size, positions) -> ModelSpec:
    """Return a decoder, or a classifier."""


@dataclasses.dataclass(frozen=True)
class Answers(Data):
  """Examples for a decoder or a classifier; subclasses say where the examples come from.

  Training batches are a pure function of (seed, step); the examples of other splits are the same
  for every run.
  """

  task: Form

  item: ClassVar[str] = "example"
  unit: ClassVar[str] = "examples"

  # A subclass gives these as class variables, fields or properties.
  source: ClassVar[str]  # how training examples are found
  epoch: ClassVar[int]  # examples of training that count as an epoch
  lengths: ClassVar[dict[str, tuple[int, ...]]]  # of the examples of each split
  blind: ClassVar[dict[int, float]]  # chance level by length

  @property
  def splits(self) -> dict[str, tuple[np.ndarray, list[Example]]]:
    """The lengths, int [N], and the examples of each split but `train`."""
    raise NotImplementedError

  def training(self, random: np.random.Generator, rows: int) -> list[Example]:
    """Draw `rows` examples to train on."""
    raise NotImplementedError

  def widest(self, length: int) -> Example:
    """Return an example with the most tokens of all examples of a length."""
    raise NotImplementedError

  @property
  def sizes(self) -> dict[str, int]:
    return {"train": self.epoch} | {split: len(each) for split, (each, _) in self.splits.items()}

  @property
  def about(self) -> tuple[str, str]:
    trained = self.lengths["train"]
    shown = " -> ".join(map(self.written, self.splits["validation"][1][0]))
    return (
      f"lengths {trained[0]} to {trained[-1]}, {self.source}; {self.task.form}",
      f"vocabulary {self.vocab_size}; {shown if len(shown) < 70 else shown[:66] + ' ...'}",
    )

  def written(self, symbols: np.ndarray) -> str:
    """Return the names of symbols, or their numbers where they have none."""
    names = self.task.symbol_names
    return " ".join(names[symbol] if names else str(symbol) for symbol in symbols)

  @property
  def vocab_size(self) -> int:
    return FIRST + self.task.symbols

  def model(self, encoding, size, positions) -> ModelSpec:
    return self.task.spec(self.vocab_size, self.task.symbols, encoding, size, positions)

  @property
  def word_counts(self) -> np.ndarray:
    counts = [batch["tokens"].ravel() for batch in self.evaluation("validation", 64)]
    return np.bincount(np.concatenate(counts), minlength=self.vocab_size)

  @property
  def length(self) -> int:
    return max(self.widths.values())

  @property
  def longest(self) -> int:
    return max(self.tokens.values())

  @functools.cached_property
  def widths(self) -> dict[int, int]:
    """The width of a batch for examples of each length: the least of W, 2W, 4W, … that holds them.

    W holds all training examples, so that few shapes are compiled.
    """
    least = -(-self.trained // GRANULE) * GRANULE
    return {
      length: least << max(0, (-(-n // least) - 1).bit_length())
      for length, n in self.tokens.items()
    }

  @functools.cached_property
  def tokens(self) -> dict[int, int]:
    """The most tokens that an example of each length has."""
    most = {}
    for length in sorted({length for lengths in self.lengths.values() for length in lengths}):
      most[length] = self.size_of(self.widest(length))
    return most

  def size_of(self, example: Example) -> int:
    """Return the number of tokens that a model reads of an example."""
    x, y = example
    return 1 + len(x) + (1 + len(y) if self.task.form == "decoder" else 0)

  @property
  def trained(self) -> int:
    """The most tokens of an example that is trained on."""
    return max(self.tokens[length] for length in self.lengths["train"])

  def steps_per_epoch(self, batch_size: int) -> int:
    return max(1, self.epoch // batch_size)

  def batches(self, batch_size: int, *, seed: int, start: int = 0) -> Iterator[Batch]:
    """Yield batches of mixed lengths without end from step `start` on."""
    width = self.widths[self.lengths["train"][-1]]
    for step in itertools.count(start):
      drawn = self.training(np.random.default_rng([seed, step]), batch_size)
      wide = width
      while max(map(self.size_of, drawn)) > wide:  # of a task whose examples differ in size
        wide *= 2
      yield self.batch(drawn, np.arange(batch_size), wide, batch_size)

  def evaluation(self, split: str, batch_size: int) -> Iterator[Batch]:
    """Yield every example of a split once, narrow ones first; UserError if it has no examples."""
    if split not in self.splits:
      raise UserError(
        f"the split {split} has no examples to measure: those of training are {self.source}; there "
        f"are {', '.join(self.splits)}"
      )
    lengths, examples = self.splits[split]
    widths = np.array([self.widths[length] for length in lengths.tolist()])
    for width in np.unique(widths).tolist():
      places = np.flatnonzero(widths == width)
      for chosen in np.split(places, range(batch_size, len(places), batch_size)):
        yield self.batch([examples[i] for i in chosen], chosen, width, batch_size)

  def batch(self, examples: Sequence[Example], index: np.ndarray, width: int, rows: int) -> Batch:
    """Turn examples into a batch of tokens, with rows of padding.

    Returns weight float32 [B], index int32 [B] (−1 for padding), tokens int32 [B,L]; for a decoder
    or a tagger labels int32 [B,L], mask bool [B,L] of the targets that count, fresh bool [B], and
    slots int32 [B], the tokens that random positions are drawn for: those of the longest row of
    training, so that gaps say nothing of a row's length, or the row's own where they are more; for
    a classifier mask bool [B,L] of real tokens and labels int32 [B].
    """
    symbols = np.concatenate([*itertools.chain(*examples)])
    if symbols.dtype.kind not in "iu" or symbols.min(initial=0) < 0:
      raise UserError("draw must return symbols from 0 on, as two arrays of integers")
    if (most := symbols.max(initial=0)) >= self.task.symbols:
      raise UserError(
        f"an example has the symbol {most}, and symbols = {self.task.symbols} counts them "
        f"from 0: make it {most + 1} or more"
      )
    form = self.task.form
    tokens, labels = np.full((2, rows, width), PAD, np.int32)
    mask = np.zeros((rows, width), bool)
    slots = np.full(rows, self.trained, np.int32)
    for row, (x, y) in enumerate(examples):
      given, answer = [BOS, *(x + FIRST)], [*(y + FIRST)]
      if form == "decoder":
        given.insert(len(given) - self.task.question, SEP)
        given, answer = [*given, *answer], [*answer, EOS]
      end = len(given)
      tokens[row, :end] = given
      if form != "encoder":
        labels[row, end - len(answer) : end] = answer
      mask[row, 0 if form == "encoder" else end - len(answer) : end] = True
      slots[row] = max(self.trained, end)
    classes = np.array([int(y[0]) if form == "encoder" else 0 for _, y in examples], np.int32)
    batch = {"tokens": tokens, "mask": mask} | numbered(index, rows)
    if form != "encoder":
      return batch | {"labels": labels, "fresh": np.ones(rows, bool), "slots": slots}
    mask[len(examples) :, 0] = True  # attention needs a key in every row
    return batch | {"labels": np.pad(classes, (0, rows - len(classes)))}


@dataclasses.dataclass(frozen=True)
class Listed(Answers):
  """Examples of a fixed set, from which steps draw; the length of an example is its answer's."""

  examples: dict[str, list[Example]]  # of each split
  blind: dict[int, float]
  notes: tuple[str, ...]

  source: ClassVar[str] = "drawn with replacement"

  @property
  def epoch(self) -> int:
    return len(self.examples["train"])

  @functools.cached_property
  def lengths(self):
    return {split: tuple(sorted({len(y) for _, y in own})) for split, own in self.examples.items()}

  def training(self, random, rows):
    train = self.examples["train"]
    return [train[i] for i in random.integers(len(train), size=rows).tolist()]

  def widest(self, length):
    alike = (pair for own in self.examples.values() for pair in own if len(pair[1]) == length)
    return max(alike, key=lambda each: len(each[0]))

  @functools.cached_property
  def splits(self):
    return {
      split: (np.array([len(y) for _, y in own]), own)
      for split, own in self.examples.items()
      if split != "train"
    }
