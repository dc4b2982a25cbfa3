"""The contract of a task: its options, its data, its model, and measures of a trained model.

A task is one module: a frozen dataclass of options that inherits `Task`, listed in TASKS. Training
uses only what this module declares, in this order:

    task = First(length=8)                              options, checked when they are given
    data = task.prepare(folder)                         batches, sizes and descriptions
    spec = data.model(encoding, size, positions)        builds the model
    metrics, weight, carry = model.loss(batch, carry, ...)
    task.measure(data, snapshot, "validation")          while it is trained
    task.conclude(data, snapshot, folder)               once, at the end

Shapes: B rows of a batch, N examples of a split.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import numpy as np

from posexp.data.batches import Batch
from posexp.data.splits import EVALUATED
from posexp.errors import near
from posexp.runs import Broken, read_config, read_rows, read_summary
from posexp.runs.metrics import METRICS, Metric
from posexp.runs.predictions import Columns, are_whole
from posexp.tasks.results import Outputs, prefixed, result_table

if TYPE_CHECKING:
  from flax import nnx
  from jax import Array, ShapeDtypeStruct

  from posexp.encodings import Encoding
  from posexp.encodings.rngs import Rngs
  from posexp.encodings.span import TermScale
  from posexp.models.backbones import AnySize
  from posexp.models.positions import Positions
  from posexp.models.transformer import Stack

log = logging.getLogger("posexp")


class ModelSpec(Protocol):
  """All that a model is built from: a frozen dataclass, so that equal ones share a program.

  `dataclasses.replace` gives the same model with another encoding or size. A specification may have
  `notes`, sentences on the model for the header of a run.
  """

  encoding: Encoding
  size: AnySize
  positions: Positions

  def __hash__(self) -> int:
    """Return a number that equal specifications share."""

  @property
  def vocab_size(self) -> int:
    """The number of tokens that the model reads, or writes if it writes."""

  def build(self, rngs: Rngs) -> Model:
    """Build the model with weights drawn from the streams `params` and `encoding`.

    Raises:
      ValueError: sizes, encoding and positions do not suit each other.
    """

  def inputs(self, length: int) -> tuple[ShapeDtypeStruct | dict[str, ShapeDtypeStruct], ...]:
    """Return the shapes of the model's inputs, for one sequence of `length` tokens."""


class Model(Protocol):
  """A Flax module that can be trained.

  The carry is what a step leaves for the next one, such as the memory of a recurrent language
  model: a pytree of arrays [B,...], or an empty one such as (). It is part of the state and of
  checkpoints, and is divided by rows, among devices and among the parts of a batch: row i of a step
  continues row i of the step before. No gradient flows through the carry. A model whose carry is
  not empty needs batches of equal numbers of rows.
  """

  metrics: ClassVar[tuple[str, ...]]  # the names of the metrics that `loss` returns

  @property
  def stacks(self) -> tuple[Stack, ...]:
    """The Transformer stacks, an encoder's first."""

  def initial_carry(self, rows: int) -> Any:
    """Return the carry before the first step, without reading any weight."""

  def loss(
    self, batch: dict[str, Array], carry: Any, *, label_smoothing: float, rngs: Rngs
  ) -> tuple[dict[str, Array], Array, Any]:
    """Return the metrics of a batch, each a mean; their weight; and the next carry.

    Training minimizes the metric "loss". Batches are averaged by their weights: the number of rows
    or of tokens. `rngs` has the streams `dropout` and `positions`.
    """

  def predict(
    self, batch: dict[str, Array], carry: Any, term_scale: TermScale | None = None
  ) -> tuple[dict[str, Array], Any]:
    """Return the outputs of every row, [B] or [B,...] each, and the next carry.

    `term_scale` scales the terms of the model's relations, as in `Stack`.
    """


