"""Lines of text translated by a trained model, in batches of a few shapes."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from posexp.data import batches
from posexp.data.batches import Sequences
from posexp.data.tokenizer import Tokenizer
from posexp.training.restore import TrainedModel
from posexp.translation.encoded import EOS, Pairs
from posexp.translation.search import Search
from posexp.translation.task import decode, tokenizers


class Hypothesis(NamedTuple):
  """A translation of a line that is not blank."""

  text: str  # on one line
  score: float  # Σ log p
  source: list[int]  # the tokens that were read, [EOS] last
  target: list[int]  # the tokens that were written, [EOS] last unless it was cut
  cut: bool  # True if only a part of the source was read


class LineTranslator:
  """A translator of lists of lines, with a trained model."""

  def __init__(self, trained: TrainedModel, search: Search, rows: int):
    """Prepare to translate batches of `rows` rows, a multiple of the devices of the snapshot."""
    self.snapshot, self.search, self.rows = trained.snapshot, search, rows
    task: Any = trained.setup.task  # a Translation
    self.source, self.target = map(Tokenizer, tokenizers(task, trained.run.path))
    self.limit = trained.spec.encoding.limit
    limits = [bound for bound in (task.max_length, self.limit) if bound is not None]
    self.most = min(limits, default=sys.maxsize)  # tokens of a source that are read, with [EOS]

  def __call__(self, lines: Sequence[str]) -> list[Hypothesis | None]:
    """Return the translation of each line; None for a blank line."""
    real = [place for place, line in enumerate(lines) if line.strip()]
    translations: list[Hypothesis | None] = [None] * len(lines)
    if not real:
      return translations
    ids = self.source.ids([lines[place] for place in real])
    sources = Sequences.of([tokens[: self.most - 1] for tokens in ids])
    pairs = Pairs(sources, sources)  # the search does not read targets
    ends = np.unique([batches.padded_length(count, self.limit) for count in pairs.lengths.tolist()])
    found = batches.evaluation(pairs, ends, self.rows, pairs.by_length())
    best = decode(self.snapshot, found, self.search)
    for row, place in enumerate(real):
      target = best["tokens"][row, : best["length"][row]].tolist()
      translations[place] = Hypothesis(
        text=" ".join(self.target.decode(target).split()),
        score=float(best["score"][row]),
        source=[*ids[row][: self.most - 1].tolist(), EOS],
        target=target,
        cut=len(ids[row]) >= self.most,
      )
    return translations
