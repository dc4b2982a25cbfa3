"""Sweeps that are under way: what has ended, what is left, and how far each run has come.

A sweep writes its plan, the folders of its runs, to `.sweep/plans/` in the folder of runs. All else
is read from these folders.
"""

from __future__ import annotations

import hashlib
import json
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from posexp import storage
from posexp.errors import UserError, counted, lasting
from posexp.reporting.text import MISSING, Section
from posexp.runs import Run, read_run
from posexp.runs.metrics import declared, score
from posexp.tasks import tasks

PLANS = ".sweep/plans"
NEWEST = 40  # finished runs that say how long others may take
SIZES = ("steps", "epochs", "batch_size")  # options of training that decide how long a run takes
FILES = ("metrics.jsonl", "summary.json")  # of a run, whose dates say when something happened


class Plan(NamedTuple):
  """What a sweep is to train."""

  file: Path
  runs: list[Path]
  more: int  # runs whose options trials are still to choose
  begun: float  # seconds since 1970
  done: int  # runs that had finished before

  @classmethod
  def of(cls, place: Path, runs: Sequence[Path], more: int, done: int) -> Plan:
    """Return the plan of a sweep that begins now in the folder of runs `place`, once written."""
    name = hashlib.sha256("\n".join(map(str, runs)).encode()).hexdigest()[:12]
    plan = cls(place / PLANS / f"{name}.json", [*runs], more, time.time(), done)
    plan.write()
    return plan

  def write(self) -> None:
    """Write the plan, or remove it where all of its runs have finished."""
    place = self.file.parents[2]
    if not self.more and all((path / FILES[1]).exists() for path in self.runs):
      storage.remove(self.file)
      return
    kept = self._asdict() | {"runs": [str(path.relative_to(place)) for path in self.runs]}
    self.file.parent.mkdir(parents=True, exist_ok=True)
    storage.write(self.file, json.dumps({k: v for k, v in kept.items() if k != "file"}))

  @property
  def sentence(self) -> str:
    """How many runs have ended, are left, and about how long these take; "" if none is left."""
    ended = [path for path in self.runs if (path / FILES[1]).exists()]
    begun = sum((path / FILES[0]).exists() for path in self.runs) - len(ended)
    if not (left := len(self.runs) + self.more - len(ended)):
      return ""
    dates = [
      file.stat().st_mtime
      for path in self.runs
      for file in map(path.joinpath, FILES)
      if file.exists()
    ]
    last, since = max(dates, default=self.begun), len(ended) - self.done
    parts = [f"{len(ended)} done", f"{begun} begun", f"{left - begun} not begun"]
    text = f"A sweep of {counted(len(self.runs) + self.more, 'run')}: {', '.join(parts)}"
    if since > 0:
      text += f"; about {lasting((last - self.begun) / since * left)} left"
    return f"{text}; the last news is {lasting(max(0.0, time.time() - last))} old."


def plans(paths: Sequence[Path]) -> Iterator[Plan]:
  """Yield the plans of sweeps that train runs in some folders; what is no plan is passed over."""
  places: dict[Path, list[Path]] = {}
  for path in map(Path.absolute, paths):
    if place := next((p for p in (path, *path.parents) if (p / PLANS).is_dir()), None):
      places.setdefault(place, []).append(path)
  for place, asked in places.items():
    for file in sorted((place / PLANS).glob("*.json")):
      try:
        kept = json.loads(file.read_bytes())
        plan = Plan(file, [place / each for each in kept.pop("runs")], **kept)
      except (OSError, TypeError, ValueError, KeyError):
        continue
      if any(run.is_relative_to(path) for run in plan.runs for path in asked):
        yield plan


def sections(paths: Sequence[Path], runs: Sequence[Run]) -> list[Section]:
  """Return what a report says of the runs in some folders that have not finished, if there are any.

  The scores are those of the last evaluation of each.
  """
  said = [sentence for plan in plans(paths) if (sentence := plan.sentence)]
  rows = []
  for run in runs:
    if run.summary is None and run.history:
      state = "failed" if run.failure else "begun"
      trial = " trial" * bool(run.trial)
      name = f"{run.task}/{run.encoding}/{run.digest}{trial} seed={run.seed}"
      rows.append([name, state, f"{run.step:,}", last_score(run)])
  if not said and not rows:
    return []
  return [Section("under way", (["", "state", "step", "last evaluation"], rows), said)]


def last_score(run: Run) -> str:
  """Return the score that chooses the checkpoint, of the last evaluation, in words."""
  table = declared([run.summary])
  chosen = getattr(tasks().get(run.settings["task.kind"]), "score", "")
  for row in reversed(run.history):
    keys = [key for key in row if key.startswith("validation/")]
    if keys:
      of = score(chosen if chosen in keys else keys[0], table)
      return f"{of.title} {of.number(row[of.key])}"
  return MISSING


def usual_seconds(config: Mapping[str, Any]) -> tuple[float, int]:
  """Return how long a finished run takes of the task, the size and the steps of a config, and of
  how many this is the median; (0, 0) of none.
  """
  place = Path(config["runs"], str(config["task"]["name"]))
  files = sorted(place.rglob(FILES[1]), key=lambda file: -file.stat().st_mtime)[:NEWEST]
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
