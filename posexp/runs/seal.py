"""The digests of a finished run's files, by which a changed one is noticed: run.sha256.

`sha256sum -c run.sha256` checks them, too. A run of an earlier version has no such file.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from posexp import reading, storage

SEAL = "run.sha256"
CONFIG, ROWS, SUMMARY = SEALED = ("config.yaml", "metrics.jsonl", "summary.json")


def seal(folder: Path, summary: str) -> None:
  """Write the digests of a run's files, and of the `summary` that is about to be written."""
  found = {name: reading.read(folder / name) for name in SEALED} | {SUMMARY: summary.encode()}
  lines = [f"{_digest(data)}  {name}\n" for name, data in found.items() if data is not None]
  storage.write(folder / SEAL, "".join(lines))


def is_sealed(folder: Path, name: str, data: bytes) -> bool:
  """Return whether a file's content is what the run has written; true if it was never sealed."""
  lines = (reading.read(folder / SEAL) or b"").decode(errors="replace").splitlines()
  known = dict(line.split()[::-1] for line in lines if len(line.split()) == 2)
  return known.get(name, digest := _digest(data)) == digest


def is_whole(folder: Path) -> bool:
  """Return whether no sealed file of a run was changed."""
  return all(is_sealed(folder, name, reading.read(folder / name) or b"") for name in SEALED)


def _digest(data: bytes) -> str:
  return hashlib.sha256(data).hexdigest()
