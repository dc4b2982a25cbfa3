"""The predictions of pairs of runs on the same examples, from what the runs have written alone."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from posexp.errors import UserError
from posexp.runs import Run, read_runs
from posexp.runs.predictions import damaged, load_predictions


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
  """A row of a file of predictions; `loss` is that of the reference, 0 where none was written."""

  source: str
  reference: str
  answer: str
  loss: float


def paired(a: Path, b: Path) -> tuple[list[tuple[Run, Run]], list[str]]:
  """Finished runs to compare, and notes on those left out.

  Two runs are a pair whatever their seeds; of groups those with the same seed are.

  Raises:
    UserError: there are no runs, they have not finished, share no seed, or are the same.
  """
  (of_a, notes), (of_b, more) = finished(a), finished(b)
  notes += more
  if all((path / "config.yaml").exists() for path in (a, b)):
    pairs = [(*of_a.values(), *of_b.values())]
  else:
    shared = sorted(of_a.keys() & of_b.keys())
    if not shared:
      seeds = " and ".join(", ".join(map(str, sorted(runs))) for runs in (of_a, of_b))
      raise UserError(f"{a} and {b} share no seed, of which they have finished {seeds}")
    pairs = [(of_a[seed], of_b[seed]) for seed in shared]
    for path, runs in ((a, of_a), (b, of_b)):
      if alone := sorted(runs.keys() - set(shared)):
        notes.append(f"left out, since the other has no such seed: {_seeds(alone)} of {path}")
  for one, other in pairs:
    if one.path.resolve() == other.path.resolve():
      raise UserError(f"{one.path} is compared with itself: name two runs")
  return pairs, notes


def finished(path: Path) -> tuple[dict[int, Run], list[str]]:
  """The finished runs in a folder by seed, and notes on others.

  Raises:
    UserError: none is there, or there are runs of several groups.
  """
  runs, notes = read_runs([path])
  if len({run.path.parent for run in runs}) > 1:
    raise UserError(
      f"{path} holds several groups of runs: name a run, or the folder of the seeds of one group"
    )
  done = {run.seed: run for run in runs if run.summary is not None}
  if not done and runs[0].path == path:
    raise UserError(f"{path} has not finished: the command that started it goes on with it")
  if not done:
    raise UserError(f"{path}: none of its runs has finished")
  if left := sorted(run.seed for run in runs if run.summary is None):
    notes.append(f"left out, since not finished: {_seeds(left)} of {path}")
  return done, notes


def _seeds(seeds: Sequence[int]) -> str:
  return f"seed{'s' if len(seeds) > 1 else ''} {', '.join(map(str, seeds))}"


def read_pairs(
  pairs: Sequence[tuple[Run, Run]], split: str
) -> tuple[Columns, list[tuple[list[Prediction], list[Prediction]]]]:
  """The predictions of all pairs for a split, which are of the same examples.

  Raises:
    UserError: there are none, or they are damaged, or of no known columns; or runs were tested on
      other data, which names the first difference.
  """
  first, found = pairs[0][0], []
  columns, reference = _read(first, split)
  for pair in pairs:
    sides = []
    for run in pair:
      other, rows = _read(run, split)
      if other != columns:
        raise UserError(
          f"{run.path} is a run of {other.kind}, and {first.path} of {columns.kind}: name runs of "
          "one task"
        )
      problem = f"{run.path} has other {split} data than {first.path}"
      for index, (a, b) in enumerate(zip(reference, rows, strict=False)):
        for column, one, two in zip(columns[1:3], a[:2], b[:2], strict=True):
          if one != two:
            raise UserError(f"{problem}: the {column} of example {index} is {two!r}, not {one!r}")
      if len(rows) != len(reference):
        raise UserError(f"{problem}: {len(rows):,} examples, not {len(reference):,}")
      sides.append(rows)
    found.append((sides[0], sides[1]))
  return columns, found


def _read(run: Run, split: str) -> tuple[Columns, list[Prediction]]:
  """The predictions of a run in their order, and the columns that they stand in."""
  files = {file.stem: file for file in sorted((run.path / "predictions").glob("*.jsonl"))}
  if split not in files:
    others = f"; it has those of {', '.join(files)}" if files else ""
    raise UserError(f"{run.path} has no predictions of the split {split}{others}")
  rows = load_predictions(run.path, split)
  if not rows:
    raise UserError(f"{files[split]} is empty; rerun=true trains the run afresh")
  known = [each for each in COLUMNS if {each.reference, each.answer} <= rows[0].keys()]
  if not known:
    wanted = " or ".join(f"{each.reference} and {each.answer}" for each in COLUMNS)
    raise UserError(f"{files[split]}: its rows cannot be compared, for want of columns {wanted}")
  columns, predictions = known[0], []
  for number, row in enumerate(rows, start=1):
    try:
      source, reference = str(row.get(columns.source, "")), str(row[columns.reference])
      loss = float(row.get("loss", 0.0))
      predictions.append(Prediction(source, reference, str(row[columns.answer]), loss))
    except (ValueError, TypeError, KeyError):
      raise damaged(run.path, split, number) from None
  return columns, predictions
