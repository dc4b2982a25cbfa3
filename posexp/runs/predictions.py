"""What a model predicted for a split: predictions/<split>.jsonl in the folder of a run."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from posexp import storage
from posexp.errors import UserError

SAMPLES = 50  # examples that a tracker is shown


def write_predictions(folder: Path, split: str, rows: Iterable[Mapping[str, Any]]) -> None:
  """Writes a row for each example, in the order of the split; all rows have the same columns."""
  lines = (json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
  storage.write(_file(folder, split), "".join(lines))


def load_predictions(folder: Path, split: str, most: int | None = None) -> list[dict[str, Any]]:
  """The rows of a split, of the first `most` examples; none where none were written.

  Raises:
    UserError: a line is not a row.
  """
  file = _file(folder, split)
  if not file.exists():
    return []
  rows = []
  with file.open("rb") as lines:
    for line in itertools.islice(lines, most):
      try:
        rows.append(dict(json.loads(line)))
      except (ValueError, TypeError):
        message = (
          f"{file}, line {len(rows) + 1}: not a prediction; rerun=true trains the run afresh"
        )
        raise UserError(message) from None
  return rows


def _file(folder: Path, split: str) -> Path:
  return folder / "predictions" / f"{split}.jsonl"
