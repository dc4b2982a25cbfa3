"""Sweeps that are under way: what has ended, what is left, and how far each run has come."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from posexp.errors import UserError
from posexp.runs import read_run

NEWEST = 40  # finished runs that say how long others may take
SIZES = ("steps", "epochs", "batch_size")  # options of training that decide how long a run takes


def usual_seconds(config: Mapping[str, Any]) -> tuple[float, int]:
  """Return how long a finished run takes of the task, the size and the steps of a config, and of
  how many this is the median; (0, 0) of none.
  """
  place = Path(config["runs"], str(config["task"]["name"]))
  files = sorted(place.rglob("summary.json"), key=lambda file: -file.stat().st_mtime)[:NEWEST]
  found = []
  for file in files:
    try:
      run = read_run(file.parent)
    except UserError:
      continue
    sizes = [[each["train"].get(name) for name in SIZES] for each in (run.config, config)]
    alike = all(run.config.get(key) == config.get(key) for key in ("task", "model"))
    seconds = run.score("time/seconds")
    if alike and sizes[0] == sizes[1] and seconds is not None and "diverged" not in run.summary:
      found.append(seconds)
  return (statistics.median(found), len(found)) if found else (0.0, 0)
