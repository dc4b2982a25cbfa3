"""Run folders as they are found, whole or not: nothing here refuses a run for a broken line."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from posexp.config import nearest
from posexp.errors import UserError
from posexp.runs.run import deciding

NEEDED = ("encoding", "seed", "task.kind", "task.name")  # without them it is no run of this version
STOPPED = ("KeyboardInterrupt", "SystemExit")  # ends of a train.log that are no failures
TAIL = 4096  # bytes of a train.log, in which its last line is
LOGGED = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d+ ")
SEED = re.compile(r"^seed: (\d+)\n", re.MULTILINE)


class Found(NamedTuple):
  """A run, finished or not."""

  path: Path
  seed: int
  settings: dict[str, Any]  # {"rpr.k": 4}: all that changes results
  summary: dict[str, Any] | None  # only a finished run has one
  history: list[dict[str, Any]]
  damaged: int  # lines of metrics.jsonl that are no rows
  failure: str | None  # the last line of train.log, if it is an error

  @property
  def task(self) -> str:
    return str(self.settings["task.name"])

  @property
  def encoding(self) -> str:
    return str(self.settings["encoding"])

  @property
  def state(self) -> str:
    """ "finished", "failed" or "unfinished"."""
    if self.summary is not None:
      return "finished"
    return "failed" if self.failure else "unfinished"

  @property
  def step(self) -> int:
    """The step of its last row."""
    return self.history[-1]["step"] if self.history else 0

  @property
  def digest(self) -> str | None:
    """What its folder says of config and data; runs that were moved may lack it."""
    name = self.path.absolute().parent.name
    return name if re.fullmatch("[0-9a-f]{12}", name) else None

  def score(self, metric: str) -> float | None:
    """A finite number of the summary."""
    value = (self.summary or {}).get(metric)
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if number and math.isfinite(value) else None


def read(paths: Iterable[Path]) -> tuple[list[Found], list[str]]:
  """All runs in these folders, at any depth, and a note for each folder that holds none of ours.

  Raises:
    UserError: a folder is missing, or there is no run in any.
  """
  runs, notes, seen = [], [], set()
  parsed: dict[str, dict[str, Any]] = {}
  paths = list(paths)
  for path in paths:
    if not path.is_dir():
      raise UserError(f"{path}: there is no such folder{_hint(path)}")
    for folder in folders(path):
      real = os.path.realpath(folder)
      if real in seen:
        continue
      seen.add(real)
      try:
        runs.append(_run(Path(folder), parsed))
      except (UserError, OSError) as error:
        notes.append(f"left out: {error}")
  if not runs:
    there = ", ".join(map(str, paths))
    if notes:
      more = f" (and {len(notes) - 1} more)" if len(notes) > 1 else ""
      raise UserError(f"{notes[0].removeprefix('left out: ')}{more}; there is no other run")
    raise UserError(f"{there}: no runs found; python -m posexp.train keeps them in runs/")
  return runs, notes


def folders(path: Path) -> Iterator[str]:
  """Every folder with a config.yaml, in the order of their names; hidden ones are passed over."""
  for folder, inside, files in os.walk(path):
    if "config.yaml" in files:
      inside.clear()
      yield folder
    inside[:] = sorted(name for name in inside if not name.startswith("."))


def _hint(path: Path) -> str:
  parent = path.absolute().parent
  names = [each.name for each in parent.iterdir() if each.is_dir()] if parent.is_dir() else []
  close = nearest(path.name, names)
  return f"; did you mean {path.with_name(close)}?" if close else ""


def _run(path: Path, parsed: dict[str, dict[str, Any]]) -> Found:
  text = (path / "config.yaml").read_text(encoding="utf-8", errors="replace")
  # Runs that differ in nothing but the seed are parsed once.
  seed = SEED.search(text)
  key = SEED.sub("", text, count=1)
  if key not in parsed:
    parsed[key] = _config(path, text)
  flat, given = parsed[key]["settings"], parsed[key]["seed"]
  summary = _summary(path)
  history, damaged = rows(path / "metrics.jsonl")
  failure = None if summary is not None else _failure(path / "train.log")
  number = int(seed.group(1)) if seed else given
  return Found(path, number, flat, summary, history, damaged, failure)


def _config(path: Path, text: str) -> dict[str, Any]:
  try:
    config = yaml.load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))
  except yaml.YAMLError:
    raise UserError(f"{path}: its config.yaml is broken") from None
  if not isinstance(config, Mapping):
    raise UserError(f"{path}: its config.yaml is broken")
  flat = settings(config)
  missing = [key for key in NEEDED if key not in flat | {"seed": config.get("seed")}]
  if not isinstance(config.get("seed"), int):
    missing = ["seed", *(key for key in missing if key != "seed")]
  if missing:
    raise UserError(f"{path} is a folder of another version: its config has no {missing[0]}")
  return {"settings": flat, "seed": config["seed"]}


def _summary(path: Path) -> dict[str, Any] | None:
  try:
    summary = json.loads((path / "summary.json").read_bytes())
  except FileNotFoundError:
    return None
  except ValueError:
    raise UserError(f"{path}: its summary.json is broken") from None
  if not isinstance(summary, dict):
    raise UserError(f"{path}: its summary.json is broken")
  return summary


def rows(file: Path) -> tuple[list[dict[str, Any]], int]:
  """The rows of a metrics.jsonl, and how many lines are none.

  A last line without an end is no damage: the run is writing it, or was killed while it did.
  """
  try:
    *lines, _ = file.read_bytes().split(b"\n")
  except FileNotFoundError:
    return [], 0
  found, damaged = [], 0
  for line in lines:
    try:
      row = json.loads(line)
      row["step"] + 0  # a number
      found.append(row)
    except (ValueError, TypeError, KeyError):
      damaged += 1
  return found, damaged


def _failure(file: Path) -> str | None:
  try:
    with file.open("rb") as log:
      log.seek(max(0, os.path.getsize(file) - TAIL))
      text = log.read().decode("utf-8", errors="replace")
  except OSError:
    return None
  last = next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "")
  if not last or LOGGED.match(last) or last.startswith(STOPPED):
    return None
  told = re.fullmatch(r"""UserError\((['"])(.*)\1\)""", last)
  return told.group(2) if told else last


def settings(config: Mapping[str, Any]) -> dict[str, Any]:
  """What changes a run's results, {"rpr": {"k": 4}} as {"rpr.k": 4}."""
  return flat(deciding(config))


def flat(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
  """A config with full keys."""
  found: dict[str, Any] = {}
  for key, value in config.items():
    inside = isinstance(value, Mapping)
    found |= flat(value, f"{prefix}{key}.") if inside else {f"{prefix}{key}": value}
  return found
