"""Text classification: one label for each text."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import numpy as np

from posexp import storage
from posexp.config.checks import Count, Name, at_least, at_most, check, only_with
from posexp.data import batches, sources, splits, tokenizer, writing
from posexp.data.batches import Examples
from posexp.data.splits import EVALUATED, Rows, Split
from posexp.errors import UserError, counted
from posexp.runs.identity import number
from posexp.runs.predictions import LABELS, write_predictions
from posexp.tasks import bag_of_words
from posexp.tasks.contract import Snapshot, Task
from posexp.tasks.results import Outputs, aligned, guessing, prefixed, result_rows, rows_of

if TYPE_CHECKING:
  from posexp.models.classifier import ClassifierSpec

SHOWN = 4  # rows that a note names


class Classification(Task):
  """A classification task with its measurements; subclasses define the classes."""

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
    predictions, names = self.predict(data, snapshot, "test"), data.label_names
    columns = {"text": [text for text, _ in data.rows["test"]]}
    for column, name in (("label", "label"), ("prediction", "answer")):
      columns[column] = [names[number] for number in predictions[name]]
    write_predictions(folder, "test", rows_of(columns | {"loss": predictions["loss"]}))
    return prefixed("test", self.scores(predictions))


@dataclasses.dataclass(frozen=True)
class LabeledTexts(Classification):
  """Texts with their labels; a subclass says where they come from.

  configs/task explains each option.
  """

  commands = ("export",)
  tokenizer: Literal["auto", "word", "char", "bpe", "given"] = "auto"
  vocab_size: Annotated[int, at_most(tokenizer.MOST)] = 20_000
  min_count: Count = 2
  max_length: Count | None = None
  cls: bool = False

  def __post_init__(self):
    """Raise ValueError for an option that is wrong for any data."""
    check(self)
    kind = "word" if self.tokenizer == "auto" else self.tokenizer
    if self.vocab_size < (least := tokenizer.KINDS.get(kind, 0)):
      raise ValueError(f"vocab_size must be at least {least} for {kind}, not {self.vocab_size}")
    if self.max_length is not None and self.max_length < 1 + self.cls:
      raise ValueError(f"max_length must be at least {1 + self.cls}, not {self.max_length}")

  @property
  def part(self) -> tuple[int, int] | None:
    """The fold that is the test split, and how many there are, if all rows are cross-validated."""
    return None

  def given(self) -> tuple[dict[str, Split], list[str]]:
    """Return the rows of each split, of `train` at least, and notes on them.

    Raises:
      UserError: for data that is missing or broken, some of it only while a split is read.
    """
    raise NotImplementedError

  def places(self, split: str) -> Iterator[str]:
    """Yield where each row of a split stands in a file; nothing for rows that stand in none."""
    return iter(())

  def parts_words(self) -> bool:
    """Return whether blanks part the words of the texts, going by the first of them."""
    return writing.parts_words(text for text, _ in self.given()[0]["train"]())

  @property
  def equal(self) -> Callable[[str], bytes]:
    """What texts share that the model reads as one, but for what is cut or unknown."""
    return splits.cased_key if self.tokenizer in ("char", "bpe") else splits.exact_key

  def settled(self) -> LabeledTexts:
    """Return the task with `word` for `tokenizer=auto`, or with `char` where no blanks part the
    words of the texts that are trained on.
    """
    if self.tokenizer != "auto":
      return self
    return dataclasses.replace(self, tokenizer="word" if self.parts_words() else "char")

  def prepare(self, folder: Path) -> LabeledData:
    """Return the data, tokenized by folder/tokenizer.json, which is trained if it is missing.

    Raises:
      UserError: for data that is missing, broken or of no use, and for another run's tokenizer.
    """
    task, digest = self.settled(), self.data_digest()
    opened = tokenizer.Given if task.tokenizer == "given" else None
    (text,) = tokenizer.kept(folder, ["tokenizer"], lambda _: _trained(task, digest), opened)
    return _prepared(task, digest, text)

  def conclude(self, data: LabeledData, snapshot: Snapshot, folder: Path) -> dict[str, Any]:
    """Return the metrics of the test split, with a bag of words on validation and test."""
    summary = super().conclude(data, snapshot, folder)
    parted = writing.parts_words(text for text, _ in data.rows["train"])
    floor = bag_of_words.bag_of_words(data.rows, self.tokenizer if parted else "char")
    for split in EVALUATED:
      summary |= {f"baseline/{split}/{name}": value for name, value in floor[split].items()}
    labels = Counter(label for _, label in data.rows["test"])
    share = max(labels.values()) / labels.total()
    summary["guessing"] = {"accuracy": share, "texts": labels.total()}
    return summary | ({} if parted else {"bag_of": "characters"})

  def table(self, summary: Mapping[str, Any]) -> Iterator[str]:
    """Yield the best checkpoint on both splits, beside the bag of words or characters."""
    bag = "characters" if self.tokenizer == "char" else summary.get("bag_of", "words")
    rows = [*result_rows(self.metrics, summary, EVALUATED, ("accuracy", "macro_f1", "loss"))]
    floor = result_rows(self.metrics, summary, EVALUATED, ("accuracy", "macro_f1"), "baseline/")
    rows += [[f"bag of {bag}, {title}", *cells] for title, *cells in floor]
    accuracies = (
      [summary[f"{of}{split}/accuracy"] for of in ("", "baseline/")] for split in EVALUATED
    )
    ahead = [100 * (model - floor) for model, floor in accuracies]
    rows.append(["accuracy against it, points", *(f"{points:+.2f}" for points in ahead)])
    yield from aligned(rows)
    yield from bag_of_words.of_order(summary, bag, ahead[-1])


@dataclasses.dataclass(frozen=True)
class TextClassification(sources.Sourced, LabeledTexts):
  """Texts with their labels, from `package`, from `hub` or else from the files `train`, ..."""

  columns: ClassVar[tuple[str, ...]] = ("text", "label")
  way_out: ClassVar[str] = "task=text_classification task.train=FILE, or take task=mr"

  name: Name = "text_classification"
  package: Literal["rotten_tomatoes", "imdb"] | None = None
  text: Annotated[str, only_with("train")] = "text"
  label: Annotated[str, only_with("train")] = "label"
  folds: Annotated[int, at_least(2)] | None = None
  fold: Annotated[int | None, only_with("folds")] = None

  def __post_init__(self):
    super().__post_init__()
    sources.check(self, "training examples")
    if self.folds and (self.fold is None or not 0 <= self.fold < self.folds):
      raise ValueError(f"fold must be 0 to {self.folds - 1}, not {self.fold}")

  @property
  def part(self):
    return (self.fold, self.folds) if self.folds else None

  def given(self):
    notes = sources.notes(self)
    if self.hub and not self.folds and self.test not in (None, "test"):
      notes = [f"the test split is the hub's split {self.test!r}", *notes]
    return sources.rows(self), notes

  def places(self, split):
    return sources.places(self, split)

  def parts_words(self):
    if self.train and not self.hub:
      with contextlib.suppress(UserError):  # which `prepare` raises
        return super().parts_words()
    return True


@functools.lru_cache(maxsize=2)
def _rows(
  task: LabeledTexts, digest: str | None
) -> tuple[dict[str, Rows], tuple[str, ...], list[str]]:
  """Return the rows of each split, the names of the labels, and notes.

  `digest` is part of the cache's key, so that files that have changed are read again.
  """
  streams, notes = task.given()
  given = {split: list(stream()) for split, stream in streams.items()}
  # A label is known if the training rows have it before any of them are held out.
  known = given if task.part else {"train": given["train"]}
  labels = {label for rows in known.values() for _, label in rows}
  for split, rows in given.items():
    if unseen := {label for _, label in rows} - labels:
      raise UserError(
        f"the {split} split has the label {min(unseen)!r}, which no training text has; "
        f"they have {', '.join(_ordered(labels)[:20])}"
      )
  both = _twofold((task.equal(text), label) for text, label in itertools.chain(*given.values()))
  again = {split: functools.partial(iter, found) for split, found in given.items()}
  streams, arranged = splits.arrange(again, equal=task.equal, fold=task.part)
  notes = [*notes, *arranged]
  kept = {split: list(stream()) for split, stream in streams.items()}
  if len(seen := {label for _, label in kept["train"]}) < 2:
    raise UserError(
      f"the training texts all have the label {min(seen)!r}; two labels at least are needed"
    )
  if not any(text.strip() for text, _ in kept["train"]):
    raise UserError(
      f"the training texts are all empty; is task.text={getattr(task, 'text', None)} their column?"
    )
  plain: dict[str, Any] = {name: number(name) for name in sorted(labels)}
  words = [name for name, value in plain.items() if value is None]
  plain |= {name: splits.composed(name.strip().casefold()) for name in words}
  shared = Counter(plain.values())
  if alike := [repr(label) for label in plain if shared[plain[label]] > 1]:
    named = ", ".join(alike[:8])
    notes.append(f"the labels {named} differ by blanks, capitals or how they are written")
  for split in EVALUATED:
    if new := sum(label not in seen for _, label in kept[split]):
      notes.append(f"{counted(new, f'{split} text')} with a label that no training text has")
  if both:
    where = [place for split in given for place in task.places(split)]
    first = f": {'; '.join(where[at] for at in both[:SHOWN])}" if where else ""
    more = ", ..." if first and len(both) > SHOWN else ""
    notes.append(
      f"{len(both):,} rows have a text that also stands there with another label{first}{more}"
    )
  return kept, tuple(_ordered(labels)), notes


def _twofold(rows: Iterable[tuple[bytes, str]]) -> list[int]:
  """Return which rows, of keys and labels, have a key that also stands with another label."""
  rows = [*rows]
  labels_of = Counter(key for key, _ in {*rows})
  return [at for at, (key, _) in enumerate(rows) if labels_of[key] > 1]


def _ordered(labels: set[str]) -> list[str]:
  numbers = all(re.fullmatch(r"-?\d{1,4000}", label) for label in labels)
  return sorted(sorted(labels), key=int) if numbers else sorted(labels)


def _trained(task: LabeledTexts, digest: str | None) -> str:
  if task.tokenizer == "given":
    raise UserError(
      "task.tokenizer=given is the tokenizer of a released model; it needs init=hf:FOLDER"
    )
  texts = [text for text, _ in _rows(task, digest)[0]["train"]]
  parts = writing.WORDS, texts, task.tokenizer, task.vocab_size, task.min_count, task.cls
  options: dict[str, Any] = {"min_count": task.min_count, "cls": task.cls}
  train = functools.partial(tokenizer.train, texts, task.tokenizer, task.vocab_size, **options)
  return storage.cached("tokenizers", train, *parts)


@functools.lru_cache(maxsize=2)
def _prepared(task: LabeledTexts, digest: str | None, text: str) -> LabeledData:
  rows, label_names, given = _rows(task, digest)
  notes = [*given]
  opened = (tokenizer.Given if task.tokenizer == "given" else tokenizer.Tokenizer)(text)
  ids: dict[str, Any] = {}
  empty, cut = {}, {}
  for split, pairs in rows.items():
    texts = [text for text, _ in pairs]
    ids[split], empty[split], cut[split] = opened.encode(texts, task.max_length)
  told = ((empty, "empty and kept as [UNK]"), (cut, f"cut to {task.max_length} tokens"))
  for counts, what in told:
    if counted_rows := ", ".join(f"{count:,} {split}" for split, count in counts.items() if count):
      notes.append(f"{counted_rows} texts are {what}")
  if any(cut.values()):
    every = [*itertools.chain(*rows.values())]
    read = (np.asarray(each).tobytes() for each in itertools.chain(*ids.values()))
    alike = len(_twofold(zip(read, (label for _, label in every), strict=True)))
    alike -= len(_twofold((task.equal(text), label) for text, label in every))
    if alike > 0:
      notes.append(f"{counted(alike, 'text')} cut to what also stands there with another label")
  if task.tokenizer == "bpe":
    notes += tokenizer.fewer(opened.vocab_size, task.vocab_size, LabeledTexts.vocab_size)
  elif task.tokenizer != "given":
    parted = writing.parts_words(text for text, _ in rows["train"])
    if task.tokenizer == "word":
      tokens = np.concatenate(ids["validation"])
      unknown = int(np.count_nonzero(tokens == tokenizer.UNK))
      notes += writing.misfit(unknown, len(tokens), len(ids["validation"]), parted)
    elif not parted:
      notes.append("no blanks part the words: texts are read by characters (task.tokenizer=char)")
  return LabeledData.of(
    rows,
    ids,
    vocab_size=opened.vocab_size,
    label_names=label_names,
    first=task.cls,
    notes=tuple(notes),
    words=tuple(opened.words) if task.tokenizer == "word" else (),
  )


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
    """Make data of the rows of each split and the token ids of each row, at least one and below
    `vocab_size`; `fields` are that and others of the class. ValueError says what does not fit.
    """
    numbers = {name: number for number, name in enumerate(label_names)}
    for split, given in rows.items():
      kinds = [np.asarray(own).dtype.kind if len(own) else "none" for own in ids[split]]
      if len(kinds) != len(given) or {*kinds} - {"i", "u"}:
        raise ValueError(f"each of the {len(given)} rows of {split} needs token ids, whole numbers")
    examples = {
      split: Examples.of(ids[split], np.asarray([numbers[label] for _, label in given], np.int32))
      for split, given in rows.items()
    }
    ends = [end(each.tokens) for each in examples.values() for end in (np.min, np.max)]
    if other := [each for each in ends if not 0 <= each < fields["vocab_size"]]:
      raise ValueError(f"a token has the id {other[0]}, where vocab_size={fields['vocab_size']}")
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

  @property
  def label_counts(self) -> np.ndarray:
    return np.bincount(self.examples["train"].labels, minlength=len(self.label_names))

  @property
  def chance(self) -> float:
    return guessing(self.label_counts)

  def model(self, encoding, size, positions) -> ClassifierSpec:
    from posexp.models.classifier import ClassifierSpec

    classes = len(self.label_names)
    spec = ClassifierSpec(self.vocab_size, classes, encoding, size, self.first, positions)
    if not size.vectors or not self.words:  # the latter is refused
      return spec
    return dataclasses.replace(spec, vectors=spec.read_vectors(size.vectors, self.words))
