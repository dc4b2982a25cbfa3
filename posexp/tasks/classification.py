"""Text classification: one label for each text."""

from __future__ import annotations

import dataclasses
import functools
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from posexp import storage
from posexp.data import batches, files, sources, splits, tokenizer
from posexp.data.batches import Batch, Examples
from posexp.data.files import Rows
from posexp.errors import UserError
from posexp.tasks import bag_of_words

if TYPE_CHECKING:
  from posexp.models.classifier import ClassifierSpec
  from posexp.training.evaluation import Snapshot


@dataclasses.dataclass(frozen=True)
class TextClassification:
  """Which texts, and how they become tokens. The rows are those of `package`, of `hub`, or else
  of the files `train`, `validation` and `test`; configs/task says more on each option."""

  score: ClassVar[str] = "validation/accuracy"  # chooses the checkpoint; more is better
  headline: ClassVar[tuple[str, ...]] = ("test/accuracy", "test/macro_f1")  # the main results

  name: str = "text_classification"
  package: str | None = None
  hub: str | None = None
  revision: str | None = None
  train: str | None = None
  validation: str | None = None
  test: str | None = None
  text: str = "text"
  label: str = "label"
  folds: int | None = None
  fold: int | None = None
  tokenizer: str = "word"
  vocab_size: int = 20_000
  min_count: int = 2
  max_length: int | None = None
  cls: bool = False

  def __post_init__(self):
    """Raises ValueError for what no data could make good."""
    if not re.fullmatch(r"[\w.+-]*\w[\w.+-]*", self.name):
      raise ValueError(f"name names a folder: letters, digits and _.+- only, not {self.name!r}")
    if self.package and self.hub:
      raise ValueError("package and hub exclude each other: set one of them to null")
    if self.package and self.package not in sources.PARTS:
      raise ValueError(f"package must be one of {', '.join(sources.PARTS)}, not {self.package!r}")
    if self.package and self.given():
      raise ValueError(f"{min(self.given())} must be null beside package={self.package}")
    if self.hub and not re.fullmatch(r"[0-9a-f]{40}", self.revision or ""):
      raise ValueError("revision must be a commit of the hub's data set: 40 hexadecimal digits")
    if not self.package and not self.train:
      kind = "a split of the hub's data set" if self.hub else "a file of training examples"
      raise ValueError(f"train must name {kind}")
    if self.folds is not None and self.folds < 2:
      raise ValueError(f"folds must be at least 2, not {self.folds}")
    if self.fold is not None and self.folds is None:
      raise ValueError("fold needs folds, the number of folds")
    if self.folds and (self.fold is None or not 0 <= self.fold < self.folds):
      raise ValueError(f"fold must be 0 to {self.folds - 1}, not {self.fold}")
    if self.tokenizer not in tokenizer.KINDS:
      raise ValueError(f"tokenizer must be {' or '.join(tokenizer.KINDS)}, not {self.tokenizer!r}")
    if self.vocab_size < tokenizer.KINDS[self.tokenizer]:
      least = tokenizer.KINDS[self.tokenizer]
      raise ValueError(
        f"vocab_size must be at least {least} for {self.tokenizer}, not {self.vocab_size}"
      )
    if self.min_count < 1:
      raise ValueError(f"min_count must be at least 1, not {self.min_count}")
    if self.max_length is not None and self.max_length < 1 + self.cls:
      raise ValueError(f"max_length must be at least {1 + self.cls}, not {self.max_length}")

  def given(self) -> dict[str, str]:
    """The splits that the options name: files, or the hub's names for them."""
    named = {"train": self.train, "validation": self.validation, "test": self.test}
    return {split: source for split, source in named.items() if source}

  @staticmethod
  def table(summary: dict[str, Any]) -> Iterator[str]:
    """The lines of the result."""
    return table(summary)

  def data_digest(self) -> str | None:
    """sha256 of the user's own files; None where the options alone pin the data.

    Raises:
      UserError: a file is missing or empty.
    """
    return None if self.package or self.hub else files.digest(self.given())

  def smallest_model(self, encoding, size, positions) -> ClassifierSpec:
    """A model for hardly any data, to see whether one can be built."""
    from posexp.models.classifier import ClassifierSpec

    return ClassifierSpec(2, 2, encoding, size, self.cls, positions)

  def prepare(self, folder: Path) -> Prepared:
    """The data, tokenized by folder/tokenizer.json, which is trained where it is not there yet.

    Raises:
      UserError: for data that is missing, broken or of no use.
    """
    path, digest = folder / "tokenizer.json", self.data_digest()
    if not path.exists():
      storage.write(path, _trained(self, digest))
    return _prepared(self, digest, path.read_text(encoding="utf-8"))


