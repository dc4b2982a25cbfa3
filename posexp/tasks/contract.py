"""What a task is: its options, its data, its model, and how a trained model is measured.

A task is one module: a frozen dataclass of options that inherits `Task`, listed in TASKS. Training
asks nothing else of it than what stands here, in this order:

    task = First(length=8)                              options, checked when they are given
    data = task.prepare(folder)                         batches, sizes and what is said of them
    spec = data.model(encoding, size, positions)        from which the model is built
    metrics, weight, carry = model.loss(batch, carry, ...)
    task.measure(data, snapshot, "validation")          while it is trained
    task.conclude(data, snapshot, folder)               once, at the end

Shapes: B rows of a batch, N examples of a split.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from posexp.data.examples import Batch
from posexp.data.splits import EVALUATED
from posexp.errors import near
from posexp.runs import Broken, read_config, read_rows, read_summary
from posexp.runs.metrics import METRICS, Metric, Score, score
from posexp.runs.predictions import are_whole

if TYPE_CHECKING:
  import numpy as np
  from flax import nnx
  from jax import Array, ShapeDtypeStruct

  from posexp.encodings import Encoding
  from posexp.encodings.rngs import Rngs
  from posexp.encodings.span import TermScale
  from posexp.models.positions import Positions
  from posexp.models.transformer import Size, Stack

log = logging.getLogger("posexp")

Outputs = dict[str, "np.ndarray"]  # of every example of a split, [N] or [N,...] each


class ModelSpec(Protocol):
  """All that a model is built from: a frozen dataclass, so that equal ones share a program.

  `dataclasses.replace` gives the same model with another encoding or of another size. It may have
  `notes`, sentences on the model for the header of a run.
  """

  encoding: Encoding
  size: Size
  positions: Positions

  @property
  def vocab_size(self) -> int:
    """How many tokens the model knows; of a model that writes, those that it writes."""

  def build(self, rngs: Rngs) -> Model:
    """The model, with weights drawn from the streams `params` and `encoding`.

    Raises:
      ValueError: sizes, encoding and positions do not suit each other.
    """

  def inputs(self, length: int) -> tuple[ShapeDtypeStruct | dict[str, ShapeDtypeStruct], ...]:
    """The shapes of what the model is called with, for one sequence of `length` tokens."""


class Model(Protocol):
  """A Flax module that can be trained.

  The carry is what a step leaves for the next one, such as the memory of a recurrent language
  model: a pytree of arrays [B,...], or an empty one such as (). It is part of the state and of its
  checkpoints, and is divided among devices, and among the parts of a batch, by rows: row i of a
  step goes on from row i of the step before. No gradient flows through it. A model whose carry is
  not empty needs batches that all have as many rows.
  """

  metrics: ClassVar[tuple[str, ...]]  # the names of what `loss` gives

  @property
  def stacks(self) -> tuple[Stack, ...]:
    """Its Transformer stacks, that of an encoder first."""

  def initial_carry(self, rows: int) -> Any:
    """The carry before the first step, made without reading any weight."""

  def loss(
    self, batch: dict[str, Array], carry: Any, *, label_smoothing: float, rngs: Rngs
  ) -> tuple[dict[str, Array], Array, Any]:
    """The metrics of a batch, each a mean; their weight; and the next carry.

    "loss" is among the metrics, and is what training makes small. Batches are averaged by their
    weights: the number of rows, or of tokens. `rngs` has the streams `dropout` and `positions`.
    """

  def predict(
    self, batch: dict[str, Array], carry: Any, term_scale: TermScale | None = None
  ) -> tuple[dict[str, Array], Any]:
    """What is measured of every row, [B] or [B,...] each, and the next carry.

    `term_scale` says how much of each term of its relations the model keeps, as in `Stack`.
    """


class Snapshot(Protocol):
  """A model at one moment of its training, on its devices."""

  graphdef: nnx.GraphDef
  batch_size: int  # of evaluation, as in training

  def model(self) -> nnx.Module:
    """The model itself."""

  def predict(
    self, batches: Iterable[Batch], term_scale: TermScale | None = None, split: str = ""
  ) -> Outputs:
    """Returns what `Model.predict` gives for all examples, in the order of the data, and `index`.

    Raises:
      UserError: a number of it is not finite; the message names the `split`.
    """

  def map(
    self, function: Callable[[Any, Any, dict[str, Array]], dict[str, Array]], batches: Any
  ) -> Outputs:
    """As `predict`, of any `function(params, settings, batch)` that gives arrays [B,...].

    Where batches give rows of different widths, narrow ones are filled up with 0.
    """


class Data(Protocol):
  """Data that are ready for a model."""

  item: ClassVar[str]  # what they are made of, "sentence"
  unit: ClassVar[str]  # what `batch_size` counts, "tokens"
  notes: tuple[str, ...]  # what was done to them, a sentence each
  longest: int  # tokens of the longest example of any split
  length: int  # of the longest batches, in tokens

  @property
  def sizes(self) -> dict[str, int]:
    """How many examples each split has; `train`, `validation` and `test` are among them."""

  @property
  def about(self) -> tuple[str, str]:
    """Two lines of the header: what is learned, and how large the vocabulary and examples are."""

  @property
  def word_counts(self) -> np.ndarray:
    """How often each token stands in the training examples, int [V]."""

  def model(self, encoding: Encoding, size: Size, positions: Positions) -> ModelSpec:
    """The model for these data."""

  def rows_of(self, batch_size: int) -> np.ndarray:
    """How many rows batches may have, int [kinds of batches]."""

  def steps_per_epoch(self, batch_size: int) -> int:
    """Batches in an epoch; UserError if there can be none."""

  def batches(self, batch_size: int, *, seed: int, start: int = 0) -> Iterator[Batch]:
    """Training batches without end from step `start` on: a pure function of (seed, step).

    Each has `mask` [B,L], of its real tokens, and what else its model's `loss` reads.
    """

  def evaluation(self, split: str, batch_size: int) -> Iterator[Batch]:
    """Every example of a split once, always in the same order.

    `index` int [B] is the place of an example in the split, −1 for a row that only fills the batch.
    """

  def texts(self, split: str, batch_size: int) -> Iterator[Batch]:
    """What the first stack reads of `evaluation`: `tokens` and `mask` [B,L], and `weight` [B]."""


class Task(Protocol):
  """A task; inherit it for what is not abstract."""

  score: ClassVar[str]  # chooses the checkpoint: "validation/accuracy"
  headline: ClassVar[tuple[str, ...]]  # the results that tables show, first the main one
  metrics: ClassVar[tuple[Metric, ...]] = ()  # those that METRICS lacks, or names differently
  followed: ClassVar[tuple[str, ...]] = ("loss",)  # metrics of `measure` that the log shows

  name: str  # a folder of this name holds the runs

  def data_digest(self) -> str | None:
    """sha256 of the user's own files; None where the options alone pin the data.

    Raises:
      UserError: a file is missing or empty.
    """
    return None

  def settled(self) -> Task:
    """Returns the task with what its data decide in place of options that are `auto`.

    It is asked before the run has a folder, and must take no time to speak of.
    """
    return self

  def smallest_model(self, encoding: Encoding, size: Size, positions: Positions) -> ModelSpec:
    """A model with tiny vocabularies, to check that one can be built before data are prepared."""

  def foreseen(self, batch_size: int) -> Data | None:
    """Data of no content, with a model and batches as those of the real ones will have, if the
    options alone say these. The step of training is compiled for them while data are prepared."""
    return None

  def prepare(self, folder: Path) -> Data:
    """The data. What belongs to the run, such as its tokenizer, is written to its folder.

    Raises:
      UserError: data are missing, broken or of no use.
    """

  def predict(
    self, data: Any, snapshot: Snapshot, split: str, term_scale: TermScale | None = None
  ) -> Outputs:
    """For every example: `loss`, `answer`, how many `tokens`, and how many `right`, [N] each."""

  def scores(self, found: Outputs) -> dict[str, float]:
    """The metrics of what was predicted, `loss` among them."""

  def measure(self, data: Any, snapshot: Snapshot, split: str) -> dict[str, float]:
    """The metrics of a split that are followed during training."""
    return self.scores(self.predict(data, snapshot, split))

  def chosen_by(self, data: Any) -> str:
    """Returns the metric that chooses the checkpoint: `score`, where that applies to the data."""
    return self.score

  def conclude(self, data: Any, snapshot: Snapshot, folder: Path) -> dict[str, Any]:
    """The part of the summary that is measured once: metrics by "test/<name>".

    What is predicted may be written by `posexp.runs.predictions`, which comparisons read.
    """
    return prefixed("test", self.measure(data, snapshot, "test"))

  def predicted(self, summary: Mapping[str, Any]) -> Iterable[str]:
    """The splits of which `conclude` has written predictions; where these are lost, or damaged,
    training concludes again. Their rows have an `index`, from 0."""
    return ()

  def table(self, summary: Mapping[str, Any]) -> Iterator[str]:
    """The lines of the result: metrics of the best checkpoint, by split."""
    names = [name for key in summary for split, _, name in [key.partition("/")] if split == "test"]
    yield from result_table(self, summary, EVALUATED, names)


def finished(task: Task, folder: Path) -> dict[str, Any] | None:
  """The summary of a finished run; None where files of it are lost, damaged or changed, too.

  Training then makes them again, from the best checkpoint.

  Raises:
    UserError: they cannot be read, or the rows of metrics.jsonl, which nothing makes again, were
      changed.
  """
  try:
    if (summary := read_summary(folder)) is None:
      return None
    whole = read_config(folder) is not None and are_whole(folder, task.predicted(summary))
    if whole and [*task.table(summary)]:
      if damage := read_rows(folder)[1]:
        raise damage
      return summary
  except (Broken, LookupError, TypeError, ValueError):
    pass
  log.info("%s: lost or changed files of a finished run are made again", near(folder))
  return None


def result_table(
  task: Task, summary: Mapping[str, Any], splits: Iterable[str], names: Iterable[str]
) -> Iterator[str]:
  """A line for each of the metrics `names`, with a column for each of the splits that has it."""
  yield f"{'at step ' + format(summary['step'], ','):<24}" + "".join(map("{:>12}".format, splits))
  for name in names:
    metric, cells = metric_of(task, name), []
    for split in splits:
      value = summary.get(f"{split}/{name}")
      cells.append("" if value is None else format(value, metric.format))
    if any(cells):
      yield f"{metric.title:<24}" + "".join(map("{:>12}".format, cells))


def prefixed(split: str, metrics: Mapping[str, Any]) -> dict[str, Any]:
  """Metrics as a summary names them, by their split."""
  return {f"{split}/{name}": value for name, value in metrics.items()}


def perplexity(nats: float) -> float:
  """That of a loss for each token; a loss near infinity gives the perplexity of 700 nats."""
  return math.exp(min(nats, 700))  # a float64 holds hardly more


def score_of(task: Task, key: str) -> Score:
  """What a key of the task's rows or summary means, such as "validation/accuracy"."""
  return score(key, METRICS | {metric.name: metric for metric in task.metrics})


def metric_of(task: Task, name: str) -> Metric:
  """What a metric of the task means."""
  return score_of(task, name).metric


def declared(task: Task) -> dict[str, Any]:
  """What a summary says of a task of one's own, so that it is read without the task's code."""
  if type(task).__module__.partition(".")[0] == "posexp":
    return {}
  metrics = [metric._asdict() for metric in task.metrics if metric.name not in METRICS]
  return {"headline": list(task.headline)} | ({"metrics": metrics} if metrics else {})
