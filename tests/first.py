"""A task of one's own in one file: which of the words a and b stands first."""

import dataclasses
from pathlib import Path
from typing import ClassVar

import numpy as np

from posexp.runs.metrics import Metric
from posexp.tasks.text_classification import Classification, LabeledData

WORDS = ("[PAD]", "a", "b", "red", "green", "blue")
SIZES = {"train": 200, "validation": 40, "test": 60}


@dataclasses.dataclass(frozen=True)
class First(Classification):
  """The options, and how many mistakes a model makes beside what a classifier is measured by."""

  score: ClassVar[str] = "validation/mistakes"
  headline: ClassVar[tuple[str, ...]] = ("test/mistakes", "test/accuracy")
  metrics: ClassVar[tuple[Metric, ...]] = (
    Metric("mistakes", "mistakes", ".1f", higher_is_better=False),
  )
  followed: ClassVar[tuple[str, ...]] = ("loss", "mistakes")

  name: str = "first"
  length: int = 6

  def prepare(self, folder: Path) -> LabeledData:
    draw, rows, ids = np.random.default_rng(0), {}, {}
    for split, count in SIZES.items():
      tokens = draw.integers(3, len(WORDS), (count, self.length))
      places = np.sort(draw.permuted(np.tile(np.arange(self.length), (count, 1)), axis=1)[:, :2])
      label = draw.integers(0, 2, count)
      np.put_along_axis(tokens, places, np.stack([1 + label, 2 - label], 1), axis=1)
      ids[split] = tokens.tolist()
      texts = [" ".join(WORDS[token] for token in row) for row in ids[split]]
      rows[split] = list(zip(texts, ["ab"[number] for number in label], strict=True))
    return LabeledData.of(rows, ids, vocab_size=len(WORDS), label_names="ab")

  def scores(self, found):
    return super().scores(found) | {"mistakes": float(np.sum(~found["right"]))}


TASKS = {"first": First}