@dataclasses.dataclass(frozen=True)
class Prepared:
  """Data that is ready for a model."""

  vocab_size: int
  label_names: tuple[str, ...]
  longest: int  # tokens in the longest text of any split, [CLS] included
  notes: tuple[str, ...]  # what was done to the data, a sentence each
  rows: dict[str, Rows]  # (text, label name) by split
  examples: dict[str, Examples]
  bucket_lengths: np.ndarray  # of the batches, int [buckets]

  cls: bool

  item: ClassVar[str] = "text"  # what the data are made of
  unit: ClassVar[str] = "texts"  # what `batch_size` counts
  shown: ClassVar[dict[str, str]] = {  # of an evaluation, on the terminal
    "loss": "loss {:.3f}",
    "accuracy": "accuracy {:.3f}",
    "macro_f1": "macro F1 {:.3f}",
  }

  @property
  def num_classes(self) -> int:
    return len(self.label_names)

  @property
  def sizes(self) -> dict[str, int]:
    return {split: len(rows) for split, rows in self.rows.items()}

  @property
  def about(self) -> tuple[str, str]:
    """What the header says of the data."""
    return (
      f"{self.num_classes} classes",
      f"vocabulary {self.vocab_size:,}, longest text {self.longest} tokens",
    )

  @property
  def length(self) -> int:
    """Of the longest batches, in tokens."""
    return int(self.bucket_lengths[-1])

  def model(self, encoding, size, positions) -> ClassifierSpec:
    """The model for these data."""
    from posexp.models.classifier import ClassifierSpec

    return ClassifierSpec(self.vocab_size, self.num_classes, encoding, size, self.cls, positions)

  @property
  def word_counts(self) -> np.ndarray:
    """How often each token stands in the training texts, int [V]."""
    return np.bincount(self.examples["train"].tokens, minlength=self.vocab_size)

  def rows_of(self, batch_size: int) -> np.ndarray:
    """How many rows the batches of each bucket have, int [buckets]."""
    return np.full(len(self.bucket_lengths), batch_size)

  def steps_per_epoch(self, batch_size: int) -> int:
    """Full batches in an epoch; UserError if there is none."""
    if batch_size > self.sizes["train"]:
      raise UserError(
        f"train.batch_size={batch_size}: there are only {self.sizes['train']} training examples"
      )
    return self.sizes["train"] // batch_size

  def batches(self, batch_size: int, *, seed: int, start: int = 0) -> Iterator[Batch]:
    """Training batches without end from step `start` on, a pure function of (seed, step)."""
    self.steps_per_epoch(batch_size)
    return batches.training(
      self.examples["train"], self.bucket_lengths, batch_size, seed=seed, start=start
    )

  def evaluation(self, split: str, batch_size: int) -> Iterator[Batch]:
    """Every example of a split once; `index` says which, the last batch has rows of weight 0."""
    return batches.evaluation(self.examples[split], self.bucket_lengths, batch_size)

  texts = evaluation

  def baseline(self, split: str) -> dict[str, float]:
    """Accuracy and macro F1 of a bag of words on `validation` or `test`."""
    return bag_of_words.bag_of_words(self.rows)[split]

  def predict(
    self, snapshot: Snapshot, split: str, kept: dict[str, Any] | None = None
  ) -> dict[str, np.ndarray]:
    """Of every example of a split its loss, label, answer, and whether this is right, [N] each."""
    found = snapshot.predict(self.evaluation(split, snapshot.batch_size), kept)
    label = self.examples[split].labels
    right = found["answer"] == label
    return found | {"label": label, "right": right, "tokens": np.ones(len(label), int)}

  @staticmethod
  def scores(found: dict[str, np.ndarray]) -> dict[str, float]:
    """Mean loss (nats), accuracy, and F1 averaged over the classes that occur, all alike."""
    label, answer, right = found["label"], found["answer"], found["right"]
    # Each occurrence of a class as label or answer; 2·right / occurrences is its F1.
    occurrences = np.bincount(np.concatenate([label, answer]))
    f1 = 2 * np.bincount(label[right], minlength=len(occurrences)) / np.maximum(occurrences, 1)
    return {
      "loss": float(np.mean(found["loss"], dtype=np.float64)),
      "accuracy": float(np.mean(right)),
      "macro_f1": float(np.mean(f1[occurrences > 0])),
    }

  def measure(self, snapshot: Snapshot, split: str) -> dict[str, float]:
    """The metrics of a split, as they are followed during training."""
    return self.scores(self.predict(snapshot, split))

  def conclude(self, snapshot: Snapshot, folder: Path) -> dict[str, Any]:
    """What a summary says of the test split; its predictions go to folder/predictions."""
    found = self.predict(snapshot, "test")
    names, texts = self.label_names, [text for text, _ in self.rows["test"]]
    storage.write(
      folder / "predictions" / "test.jsonl",
      "".join(
        json.dumps(
          {
            "index": int(index),
            "text": texts[index],
            "label": names[label],
            "prediction": names[answer],
            "loss": float(loss),
          },
          ensure_ascii=False,
        )
        + "\n"
        for index, label, answer, loss in zip(
          *(found[column] for column in ("index", "label", "answer", "loss")), strict=True
        )
      ),
    )
    summary = {f"test/{name}": value for name, value in self.scores(found).items()}
    for split in ("validation", "test"):
      summary |= {f"baseline/{split}/{k}": v for k, v in self.baseline(split).items()}
    return summary


