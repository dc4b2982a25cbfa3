"""Lines of text translated by a trained model, in batches of a few shapes."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import NamedTuple

from posexp.data import batches
from posexp.data.batches import Pairs, Sequences
from posexp.data.tokenizer import EOS, Tokenizer
from posexp.models.decoding import Search
from posexp.tasks.translation import decode, tokenizers
from posexp.training.restore import TrainedModel


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
    self.source, self.target = map(Tokenizer, tokenizers(trained.setup.task, trained.run.path))
    self.limit = trained.spec.encoding.limit
    limits = [bound for bound in (trained.setup.task.max_length, self.limit) if bound is not None]
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
    ends = sorted({batches.padded_length(count, self.limit) for count in pairs.lengths.tolist()})
    rows = batches.by_length(pairs.lengths)
    best = decode(self.snapshot, batches.evaluation(pairs, ends, self.rows, rows), self.search)
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
