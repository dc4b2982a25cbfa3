"""The predictions of pairs of runs on the same examples, from what the runs have written alone."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

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


COLUMNS = (
  Columns(
    "translation", "source", "reference", "hypothesis", ("bleu", "chrf", "exact_match"), "sentences"
  ),
  Columns("classification", "text", "label", "prediction", ("accuracy",), "texts"),
)


class Prediction(NamedTuple):
  """A row of a file of predictions."""

  source: str
  reference: str
  answer: str


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
  """The predictions of all pairs for a split, which are of the same examples.

  Raises:
    UserError: there are none, or they are damaged, or of no known columns; or runs were tested on
      other data.
  """
  first = pairs[0][0]
  columns, reference = _read(first, split)
  sides = []
  for run in [run for pair in pairs for run in pair]:
    other, rows = _read(run, split)
    if other != columns:
      raise UserError(
        f"{run.path} is a run of {other.kind}, and {first.path} of {columns.kind}: name runs of "
        "one task"
      )
    same = [one[:2] == two[:2] for one, two in zip(reference, rows, strict=False)]
    if len(rows) != len(reference) or not all(same):
      problem = f"{run.path} has other {split} data than {first.path}"
      raise UserError(f"{problem}, from example {[*same, False].index(False)} on")
    sides.append(rows)
  return columns, list(zip(sides[::2], sides[1::2], strict=True))


def _read(run: Run, split: str) -> tuple[Columns, list[Prediction]]:
  """The predictions of a run in their order, and the columns that they stand in."""
  rows = load_predictions(run.path, split)
  if not rows:
    files = (run.path / "predictions").glob("*.jsonl")
    others = ", ".join(sorted(file.stem for file in files if file.stem != split))
    there = f"; it has those of {others}" if others else ""
    raise UserError(f"{run.path} has no predictions of the split {split}{there}")
  for columns in COLUMNS:
    if all({columns.reference, columns.answer} <= row.keys() for row in rows):
      names = columns.source, columns.reference, columns.answer
      return columns, [Prediction(*(str(row.get(name, "")) for name in names)) for row in rows]
  wanted = " or ".join(f"{each.reference} and {each.answer}" for each in COLUMNS)
  raise UserError(f"{run.path}: its predictions cannot be compared, for want of columns {wanted}")
