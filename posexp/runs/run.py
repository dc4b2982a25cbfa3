"""A run, read from its folder.

    <runs>/<task>/<encoding>/<digest>/seed=<n>/
      config.yaml       the resolved config
      metrics.jsonl     one row a line: {"step": 50, "train/loss": 0.61, "time/seconds": 7.4}
      checkpoints/      the newest and the best
      summary.json      the result; only a finished run has one
      train.log         what the run printed, and how it failed

The folder follows from the config, so that the same command finds it again. On one kind of
device every number of metrics.jsonl is the same however often the run was stopped, except those
under `time/` and `memory/`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml

from posexp.config.schema import flat
from posexp.errors import UserError
from posexp.runs.checkpoints import Checkpoints
from posexp.runs.identity import decisive

REQUIRED = ("seed", "encoding", "task.kind", "task.name")  # keys of the config of every run
NO_FAILURE = ("KeyboardInterrupt", "SystemExit")  # ends of a train.log that are no failures
LOGGED = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d+ ")


@dataclasses.dataclass(frozen=True)
class Run:
  """What a run's folder holds."""

  path: Path
  config: dict[str, Any]
  settings: dict[str, Any]  # {"rpr.k": 4}: the part of the config that decides the results, flat
  summary: dict[str, Any] | None  # only a finished run has one
  history: list[dict[str, Any]]  # the rows of metrics.jsonl
  failure: str | None  # the error that ended it, if one did

  @property
  def seed(self) -> int:
    return self.config["seed"]

  @property
  def task(self) -> str:
    """The name of its task."""
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
    """The digest of config and data in the folder's name; None where the folder was moved."""
    name = self.path.absolute().parent.name
    return name if re.fullmatch("[0-9a-f]{12}", name) else None

  def score(self, metric: str) -> float | None:
    """A number of the summary; None if it is missing or not finite."""
    value = (self.summary or {}).get(metric)
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if number and math.isfinite(value) else None

  def restore(self, template: Any, which: str = "best") -> Any:
    """The "best" or the "latest" checkpoint, laid out like `template`; None if there is none.

    The best of a run with `train.average` is the mean that was measured at its end. The run may be
    in training meanwhile.

    Raises:
      UserError: the checkpoint is of another model, or cannot be read.
    """
    average = self.config["train"].get("average") if which == "best" else None
    checkpoints = Checkpoints(self.path / "checkpoints", read_only=True)
    with contextlib.closing(checkpoints):
      if average and checkpoints.find(which) is not None:
        return checkpoints.average(template, average)[0]
      return checkpoints.restore(template, which)


def read_run(path: Path | str) -> Run:
  """The run in a folder, which may be in training.

  Raises:
    UserError: there is no run, or one of its files is damaged.
  """
  path = Path(path)
  if not (path / "config.yaml").exists():
    raise UserError(f"{path} is not a run's folder: it has no config.yaml")
  return _read(path)


def read_runs(paths: Sequence[Path]) -> tuple[list[Run], list[str]]:
  """All runs in these folders, at any depth, and a note for each run that cannot be read.

  Raises:
    UserError: a folder is missing, or there is no run in any.
  """
  folders: dict[str, Path] = {}  # by their real paths
  for path in paths:
    if not path.is_dir():
      raise UserError(f"{path}: there is no such folder")
    folders |= {os.path.realpath(folder): folder for folder in _folders(path)}
  runs, wrong = [], []
  for folder in folders.values():
    try:
      runs.append(_read(folder))
    except (UserError, OSError) as error:
      wrong.append(str(error))
  if not runs:
    there = ", ".join(map(str, paths))
    none = f"{there}: no runs found; python -m posexp.train keeps them in runs/"
    raise UserError(wrong[0] if wrong else none)
  return runs, [f"left out: {each}" for each in wrong]


def _folders(path: Path) -> Iterator[Path]:
  """Every folder with a config.yaml, in the order of their names, without hidden ones."""
  for folder, inside, files in os.walk(path):
    if "config.yaml" in files:
      inside.clear()
      yield Path(folder)
    inside[:] = sorted(name for name in inside if not name.startswith("."))


def _read(path: Path) -> Run:
  text = (path / "config.yaml").read_text(encoding="utf-8", errors="replace")
  try:
    config = dict(yaml.load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader)))
  except (yaml.YAMLError, TypeError, ValueError):
    raise UserError(f"{path}: its config.yaml is broken") from None
  settings = flat(decisive(config))
  if missing := [key for key in REQUIRED if key not in settings | config]:
    raise UserError(f"{path} is a folder of another version: its config has no {missing[0]}")
  summary = read_summary(path)
  failure = None if summary is not None else _failure(path / "train.log")
  return Run(path, config, settings, summary, _rows(path), failure)


def read_summary(path: Path) -> dict[str, Any] | None:
  """The summary in a run's folder; None if the run has not finished.

  Raises:
    UserError: it is broken.
  """
  try:
    return dict(json.loads((path / "summary.json").read_bytes()))
  except (FileNotFoundError, NotADirectoryError):
    return None
  except (TypeError, ValueError):
    raise UserError(f"{path}: its summary.json is broken") from None


def _rows(path: Path) -> list[dict[str, Any]]:
  """The rows of metrics.jsonl.

  The last line may be half a row: the run is writing it, or was killed while it did.
  """
  try:
    *lines, unfinished = (path / "metrics.jsonl").read_bytes().split(b"\n")
  except FileNotFoundError:
    return []
  rows = []
  for number, line in enumerate(lines, start=1):
    try:
      row = json.loads(line)
      row["step"] + 0  # a number
    except (ValueError, TypeError, KeyError):
      if number < len(lines) or unfinished:
        message = f"{path / 'metrics.jsonl'}, line {number}: not a row of metrics"
        raise UserError(message) from None
    else:
      rows.append(row)
  return rows


def _failure(file: Path) -> str | None:
  """The error at the end of a train.log, if there is one."""
  try:
    text = file.read_text(encoding="utf-8", errors="replace").rstrip()
  except OSError:
    return None
  last = text.rpartition("\n")[2].strip()
  if not last or LOGGED.match(last) or last.startswith(NO_FAILURE):
    return None
  user_error = re.fullmatch(r"""UserError\((['"])(.*)\1\)""", last)
  return user_error[2] if user_error else last
