"""What a model predicted for a split: predictions/<split>.jsonl in the folder of a run."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from posexp import storage

SAMPLES = 50  # examples that a tracker is shown


def write_predictions(folder: Path, split: str, rows: Iterable[Mapping[str, Any]]) -> None:
  """Writes a row for each example, in the order of the split; all rows have the same columns."""
  lines = (json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
  storage.write(_file(folder, split), "".join(lines))


def load_predictions(folder: Path, split: str, most: int | None = None) -> list[dict[str, Any]]:
  """The rows of a split, of the first `most` examples; none where none were written."""
  file = _file(folder, split)
  if not file.exists():
    return []
  with file.open(encoding="utf-8") as lines:
    return [json.loads(line) for line in itertools.islice(lines, most)]


def _file(folder: Path, split: str) -> Path:
  return folder / "predictions" / f"{split}.jsonl"
