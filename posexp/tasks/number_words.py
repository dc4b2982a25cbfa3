"""Numbers, years and dates, written out in two languages: translation where order is all."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import importlib.metadata
import json
from collections.abc import Iterator
from typing import Annotated, ClassVar

from posexp import storage
from posexp.config.checks import Name, Whole, at_most
from posexp.data import number_words
from posexp.tasks.translation import Splits, Translation, Vocabulary


@dataclasses.dataclass(frozen=True)
class Numbers(Translation):
  """Numbers, years and dates, written out in two languages."""

  score: ClassVar[str] = "validation/chrf"  # BLEU looks for four words in a row
  headline: ClassVar[tuple[str, ...]] = ("test/exact_match", "beyond/exact_match")

  name: Name = "numbers"
  vocab_size: Vocabulary = 400
  examples: Annotated[int, at_most(1_000_000)] = 20_000
  digits: int = 5
  places: int = 9
  beyond: tuple[int, ...] = (6, 7, 8, 9)
  data_seed: Whole = 0

  def __post_init__(self):
    super().__post_init__()
    number_words.check(self.examples, self.digits, self.places, self.beyond)

  def splits(self):
    options = {
      "examples": self.examples,
      "digits": self.digits,
      "places": self.places,
      "beyond": self.beyond,
      "seed": self.data_seed,
    }
    makers = [importlib.metadata.version(each) for each in ("num2words", "babel", "numpy")]
    parts = makers, self.source, self.target, options
    rows = storage.cached(
      "numbers", lambda: number_words.generate(self.source, self.target, **options), *parts
    )
    digest = hashlib.sha256(json.dumps(parts).encode()).hexdigest()
    rows = {split: each for split, each in rows.items() if each}  # there may be nothing beyond
    found = {split: functools.partial(_sides, each) for split, each in rows.items()}
    groups = {split: [group for *_, group in each] for split, each in rows.items()}
    return Splits(found, [], groups, digest)


def _sides(rows: list[tuple[str, str, str]]) -> Iterator[tuple[str, str]]:
  for source, target, _ in rows:
    yield source, target
