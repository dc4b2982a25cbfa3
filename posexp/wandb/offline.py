"""Sessions of a run that W&B keeps in the run's folder, and what W&B's own reader finds there.

Each session of training has a folder there, with the rows that the sessions before it lack.
"""

from __future__ import annotations

import glob
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

EMPTY = 7  # bytes of a session that was killed before W&B had recorded anything: its header


def sessions(folder: Path, run_id: str | None) -> list[Path]:
  """Return the folders of a run's sessions that have records, the earliest first.

  Their names end with the run's ID, or, where two began in one second, with a number after it.
  """
  files = (folder / "wandb").glob(f"*run-*/run-{glob.escape(run_id or '')}.wandb")
  kept = [file.parent for file in files if file.stat().st_size > EMPTY]
  return sorted(kept, key=lambda each: each.name.removeprefix("offline-"))


def unsent(folder: Path, run_id: str | None) -> list[Path]:
  """Return the offline sessions that W&B has not marked as sent."""
  folders = sessions(folder, run_id)
  return [place for place in folders if place.name[0] == "o" and not any(place.glob("*.synced"))]


def next_step(folder: Path, run_id: str | None) -> int:
  """Return the step after the last row that the sessions of a run have recorded."""
  newest_first = (records(session, "history") for session in reversed(sessions(folder, run_id)))
  rows = next(filter(None, newest_first), [])  # no earlier session has later rows
  return 1 + max((row["item"]["_step"] for row in rows), default=-1)


def records(session: Path, kind: str) -> list[dict[str, Any]]:
  """Return the records of a kind in a session, up to the first damaged one."""
  argv = [sys.executable, "-m", "wandb", "leet", "inspect", "--json", str(session)]
  lines = subprocess.run(argv, capture_output=True, text=True).stdout.splitlines()
  return [each[kind] for each in map(json.loads, lines) if each["type"] == kind]
