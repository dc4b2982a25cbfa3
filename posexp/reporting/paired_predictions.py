"""The predictions of pairs of runs on the same examples, from what the runs have written alone."""

from __future__ import annotations

import base64
import contextlib
import functools
import math
import operator
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from posexp.errors import UserError
from posexp.runs import Run, read_runs
from posexp.runs.metrics import Score
from posexp.runs.predictions import EARLIER, Columns, as_columns, load_predictions


def paired(a: Path, b: Path) -> tuple[list[tuple[Run, Run]], list[str]]:
  """Return finished runs to compare, and notes on those left out.

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


def read_alike(runs: Sequence[Run], split: str) -> tuple[Columns, list[pd.DataFrame]]:
  """Return the predictions of runs for a split, which are of the same examples.

  Each has a row for an example, with its `reference` and `answer`, its `source` if it has one, and
  the numbers of its columns.

  Raises:
    UserError: there are none, or they are damaged, or of no known columns; or runs were tested on
      other data.
  """
  first = runs[0]
  columns, reference = _read(first, split)
  sides = [reference]
  for run in runs[1:]:
    sizes = [own.score(f"{split}/bytes") for own in (first, run)]
    if sizes[0] != sizes[1] and None not in sizes:
      raise UserError(
        f"{run.path} was measured on {sizes[1]:,.0f} bytes of {split}, and {first.path} on "
        f"{sizes[0]:,.0f}: bits per byte of two texts say nothing of each other"
      )
    other, rows = _read(run, split)
    if other != columns:
      raise UserError(
        f"{run.path} is a run of {other.kind}, and {first.path} of {columns.kind}: name runs of "
        "one task"
      )
    sides.append(rows)
  if columns.joined:
    sides = _joined(sides)
  for run, rows in zip(runs, sides, strict=True):
    same = [*map(operator.eq, _asked(sides[0], columns), _asked(rows, columns))]
    if len(rows) != len(sides[0]) or not all(same):
      problem = f"{run.path} has other {split} data than {first.path}"
      raise UserError(f"{problem}, from example {[*same, False].index(False)} on")
  return columns, sides


def by_example(rows: pd.DataFrame, columns: Columns) -> dict[str, Examples]:
  """Return what each example adds to the scores that are shares or ratios, by their metrics."""
  ones = np.ones(len(rows))
  of = f"{zlib.crc32(repr([*_asked(rows, columns)]).encode(errors='replace')):08x}"
  if columns.numbers:  # an example is right where all counts are equal
    right = rows[[*columns.numbers]].nunique(axis=1) == 1
  else:
    right = rows["answer"].str.strip() == rows["reference"].str.strip()
  examples = {}
  for name in columns.metrics:
    if name == "bits_per_byte":
      parts = rows["loss"] / math.log(2), rows["bytes"]
    elif name == "f1":
      matched, gold, predicted = (rows[number] for number in columns.numbers)
      parts = 2 * matched, gold + predicted
    else:
      parts = right, ones
    examples[name] = Examples(*(np.asarray(part, float) for part in parts), of)
  return {name: example for name, example in examples.items() if name not in ("bleu", "chrf")}


def packed_examples(run: Run) -> dict[str, dict[str, Any]]:
  """Return packed scores of a run's examples by split and metric, without damaged predictions."""
  if run.examples is not None:
    return run.examples
  packed = {}
  for file in sorted((run.path / "predictions").glob("*.jsonl")):
    with contextlib.suppress(UserError):
      columns, rows = _read(run, file.stem)
      packed[file.stem] = {name: each.packed() for name, each in by_example(rows, columns).items()}
  return packed


class Moves(NamedTuple):
  """How single examples move the scores of some runs: the first-order terms of ratios."""

  by_run: Mapping[Any, np.ndarray]  # float [N], whose mean is 0, by what tells the runs apart
  of: str  # the digest of the examples

  @property
  def count(self) -> int:
    """The number of examples."""
    return len(next(iter(self.by_run.values())))


def moved(runs: Mapping[Any, Run], score: Score) -> Moves | None:
  """Return how examples move the scores of some runs; None without scores of the same examples."""
  by_run, of = {}, None
  for key, run in runs.items():
    one = None if score.part else _examples_of(run, score)
    if one is None or of not in (None, one.of):
      return None
    ratio = one.amounts.sum() / one.sizes.sum()
    if abs(ratio - run.score(score.key)) > 1e-3 * max(abs(ratio), 1e-3):
      return None  # the score counts more than predictions can
    by_run[key] = (one.amounts - ratio * one.sizes) / one.sizes.mean()
    of = one.of
  return None if of is None else Moves(by_run, of)


def tested_on(run: Run, score: Score) -> str | None:
  """Return the digest of the examples that a score of a run is of; None where it is not known."""
  with contextlib.suppress(UserError):
    if not score.part and (found := _examples_of(run, score)) is not None:
      return found.of
  return None


