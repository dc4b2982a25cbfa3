"""A run, read from its folder.

    <runs>/<task>/<encoding>/<digest>/seed=<n>/
      config.yaml       the resolved config
      metrics.jsonl     one row a line: {"step": 50, "train/loss": 0.61, "time/seconds": 7.4}
      checkpoints/      the newest and the best
      summary.json      the result; only a finished run has one
      run.sha256        the digests of these files, once the run has finished
      train.log         what the run printed, and how it failed

A trial of a tuned sweep is in <digest>/trials/<digest>/seed=<n>, below the runs that it is to
improve. The folder follows from the config, so that the same command finds it again. On one kind of
device every number of metrics.jsonl is the same however often the run was stopped, except those
under `time/` and `memory/`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import math
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from shlex import quote
from typing import Any

from posexp import reading
from posexp.config.schema import flat
from posexp.errors import UserError, refused
from posexp.runs.checkpoints import Checkpoints
from posexp.runs.identity import CONFIG, ROWS, SUMMARY, is_changed, seal_of, settings
from posexp.runs.metrics import PLACE, is_metric
from posexp.runs.predictions import as_columns

REQUIRED = {"seed": int, "encoding": str, "task.kind": str, "task.name": str | int | float}
SECTIONS = ("task", "model", "positions", "train", "tracker", "plugins")
PLUGIN = ("name", "path", "sha256")  # what config.yaml says of a plugin
NAMED = 3  # runs that an error names
BEGIN = re.compile(r"(?<=\n)(?=[A-Za-z_])")  # of a section in a YAML text
NO_FAILURE = ("KeyboardInterrupt", "SystemExit")  # ends of a train.log that are no failures
LOGGED = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d+ ")


class Broken(UserError):
  """An error about a damaged file of a run, which training can write again."""


@dataclasses.dataclass(frozen=True, eq=False)
class Run:
  """A run, as its folder or a row of records has it."""

  path: Path
  config: dict[str, Any]
  settings: dict[str, Any]  # {"rpr.k": 4}: the part of the config that decides the results, flat
  summary: dict[str, Any] | None  # only a finished run has one
  rows: bytes | None = None  # its metrics.jsonl, where that is not in the folder but in records
  examples: dict[str, Any] | None = None  # packed, by split and metric, where it is in records

  @functools.cached_property
  def history(self) -> list[dict[str, Any]]:
    """The rows of metrics.jsonl, read when they are asked for; UserError if one is damaged."""
    kept = self.rows
    rows, damage = read_rows(self.path) if kept is None else parsed_rows(self.path, kept)
    if damage is not None:
      raise damage
    return rows

  @functools.cached_property
  def failure(self) -> str | None:
    """The error that ended the run, if one did."""
    return None if self.summary is not None else _failure(self.path / "train.log")

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
  def trial(self) -> str | None:
    """The digest of the runs whose options this trial is to improve; None of any other run."""
    return self.config.get("trial")

  @property
  def looked_at(self) -> bool:
    """Whether its sweep had `until`, by which results are looked at before all seeds are trained.

    See posexp/sweeps/until.py.
    """
    return self.config.get("until") is not None

  @functools.cached_property
  def facts(self) -> dict[str, Any]:
    """What trained the run, by name, and the day: {"cores": 8, "jax": "0.10.2", ...}.

    A run of an earlier version has fewer of them.
    """
    known = {name: self.summary[name] for name in PLACE if name in (self.summary or {})}
    parts = re.split(r", (?=\w+ )", str(known.get("versions", "")))
    versions = dict(part.split(" ", 1) for part in parts if " " in part)
    day = {"ended": str(known["ended"])[:10]} if "ended" in known else {}
    return versions | known | day

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
    """Return a number of the summary; None if it is missing or not finite."""
    value = (self.summary or {}).get(metric)
    return float(value) if reading.is_number(value) and math.isfinite(value) else None

  def learned(self, split: str) -> bool | None:
    """Return whether the run has learned its task at the lengths of training; if not, scores of a
    split say little. None if the task has no such gate.
    """
    gate = (self.summary or {}).get("gates", {}).get(split)
    return None if gate is None else (self.score(gate["metric"]) or 0.0) >= gate["least"]

  def restore(self, template: Any) -> Any:
    """Return the state of the best checkpoint, laid out like `template`; None if there is none.

    The best of a finished run is the one that its summary is of; with `train.average` it is the
    mean that was measured at its end. The run may be in training meanwhile.

    Raises:
      UserError: the checkpoint is of another model, is lost, or cannot be read.
    """
    average = self.settings.get("train.average")
    with contextlib.closing(Checkpoints(self.path / "checkpoints", read_only=True)) as checkpoints:
      if average and checkpoints.find("best") is not None:
        return checkpoints.average(template, average)[0]
      if "step" in (self.summary or {}):
        return checkpoints.load(self.summary["step"], template)
      return checkpoints.restore(template, "best")


def read_run(path: Path | str) -> Run:
  """Return the run in a folder, which may be in training.

  Raises:
    UserError: there is no run, or its config or its summary is damaged.
  """
  path = Path(path)
  config = read_config(path) if path.is_dir() else None
  if config is None:
    raise _no_run(path)
  return Run(path, config, settings(config), read_summary(path))


def read_runs(paths: Sequence[Path], trials: bool = False) -> tuple[list[Run], list[str]]:
  """Return all runs in these folders, at any depth, and a note for each run that cannot be read.

  Trials of tuned sweeps are no results: they are left out unless `trials` asks for them.

  Raises:
    UserError: a folder is missing, or there is no run in any.
  """
  folders: dict[str, Path] = {}  # by their real paths
  runs, wrong = [], []
  for path in paths:
    if not path.is_dir():
      raise _no_run(path)
    folders |= {os.path.realpath(folder): folder for folder in _folders(path, wrong)}
  for folder in folders.values():
    try:
      run = read_run(folder)
      seal = seal_of(folder)
      if ROWS not in seal or is_changed(seal, ROWS, reading.read(folder / ROWS) or b""):
        _ = run.history  # which says now whether it is damaged
      runs.append(run)
    except UserError as error:
      wrong.append(str(error))
  there = ", ".join(map(str, paths))
  if not runs:
    none = f"{there}: no runs found; python -m posexp.train keeps them in runs/"
    raise UserError(wrong[0] if wrong else none)
  if not trials and not (runs := [run for run in runs if not run.trial]):
    raise UserError(f"{there}: these are trials of a tuned sweep, which are no results")
  return runs, [f"left out: {reason}" for reason in wrong]


def _no_run(path: Path) -> UserError:
  """Return the error for a path that is no run's folder, with the runs that were probably meant."""
  if path.is_file():
    return UserError(f"{path} is a file: name the folder of a run")
  if not path.is_dir():
    return UserError(f"{path}: there is no such folder")
  folders = (folder for folder in _folders(path, []) if folder != path)  # one without its config
  below = ", ".join(quote(str(folder)) for folder in itertools.islice(folders, NAMED))
  if not below:
    return UserError(f"{path} is not a run's folder: it has no config.yaml")
  return UserError(f"{path} is not a run's folder, but holds some: name one, as {below}")


