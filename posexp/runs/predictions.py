"""The predictions of a model for a split: predictions/<split>.jsonl in the folder of a run.

A digest is kept beside it, by which predictions that were changed are noticed.
"""

from __future__ import annotations

import base64
import hashlib
import itertools
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from posexp import storage
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
    """The columns by which they are known."""
    return {self.reference, self.answer, *self.numbers}


class Examples(NamedTuple):
  """What single examples add to a score, which is the sum of `amounts` by the sum of `sizes`."""

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
    """Return what `packed` was made of; raise ValueError if it is damaged."""
    try:
      if "right" in packed:
        bits = np.frombuffer(base64.b64decode(packed["right"]), np.uint8)
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
  """Return the bytes of numbers as text, floats with 32 bits."""
  values = values if values.dtype == np.uint8 else values.astype("<f4")
  return base64.b64encode(values.tobytes()).decode()


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
  data = storage.read(file) or b""
  rows: list[dict[str, Any]] = []
  for line in itertools.islice(data.removesuffix(b"\n").split(b"\n"), most) if data else ():
    try:
      row = dict(storage.parse(line))
      if not storage.is_plain(row) or row.keys() != (rows or [row])[0].keys():
        raise ValueError(line)
    except (ValueError, TypeError):
      raise UserError(f"{file}, line {len(rows) + 1}: not a prediction; {AGAIN}") from None
    rows.append(row)
  sealed = storage.read(file.with_suffix(SEAL))
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
