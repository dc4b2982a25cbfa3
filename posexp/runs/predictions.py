"""The predictions of a model for a split: predictions/<split>.jsonl in the folder of a run.

A digest is kept beside it, by which predictions that were changed are noticed.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from posexp import reading, storage
from posexp.errors import UserError
from posexp.status import doing

AGAIN = "the training command, typed again, makes it again"
SAMPLES = 50  # examples that a tracker is shown
TABLES = {"samples": "test", "continuations": "generated"}  # its tables, and the files they are of
SEAL = ".sha256"


class Columns(NamedTuple):
  """The columns of the predictions of a kind of task, and the metrics that are made of them."""

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
    """The columns by which predictions of this kind are recognized."""
    return {self.reference, self.answer, *self.numbers}


TRANSLATIONS = Columns(
  "translation", "source", "reference", "hypothesis", ("bleu", "chrf", "exact_match"), "sentences"
)
LABELS = Columns("classification", "text", "label", "prediction", ("accuracy",), "texts")
SEGMENTS = Columns(
  "language modeling", "", "text", "loss", ("bits_per_byte",), "segments", ("loss", "bytes"), True
)
ANSWERS = Columns(
  "answers", "input", "reference", "exact", ("exact_match",), "examples", ("right", "tokens")
)
COUNTS = ("matched", "gold", "predicted")  # of the brackets of a tree
TREES = Columns("parsing", "text", "tree", "parse", ("f1", "exact_match"), "sentences", COUNTS)

# Runs of earlier versions do not say which columns their predictions have.
EARLIER = (TRANSLATIONS, LABELS, SEGMENTS, ANSWERS, TREES)


def as_columns(declared: Any) -> Columns | None:
  """Return the columns that a summary declares, as `Columns._asdict` writes them; None if it is
  no declaration of columns.
  """
  try:
    of = Columns(**declared)
  except TypeError:
    return None
  texts = (of.kind, of.source, of.reference, of.answer, of.items, *of.metrics, *of.numbers)
  lists = isinstance(of.metrics, list | tuple) and isinstance(of.numbers, list | tuple)
  if not lists or not all(isinstance(text, str) for text in texts):
    return None
  return of._replace(metrics=(*of.metrics,), numbers=(*of.numbers,), joined=bool(of.joined))


def write_predictions(folder: Path, split: str, rows: Iterable[Mapping[str, Any]]) -> None:
  """Write a row for each example, in the order of the split; all rows have the same columns."""
  doing(f"writing predictions/{split}.jsonl")
  text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
  file = _file(folder, split)
  storage.write(file, text)
  storage.write(file.with_suffix(SEAL), hashlib.sha256(text.encode()).hexdigest())


def load_predictions(folder: Path, split: str, most: int | None = None) -> list[dict[str, Any]]:
  """Return the rows of a split, or of its first `most` examples; none if there is no file.

  Raises:
    UserError: a line is not a row, or has other columns than the first; or the file was changed.
  """
  file = _file(folder, split)
  data = reading.read(file) or b""
  rows: list[dict[str, Any]] = []
  for line in itertools.islice(data.removesuffix(b"\n").split(b"\n"), most) if data else ():
    try:
      row = dict(reading.parse(line))
      if not reading.is_plain(row) or row.keys() != (rows or [row])[0].keys():
        raise ValueError(line)
    except (ValueError, TypeError):
      raise UserError(f"{file}, line {len(rows) + 1}: not a prediction; {AGAIN}") from None
    rows.append(row)
  sealed = reading.read(file.with_suffix(SEAL))
  if data and sealed not in (None, hashlib.sha256(data).hexdigest().encode()):
    raise UserError(f"{file}: not what the run has predicted, by its sha256; {AGAIN}")
  return rows


def load_samples(folder: Path) -> dict[str, list[dict[str, Any]]]:
  """Return the rows of each table that a tracker is shown of a run.

  Raises:
    UserError: as `load_predictions`.
  """
  return {table: load_predictions(folder, split, SAMPLES) for table, split in TABLES.items()}


def are_whole(folder: Path, splits: Iterable[str]) -> bool:
  """Return whether some splits have unchanged predictions, one for each of their examples."""
  for split in splits:
    try:
      rows = load_predictions(folder, split)
    except UserError:
      return False
    if not rows or [row.get("index") for row in rows] != [*range(len(rows))]:
      return False
  return True


def _file(folder: Path, split: str) -> Path:
  return folder / "predictions" / f"{split}.jsonl"