def table(summary: dict[str, Any]) -> Iterator[str]:
  """The lines of the result: the best checkpoint on both splits, beside the bag of words."""
  rows = (
    ("accuracy", ""),
    ("macro_f1", ""),
    ("loss", ""),
    ("accuracy", "baseline/"),
    ("macro_f1", "baseline/"),
  )
  yield f"{'at step ' + format(summary['step'], ','):<34}{'validation':>12}{'test':>10}"
  for name, prefix in rows:
    label = f"{'bag of words, ' if prefix else ''}{name.replace('macro_f1', 'macro F1')}"
    values = (summary[f"{prefix}{split}/{name}"] for split in ("validation", "test"))
    yield f"{label:<34}" + "{:>12.4f}{:>10.4f}".format(*values)
  ahead = [
    100 * (summary[f"{split}/accuracy"] - summary[f"baseline/{split}/accuracy"])
    for split in ("validation", "test")
  ]
  yield f"{'accuracy against it, points':<34}" + "{:>+12.2f}{:>+10.2f}".format(*ahead)


@functools.lru_cache(maxsize=2)
def _rows(
  task: TextClassification, digest: str | None
) -> tuple[dict[str, Rows], tuple[str, ...], list[str]]:
  """Rows by split, the names of the labels, and notes. `digest` only tells contents apart."""
  given = sources.read(task)
  # A label is known if the training rows have it before any of them are held out.
  known = given if task.folds else {"train": given["train"]}
  labels = {label for rows in known.values() for _, label in rows}
  for split, rows in given.items():
    if unseen := {label for _, label in rows} - labels:
      names = ", ".join(_ordered(labels)[:20])
      raise UserError(
        f"the {split} split has the label {min(unseen)!r}, which no training text has; "
        f"they have {names}"
      )
  rows, notes = splits.arrange(given, task.folds, task.fold)
  if len(seen := {label for _, label in rows["train"]}) < 2:
    raise UserError(
      f"the training texts all have the label {seen.pop()!r}; two labels at least are needed"
    )
  if not any(text.strip() for text, _ in rows["train"]):
    raise UserError(f"the training texts are all empty; is task.text={task.text} their column?")
  if task.hub and not task.folds and task.test not in (None, "test"):
    notes.insert(0, f"the test split is the hub's split {task.test!r}")
  return rows, tuple(_ordered(labels)), notes


def _ordered(labels: set[str]) -> list[str]:
  numbers = all(re.fullmatch(r"-?\d+", label) for label in labels)
  return sorted(labels, key=int) if numbers else sorted(labels)


def _trained(task: TextClassification, digest: str | None) -> str:
  texts = (text for text, _ in _rows(task, digest)[0]["train"])
  return tokenizer.train(texts, task.tokenizer, task.vocab_size, task.min_count, task.cls)


@functools.lru_cache(maxsize=2)
def _prepared(task: TextClassification, digest: str | None, text: str) -> Prepared:
  rows, label_names, notes = _rows(task, digest)
  opened = tokenizer.Tokenizer(text)
  numbers = {name: number for number, name in enumerate(label_names)}
  examples, empty, cut = {}, {}, {}
  for split, pairs in rows.items():
    texts = [text for text, _ in pairs]
    ids, empty[split], cut[split] = opened.encode(texts, task.max_length)
    examples[split] = Examples.of(ids, [numbers[label] for _, label in pairs])
  counted = ((empty, "empty and kept as [UNK]"), (cut, f"cut to {task.max_length} tokens"))
  for counts, what in counted:
    if found := ", ".join(f"{count:,} {split}" for split, count in counts.items() if count):
      notes = [*notes, f"{found} texts are {what}"]
  longest = max(int(split.lengths.max()) for split in examples.values())
  return Prepared(
    vocab_size=opened.vocab_size,
    label_names=label_names,
    longest=longest,
    notes=tuple(notes),
    rows=rows,
    examples=examples,
    bucket_lengths=batches.buckets(examples["train"].lengths, longest),
    cls=task.cls,
  )
