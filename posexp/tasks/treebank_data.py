"""A treebank as data for a parser."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np

from posexp.data import batches, trees
from posexp.data.encoded_trees import UNKNOWN, Lexicon, Sentences
from posexp.data.examples import Batch
from posexp.data.splits import EVALUATED, SPLITS
from posexp.data.trees import Tree
from posexp.tasks.brackets import Branching

if TYPE_CHECKING:
  from posexp.models.parser import ParserSpec

READ = {
  "words": "words",
  "tags": "gold tags",
  "both": "words and gold tags",
  "characters": "the letters of words",
}
LETTER = 64  # the width of a letter's vector (Kitaev & Klein 2018)
WIDER = 3  # the ratio of successive lengths of batches beyond those of training
FEWEST = 8  # rows of these batches at least, so that several devices can share them


@dataclasses.dataclass(frozen=True)
class TreebankData(batches.Bucketed):
  """Sentences with their trees, ready for a parser."""

  lexicon: Lexicon
  inputs: str
  loss: str
  hidden: int
  train: Sequence[Tree]  # the training trees
  trees_of: dict[str, list[Tree]]  # of the splits that are evaluated
  examples: dict[str, Sentences]
  branching: Branching
  notes: tuple[str, ...]

  item: ClassVar[str] = "sentence"
  unit: ClassVar[str] = "sentences"

  @classmethod
  def of(
    cls, given: Mapping[str, Sequence[Tree]], lexicon: Lexicon, notes: Sequence[str], **options: Any
  ) -> Self:
    """Build the data from trees by split; too long training trees are already removed. `options`
    are `inputs`, `loss` and `hidden`.
    """
    trees_of = {split: list(given[split]) for split in EVALUATED}
    return cls(
      lexicon=lexicon,
      train=given["train"],
      trees_of=trees_of,
      examples={
        split: Sentences.of(given[split], lexicon, options["inputs"], train=split == "train")
        for split in SPLITS
      },
      branching=Branching.of(given["train"]),
      notes=(*notes, *_unknown(trees_of, lexicon)),
      **options,
    )

  @property
  def about(self) -> tuple[str, str]:
    given = READ[self.inputs]
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
    found = self.training_lengths.tolist()
    granule = batches.GRANULE
    while found[-1] < self.longest:
      found.append(min(WIDER * found[-1], -(-self.longest // granule) * granule))
    return np.array(found)

  @property
  def word_counts(self) -> np.ndarray:
    return np.bincount(
      self.examples["train"].tokens.ravel(), minlength=self.lexicon.rows(self.inputs)
    )

  def model(self, encoding, size, positions) -> ParserSpec:
    sizes = self.lexicon.rows(self.inputs), len(self.lexicon.labels)
    return parser_spec(self, *sizes, encoding, size, positions)

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
    return [tree_of(self.lexicon, tree.words, tree.tags, found) for tree, found in pairs]


def tree_of(lexicon: Lexicon, words: Sequence[str], tags: Sequence[str], spans: np.ndarray) -> Tree:
  """Build the tree of spans int [S,3]: first word, one past the last, label (0 is no phrase)."""
  labels = lexicon.labels
  found = {(i, j): labels[label] for i, j, label in spans.tolist() if label}
  return trees.of_chains(words, tags, found)


def parser_spec(options: Any, vocab_size, num_labels, encoding, size, positions) -> ParserSpec:
  """Return a parser's specification, with the `inputs`, `loss` and `hidden` of some options."""
  from posexp.models.parser import ParserSpec

  return ParserSpec(
    vocab_size=vocab_size,
    num_labels=num_labels,
    encoding=encoding,
    size=size,
    unknown=UNKNOWN,
    loss=options.loss,
    hidden=options.hidden,
    positions=positions,
    characters=LETTER if options.inputs == "characters" else None,
  )


def _unknown(trees_of: Mapping[str, Sequence[Tree]], lexicon: Lexicon) -> Iterator[str]:
  """Yield sentences on words, tags and labels that the training trees lack."""
  for split, given in trees_of.items():
    words = [word for tree in given for word in tree.words]
    tags = {tag for tree in given for tag in tree.tags} - set(lexicon.tags)
    chains = [chain for tree in given for chain in trees.chains(tree).values()]
    share = sum(word not in lexicon.words for word in words) / len(words)
    said = [f"{100 * share:.1f} % of the words"] if share else []
    if tags:
      said.append(f"the tags {' '.join(sorted(tags)[:5])}")
    if unseen := sum(chain not in lexicon.label_ids for chain in chains):
      said.append(f"the labels of {unseen:,} of {len(chains):,} spans, which are missed,")
    if said:
      yield f"{split}: {' and '.join(said)} never stand in the training trees"
