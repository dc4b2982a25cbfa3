"""Language modeling: which token follows, scored in bits of the text itself."""

from __future__ import annotations

import dataclasses
import functools
import math
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import numpy as np

from posexp.config.checks import Count, Name, between, check, only_with
from posexp.data import files, sources, tokenizer, writing
from posexp.data.batches import Batch, numbered
from posexp.data.splits import EVALUATED
from posexp.errors import UserError
from posexp.language import byte_ngrams, corpus, windows
from posexp.language.corpus import Text
from posexp.language.vocabulary import END, Vocabulary
from posexp.runs.context_losses import BEFORE, LEAST_GAIN, write_context_losses
from posexp.runs.predictions import SEGMENTS, write_predictions
from posexp.status import doing
from posexp.tasks.contract import Data, Snapshot, Task
from posexp.tasks.results import (
  Outputs,
  aligned,
  by_row,
  guessing,
  metric_of,
  perplexity,
  prefixed,
  result_rows,
  rows_of,
  token_scores,
)

if TYPE_CHECKING:
  from posexp.models.language_model import LanguageModelSpec

SHOWN = ("bits_per_byte", "bits_per_char", "perplexity", "word_perplexity", "loss", "accuracy")
FLOORS = {"ngram": "byte n-gram, order 5", "bz2": "bz2"}
PROMPTS = 8  # texts of the test split that are gone on with
PROMPT = 32  # tokens of each at most
WORDY = 50  # bytes of a word on average, from which on blanks are no ends of words
WRITTEN = 200  # at most, of what follows


@dataclasses.dataclass(frozen=True)
class TextData(Data):
  """Splits of a corpus as streams of tokens, ready for a language model."""

  streams: dict[str, Text]
  vocabulary: Vocabulary
  scored: Literal["full", "half"] = "full"
  notes: tuple[str, ...] = ()

  item: ClassVar[str] = "segment"
  unit: ClassVar[str] = "lanes"

  @property
  def sizes(self) -> dict[str, int]:
    return {split: stream.segments for split, stream in self.streams.items()}

  @property
  def about(self) -> tuple[str, str]:
    train = self.streams["train"]
    return (
      f"segments of {self.length} tokens",
      f"vocabulary {self.vocabulary.size:,}; {train.source.bytes:,} bytes to train on, which are "
      f"{len(train.tokens):,} tokens",
    )

  @property
  def length(self) -> int:
    return self.streams["train"].segment

  @functools.cached_property
  def word_counts(self) -> np.ndarray:
    return np.bincount(self.streams["train"].tokens, minlength=self.vocabulary.size)

  @property
  def chance(self) -> float:
    return guessing(self.word_counts)

  def model(self, encoding, size, positions) -> LanguageModelSpec:
    from posexp.models.language_model import LanguageModelSpec

    return LanguageModelSpec(self.vocabulary.size, encoding, size, positions, self.scored)

  def steps_per_epoch(self, batch_size: int) -> int:
    stream = self.streams["train"]
    if batch_size > stream.segments:
      raise UserError(
        f"train.batch_size={batch_size} lanes: the training text has {stream.targets:,} tokens, "
        f"which are {stream.segments:,} segments of task.segment={self.length}; lower one of them"
      )
    return stream.steps(batch_size)

  def batches(self, batch_size: int, *, seed: int, start: int = 0) -> Iterator[Batch]:
    """Return the next segment of every lane, with the arrays of `Stream.batch`."""
    self.steps_per_epoch(batch_size)
    return self.streams["train"].training(batch_size, seed=seed, start=start)

  def evaluation(self, split: str, batch_size: int, most: int | None = None) -> Iterator[Batch]:
    """Return every segment of a split, or the first `most`; its index is its place in the text."""
    return self.streams[split].evaluation(batch_size, most)

  def counts(self, split: str) -> dict[str, np.ndarray]:
    """Return the `bytes` and `chars` that the targets of each segment stand for, int [segments]."""
    sizes = {"bytes": self.vocabulary.bytes_of, "chars": self.vocabulary.chars_of}
    return {name: self.streams[split].totals(size) for name, size in sizes.items()}