class Snapshot(Protocol):
  """A model at one moment of its training, on its devices."""

  @property
  def graphdef(self) -> nnx.GraphDef:
    """The structure of the model."""

  @property
  def batch_size(self) -> int:
    """The rows of a batch of evaluation, as in training."""

  def model(self) -> nnx.Module:
    """Return the model itself."""

  def predict(
    self, batches: Iterable[Batch], term_scale: TermScale | None = None, split: str = ""
  ) -> Outputs:
    """Return the outputs of `Model.predict` for all examples, in the order of the data, and
    `index`.

    Raises:
      UserError: a number of it is not finite; the message names the `split`.
    """

  def map(
    self, function: Callable[[Any, Any, dict[str, Array]], dict[str, Array]], batches: Any
  ) -> Outputs:
    """Map batches, like `predict`, by any `function(params, settings, batch)` -> arrays [B,...].

    If batches give rows of different widths, narrow ones are padded with 0.
    """


class Data(Protocol):
  """Data that are ready for a model; subclasses inherit the methods that are not abstract."""

  item: ClassVar[str]  # the name of an example, "sentence"
  unit: ClassVar[str]  # the unit of `batch_size`, "tokens"
  notes: tuple[str, ...] = ()  # sentences on what was done to the data
  length: int  # tokens of the longest batches

  @property
  def longest(self) -> int:
    """The number of tokens of the longest example of any split."""
    return self.length

  @property
  def sizes(self) -> dict[str, int]:
    """The number of examples of each split, among them `train`, `validation` and `test`."""

  @property
  def about(self) -> tuple[str, str]:
    """Two lines for the header: the task, and the sizes of the vocabulary and of examples."""

  @property
  def word_counts(self) -> np.ndarray:
    """The count of each token in the training examples, int [V]."""

  @property
  def chance(self) -> float | None:
    """The training loss in nats of guessing by the shares of the answers; None: not known."""
    return None

  def model(self, encoding: Encoding, size: AnySize, positions: Positions) -> ModelSpec:
    """Return the specification of the model for these data."""

  def rows_of(self, batch_size: int) -> np.ndarray:
    """Return the numbers of rows that batches may have, int [kinds of batches]."""
    return np.array([batch_size])

  def steps_per_epoch(self, batch_size: int) -> int:
    """Count the batches of an epoch; UserError if there can be none."""

  def batches(self, batch_size: int, *, seed: int, start: int = 0) -> Iterator[Batch]:
    """Yield training batches without end from step `start` on: a pure function of (seed, step).

    Each has `mask` [B,L] of its real tokens, and whatever else the model's `loss` reads.
    """

  def evaluation(self, split: str, batch_size: int) -> Iterator[Batch]:
    """Yield every example of a split once, always in the same order.

    `index` int [B] is the place of an example in the split, −1 for a row that only fills the batch.
    """

  def texts(self, split: str, batch_size: int) -> Iterator[Batch]:
    """Yield the first stack's inputs of `evaluation`: `tokens`, `mask` [B,L] and `weight` [B]."""
    return self.evaluation(split, batch_size)


