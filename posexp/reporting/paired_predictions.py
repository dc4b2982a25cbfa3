"""The predictions of pairs of runs on the same examples, from what the runs have written alone."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from posexp import storage
from posexp.errors import UserError
from posexp.runs import Run, read_runs
from posexp.runs.predictions import load_predictions


class Columns(NamedTuple):
  """What a file of predictions holds, by its columns, and what is measured of it."""

  kind: str
  source: str  # may be missing
  reference: str
  answer: str
  metrics: tuple[str, ...]  # rows of the table of metrics
  items: str  # what an example is
  numbers: tuple[str, ...] = ()  # columns of numbers of which the metrics are made
  joined: bool = False  # examples are parts of one text; its numbers are nats and bytes

  @property
  def needed(self) -> set[str]:
    """The columns by which they are known."""
    return {self.reference, self.answer, *self.numbers}


COLUMNS = (
  Columns(
    "translation", "source", "reference", "hypothesis", ("bleu", "chrf", "exact_match"), "sentences"
  ),
  Columns("classification", "text", "label", "prediction", ("accuracy",), "texts"),
  Columns(
    "language modeling", "", "text", "loss", ("bits_per_byte",), "segments", ("loss", "bytes"), True
  ),
  Columns(
    "parsing",
    "text",
    "tree",
    "parse",
    ("f1", "exact_match"),
    "sentences",
    ("matched", "gold", "predicted"),
  ),
  Columns(
    "answers", "input", "reference", "exact", ("exact_match",), "examples", ("right", "tokens")
  ),
)


class Prediction(NamedTuple):
  """A row of a file of predictions."""

  source: str
  reference: str
  answer: str
  nats: float | None = None  # of a part of a text, and its bytes
  bytes: int = 0
  counts: tuple[int, ...] = ()


def paired(a: Path, b: Path) -> tuple[list[tuple[Run, Run]], list[str]]:
  """Finished runs to compare, and notes on those left out.

  One run on each side is a pair whatever the seeds; of several those with the same seed are.

  Raises:
    UserError: there are no runs, they have not finished, share no seed, or are the same.
  """
  sides, notes = [], []
  for path in (a, b):
    runs, more = read_runs([path])
    if len({run.path.parent for run in runs}) > 1:
      raise UserError(
        f"{path} holds several groups of runs: name a run, or the folder of the seeds of one group"
      )
    sides.append({run.seed: run for run in runs if run.summary is not None})
    if not sides[-1]:
      raise UserError(f"{path} has not finished: the command that started it goes on with it")
    notes += more
    notes += [f"left out, since not finished: {run.path}" for run in runs if run.summary is None]
  of_a, of_b = sides
  if len(of_a) == len(of_b) == 1:
    pairs = [(*of_a.values(), *of_b.values())]
  else:
    pairs = [(of_a[seed], of_b[seed]) for seed in sorted(of_a.keys() & of_b.keys())]
    alone = [of_a.get(seed) or of_b[seed] for seed in sorted(of_a.keys() ^ of_b.keys())]
    notes += [f"left out, since the other has no such seed: {run.path}" for run in alone]
  if not pairs:
    raise UserError(f"{a} and {b} share no seed with which both have finished")
  for one, other in pairs:
    if one.path.resolve() == other.path.resolve():
      raise UserError(f"{one.path} is compared with itself: name two runs")
  return pairs, notes


def read_pairs(
  pairs: Sequence[tuple[Run, Run]], split: str
) -> tuple[Columns, list[tuple[list[Prediction], list[Prediction]]]]:
  """Return the predictions of all pairs for a split, which are of the same examples.

  Raises:
    UserError: there are none, or they are damaged, or of no known columns; or runs were tested on
      other data.
  """
  runs = [run for pair in pairs for run in pair]
  first = runs[0]
  for run in runs:
    sizes = [each.score(f"{split}/bytes") for each in (first, run)]
    if sizes[0] != sizes[1] and None not in sizes:
      raise UserError(
        f"{run.path} was measured on {sizes[1]:,.0f} bytes of {split}, and {first.path} on "
        f"{sizes[0]:,.0f}: bits per byte of two texts say nothing of each other"
      )
  columns, reference = _read(first, split)
  sides = [reference]
  for run in runs[1:]:
    other, rows = _read(run, split)
    if other != columns:
      raise UserError(
        f"{run.path} is a run of {other.kind}, and {first.path} of {columns.kind}: name runs of "
        "one task"
      )
    if not columns.joined:
      _check_same(run, rows, first, reference, split)
    sides.append(rows)
  if columns.joined:
    sides = _joined(sides)
    for run, rows in zip(runs, sides, strict=True):
      _check_same(run, rows, first, sides[0], split)
  return columns, list(zip(sides[::2], sides[1::2], strict=True))


def _check_same(
  run: Run, rows: Sequence[Prediction], first: Run, reference: Sequence[Prediction], split: str
) -> None:
  """Raise UserError unless two runs have predictions of the same examples."""
  same = [_shown(one) == _shown(two) for one, two in zip(reference, rows, strict=False)]
  if len(rows) != len(reference) or not all(same):
    problem = f"{run.path} has other {split} data than {first.path}"
    raise UserError(f"{problem}, from example {[*same, False].index(False)} on")


def _shown(row: Prediction) -> tuple[str, str]:
  """Return what was asked and what is right. Of a part of a text, which may begin within a letter,
  ASCII letters alone.
  """
  if row.nats is None:
    return row.source, row.reference
  return row.source, "".join(each for each in row.reference if each.isascii())


def _joined(sides: Sequence[Sequence[Prediction]]) -> list[list[Prediction]]:
  """Parts of the same text that runs have cut differently, joined until all have cut there."""
  ends = [np.cumsum([row.bytes for row in rows]) for rows in sides]
  common = functools.reduce(np.intersect1d, ends)
  found = []
  for rows, end in zip(sides, ends, strict=True):
    part = np.searchsorted(common, end).tolist()
    groups = itertools.groupby(zip(part, rows, strict=True), key=lambda pair: pair[0])
    found.append([_one([row for _, row in members]) for _, members in groups])
  return found


def _one(rows: Sequence[Prediction]) -> Prediction:
  """Neighboring parts of a text as one."""
  nats, size = sum(row.nats for row in rows), sum(row.bytes for row in rows)
  text = "".join(row.reference for row in rows)
  return Prediction("", text, f"{nats / math.log(2) / max(size, 1):.3f} bits per byte", nats, size)


def _read(run: Run, split: str) -> tuple[Columns, list[Prediction]]:
  """Return the predictions of a run in their order, and the columns that they stand in."""
  rows = load_predictions(run.path, split)
  if not rows:
    files = (run.path / "predictions").glob("*.jsonl")
    others = ", ".join(sorted(file.stem for file in files if file.stem != split))
    there = f"; it has those of {others}" if others else ""
    raise UserError(f"{run.path} has no predictions of the split {split}{there}")
  for columns in COLUMNS:
    if all(columns.needed <= row.keys() for row in rows):
      found = [_prediction(row, columns) for row in rows]
      if None in found:
        names = ", ".join(columns.numbers)
        raise UserError(f"{run.path}: its predictions of {split} have no numbers in {names}")
      return columns, found
  wanted = " or ".join(f"{each.reference} and {each.answer}" for each in COLUMNS)
  raise UserError(f"{run.path}: its predictions cannot be compared, for want of columns {wanted}")


def _prediction(row: Mapping[str, Any], columns: Columns) -> Prediction | None:
  """Return a row; None if what must be a number is none."""
  names = columns.source, columns.reference, columns.answer
  texts, numbers = [str(row.get(name, "")) for name in names], [row[n] for n in columns.numbers]
  whole = numbers[1:] if columns.joined else numbers
  if not all(type(each) is int and each >= 0 for each in whole):
    return None
  if not columns.joined:
    return Prediction(*texts, counts=tuple(numbers))
  nats, size = numbers
  finite = storage.is_number(nats) and math.isfinite(nats)
  return Prediction(*texts, nats, size) if finite else None