@dataclasses.dataclass(frozen=True)
class LanguageModeling(sources.Sourced, Task):
  """A text, its tokens, and the way to cut it; configs/task explains each option."""

  score: ClassVar[str] = "validation/bits_per_byte"
  headline: ClassVar[tuple[str, ...]] = ("test/bits_per_byte", "test/perplexity")
  followed: ClassVar[tuple[str, ...]] = ("loss", "bits_per_byte")
  prediction_columns = SEGMENTS
  adjustable = (
    "segment",
    "documents",
    "scored",
    "validation_tokens",
    "contexts",
    "context_targets",
  )
  compare_by: ClassVar[str] = "bits_per_byte"
  commands = ("context", "score", "generate", "export")

  columns: ClassVar[tuple[str, ...]] = ("text",)
  way_out: ClassVar[str] = "task=language_modeling task.train=FILE, or take task=reviews"

  name: Name = "language_modeling"
  package: Literal["imdb", "sympy"] | None = None
  subset: Annotated[str | None, only_with("hub")] = None
  text: str | None = None
  tokenizer: Literal["byte", "char", "word", "bpe", "given"] = "byte"
  vocab_size: int | None = None
  segment: Annotated[int, between(2, 2**20)] = 128
  documents: Literal["stream", "reset", "mask"] = "stream"
  scored: Literal["full", "half"] = "full"
  validation_tokens: Count | None = 100_000
  contexts: list[Count] | None = None
  context_targets: Count | None = None

  def __post_init__(self):
    """Raise ValueError for an option that is wrong for any data."""
    check(self)
    corpus.check_options(self)

  def row(self, split, where, record):
    """Return the text of a row in UTF-8, however long."""
    text = sources.pick(self, record, "text", where)
    if not isinstance(text, str | None):
      raise UserError(f"{where}: the text is {text!r}; it must be a string")
    return files.utf8(text or "", where)

  def smallest_model(self, encoding, size, positions) -> LanguageModelSpec:
    from posexp.encodings import check_limit
    from posexp.models.language_model import LanguageModelSpec

    why = f"model.memory={size.memory} and task.segment={self.segment} are more tokens"
    check_limit(encoding, size.memory + self.segment, why, "lower these")
    return LanguageModelSpec(2, encoding, size, positions)

  def kept_model(self, folder, encoding, size, positions) -> LanguageModelSpec:
    small = self.smallest_model(encoding, size, positions)
    return dataclasses.replace(small, vocab_size=self.vocabulary(folder).size)

  def vocabulary(self, folder: Path) -> Vocabulary:
    """Open the vocabulary of a run from its folder alone.

    Raises:
      UserError: it is missing, damaged or another run's.
    """
    (text,) = tokenizer.kept(folder, ["tokenizer"], opened=Vocabulary.opened)
    return Vocabulary.opened(text)

  def prepare(self, folder: Path) -> TextData:
    texts, opened, notes = corpus.prepare(self, folder)
    if self.contexts:
      windows.drawn(texts["test"], max(self.contexts))  # which refuses a text that is too short
    text = texts["train"].source
    share = text.bytes / max(text.chars, 1)
    if self.tokenizer == "byte" and share >= 1.5 and not writing.parts_words([text.beginning]):
      how = f"text is read by bytes (task.tokenizer=byte), {share:.1f} to a character"
      notes.append(f"no blanks part the words: {how}; char and bpe have fewer tokens")
    return TextData(texts, opened, self.scored, tuple(notes))

  def answers(self, data: TextData, split: str, found: Outputs) -> Outputs:
    """Return arrays [N] over the segments of a split, of which there are outputs of the first N.

    `loss` is the sum over the targets of a segment in nats, `tokens` their number, and `right` how
    many of them are; `bytes` and `chars` are what the targets stand for.
    """
    count = len(found["index"])
    sizes = {name: each[:count] for name, each in data.counts(split).items()}
    tokens = data.streams[split].plan().count[:count]
    return {"index": found["index"]} | by_row(found, tokens) | sizes

  def scores(self, found: Outputs) -> dict[str, float]:
    """Return the loss in nats of a token, and in bits of a byte and of a character of the text.

    Ends of documents are predicted and count as tokens, but are neither bytes nor characters.
    """
    scores, bits = token_scores(found), found["loss"].sum() / math.log(2)
    return scores | {
      "bits_per_byte": float(bits / found["bytes"].sum()),
      "bits_per_char": float(bits / found["chars"].sum()),
      "perplexity": perplexity(scores["loss"]),
    }

  def scores_of(self, data: TextData, split: str, found: Outputs) -> dict[str, float]:
    """Return the metrics of the exact text of a split, which words may not give back: what they
    leave out is spelled in bytes.
    """
    text = data.streams[split].source
    bits = found["loss"].sum() / math.log(2) + 8 * data.streams[split].unspelled
    exact = {"bits_per_byte": float(bits / text.bytes), "bits_per_char": float(bits / text.chars)}
    return self.scores(found) | exact

  def measure(self, data: TextData, snapshot: Snapshot, split: str) -> dict[str, float]:
    """Return the metrics of a split; on validation, of its first `validation_tokens`."""
    most = None
    if split == "validation" and self.validation_tokens:
      most = -(-self.validation_tokens // self.segment)
    batches = data.evaluation(split, snapshot.batch_size, most)
    return self.scores(self.answers(data, split, snapshot.predict(batches, split=split)))

  def predicted(self, summary: Mapping[str, Any]) -> Sequence[str]:
    return ("test", "generated") if summary.get("generated") else ("test",)

  def conclude(self, data: TextData, snapshot: Snapshot, folder: Path) -> dict[str, Any]:
    """Return the metrics of the test split, its floors, and its losses by context; segments, and
    how the model goes on with some beginnings, are written.
    """
    text, predictions = data.streams["test"].source, self.predict(data, snapshot, "test")
    parted = text.bytes < WORDY * text.words and writing.parts_words([text.beginning])
    measured: dict[str, Any] = self.scores_of(data, "test", predictions)
    # Without blanks, as in Japanese, a line would be a word.
    by_word = perplexity(predictions["loss"].sum() / text.words) if parted else None
    measured["word_perplexity"] = by_word
    counted = {"bytes": text.bytes, "words": text.words, "tokens": int(predictions["tokens"].sum())}
    write_predictions(folder, "test", segments(data, predictions))
    generated = list(continuations(data, snapshot))
    write_predictions(folder, "generated", generated)
    floors = byte_ngrams.baselines({split: data.streams[split] for split in ("train", "test")})
    summary = prefixed("test", measured | counted) | prefixed("baseline/test", floors["test"])
    summary["generated"] = len(generated)
    return summary | self.by_context(data, snapshot, folder)

  def by_context(self, data: TextData, snapshot: Snapshot, folder: Path) -> dict[str, float]:
    """Return the scores of the test split by context; its losses are kept in the run's folder.

    The two contexts between which the gain is measured are added to those of the options, unless
    the segment or the text is too short for it.
    """
    stream, ends = data.streams["test"], {BEFORE, self.segment}
    gains = BEFORE < self.segment <= len(stream.tokens) - windows.ROW
    contexts = sorted({*(self.contexts or ()), *(ends if gains else ())})
    if not contexts:
      return {}
    begun, given = time.monotonic(), (snapshot, stream, data.vocabulary.bytes_of, contexts)
    row = 1 if self.contexts and not self.context_targets else windows.ROW
    losses = windows.by_context(*given, self.context_targets, row)
    write_context_losses(folder, "test", losses)
    cost = {"context_targets": len(losses.place), "time/context_seconds": time.monotonic() - begun}
    return losses.scores(self.segment) | cost

  def table(self, summary: Mapping[str, Any]) -> Iterator[str]:
    """Yield rows for the best checkpoint on both splits, and for the n-gram and bz2."""
    rows = [*result_rows(self.metrics, summary, EVALUATED, SHOWN)]
    metric = metric_of(self.metrics, "bits_per_byte")
    for name, title in FLOORS.items():
      floor = summary[f"baseline/test/{name}/bits_per_byte"]
      ahead = f"the model differs by {summary['test/bits_per_byte'] - floor:+.4f}"
      rows.append([f"{title}, {metric.title}", "", format(floor, metric.format), ahead])
    for context in sorted(set(self.contexts or ())):
      value = summary.get(f"context/bits_per_byte/{context}")
      shown = ["-", "too few positions"] if value is None else [format(value, metric.format)]
      rows.append([f"{context:,} tokens before a target, {metric.title}", "", *shown])
    gain = summary.get("context/gain")
    if gain is not None:
      ends = f"{BEFORE} to {self.segment:,} tokens before a target"
      rows.append([f"gain from {ends}, {metric.title}", "", f"{gain:+.4f}"])
    yield from aligned(rows)
    if gain is not None:
      targets, seconds = summary["context_targets"], summary["time/context_seconds"]
      little = (
        f"below {LEAST_GAIN} bits per byte, so this model hardly uses more of its context than "
        f"{BEFORE} of {self.segment:,} tokens, and says little about order, memory and length; "
      )
      cost = f"measured on {targets:,} tokens of test in {seconds:.1f} s"
      yield f"gain: {little if gain < LEAST_GAIN else ''}{cost}"
    part = self.validation_tokens
    first = f"at most its first {part:,} tokens" if part else "all of it"
    yield f"validation: {first}; test: all of it"
    yield (
      f"bits per byte of test are of its {summary['test/bytes']:,} bytes; ends of documents are "
      "predicted, too"
    )


def segments(data: TextData, found: Outputs) -> Iterator[dict[str, Any]]:
  """Return the rows of the predictions: the text of each segment of test, and its loss."""
  stream = data.streams["test"]
  start, count, _ = stream.plan()
  targets = (stream.tokens[slice(*ends)] for ends in zip(start + 1, start + count + 1, strict=True))
  columns: dict[str, Iterable[Any]] = {"text": spelled(data, targets)}
  return rows_of(columns | {name: found[name] for name in ("tokens", "bytes", "loss")})


def spelled(data: TextData, rows: Iterable[np.ndarray]) -> Iterator[str]:
  """Yield the text of each row of tokens."""
  return (data.vocabulary.decode(row.tolist()).decode(errors="replace") for row in rows)


def continuations(data: TextData, snapshot: Snapshot) -> Iterator[dict[str, Any]]:
  """Yield beginnings of test documents, or of their parts where documents are few, with the text
  that the model draws after each.

  The text that is drawn is a function of the weights, as with the defaults of `posexp.generate`.
  """
  from posexp.language import sampling

  doing("going on with beginnings of the test split")
  tokens = data.streams["test"].tokens
  given = min(PROMPT, data.length // 2, len(tokens) - 1)
  begins = np.flatnonzero(tokens[: len(tokens) - given] == END)[:PROMPTS] + 1
  if len(begins) < PROMPTS:
    begins = np.unique(np.linspace(1, len(tokens) - given, PROMPTS, dtype=int))
  prompts = tokens[begins[:, None] + np.arange(given)].astype(np.int32)
  size = snapshot.batch_size  # rows that are too many hold prompts again, and are left out
  batches = (
    {
      "tokens": np.resize(prompts[first : first + size], (size, given)),
      "mask": np.ones((size, given), bool),
    }
    | numbered(np.arange(first, min(first + size, len(prompts))), size)
    for first in range(0, len(prompts), size)
  )
  count = min(WRITTEN, data.length - given)
  go_on = sampling.continuer(snapshot.graphdef, data.length, count)
  drawn = snapshot.map(
    lambda params, settings, batch: {"tokens": go_on(params, settings, batch["tokens"])}, batches
  )
  written = sampling.check_drawn(drawn["tokens"])
  ended = (each[: np.argmax(each == END)] if END in each else each for each in written)
  return rows_of({"prompt": spelled(data, prompts), "text": spelled(data, ended)})