def _folders(path: Path, wrong: list[str]) -> Iterator[Path]:
  """Yield the folders that hold a run, even one that has lost its config, ordered by name.

  Hidden folders are passed over; `wrong` gets a sentence for each that cannot be read.
  """
  for folder, inside, files in os.walk(path, onerror=lambda e: wrong.append(str(refused(e)))):
    if {"config.yaml", "metrics.jsonl"} & {*files}:
      inside.clear()
      yield Path(folder)
    inside[:] = sorted(name for name in inside if not name.startswith("."))


def read_config(path: Path) -> dict[str, Any] | None:
  """Return the config in a run's folder; None if there is none.

  Raises:
    Broken: it is not a config, it is another version's, or it was changed after the run's end.
    UserError: it cannot be read.
  """
  return _read(path, CONFIG, parsed_config)


def _read(path: Path, name: str, parse: Callable[[Path, bytes], dict[str, Any]]) -> Any:
  """Return the parsed content of a file that training can make again; None if there is none."""
  data = reading.read(path / name)
  if data is not None and is_changed(seal_of(path), name, data):
    raise _broken(path, name, "is not the one of run.sha256")
  return None if data is None else parse(path, data)


def _broken(path: Path, name: str, why: str = "is broken") -> Broken:
  """Return the error for a file of a run that training can make again."""
  return Broken(f"{path}: its {name} {why}; the training command, typed again, makes it again")


def parsed_config(path: Path, data: bytes) -> dict[str, Any]:
  """Return the config.yaml of the run in a folder; raise Broken as `read_config` does."""
  try:
    config = dict(_loaded(data.decode()))
  except (ValueError, TypeError):
    raise _broken(path, CONFIG) from None
  settings = flat(config)
  for key, kind in REQUIRED.items():
    if key not in settings:
      raise Broken(f"{path} is a folder of another version: its config has no {key}")
    if not isinstance(settings[key], kind) or isinstance(settings[key], bool):
      raise _broken(path, CONFIG, f"is broken ({key} is {settings[key]!r:.50})")
  for section in (*SECTIONS, config["encoding"]):
    if not isinstance(config.get(section) or {}, dict):
      raise _broken(path, CONFIG, f"is broken ({section} is no section of options)")
  for plugin in (config.get("plugins") or {}).values():
    if not isinstance(plugin, dict) or not all(isinstance(plugin.get(k), str) for k in PLUGIN):
      raise _broken(path, CONFIG, f"is broken (plugins must have {', '.join(PLUGIN)})")
  return config


