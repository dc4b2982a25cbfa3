"""Measure a model of a diagnostic at other lengths: exact match by the length of the input.

examples:
  python -m posexp.lengths RUN 20:100:5
  python -m posexp.lengths RUN 30,60 rope.scaling=ntk rope.factor=4        with other options

Options are those that python -m posexp.evaluate takes.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tabulate import tabulate

from posexp.config.arguments import Parser, command, keep, ranges
from posexp.diagnostics.answering import LEARNED
from posexp.diagnostics.diagnostic import Diagnostic
from posexp.errors import UserError
from posexp.reporting.text import wrapped
from posexp.runs.lengths import REACHED, reach

if TYPE_CHECKING:
  from posexp.training.restore import TrainedModel

MEASURES = {"exact": "exact match", "oracle": "but for the end"}
Row = dict[str, Any]


def arguments(argv: list[str]) -> argparse.Namespace:
  """Parse the command line; raise UserError if it cannot be understood."""
  parser = Parser("lengths", __doc__)
  args = parser.parse_to_measure(argv, {"lengths": "30,60 or from:to:step"})
  try:
    args.lengths = ranges(args.lengths)
  except (ValueError, argparse.ArgumentTypeError):
    parser.error(f"{args.lengths}: write LENGTHS as 30,60 or from:to:step")
  return args


def lengths(args: argparse.Namespace) -> dict[str, Any]:
  """Measure a run at the lengths that were asked for, and print the result.

  The examples are drawn for these lengths, the same for every run, from the symbols of training.
  The gate is passed by the score on validation, whose lengths are those of training.

  Returns:
    A row for each length, whether the task was `learned`, and the `reach` among these lengths.

  Raises:
    UserError: the run is of no diagnostic, a length is none of the task's, or all lengths take more
      positions, or more symbols, than the model has.
  """
  from posexp.training.restore import open_for

  trained = open_for("lengths", args.run, args.options)
  task: Any = trained.setup.task
  refused = {}
  for length in args.lengths:
    if reason := lacking(trained, task, length):
      refused[length] = reason
  possible = tuple(length for length in args.lengths if length not in refused)
  if not possible:
    raise UserError(f"LENGTHS: {next(iter(refused.values()))}; choose shorter ones")
  rows = measured(trained, task, possible)
  within = task.measure(trained.data, trained.snapshot, "validation")["exact_match"]
  result = {
    "encoding": trained.run.config["encoding"],
    "step": int(trained.snapshot.state.step),
    "lengths": {row["length"]: row for row in rows},
    "not_applicable": refused,
    "within": within,
    "learned": within >= LEARNED,
    "reach": reach({row["length"]: row["exact"]["mean"] for row in rows}),
  }
  keep(**result)
  options = "".join(f", {option}" for option in args.options)
  print(wrapped(f"{result['encoding']}, step {result['step']:,}{options}"))
  print(table(result, range(task.shortest, task.longest + 1)))
  return result


def lacking(trained: TrainedModel, task: Diagnostic, length: int) -> str:
  """Return why a model cannot be measured at a length; "" if it can.

  Raises:
    UserError: it is no length of the task.
  """
  try:
    asked = dataclasses.replace(task, lengths=(length,))
  except ValueError as error:
    raise UserError(f"LENGTHS: {error}") from None
  if asked.symbols > task.symbols:
    return f"takes {asked.symbols:,} symbols, and the model has {task.symbols:,}"
  limit = trained.spec.positions.limit(trained.spec.encoding.limit)
  if limit is not None and (tokens := asked.prepare(trained.run.path).tokens[length]) > limit:
    return f"takes {tokens:,} tokens, and there are {limit:,} positions"
  return ""


def measured(trained: TrainedModel, task: Diagnostic, lengths: tuple[int, ...]) -> list[Row]:
  """Return a row for each length: exact match, with and without the end, and token accuracy."""
  data, rows = dataclasses.replace(task.prepare(trained.run.path), tested=lengths), []
  for split in [split for split in ("test", "beyond") if split in data.splits]:
    predictions = task.predict(data, trained.snapshot, split)
    for length in data.lengths[split]:
      chosen = predictions["length"] == length
      row: Row = {name: share(predictions[name][chosen]) for name in MEASURES}
      tokens = int(predictions["tokens"][chosen].sum())
      row |= {"length": length, "accuracy": float(predictions["right"][chosen].sum()) / tokens}
      rows.append(row | {"examples": int(chosen.sum()), "chance": data.blind[length]})
  return rows


def share(right: Sequence[bool]) -> dict[str, float]:
  """Return the share of examples that are right, and its 95 % interval (Wilson 1927)."""
  from scipy import stats

  count = int(sum(right))
  low, high = stats.binomtest(count, len(right)).proportion_ci(method="wilson")
  return {"mean": count / len(right), "low": float(low), "high": float(high)}


def table(result: dict[str, Any], trained: range) -> str:
  """Format a row for each length in per cent, and the result of the gate."""
  rows = []
  for length, row in result["lengths"].items():
    cells = [_interval(row[name]) for name in MEASURES]
    cells += [f"{100 * row['accuracy']:.1f}", f"{100 * row['chance']:.1f}"]
    rows.append([length, "trained" if length in trained else "", *cells])
  rows += [[length, "not applicable", why] for length, why in result["not_applicable"].items()]
  heads = ["length", "", *MEASURES.values(), "accuracy", "blind to order"]
  text = tabulate(rows, heads, "plain", disable_numparse=True, colalign=["right", "left"])
  count = next(iter(result["lengths"].values()))["examples"]
  learned = f"{'' if result['learned'] else 'not '}learned: {100 * result['within']:.1f} %"
  return "\n".join(
    [
      text,
      f"in per cent of {count:,} examples of each length, with 95 % Wilson intervals",
      f"{learned} exact match of validation, of lengths {trained[0]} to {trained[-1]}"
      + ("" if result["learned"] else f"; below {100 * LEARNED:.0f} % longer ones say nothing"),
      f"at least {100 * REACHED:.0f} % up to length {result['reach']}",
    ]
  )


def _interval(found: dict[str, float]) -> str:
  mean, low, high = (f"{100 * found[end]:.1f}" for end in ("mean", "low", "high"))
  return f"{mean} ({low} to {high})"


main = command("opening the run", lengths, arguments)
