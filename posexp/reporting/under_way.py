"""Sweeps that are under way: what has ended, what is left, and how far each run has come.

A sweep keeps its plan, the folders of its runs, in `.sweep/plans/` of the folder of runs. All else
is read from these folders.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from posexp import reading, storage
from posexp.errors import UserError, counted, lasting
from posexp.reporting.text import MISSING, Section
from posexp.runs import Run, read_runs
from posexp.runs.metrics import Score, score

if TYPE_CHECKING:
  from posexp.reporting.figures import Figure

PLANS = ".sweep/plans"
SIZES = ("steps", "epochs", "batch_size")  # options of training that decide how long a run takes
LAST = 5  # evaluations of a run that are shown
FILES = ("metrics.jsonl", "summary.json")  # of a run, whose dates say when something happened


def keep_plan(place: Path, name: str, plan: Mapping[str, Any] | None) -> None:
  """Write the plan of a sweep to the folder of its runs, or remove it if it is None.

  The plan has the folders of `runs` below that, how many `more` there will be, how many were `done`
  before the sweep began, and when it did, in seconds since 1970 (`begun`).
  """
  file = place / PLANS / f"{hashlib.sha256(name.encode()).hexdigest()[:12]}.json"
  if plan is None:
    storage.remove(file)
    with contextlib.suppress(OSError):  # something else is in it
      file.parent.rmdir()
      file.parent.parent.rmdir()
    return
  file.parent.mkdir(parents=True, exist_ok=True)
  storage.write(file, json.dumps(plan))


def sentences(paths: Sequence[Path]) -> Iterator[str]:
  """Yield how far each sweep has come that has left runs in some folders."""
  places: dict[Path, list[Path]] = {}
  for path in map(Path.absolute, paths):
    if place := next((each for each in (path, *path.parents) if (each / PLANS).is_dir()), None):
      places.setdefault(place, []).append(path)
  for place, asked in places.items():
    for file in sorted((place / PLANS).glob("*.json")):
      # It may be no plan.
      with contextlib.suppress(UserError, OSError, TypeError, ValueError, LookupError):
        plan = reading.parse(reading.read(file) or b"")
        runs = [place / each for each in plan["runs"]]
        if any(run.is_relative_to(path) for run in runs for path in asked):
          yield _sentence(runs, plan)


def _sentence(runs: Sequence[Path], plan: Mapping[str, Any]) -> str:
  files = [[file for file in map(run.joinpath, FILES) if file.exists()] for run in runs]
  done = sum(FILES[1] in (file.name for file in each) for each in files)
  begun, whole = sum(map(bool, files)) - done, len(runs) + plan["more"]
  last = max((file.stat().st_mtime for each in files for file in each), default=plan["begun"])
  text = f"A sweep of {counted(whole, 'run')}: {done} done, {begun} begun, "
  text += f"{whole - done - begun} not begun"
  if done > plan["done"]:
    seconds = (last - plan["begun"]) / (done - plan["done"]) * (whole - done)
    text += f"; about {lasting(seconds)} left"
  return f"{text}; the last news is {lasting(max(0.0, time.time() - last))} old."


def sections(paths: Sequence[Path], runs: Sequence[Run]) -> list[Section]:
  """Return what a report says of sweeps under way in some folders, and of the runs that have begun,
  with their scores so far; nothing where no sweep has left runs.
  """
  if not (said := [*sentences(paths)]):
    return []
  begun = [run for run in runs if run.summary is None and run.history]
  heads = ["", "state", "step", "so far"]
  rows = [
    [_name(run), "failed" if run.failure else "begun", f"{run.step:,}", so_far(run)]
    for run in begun
  ]
  return [Section("under way", (heads, rows), said, figures=[*_curves(begun)])]


def _name(run: Run) -> str:
  return f"{run.task}/{run.encoding}/{run.digest} seed={run.seed}{' (trial)' * bool(run.trial)}"


def _evaluations(run: Run) -> tuple[Score | None, dict[int, float]]:
  """Return the score that chooses the checkpoint, and its values so far by their steps."""
  from posexp.tasks import tasks  # slow to import

  keys = [key for row in run.history for key in row if key.startswith("validation/")]
  if not keys:
    return None, {}
  chosen = getattr(tasks().get(run.settings["task.kind"]), "score", "")
  of = score(chosen if chosen in keys else keys[0])
  return of, {row["step"]: row[of.key] for row in run.history if of.key in row}


def so_far(run: Run) -> str:
  """Return the score that chooses the checkpoint, of the last few evaluations, in words."""
  of, values = _evaluations(run)
  if of is None:
    return MISSING
  numbers = [*map(of.number, values.values())]
  return f"{of.title} {'… ' * (len(numbers) > LAST)}{' '.join(numbers[-LAST:])}"


def _curves(runs: Sequence[Run]) -> Iterator[Figure]:
  """Yield a figure for each task, with the evaluations of each run so far."""
  from posexp.reporting.charts import Chart, Point  # slow to import
  from posexp.reporting.figures import Figure
  from posexp.reporting.grouping import Group
  from posexp.reporting.significance import estimate

  charts: dict[str, Chart] = {}
  for run in runs:
    of, values = _evaluations(run)
    if len(values) < 2:
      continue
    group = Group({}, _name(run), [run], {}, {}, {}, estimate([]))
    chart = charts.setdefault(run.task, Chart("steps", "step", of, []))
    chart.points.extend(
      Point(group, group.label, step, estimate([value]), [value]) for step, value in values.items()
    )
  for task, chart in charts.items():
    says = "A line for each run that has begun and not ended."
    yield Figure(f"under way, {task}", [chart], says)


def usual_seconds(config: Mapping[str, Any]) -> list[float]:
  """Return how long finished runs have taken of the task, the model and the steps of a config."""

  def facts(of: Mapping[str, Any]) -> list[Any]:
    return [of["task"], of["model"], *(of["train"].get(name) for name in SIZES)]

  runs: list[Run] = []
  with contextlib.suppress(UserError):  # there are none
    runs = read_runs([Path(config["runs"], str(config["task"]["name"]))], trials=True)[0]
  found = [run.score("time/seconds") for run in runs if facts(run.config) == facts(config)]
  return [seconds for seconds in found if seconds is not None]