def _loaded(text: str) -> Any:
  """Return the plain value of a YAML text, read section by section, for runs share most of them."""
  with contextlib.suppress(ValueError):  # text in quotes may begin a line, too
    sections = [_section(part) for part in BEGIN.split(text)]
    if all(isinstance(section, dict) for section in sections):
      return {key: value for section in sections for key, value in section.items()}
  return _section(text)


@functools.lru_cache(maxsize=4096)
def _section(text: str) -> Any:
  """Return the plain value of a YAML text; equal texts are parsed once and share it."""
  value = reading.parse_yaml(text)
  if not reading.is_plain(value):
    raise ValueError(value)
  return value


def read_summary(path: Path) -> dict[str, Any] | None:
  """Return the summary in a run's folder; None if the run has not finished.

  Raises:
    Broken: it is no summary, or not the one that the run has written.
    UserError: it cannot be read.
  """
  return _read(path, SUMMARY, parsed_summary)


def parsed_summary(path: Path, data: bytes) -> dict[str, Any]:
  """Return the summary.json of the run in a folder; raise Broken as `read_summary` does."""
  try:
    summary = dict(reading.parse(data))
    if not summary or not reading.is_plain(summary) or not all(map(_is_result, summary.items())):
      raise ValueError("values of other kinds")
  except (TypeError, ValueError):
    raise _broken(path, SUMMARY) from None
  return {sys.intern(key): value for key, value in summary.items()}


def _is_result(item: tuple[str, Any]) -> bool:
  """Return whether a summary may hold this: a number for each metric, and a task's declarations."""
  key, value = item
  if key == "headline":
    return isinstance(value, list) and all(isinstance(each, str) for each in value)
  if key == "metrics":
    return isinstance(value, list) and all(is_metric(each) for each in value)
  if key == "columns":
    return as_columns(value) is not None
  if key == "gates":
    return isinstance(value, dict) and all(map(_is_gate, value.values()))
  return "/" not in key or value is None or reading.is_number(value)


def _is_gate(gate: Any) -> bool:
  """Return whether a value is a metric's name, and the value from which a split's scores count."""
  named = isinstance(gate, dict) and isinstance(gate.get("metric"), str)
  return named and reading.is_number(gate.get("least"))


def read_rows(path: Path) -> tuple[list[dict[str, Any]], UserError | None]:
  """Return the rows of metrics.jsonl up to the first damaged one, and the error about that one.

  The last line may be half a row: the run is writing it, or was killed meanwhile. If a row of a
  finished run was changed, no row is returned.
  """
  data = reading.read(path / ROWS) or b""
  if not is_changed(seal_of(path), ROWS, data):
    return parsed_rows(path, data)
  return [], UserError(
    f"{path / ROWS}: not the rows of run.sha256; put back the file that was changed, or "
    "rerun=true starts the run afresh"
  )


def parsed_rows(path: Path, data: bytes) -> tuple[list[dict[str, Any]], UserError | None]:
  """Return the same as `read_rows`, from the content of the metrics.jsonl in a folder."""
  file = path / ROWS
  if reading.count(data) > reading.VALUES:
    return [], UserError(f"{file}: more than {reading.VALUES:,} numbers; move it away")
  *lines, unfinished = data.split(b"\n")
  rows: list[dict[str, Any]] = []
  for number, line in enumerate(lines, start=1):
    try:
      row = reading.parse(line)
      steps = row["step"], rows[-1]["step"] if rows else -1
      if not all(map(reading.is_number, row.values())) or not steps[1] < steps[0]:
        raise ValueError(line)
    except (ValueError, TypeError, LookupError, AttributeError):
      if number == len(lines) and not unfinished:
        break
      return rows, UserError(
        f"{file}, line {number}: not a row of metrics; put the file back, or rerun=true starts the "
        "run afresh"
      )
    rows.append({sys.intern(key): value for key, value in row.items()})
  return rows, None


def _failure(file: Path) -> str | None:
  """Return the error at the end of a train.log, if there is one."""
  try:
    text = reading.tail(file).decode(errors="replace").rstrip()
  except UserError:
    return None
  last = text.rpartition("\n")[2].strip()
  if not last or LOGGED.match(last) or last.startswith(NO_FAILURE):
    return None
  user_error = re.fullmatch(r"""(?:UserError|NotFinite)\((['"])(.*)\1\)""", last)
  return user_error[2] if user_error else last


def times(path: Path, history: Sequence[Mapping[str, Any]]) -> dict[int, float]:
  """Return when each row of a run was logged, in seconds since 1970, by its step.

  The rows say how many seconds of training lie between them, and the file when the last was added.
  """
  if not history:
    return {}
  end = (path / ROWS).stat().st_mtime - history[-1].get("time/seconds", 0.0)
  return {row["step"]: end + row.get("time/seconds", 0.0) for row in history}
