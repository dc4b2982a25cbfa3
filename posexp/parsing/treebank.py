"""A treebank as data for a parser."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar, Protocol, Self

import numpy as np

from posexp.data import batches
from posexp.data.batches import Batch
from posexp.data.splits import EVALUATED, SPLITS
from posexp.parsing import trees
from posexp.parsing.brackets import Branching
from posexp.parsing.encoded import Lexicon, Sentences
from posexp.parsing.trees import Tree

if TYPE_CHECKING:
  from posexp.parsing.model import ParserSpec

READ = {
  "words": "words",
  "tags": "gold tags",
  "both": "words and gold tags",
  "characters": "the letters of words",
}
WIDER = 3  # the ratio of successive lengths of batches beyond those of training
FEWEST = 8  # rows of these batches at least, so that several devices can share them


class Reader(Protocol):
  """The task that reads the sentences: its inputs, and the model for them."""

  inputs: str  # a key of READ

  def model(self, lexicon: Lexicon, encoding, size, positions) -> ParserSpec:
    """Return the specification of a parser for a treebank with this lexicon."""


@dataclasses.dataclass(frozen=True)
class TreebankData(batches.Bucketed):
  """Sentences with their trees, ready for a parser."""

  task: Reader
  lexicon: Lexicon
  trees_of: Mapping[str, Sequence[Tree]]  # by split
  examples: dict[str, Sentences]
  branching: Branching
  notes: tuple[str, ...]

  item: ClassVar[str] = "sentence"
  unit: ClassVar[str] = "sentences"

  @classmethod
  def of(
    cls, task: Reader, given: Mapping[str, Sequence[Tree]], lexicon: Lexicon, notes: Sequence[str]
  ) -> Self:
    """Build the data from trees by split; too long training trees are already removed."""
    examples = {
      split: Sentences.of_trees(given[split], lexicon, task.inputs, train=split == "train")
      for split in SPLITS
    }
    notes = (*notes, *_unknown(given, lexicon))
    return cls(task, lexicon, given, examples, Branching.of(given["train"]), notes)

  @property
  def about(self) -> tuple[str, str]:
    given = READ[self.task.inputs]
    return (
      f"trees of {given}; {len(self.lexicon.labels) - 1} labels, chains of phrases among them",
      f"{len(self.lexicon.words):,} words, {len(self.lexicon.tags)} tags; longest sentence "
      f"{self.longest - 2} words",
    )

  @functools.cached_property
  def training_lengths(self) -> np.ndarray:
    """The lengths of batches in training, int [buckets]."""
    lengths = self.examples["train"].lengths
    return batches.buckets(lengths, int(lengths.max()))

  @functools.cached_property
  def bucket_lengths(self) -> np.ndarray:
    """The lengths of batches in training, and those that longer sentences need."""
    lengths = self.training_lengths.tolist()
    granule = batches.GRANULE
    while lengths[-1] < self.longest:
      lengths.append(min(WIDER * lengths[-1], -(-self.longest // granule) * granule))
    return np.array(lengths)

  @property
  def word_counts(self) -> np.ndarray:
    starts, tokens = self.examples["train"].starts, self.examples["train"].tokens
    words = np.delete(tokens, np.concatenate([starts[:-1], starts[1:] - 1]), axis=0)
    return np.bincount(words.ravel(), minlength=self.lexicon.rows(self.task.inputs))

  def model(self, encoding, size, positions) -> ParserSpec:
    return self.task.model(self.lexicon, encoding, size, positions)

  def rows_of(self, batch_size: int) -> np.ndarray:
    """Return rows by length: fewer for sentences longer than in training, since a chart's memory
    and time grow with the square of the length, or faster.
    """
    most = 2 * batch_size * int(self.training_lengths[-1]) ** 2
    rows = []
    for length in self.bucket_lengths.tolist():
      size = batch_size
      while size * length**2 > most and size % 2 == 0 and size > FEWEST:
        size //= 2
      rows.append(size)
    return np.array(rows)

  def batches(self, batch_size: int, *, seed: int, start: int = 0) -> Iterator[Batch]:
    """Yield full batches of `Sentences.batch`."""
    self.steps_per_epoch(batch_size)
    ends = self.training_lengths
    return batches.training(self.examples["train"], ends, batch_size, seed=seed, start=start)

  def parses(self, split: str, spans: np.ndarray) -> list[Tree]:
    """Build the trees of predicted spans, int [N,S,3], for all sentences of a split."""
    pairs = zip(self.trees_of[split], spans, strict=True)
    return [self.lexicon.tree(sentence, found) for sentence, found in pairs]


def _unknown(given: Mapping[str, Sequence[Tree]], lexicon: Lexicon) -> Iterator[str]:
  """Yield sentences on words, tags and labels that the training trees lack."""
  for split in EVALUATED:
    words = [word for tree in given[split] for word in tree.words]
    tags = {tag for tree in given[split] for tag in tree.tags} - set(lexicon.tags)
    chains = [chain for tree in given[split] for chain in trees.chains(tree).values()]
    share = sum(word not in lexicon.words for word in words) / len(words)
    said = [f"{100 * share:.1f} % of the words"] if share else []
    if tags:
      said.append(f"the tags {' '.join(sorted(tags)[:5])}")
    if unseen := sum(chain not in lexicon.label_ids for chain in chains):
      said.append(f"the labels of {unseen:,} of {len(chains):,} spans, which are missed,")
    if said:
      yield f"{split}: {' and '.join(said)} never stand in the training trees"