def _examples_of(run: Run, score: Score) -> Examples | None:
  """Return what each example adds to a score of a run; None where that is not known.

  Raises:
    UserError: the record of it is damaged.
  """
  if run.examples is None:
    if not (run.path / "predictions" / f"{score.split}.jsonl").exists():
      return None
    try:
      columns, rows = _read(run, score.split)
      return by_example(rows, columns).get(score.metric.name)
    except UserError:
      return None
  packed = run.examples.get(score.split, {}).get(score.metric.name)
  try:
    return None if packed is None else Examples.unpacked(packed)
  except ValueError as error:
    raise UserError(f"{run.path}: its scores of examples are damaged") from error


def _asked(rows: pd.DataFrame, columns: Columns) -> pd.Series:
  """Return the input and the right answer of each example, as one text."""
  if columns.joined:  # a part of a text may begin within a letter, unless it is of ASCII
    return rows["reference"].str.encode("ascii", "ignore")
  return rows["source"] + "\n" + rows["reference"]


def _joined(sides: Sequence[pd.DataFrame]) -> list[pd.DataFrame]:
  """Join the parts of a text that runs have cut differently, between the cuts that all share."""
  ends = [rows["bytes"].cumsum() for rows in sides]
  common = functools.reduce(np.intersect1d, ends)
  joined = []
  for rows, end in zip(sides, ends, strict=True):
    parts = rows.groupby(np.searchsorted(common, end))
    one = parts.agg({"reference": "".join, "loss": "sum", "bytes": "sum"})
    bits = one["loss"] / math.log(2) / one["bytes"].clip(lower=1)
    joined.append(one.assign(answer=bits.map("{:.3f} bits per byte".format)))
  return joined


def _read(run: Run, split: str) -> tuple[Columns, pd.DataFrame]:
  """Return the predictions of a run in their order, and the columns that they stand in."""
  rows = pd.DataFrame(load_predictions(run.path, split), dtype=object)
  if rows.empty:
    files = (run.path / "predictions").glob("*.jsonl")
    others = ", ".join(sorted(file.stem for file in files if file.stem != split))
    there = f"; it has those of {others}" if others else ""
    raise UserError(f"{run.path} has no predictions of the split {split}{there}")
  own = as_columns((run.summary or {}).get("columns"))
  known = EARLIER if own is None else (own,)
  columns = next((each for each in known if each.needed <= {*rows}), None)
  if columns is None:
    wanted = " or ".join(f"{each.reference} and {each.answer}" for each in known)
    raise UserError(f"{run.path}: its predictions cannot be compared, for want of columns {wanted}")
  numbers = rows[[*columns.numbers]].apply(pd.to_numeric, errors="coerce").astype(float)
  counts = numbers.drop(columns="loss", errors="ignore")
  if not np.isfinite(numbers).all(axis=None) or (counts < 0).any(axis=None):
    names = ", ".join(columns.numbers)
    raise UserError(f"{run.path}: its predictions of {split} have no numbers in {names}")
  for name in ("source", "reference", "answer"):
    column = getattr(columns, name)
    numbers[name] = rows[column].map(str) if column in rows else ""
  return columns, numbers


class Examples(NamedTuple):
  """The contributions of examples to a score: the sum of `amounts` divided by that of `sizes`."""

  amounts: np.ndarray  # float [N]: of a share, whether each example is right
  sizes: np.ndarray  # float [N]: of a share, ones
  of: str  # the digest of the examples, by which runs on others are noticed

  def packed(self) -> dict[str, Any]:
    """Return plain values: a bit for each example of a share, or else two numbers of 32 bits."""
    if np.isin(self.amounts, (0, 1)).all() and (self.sizes == 1).all():
      bits = np.packbits(self.amounts.astype(bool))
      return {"of": self.of, "count": len(self.amounts), "right": _text(bits)}
    return {"of": self.of, "amounts": _text(self.amounts), "sizes": _text(self.sizes)}

  @classmethod
  def unpacked(cls, packed: Mapping[str, Any]) -> Examples:
    """Unpack the scores of examples; raise ValueError if they are damaged."""
    try:
      if "right" in packed:
        bits = np.frombuffer(base64.b64decode(packed["right"]), np.uint8)
        if not 0 <= packed["count"] <= 8 * len(bits):
          raise ValueError("more examples than bits")
        right = np.unpackbits(bits, count=packed["count"]).astype(float)
        return cls(right, np.ones_like(right), str(packed["of"]))
      amounts, sizes = (
        np.frombuffer(base64.b64decode(packed[name]), "<f4").astype(float)
        for name in ("amounts", "sizes")
      )
      if len(amounts) != len(sizes):
        raise ValueError("columns of other lengths")
      return cls(amounts, sizes, str(packed["of"]))
    except (LookupError, TypeError) as error:
      raise ValueError("no scores of examples") from error


def _text(values: np.ndarray) -> str:
  """Encode numbers in base64; floats are rounded to 32 bits first."""
  values = values if values.dtype == np.uint8 else values.astype("<f4")
  return base64.b64encode(values.tobytes()).decode()
