"""What sweeps under way are going to train, which reports read: `.sweep/plans/` of the runs."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from posexp import reading, storage
from posexp.errors import UserError

PLANS = ".sweep/plans"


class Plan(NamedTuple):
  """The runs of a sweep."""

  runs: list[Path]  # their folders, as far as they are known
  more: int  # runs whose options are not chosen yet
  done: int  # runs that had finished when the sweep began
  begun: float  # when that was, in seconds since 1970


def _file(place: Path, name: str) -> Path:
  return place / PLANS / f"{hashlib.sha256(name.encode()).hexdigest()[:12]}.json"


def is_kept(place: Path, name: str) -> bool:
  """Return whether the sweep `name` was begun and has runs left."""
  return _file(place, name).exists()


def keep_plan(place: Path, name: str, plan: Plan | None) -> None:
  """Write the plan of the sweep `name` to the folder of its runs, or remove it if it is None."""
  file = _file(place, name)
  if plan is None:
    storage.remove(file)
    with contextlib.suppress(OSError):  # something else is in it
      file.parent.rmdir()
      file.parent.parent.rmdir()
    return
  file.parent.mkdir(parents=True, exist_ok=True)
  runs = [str(run.relative_to(place)) for run in plan.runs]
  storage.write(file, json.dumps(plan._asdict() | {"runs": runs}))


def plans(folders: Sequence[Path]) -> Iterator[Plan]:
  """Yield the plan of each sweep that has runs in some folders."""
  places: dict[Path, list[Path]] = {}
  for folder in map(Path.absolute, folders):
    above = (each for each in (folder, *folder.parents) if (each / PLANS).is_dir())
    if place := next(above, None):
      places.setdefault(place, []).append(folder)
  for place, asked in places.items():
    for file in sorted((place / PLANS).glob("*.json")):
      with contextlib.suppress(UserError, OSError, TypeError, ValueError):  # it may be no plan
        plan = Plan(**reading.parse(reading.read(file) or b""))
        plan = plan._replace(runs=[place / run for run in plan.runs])
        if any(run.is_relative_to(folder) for run in plan.runs for folder in asked):
          yield plan
