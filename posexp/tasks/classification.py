"""Classification of token sequences: data with labels, and how a classifier is measured on them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from posexp.data import batches
from posexp.data.examples import Examples
from posexp.data.splits import Rows
from posexp.runs.predictions import LABELS, write_predictions
from posexp.tasks.contract import Snapshot, Task
from posexp.tasks.results import Outputs, prefixed, rows_of

if TYPE_CHECKING:
  from posexp.models.classifier import ClassifierSpec


@dataclasses.dataclass(frozen=True)
class LabeledData(batches.Bucketed):
  """Sequences with a label each, ready for a classifier."""

  vocab_size: int
  label_names: tuple[str, ...]
  rows: dict[str, Rows]  # (text, label name) by split
  examples: dict[str, Examples]  # the same as tokens and numbers
  first: bool = False  # whether the class is read at the first token
  notes: tuple[str, ...] = ()
  words: tuple[str, ...] = ()  # the vocabulary in its order, if tokens are words

  item: ClassVar[str] = "text"
  unit: ClassVar[str] = "texts"
  full: ClassVar[bool] = True

  @classmethod
  def of(
    cls,
    rows: dict[str, Rows],
    ids: Mapping[str, list[list[int]]],
    *,
    label_names: Sequence[str],
    **fields: Any,
  ) -> LabeledData:
    """Make data of the rows of each split and the token ids of each row, which has at least one.

    `fields` are others of the class: `vocab_size`, and those that have defaults.
    """
    numbers = {name: number for number, name in enumerate(label_names)}
    examples = {
      split: Examples.of(ids[split], np.asarray([numbers[label] for _, label in given], np.int32))
      for split, given in rows.items()
    }
    return cls(rows=rows, examples=examples, label_names=tuple(label_names), **fields)

  @property
  def about(self) -> tuple[str, str]:
    return (
      f"{len(self.label_names)} classes",
      f"vocabulary {self.vocab_size:,}, longest text {self.longest} tokens",
    )

  @property
  def word_counts(self) -> np.ndarray:
    return np.bincount(self.examples["train"].tokens, minlength=self.vocab_size)

  def model(self, encoding, size, positions) -> ClassifierSpec:
    from posexp.models.classifier import ClassifierSpec

    classes = len(self.label_names)
    spec = ClassifierSpec(self.vocab_size, classes, encoding, size, self.first, positions)
    if not size.vectors or not self.words:  # the latter is refused
      return spec
    return dataclasses.replace(spec, vectors=spec.read_vectors(size.vectors, self.words))


class Classification(Task):
  """A task of a classifier, which is measured here; subclasses say what is classified."""

  score: ClassVar[str] = "validation/accuracy"
  headline: ClassVar[tuple[str, ...]] = ("test/accuracy", "test/macro_f1")
  followed: ClassVar[tuple[str, ...]] = ("loss", "accuracy", "macro_f1")
  prediction_columns = LABELS

  def smallest_model(self, encoding, size, positions) -> ClassifierSpec:
    from posexp.models.classifier import ClassifierSpec

    return ClassifierSpec(2, 2, encoding, size, positions=positions)

  def answers(self, data: LabeledData, split: str, found: Outputs) -> Outputs:
    """Return for every example the loss, label, answer, and whether it is right, [N] each."""
    label = data.examples[split].labels
    right = found["answer"] == label
    return found | {"label": label, "right": right, "tokens": np.ones(len(label), int)}

  def scores(self, found: Outputs) -> dict[str, float]:
    """Return the mean loss in nats, accuracy, and the mean of F1 over the classes that occur."""
    label, answer, right = found["label"], found["answer"], found["right"]
    # Each occurrence of a class as label or answer; 2·right / occurrences is its F1.
    occurrences = np.bincount(np.concatenate([label, answer]))
    f1 = 2 * np.bincount(label[right], minlength=len(occurrences)) / np.maximum(occurrences, 1)
    return {
      "loss": float(np.mean(found["loss"], dtype=np.float64)),
      "accuracy": float(np.mean(right)),
      "macro_f1": float(np.mean(f1[occurrences > 0])),
    }

  def predicted(self, summary: Mapping[str, Any]) -> Sequence[str]:
    return ("test",)

  def conclude(self, data: LabeledData, snapshot: Snapshot, folder: Path) -> dict[str, Any]:
    """Return the metrics of the test split; its predictions are written."""
    found, names = self.predict(data, snapshot, "test"), data.label_names
    columns = {"text": [text for text, _ in data.rows["test"]]}
    for column, name in (("label", "label"), ("prediction", "answer")):
      columns[column] = [names[number] for number in found[name]]
    write_predictions(folder, "test", rows_of(columns | {"loss": found["loss"]}))
    return prefixed("test", self.scores(found))