class Task(Protocol):
  """A task; subclasses inherit the methods that are not abstract."""

  score: ClassVar[str]  # chooses the checkpoint: "validation/accuracy"
  headline: ClassVar[tuple[str, ...]]  # the results that tables show, the main one first
  metrics: ClassVar[tuple[Metric, ...]] = ()  # metrics that METRICS lacks or names differently
  followed: ClassVar[tuple[str, ...]] = ("loss",)  # metrics of `measure` that the log shows
  # Options that a run may have otherwise than the one from whose weights it starts: neither tokens
  # nor the texts of a split depend on them.
  adjustable: ClassVar[tuple[str, ...]] = ()
  smoothed: ClassVar[bool] = True  # whether train.label_smoothing means something for its loss
  compare_by: ClassVar[str] = "accuracy"  # what right / tokens of `predict` is, over all examples
  prediction_columns: ClassVar[Columns | None] = None  # of what it writes, by which runs compare
  commands: ClassVar[tuple[str, ...]] = ()  # that open its runs, beside those for every task

  name: str  # a folder of this name holds the runs

  def data_digest(self) -> str | None:
    """Return the sha256 of the user's own files; None if the options alone determine the data.

    Raises:
      UserError: a file is missing or empty.
    """
    return None

  def settled(self) -> Task:
    """Return the task with its `auto` options decided by its data.

    It is asked before the run has a folder, and must take no time to speak of.
    """
    return self

  def smallest_model(self, encoding: Encoding, size: AnySize, positions: Positions) -> ModelSpec:
    """Return a model with tiny vocabularies, to check sizes before data are prepared."""

  def kept_model(
    self, folder: Path, encoding: Encoding, size: AnySize, positions: Positions
  ) -> ModelSpec:
    """Return the model of a run from the files of `prepare` in its folder, without its data.

    Raises:
      UserError: a file of the folder is missing or another run's.
    """

  def prepare(self, folder: Path) -> Data:
    """Prepare the data; write the run's own files, such as its tokenizer, to its folder.

    Raises:
      UserError: data are missing, broken or useless.
    """

  def predict(
    self, data: Any, snapshot: Snapshot, split: str, term_scale: TermScale | None = None
  ) -> Outputs:
    """Return each example's `loss`, `answer`, number of `tokens` and of `right` ones, [N] each."""
    outputs = snapshot.predict(data.evaluation(split, snapshot.batch_size), term_scale, split)
    return self.answers(data, split, outputs)

  def answers(self, data: Any, split: str, found: Outputs) -> Outputs:
    """Return the predictions that `predict` promises, from the model's outputs for a split."""
    return found

  def scores(self, found: Outputs) -> dict[str, float]:
    """Return the metrics of predictions, `loss` among them."""

  def scores_of(self, data: Any, split: str, found: Outputs) -> dict[str, float]:
    """Return the metrics of predictions for all of a split, as `conclude` has them."""
    return self.scores(found)

  def measure(self, data: Any, snapshot: Snapshot, split: str) -> dict[str, float]:
    """Return the metrics of a split that are followed during training."""
    return self.scores(self.predict(data, snapshot, split))

  def chosen_by(self, data: Any) -> str:
    """Return the metric that chooses the checkpoint: `score`, where that applies to the data."""
    return self.score

  def conclude(self, data: Any, snapshot: Snapshot, folder: Path) -> dict[str, Any]:
    """Return the part of the summary that is measured once: metrics by "test/<name>".

    Predictions may be written by `posexp.runs.predictions`, where comparisons read them.
    """
    return prefixed("test", self.measure(data, snapshot, "test"))

  def predicted(self, summary: Mapping[str, Any]) -> Iterable[str]:
    """Return the splits whose predictions `conclude` has written, in rows with an `index` from 0;
    if a file of them is lost or damaged, training concludes again.
    """
    return ()

  def table(self, summary: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines of the result: metrics of the best checkpoint, by split."""
    names = [name for key in summary for split, _, name in [key.partition("/")] if split == "test"]
    yield from result_table(self.metrics, summary, EVALUATED, names)


def declared(task: Task) -> dict[str, Any]:
  """Describe a task for the summary of a run, which is read without the task's code: its
  `headline`, its own `metrics`, and the `columns` of its predictions.
  """
  about: dict[str, Any] = {"headline": [*task.headline]}
  if own := [metric._asdict() for metric in task.metrics if metric.name not in METRICS]:
    about["metrics"] = own
  if task.prediction_columns is not None:
    about["columns"] = task.prediction_columns._asdict()
  return about


def finished(task: Task, folder: Path) -> dict[str, Any] | None:
  """Return the summary of a finished run; None where files of it are lost, damaged or changed, too.

  Training then makes these files again, from the best checkpoint.

  Raises:
    UserError: they cannot be read, or the rows of metrics.jsonl, which nothing makes again, were
      changed.
  """
  try:
    if (summary := read_summary(folder)) is None:
      return None
    config = read_config(folder)
    trial = config is not None and config.get("trial")  # which writes no predictions
    whole = config is not None and are_whole(folder, task.predicted(summary))
    if trial or (whole and [*task.table(summary)]):
      if damage := read_rows(folder)[1]:
        raise damage
      return summary
  except (Broken, LookupError, TypeError, ValueError):
    pass
  log.info("%s: lost or changed files of a finished run are made again", near(folder))
  return None
