"""Examples drawn at random: an input, and the answer that a decoder writes after it.

A row is BOS x SEP y EOS, where y and EOS count; or, for a classifier, BOS x with the class y. If
the input ends with a question, SEP precedes the question: BOS x SEP question y EOS.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import ClassVar, Literal

import numpy as np

from posexp.data.batches import GRANULE
from posexp.data.examples import Batch, numbered

PAD, BOS, SEP, EOS = range(4)
FIRST = 4  # the token of symbol 0

Example = tuple[np.ndarray, np.ndarray]  # symbols of the input and of the answer, int each
Draw = Callable[[np.random.Generator, int], Example]  # an example of a length


class Answers:
  """Batches of examples; subclasses say where the examples come from.

  Training batches are a pure function of (seed, step); the examples of other splits are the same
  for every run.
  """

  lengths: dict[str, tuple[int, ...]]  # of the examples of each split
  form: Literal["decoder", "encoder"]
  question: int  # the number of the input's last symbols that ask for the answer
  epoch: int  # examples of training that count as an epoch

  item: ClassVar[str] = "example"
  source: ClassVar[str]  # how training examples are found

  @property
  def splits(self) -> dict[str, tuple[np.ndarray, list[Example]]]:
    """The lengths, int [N], and the examples of each split but `train`."""
    raise NotImplementedError

  def training(self, random: np.random.Generator, rows: int) -> list[Example]:
    """Draw `rows` examples to train on."""
    raise NotImplementedError

  def longest(self, length: int) -> Example:
    """Return an example with the most tokens of all examples of a length."""
    raise NotImplementedError

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
    found = {}
    for length in sorted({length for each in self.lengths.values() for length in each}):
      x, y = self.longest(length)
      found[length] = 1 + len(x) + (1 + len(y)) * (self.form == "decoder")
    return found

  @property
  def trained(self) -> int:
    """The most tokens of an example that is trained on."""
    return max(self.tokens[length] for length in self.lengths["train"])

  def batches(self, rows: int, *, seed: int, start: int) -> Iterator[Batch]:
    """Yield batches of mixed lengths without end from step `start` on."""
    width = self.widths[self.lengths["train"][-1]]
    for step in itertools.count(start):
      drawn = self.training(np.random.default_rng([seed, step]), rows)
      yield self.batch(drawn, np.arange(rows), width, rows)

  def evaluation(self, split: str, rows: int) -> Iterator[Batch]:
    """Yield every example of a split once, narrow ones first."""
    lengths, examples = self.splits[split]
    widths = np.array([self.widths[length] for length in lengths.tolist()])
    for width in np.unique(widths).tolist():
      places = np.flatnonzero(widths == width)
      for chosen in np.split(places, range(rows, len(places), rows)):
        yield self.batch([examples[i] for i in chosen], chosen, width, rows)

  def batch(self, examples: Sequence[Example], index: np.ndarray, width: int, rows: int) -> Batch:
    """Turn examples into a batch of tokens, with rows of padding.

    Returns weight float32 [B], index int32 [B] (−1 for padding), tokens int32 [B,L]; for a decoder
    labels int32 [B,L], mask bool [B,L] of the targets that count, fresh bool [B], and slots int32
    [B], the tokens that random positions are drawn for: those of the longest row of training, so
    that gaps say nothing of a row's length, or the row's own where they are more; for a classifier
    mask bool [B,L] of real tokens and labels int32 [B].
    """
    tokens = np.full((rows, width + 1), PAD, np.int32)
    mask = np.zeros((rows, width + 1), bool)
    slots = np.full(rows, self.trained, np.int32)
    for row, (x, y) in enumerate(examples):
      given, answer = [BOS, *(x + FIRST)], []
      if self.form == "decoder":
        given.insert(len(given) - self.question, SEP)
        answer = [*(y + FIRST), EOS]
      end = len(given) + len(answer)
      tokens[row, :end] = [*given, *answer]
      mask[row, len(given) if answer else 0 : end] = True
      slots[row] = max(self.trained, end - 1)
    batch = {"tokens": tokens[:, :-1]} | numbered(index, rows)
    if self.form == "decoder":
      batch |= {"labels": tokens[:, 1:], "mask": mask[:, 1:], "fresh": np.ones(rows, bool)}
      return batch | {"slots": slots}
    mask[len(examples) :, 0] = True  # attention needs a key in every row
    labels = np.array([int(y[0]) for _, y in examples], np.int32)
    return batch | {"mask": mask[:, :-1], "labels": np.pad(labels, (0, rows - len(labels)))}


@dataclasses.dataclass(frozen=True)
class Drawn(Answers):
  """Examples of the lengths of each split, made anew in each step of training."""

  name: str
  draw: Draw
  lengths: dict[str, tuple[int, ...]]  # of each split, to draw from
  counts: dict[str, int]  # examples of validation, and of each length of other splits
  form: Literal["decoder", "encoder"]
  question: int = 0

  epoch: ClassVar[int] = 10_000  # since examples never end
  source: ClassVar[str] = "drawn anew in each step"

  def training(self, random, rows):
    lengths = random.choice(self.lengths["train"], rows)
    return [self.draw(random, length) for length in lengths.tolist()]

  def longest(self, length):
    return self.draw(np.random.default_rng(0), length)

  @functools.cached_property
  def splits(self):
    found = {}
    for split in self.lengths.keys() - {"train"}:
      random = np.random.default_rng(zlib.crc32(f"{self.name} {split}".encode()))
      choices, count = self.lengths[split], self.counts[split]
      # Validation draws its lengths, like training.
      mixed = split == "validation"
      lengths = random.choice(choices, count) if mixed else np.repeat(choices, count)
      found[split] = lengths, [self.draw(random, length) for length in lengths.tolist()]
    return found


@dataclasses.dataclass(frozen=True)
class Listed(Answers):
  """Examples of a fixed set, any of which a step may draw; their length is that of the answer."""

  examples: dict[str, list[Example]]  # of each split

  form: ClassVar[Literal["decoder"]] = "decoder"
  question: ClassVar[int] = 0
  source: ClassVar[str] = "drawn with replacement"

  @property
  def epoch(self) -> int:
    return len(self.examples["train"])

  @functools.cached_property
  def lengths(self):
    return {
      split: tuple(sorted({len(y) for _, y in each})) for split, each in self.examples.items()
    }

  def training(self, random, rows):
    train = self.examples["train"]
    return [train[i] for i in random.integers(len(train), size=rows).tolist()]

  def longest(self, length):
    alike = (each for found in self.examples.values() for each in found if len(each[1]) == length)
    return max(alike, key=lambda each: len(each[0]))

  @functools.cached_property
  def splits(self):
    return {
      split: (np.array([len(y) for _, y in each]), each)
      for split, each in self.examples.items()
      if split != "train"
    }
