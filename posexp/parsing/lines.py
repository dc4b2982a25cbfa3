"""Sentences parsed by a trained model, in batches of a few shapes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from posexp.data import batches
from posexp.errors import UserError, counted
from posexp.parsing import trees
from posexp.parsing.encoded import TAGGED, Sentences, kept_lexicon
from posexp.parsing.trees import Tree
from posexp.training.restore import TrainedModel


class LineParser:
  """A parser of lists of sentences, with a trained model."""

  def __init__(self, trained: TrainedModel, rows: int):
    """Prepare to parse batches of `rows` rows, a multiple of the devices of the snapshot."""
    self.snapshot, self.rows = trained.snapshot, rows
    self.lexicon = kept_lexicon(trained.run.path)
    self.inputs = trained.setup.task.inputs
    self.limit = trained.spec.positions.limit(trained.spec.encoding.limit)
    self.guessed = ""  # a sentence on tags that were not given
    self.unknown: set[str] = set()  # words without tags that no training tree has

  def __call__(self, lines: Sequence[tuple[str, str]]) -> list[Tree | None]:
    """Return the tree of each line, which is given with its name; None for a blank line.

    Raises:
      UserError: a line has some tags and lacks others, has an unknown tag, or is too long.
    """
    given = [self.tagged(name, line.split()) for name, line in lines]
    real = [place for place, words in enumerate(given) if words]
    parsed: list[Tree | None] = [None] * len(lines)
    if not real:
      return parsed
    sentences = [Tree(*zip(*given[place], strict=True), ()) for place in real]
    encoded = Sentences.of_trees(sentences, self.lexicon, self.inputs, train=False)
    ends = np.unique(
      [batches.padded_length(count, self.limit) for count in encoded.lengths.tolist()]
    )
    spans = self.snapshot.predict(batches.evaluation(encoded, ends, self.rows))["spans"]
    for place, sentence, span in zip(real, sentences, spans, strict=True):
      parsed[place] = self.lexicon.tree(sentence, span)
    return parsed

  def tagged(self, name: str, words: Sequence[str]) -> list[tuple[str, str]]:
    """Return words with their tags: those after their slashes, or else the most frequent ones."""
    if self.limit is not None and len(words) > self.limit - 2:
      raise UserError(
        f"{name}: {len(words):,} words, and the positions of the run are enough for "
        f"{self.limit - 2:,}"
      )
    parted = {word: word.rpartition("/")[::2] for word in words}
    tags = self.lexicon.tag_ids
    missing = [word for word, (first, tag) in parted.items() if not first or tag not in tags]
    if not missing:
      return [(trees.escaped(parted[word][0]), parted[word][1]) for word in words]
    if len(missing) < len(parted) or all(first and tag.isupper() for first, tag in parted.values()):
      raise UserError(
        f"{name}: {missing[0]!r} has no tag of the training trees, as other words have; they are "
        f"{' '.join(self.lexicon.tags)}"
      )
    escaped = [*map(trees.escaped, words)]
    self.unknown.update(word for word in escaped if word not in self.lexicon.words)
    read = ", which the parser reads" if self.inputs in TAGGED else ""
    self.guessed = (
      "no tags were given: each word has the one that it most often has in the training trees"
      f"{read}; word/TAG gives another"
    )
    if self.unknown:
      words = counted(len(self.unknown), "word")
      self.guessed += f"; {words} of no training tree got {self.lexicon.rare_tag}"
    return [(word, self.lexicon.tag(word)) for word in escaped]
