"""Finished runs that can be held against each other, and what they said of the same examples."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from posexp.config import show
from posexp.errors import UserError
from posexp.runs import Run, read_run

COLUMNS = {
  "translation": ("source", "reference", "hypothesis"),
  "classification": ("label", "prediction"),
}
DATA = ("package", "hub", "folds", "fold")  # options whose change makes other test data


class Row(NamedTuple):
  """A prediction: of a translation its source, reference and hypothesis, of a class its label and
  what was answered for it; `loss` is that of the label."""

  source: str
  reference: str
  found: str
  loss: float


def paired(a: Path, b: Path) -> tuple[list[tuple[Run, Run]], list[str]]:
  """Runs to hold against each other, and notes on those left out.

  Two runs are a pair whatever their seeds; of groups those with the same seed are.

  Raises:
    UserError: there are no runs, they have not finished, share no seed, or are the same.
  """
  found, notes = [], []
  for path in (a, b):
    runs, left = finished(path)
    found.append(runs)
    notes += left
  if all((path / "config.yaml").exists() for path in (a, b)):
    pairs = [tuple(next(iter(runs.values())) for runs in found)]
  else:
    shared = sorted(found[0].keys() & found[1].keys())
    if not shared:
      has = " and ".join(f"{', '.join(map(str, sorted(runs)))}" for runs in found)
      raise UserError(f"{a} and {b} share no seed, of which they have finished {has}")
    pairs = [(found[0][seed], found[1][seed]) for seed in shared]
    for path, runs in zip((a, b), found, strict=True):
      if alone := sorted(runs.keys() - set(shared)):
        notes.append(f"left out, since the other has no such seed: {_seeds(alone)} of {path}")
  for one, other in pairs:
    if one.path.resolve() == other.path.resolve():
      raise UserError(f"{one.path} is compared with itself: name two runs")
  return pairs, notes


def finished(path: Path) -> tuple[dict[int, Run], list[str]]:
  """The finished runs in a folder by seed, and a note if others are there."""
  if not path.is_dir():
    raise UserError(f"{path}: there is no such folder")
  if (path / "config.yaml").exists():
    record = read_run(path)
    if record.summary is None:
      raise UserError(f"{path} has not finished: the command that started it goes on with it")
    return {record.config["seed"]: record}, []
  inside = sorted(path.glob("seed=*/config.yaml"))
  if not inside:
    raise UserError(f"{path} is not a run's folder, nor does it hold runs (seed=0 and so on)")
  runs = {each.config["seed"]: each for each in (read_run(file.parent) for file in inside)}
  done = {seed: each for seed, each in runs.items() if each.summary is not None}
  if not done:
    raise UserError(f"{path}: none of its runs has finished")
  left = sorted(runs.keys() - done.keys())
  return done, [f"left out, since not finished: {_seeds(left)} of {path}"] if left else []


def _seeds(seeds: Sequence[int]) -> str:
  return f"seed{'s' if len(seeds) > 1 else ''} {', '.join(map(str, seeds))}"


def same_task(pairs: Sequence[tuple[Run, Run]]) -> str:
  """What all runs do: "translation" or "classification"; UserError if they differ in that."""
  first = pairs[0][0]
  for each in (record for pair in pairs for record in pair):
    a, b = (
      "classification" if record.config["task"]["kind"] == "text_classification" else "translation"
      for record in (first, each)
    )
    if a != b:
      raise UserError(
        f"{each.path} is a run of {b}, and {first.path} of {a}: name runs of one task"
      )
    for key in DATA if a == "classification" else ():
      one, other = (record.config["task"].get(key) for record in (first, each))
      if one != other:
        raise UserError(
          f"{each.path} has other test data than {first.path}: task.{key}={show(other)}, "
          f"not {show(one)}"
        )
  return a


def predictions(record: Run, split: str, task: str) -> list[Row]:
  """What a run has said of a split, in its order.

  Raises:
    UserError: it has said nothing of it, or what it has said is broken.
  """
  files = {file.stem: file for file in sorted((record.path / "predictions").glob("*.jsonl"))}
  if split not in files:
    has = f"; it has those of {', '.join(files)}" if files else ""
    raise UserError(f"{record.path} has no predictions of the split {split}{has}")
  rows = []
  with files[split].open(encoding="utf-8", newline="\n") as lines:
    try:
      for line in lines:
        row = json.loads(line)
        texts = [row[column] for column in COLUMNS[task]]
        if not all(isinstance(text, str) for text in texts):
          raise TypeError
        rows.append(Row(*["", *texts][-3:], float(row.get("loss", 0.0))))
    except (ValueError, TypeError, KeyError):
      raise UserError(
        f"{files[split]}, line {len(rows) + 1}: not a prediction of {task}; rerun=true trains the "
        "run afresh"
      ) from None
  if not rows:
    raise UserError(f"{files[split]} is empty; rerun=true trains the run afresh")
  return rows


def same_data(a: Path, rows_a: list[Row], b: Path, rows_b: list[Row], split: str) -> None:
  """Raises UserError, which names the first difference, unless two runs were tested on the same."""
  here = f"{b} has other {split} data than {a}"
  for index, (one, other) in enumerate(zip(rows_a, rows_b, strict=False)):
    for name in ("source", "reference"):
      texts = getattr(one, name), getattr(other, name)
      if texts[0] != texts[1]:
        what = name if one.source else "label"
        raise UserError(f"{here}: the {what} of example {index} is {texts[1]!r}, not {texts[0]!r}")
  if len(rows_a) != len(rows_b):
    raise UserError(f"{here}: {len(rows_b):,} examples, not {len(rows_a):,}")


def different(a: Mapping[str, Any], b: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
  """The values of both where they differ; a side that lacks the key is left out."""
  absent = object()
  return {
    key: {side: each[key] for side, each in (("a", a), ("b", b)) if key in each}
    for key in {**a, **b}
    if a.get(key, absent) != b.get(key, absent)
  }
