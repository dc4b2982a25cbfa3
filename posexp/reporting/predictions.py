"""The predictions of pairs of runs on the same examples, from what the runs have written alone."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from posexp.errors import UserError
from posexp.runs import Run, read_runs


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


def read(run: Run, split: str) -> tuple[Columns, list[Prediction]]:
  """The predictions of a run for a split, in their order, and the columns that they stand in.

  Raises:
    UserError: there are none, or they are damaged, or of no known columns.
  """
  files = {file.stem: file for file in sorted((run.path / "predictions").glob("*.jsonl"))}
  if split not in files:
    others = f"; it has those of {', '.join(files)}" if files else ""
    raise UserError(f"{run.path} has no predictions of the split {split}{others}")
  columns, rows = None, []
  with files[split].open(encoding="utf-8", newline="\n") as lines:
    try:
      for line in lines:
        row = json.loads(line)
        columns = columns or _columns(row, files[split])
        texts = [row.get(columns.source, ""), row[columns.reference], row[columns.answer]]
        if not all(isinstance(text, str | int) for text in texts):
          raise TypeError
        rows.append(Prediction(*map(str, texts), float(row.get("loss", 0.0))))
    except (ValueError, TypeError, KeyError, AttributeError):
      what = f" of {columns.kind}" if columns else ""
      raise UserError(
        f"{files[split]}, line {len(rows) + 1}: not a prediction{what}; rerun=true trains the run "
        "afresh"
      ) from None
  if not rows:
    raise UserError(f"{files[split]} is empty; rerun=true trains the run afresh")
  return columns, rows


def _columns(row: dict, file: Path) -> Columns:
  for each in COLUMNS:
    if {each.reference, each.answer} <= row.keys():
      return each
  pairs = " or ".join(f"{each.reference} and {each.answer}" for each in COLUMNS)
  raise UserError(f"{file}: its rows cannot be compared, for want of the columns {pairs}")


def read_pairs(
  pairs: Sequence[tuple[Run, Run]], split: str
) -> tuple[Columns, list[tuple[list[Prediction], list[Prediction]]]]:
  """The predictions of all pairs, which are of the same examples.

  Raises:
    UserError: as `read`; or runs were tested on other data, which names the first difference.
  """
  first = pairs[0][0]
  columns, reference = read(first, split)
  found = []
  for pair in pairs:
    sides = []
    for run in pair:
      other, rows = read(run, split)
      if other != columns:
        raise UserError(
          f"{run.path} is a run of {other.kind}, and {first.path} of {columns.kind}: name runs of "
          "one task"
        )
      _check_same(columns, reference, rows, f"{run.path} has other {split} data than {first.path}")
      sides.append(rows)
    found.append((sides[0], sides[1]))
  return columns, found


def _check_same(
  columns: Columns, a: Sequence[Prediction], b: Sequence[Prediction], problem: str
) -> None:
  for index, (one, other) in enumerate(zip(a, b, strict=False)):
    for name in ("source", "reference"):
      texts = getattr(one, name), getattr(other, name)
      if texts[0] != texts[1]:
        column = getattr(columns, name)
        raise UserError(
          f"{problem}: the {column} of example {index} is {texts[1]!r}, not {texts[0]!r}"
        )
  if len(a) != len(b):
    raise UserError(f"{problem}: {len(b):,} examples, not {len(a):,}")
