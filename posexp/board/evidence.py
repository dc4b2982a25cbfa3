"""Whether the summary of a run says what its config, rows of metrics and examples say."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from posexp.board.suite import Column
from posexp.errors import UserError
from posexp.runs import Run
from posexp.runs.checkpoints import Rank, best_of
from posexp.runs.examples import Examples
from posexp.runs.lengths import METRIC, extrapolation
from posexp.tasks import TASKS
from posexp.tasks.contract import Data
from posexp.tasks.diagnostic import LEARNED, Answering
from posexp.tasks.drawn import Answers
from posexp.tasks.results import declared, score_of
from posexp.training import costs, matching
from posexp.training.setup import Setup

CLOSE = 1e-4  # of numbers that are computed again
COUNTED = 0.01  # of FLOPs, which another version of JAX may count otherwise
VALIDATION = "validation/"
STATED = ("headline", "metrics", "gates")  # what a summary says of its own scores


class Claim(NamedTuple):
  """A number that a summary should have."""

  key: str
  value: float
  by: str  # what says so
  within: float = CLOSE


def check_summary(run: Run, column: Column, data: Data) -> None:
  """Raise UserError, which says why, unless a summary says what all else of its run says.

  `data` are those of the column's task.
  """
  setup = Setup.of(run.config)
  stated = _stated(run, setup, data)
  for key in STATED:
    if (said := run.summary.get(key)) != (found := stated.get(key)):
      raise UserError(f"{key} is {said}, and by its task it is {found}")
  for claim in _claims(run, column, setup, data):
    said = run.score(claim.key)
    # A comparison with NaN is false, so that a value which is none is refused, too.
    if said is None or not abs(said - claim.value) <= claim.within * max(abs(claim.value), 1.0):
      raise UserError(
        f"{claim.key} is {run.summary.get(claim.key)}, and by {claim.by} it is {claim.value:.6f}"
      )


def prepared(config: Mapping[str, Any]) -> Data:
  """Return the data of a config's task."""
  with tempfile.TemporaryDirectory() as folder:
    return Setup.of(config).task.prepare(Path(folder))


def _stated(run: Run, setup: Setup, data: Data) -> dict[str, Any]:
  """Return what a summary says of its own scores, as training and the task write it."""
  task = setup.task
  found = {} if type(task) in TASKS.values() else declared(task.metrics, task.headline)
  if run.trial:
    return found | {"headline": [score_of(task.metrics, task.chosen_by(data)).key]}
  if isinstance(task, Answering):
    within = "test" if "test" in data.sizes else "validation"
    found["gates"] = {"beyond": {"metric": f"{within}/{METRIC}", "least": LEARNED}}
  return found


def _claims(run: Run, column: Column, setup: Setup, data: Data) -> Iterator[Claim]:
  """Yield the numbers that a summary should have; UserError where nothing says what they are."""
  facts = matching.facts(setup.model_for(data), data.length, setup.size)
  for key, value in facts.items():
    yield Claim(key, value, "its config", COUNTED if key.startswith("flops") else CLOSE)
  yield from _by_rows(run, setup, data)
  if run.trial:
    return
  by_examples = {claim.key: claim for claim in _by_examples(run, data)}
  yield from by_examples.values()
  try:
    extrapolated = extrapolation(run.summary)
  except ArithmeticError as error:
    raise UserError("its scores by length have a length of 0") from error
  yield from (Claim(key, value, "its scores by length") for key, value in extrapolated.items())
  for key in [side.score for side in column.sides.values()]:
    if run.score(key) is None:
      raise UserError(f"it has no {key}")
    if key.partition("/")[0] in data.sizes and key not in by_examples | extrapolated:
      raise UserError(f"its record of examples does not say what {key} is")


def _by_rows(run: Run, setup: Setup, data: Data) -> Iterator[Claim]:
  """Yield the validation scores of the chosen step, and what training took."""
  scores = [key for key in run.summary if key.startswith(VALIDATION)]
  if run.trial and "diverged" in run.summary and not scores:
    return
  chosen_by = score_of(setup.task.metrics, setup.task.chosen_by(data))
  sign = 1 if chosen_by.metric.higher_is_better else -1
  rows = {row["step"]: row for row in run.history if chosen_by.key in row}
  ranks = {
    step: Rank(sign * row[chosen_by.key], -row.get("validation/loss", 0.0))
    for step, row in rows.items()
  }
  if (step := run.summary.get("step")) not in [*rows]:  # it may be of any type
    raise UserError(f"it has no row of metrics of its step {step}")
  if step != (best := best_of(ranks)):
    raise UserError(f"its step is {step}, and by its rows of metrics step {best} is the best")
  row = rows[step]
  for key in dict.fromkeys([*scores, *(key for key in row if key.startswith(VALIDATION))]):
    if key not in row:
      raise UserError(f"its row of metrics of step {step} has no {key}")
    yield Claim(key, row[key], "its rows of metrics", 0.0)
  for key, value in costs.of_run(run.history).items():
    yield Claim(key, value, "its rows of metrics", 0.0)
  if not (run.score("time/cpu_seconds") or 0.0) > 0:
    raise UserError("its time/cpu_seconds is no time")


def _by_examples(run: Run, data: Data) -> Iterator[Claim]:
  """Yield the scores that single examples add up to; UserError if they are not all there."""
  measured = _measured(run)
  answers = isinstance(data, Answers)
  for split in data.sizes if answers else ():
    if split not in ("train", "validation") and (split, METRIC) not in measured:
      raise UserError(f"its record of examples has none of {split}")
  for (split, metric), (one, is_share) in measured.items():
    key, count = f"{split}/{metric}", len(one.sizes)
    if (answers or is_share) and count != data.sizes.get(split):
      raise UserError(
        f"its record of examples has {count} of {split}, and the task has {data.sizes.get(split)}"
      )
    if key in run.summary:
      yield Claim(key, float(one.amounts.sum() / (one.sizes.sum() or 1.0)), "its examples")
    if isinstance(data, Answers) and metric == METRIC:
      yield from _by_length(run, key, one, data.splits[split][0], data.lengths[split])


def _by_length(
  run: Run, key: str, one: Examples, lengths: Any, tested: Sequence[int]
) -> Iterator[Claim]:
  """Yield the score of each length; UserError for one of a length that is not tested."""
  known = {f"{key}/{length}": one.amounts[lengths == length] for length in tested}
  if strange := [each for each in run.summary if each.startswith(f"{key}/") and each not in known]:
    raise UserError(f"it has {strange[0]}, a length that the task does not test")
  for each, values in known.items():
    yield Claim(each, float(values.mean()), "its examples")


def _measured(run: Run) -> dict[tuple[str, str], tuple[Examples, bool]]:
  """Return the examples by split and metric, and whether each is a share; UserError if damaged."""
  try:
    return {
      (split, metric): (Examples.unpacked(packed), "right" in packed)
      for split, metrics in run.examples.items()
      for metric, packed in metrics.items()
    }
  except (ArithmeticError, AttributeError, MemoryError, TypeError, ValueError) as error:
    raise UserError("its record of examples is damaged") from error
