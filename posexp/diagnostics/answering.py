"""Questions and answers: an input, and the answer that a decoder writes after it.

A row is BOS x SEP y EOS, where y and EOS count; for a classifier, BOS x with the class y; or, for a
tagger, BOS x with an answer for each symbol. If the input ends with a question, SEP precedes the
question: BOS x SEP question y EOS.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from posexp.data.batches import GRANULE, Batch, numbered
from posexp.errors import UserError
from posexp.runs.lengths import REACHED
from posexp.runs.predictions import ANSWERS, write_predictions
from posexp.tasks.contract import Data, ModelSpec, Snapshot, Task
from posexp.tasks.results import (
  Outputs,
  aligned,
  by_row,
  metric_of,
  parts,
  prefixed,
  rows_of,
  token_scores,
)

PAD, BOS, SEP, EOS = range(4)
FIRST = 4  # the token of symbol 0
LEARNED = 0.95  # exact match at the lengths of training, below which longer ones say nothing
BY_LENGTH = ("exact_match", "oracle_end", "accuracy")  # what is measured of each length
DRAWN = "draw must return symbols from 0 on, as two arrays of integers"

Example = tuple[np.ndarray, np.ndarray]  # symbols of the input and of the answer, int each


class Answering(Task):
  """A model writes the answer to an input, and only an answer without mistakes counts.

  The split `beyond`, where there is one, holds what training does not reach, such as longer ones.
  """

  score: ClassVar[str] = "validation/exact_match"
  headline: ClassVar[tuple[str, ...]] = ("beyond/exact_match", "test/exact_match")
  followed: ClassVar[tuple[str, ...]] = ("loss", "exact_match", "accuracy")
  prediction_columns = ANSWERS

  form: str  # "decoder", "encoder" or "tagger"
  symbols: int  # that inputs and answers have
  question: ClassVar[int] = 0  # the input's last symbols that a decoder reads behind SEP
  symbol_names: ClassVar[tuple[str, ...]] = ()  # if they are not called by their numbers

  def spec(self, vocab_size: int, classes: int, encoding, size, positions) -> Any:
    """Return a decoder, which a tagger is as well, or a classifier of BOS."""
    from posexp.models.classifier import ClassifierSpec
    from posexp.models.language_model import LanguageModelSpec

    if self.form == "encoder":
      return ClassifierSpec(vocab_size, classes, encoding, size, first=True, positions=positions)
    return LanguageModelSpec(vocab_size, encoding, size, positions)

  def smallest_model(self, encoding, size, positions) -> ModelSpec:
    return self.spec(2, 2, encoding, size, positions)

  def answers(self, data: Answers, split: str, found: Outputs) -> Outputs:
    """Return for every example, [N] each: `loss`, the `tokens` that count, how many are `right`,
    whether all are (`exact`), whether all but the end are (`oracle`), and its `length`.
    """
    lengths, examples = data.splits[split]
    if self.form == "encoder":
      right = found["answer"] == np.array([int(y[0]) for _, y in examples])
      found |= {"exact": right, "oracle": right, "right": right.astype(int)}
      return found | {"tokens": np.ones(len(right), int), "length": lengths}
    if self.form == "tagger":
      found = by_row(found, np.array([len(y) for _, y in examples]))
      exact = found["right"] == found["tokens"]
      return found | {"exact": exact, "oracle": exact, "length": lengths}
    tokens = np.array([len(y) + 1 for _, y in examples])
    ends = np.array([len(x) + len(y) + 1 for x, y in examples])  # where EOS is predicted
    last = found["right"][np.arange(len(ends)), ends]
    found = by_row(found, tokens)
    exact, oracle = found["right"] == tokens, found["right"] - last == tokens - 1
    return found | {"exact": exact, "oracle": oracle, "length": lengths}

  def scores(self, found: Outputs) -> dict[str, float]:
    """Return exact match with and without the end, token accuracy given the right tokens before,
    and nats per token.
    """
    shares = {"exact_match": found["exact"].mean(), "oracle_end": found["oracle"].mean()}
    return token_scores(found) | {name: float(value) for name, value in shares.items()}

  def predicted(self, summary: Mapping[str, Any]) -> Sequence[str]:
    return [split for split in ("test", "beyond") if f"{split}/loss" in summary]

  def conclude(self, data: Answers, snapshot: Snapshot, folder: Path) -> dict[str, Any]:
    """Return the metrics of test and beyond: means over lengths, and each length by itself."""
    summary: dict[str, Any] = {}
    for split in ("test", "beyond"):
      if split not in data.splits:
        continue
      predictions = self.predict(data, snapshot, split)
      summary |= prefixed(split, self.scores(predictions))
      for length in data.lengths[split]:
        chosen = predictions["length"] == length
        part = self.scores({name: prediction[chosen] for name, prediction in predictions.items()})
        for name in BY_LENGTH:
          summary[f"{split}/{name}/{length}"] = part[name]
        summary[f"chance/{split}/exact_match/{length}"] = data.blind[length]
      inputs, references = zip(*data.splits[split][1], strict=True)
      columns: dict[str, Any] = {"length": predictions["length"]}
      columns["input"] = map(data.written, inputs)
      columns |= {"reference": map(data.written, references)}
      columns |= {name: predictions[name] for name in ("right", "tokens", "exact")}
      write_predictions(folder, split, rows_of(columns))
    # Where no tested length is one of training, validation tells whether these were learned.
    within = "test" if "test" in data.splits else "validation"
    summary["gates"] = {"beyond": {"metric": f"{within}/exact_match", "least": LEARNED}}
    return summary

  def table(self, summary: Mapping[str, Any]) -> Iterator[str]:
    """Yield exact match by length, the gate, and how far the model reaches."""
    for split in ("test", "beyond"):
      keys = {metric_of(self.metrics, name).title: f"{split}/{name}" for name in BY_LENGTH}
      keys["blind to order"] = f"chance/{split}/exact_match"
      lengths = parts(summary, f"{split}/exact_match")
      for start in range(0, len(lengths), 12):
        some = lengths[start : start + 12]
        yield from aligned(
          [[f"{split}, length", *some]]
          + [
            [f"{title} (%)", *(f"{100 * summary[f'{key}/{length}']:.1f}" for length in some)]
            for title, key in keys.items()
          ]
        )
        yield ""
    within = summary.get("test/exact_match", summary["validation/exact_match"])
    beyond = "; scores beyond training say nothing" if "beyond/loss" in summary else ""
    yield (
      f"learned: {100 * within:.1f} % at the lengths of training"
      if within >= LEARNED
      else f"not learned: {100 * within:.1f} % at the lengths of training, where "
      f"{100 * LEARNED:.0f} % are asked for{beyond}"
    )
    if "beyond/reach" in summary:
      yield f"at least {100 * REACHED:.0f} % up to length {summary['beyond/reach']:.0f}"


@dataclasses.dataclass(frozen=True)
class Answers(Data):
  """Examples for a decoder or a classifier; subclasses say where the examples come from.

  Training batches are a pure function of (seed, step); the examples of other splits are the same
  for every run.
  """

  task: Answering

  item: ClassVar[str] = "example"
  unit: ClassVar[str] = "examples"

  # A subclass gives these as class variables, fields or properties.
  source: ClassVar[str]  # how training examples are found
  epoch: ClassVar[int]  # examples of training that count as an epoch
  lengths: ClassVar[dict[str, tuple[int, ...]]]  # of the examples of each split
  blind: ClassVar[dict[int, float]]  # chance level by length

  @property
  def splits(self) -> dict[str, tuple[np.ndarray, list[Example]]]:
    """The lengths, int [N], and the examples of each split but `train`."""
    raise NotImplementedError

  def training(self, random: np.random.Generator, rows: int) -> list[Example]:
    """Draw `rows` examples to train on."""
    raise NotImplementedError

  def widest(self, length: int) -> Example:
    """Return an example with the most tokens of all examples of a length."""
    raise NotImplementedError

  @property
  def sizes(self) -> dict[str, int]:
    return {"train": self.epoch} | {split: len(each) for split, (each, _) in self.splits.items()}

  @property
  def about(self) -> tuple[str, str]:
    trained = self.lengths["train"]
    shown = " -> ".join(map(self.written, self.splits["validation"][1][0]))
    return (
      f"lengths {trained[0]} to {trained[-1]}, {self.source}; {self.task.form}",
      f"vocabulary {self.vocab_size}; {shown if len(shown) < 70 else shown[:66] + ' ...'}",
    )

  def written(self, symbols: np.ndarray) -> str:
    """Return the names of symbols, or their numbers where they have none."""
    names = self.task.symbol_names
    return " ".join(names[symbol] if names else str(symbol) for symbol in symbols)

  @property
  def vocab_size(self) -> int:
    return FIRST + self.task.symbols

  def model(self, encoding, size, positions) -> ModelSpec:
    return self.task.spec(self.vocab_size, self.task.symbols, encoding, size, positions)

  @property
  def word_counts(self) -> np.ndarray:
    counts = [batch["tokens"].ravel() for batch in self.evaluation("validation", 64)]
    return np.bincount(np.concatenate(counts), minlength=self.vocab_size)

  @property
  def length(self) -> int:
    return max(self.widths.values())

  @property
  def longest(self) -> int:
    return max(self.tokens.values())

  @functools.cached_property
  def widths(self) -> dict[int, int]:
    """The width of a batch for examples of each length: the least of W, 2W, 4W, … that holds them.

    W holds all training examples, so that few shapes are compiled.
    """
    least = -(-self.trained // GRANULE) * GRANULE
    return {
      length: least << max(0, (-(-n // least) - 1).bit_length())
      for length, n in self.tokens.items()
    }

  @functools.cached_property
  def tokens(self) -> dict[int, int]:
    """The most tokens that an example of each length has."""
    most = {}
    for length in sorted({length for lengths in self.lengths.values() for length in lengths}):
      most[length] = self.size_of(self.widest(length))
    return most

  def size_of(self, example: Example) -> int:
    """Return the number of tokens that a model reads of an example."""
    x, y = example
    return 1 + len(x) + (1 + len(y) if self.task.form == "decoder" else 0)

  @property
  def trained(self) -> int:
    """The most tokens of an example that is trained on."""
    return max(self.tokens[length] for length in self.lengths["train"])

  def steps_per_epoch(self, batch_size: int) -> int:
    return max(1, self.epoch // batch_size)

  def batches(self, batch_size: int, *, seed: int, start: int = 0) -> Iterator[Batch]:
    """Yield batches of mixed lengths without end from step `start` on."""
    width = self.widths[self.lengths["train"][-1]]
    for step in itertools.count(start):
      drawn = self.training(np.random.default_rng([seed, step]), batch_size)
      wide = width
      while max(map(self.size_of, drawn)) > wide:  # of a task whose examples differ in size
        wide *= 2
      yield self.batch(drawn, np.arange(batch_size), wide, batch_size)

  def evaluation(self, split: str, batch_size: int) -> Iterator[Batch]:
    """Yield every example of a split once, narrow ones first; UserError if it has no examples."""
    if split not in self.splits:
      raise UserError(
        f"the split {split} has no examples to measure: those of training are {self.source}; there "
        f"are {', '.join(self.splits)}"
      )
    lengths, examples = self.splits[split]
    widths = np.array([self.widths[length] for length in lengths.tolist()])
    for width in np.unique(widths).tolist():
      places = np.flatnonzero(widths == width)
      for chosen in np.split(places, range(batch_size, len(places), batch_size)):
        yield self.batch([examples[i] for i in chosen], chosen, width, batch_size)

  def batch(self, examples: Sequence[Example], index: np.ndarray, width: int, rows: int) -> Batch:
    """Turn examples into a batch of tokens, with rows of padding.

    Returns weight float32 [B], index int32 [B] (−1 for padding), tokens int32 [B,L]; for a decoder
    or a tagger labels int32 [B,L], mask bool [B,L] of the targets that count, fresh bool [B], and
    slots int32 [B], the tokens that random positions are drawn for: those of the longest row of
    training, so that gaps say nothing of a row's length, or the row's own where they are more; for
    a classifier mask bool [B,L] of real tokens and labels int32 [B].
    """
    symbols = np.concatenate([*itertools.chain(*examples)])
    if symbols.dtype.kind not in "iu" or symbols.min(initial=0) < 0:
      raise UserError(DRAWN)
    if (most := symbols.max(initial=0)) >= self.task.symbols:
      raise UserError(
        f"an example has the symbol {most}, and symbols = {self.task.symbols} counts them "
        f"from 0: make it {most + 1} or more"
      )
    form = self.task.form
    tokens, labels = np.full((2, rows, width), PAD, np.int32)
    mask = np.zeros((rows, width), bool)
    slots = np.full(rows, self.trained, np.int32)
    for row, (x, y) in enumerate(examples):
      given, answer = [BOS, *(x + FIRST)], [*(y + FIRST)]
      if form == "decoder":
        given.insert(len(given) - self.task.question, SEP)
        given, answer = [*given, *answer], [*answer, EOS]
      end = len(given)
      tokens[row, :end] = given
      if form != "encoder":
        labels[row, end - len(answer) : end] = answer
      mask[row, 0 if form == "encoder" else end - len(answer) : end] = True
      slots[row] = max(self.trained, end)
    classes = np.array([int(y[0]) if form == "encoder" else 0 for _, y in examples], np.int32)
    batch = {"tokens": tokens, "mask": mask} | numbered(index, rows)
    if form != "encoder":
      return batch | {"labels": labels, "fresh": np.ones(rows, bool), "slots": slots}
    mask[len(examples) :, 0] = True  # attention needs a key in every row
    return batch | {"labels": np.pad(classes, (0, rows - len(classes)))}
