"""A run's folder: what the run is, what it measured, where it can go on, and what came of it.

    <runs>/<task>/<encoding>/<digest>/seed=<n>/
      config.yaml       the resolved config
      metrics.jsonl     one row a line: {"step": 50, "train/loss": 0.61, "time/seconds": 7.4}
      checkpoints/      the newest and the best
      summary.json      the result; only a finished run has one
      train.log         what the run said, and how it failed

The folder follows from the config, so that the same command finds it again. On one kind of
device every number of metrics.jsonl is the same however often the run was stopped, except those
under `time/` and `memory/`.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import logging
import os
import shutil
import tempfile
import traceback
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any, NamedTuple

from omegaconf import OmegaConf

from posexp.errors import UserError
from posexp.runs.checkpoints import Checkpoints

# What does not change a run's results: sections, options of a task that are paths of data, and
# options at these values, which are what runs had before there was a choice.
BOOKKEEPING = ("seed", "runs", "rerun", "wandb", "distributed", "plugins")
FILES = ("train", "validation", "test")
SAME = {
  "train.shard": ("none", "parameters"),
  "train.accumulate": (1,),
  "model.attention": ("auto",),
}
OWNED = (
  "summary.json",
  "checkpoints",
  "metrics.jsonl",
  "config.yaml",
  "tokenizer.json",
  "tokenizer.source.json",
  "tokenizer.target.json",
  "tokenizer.sha256",
  "predictions",
  "figures",
  "train.log",
  "wandb",
)


def digest(config: Mapping[str, Any], data_digest: str | None = None) -> str:
  """Twelve hexadecimal digits that two configs share if they ask for the same run but for its seed.

  `data_digest` is that of the user's own files. It stands for their paths, so that moved data is
  the same data.
  """
  kept = deciding(config)
  if data_digest is not None:
    task = {key: value for key, value in kept["task"].items() if key not in FILES}
    kept["task"] = task | {"data": data_digest}
  text = json.dumps(_canonical(kept), sort_keys=True, separators=(",", ":"))
  return hashlib.sha256(text.encode()).hexdigest()[:12]


def deciding(config: Mapping[str, Any]) -> dict[str, Any]:
  """The config less what does not change a run's results, but with the paths of data.

  The content of a plugin counts as an option of the encoding or the task that it is.
  """
  kept = {
    section: {key: part[key] for key in part if part[key] not in SAME.get(f"{section}.{key}", ())}
    if isinstance(part, Mapping)
    else part
    for section, part in config.items()
    if section not in BOOKKEEPING
  }
  for group, plugin in config.get("plugins", {}).items():
    section = "task" if group == "task" else plugin["name"]
    kept[section] = (kept.get(section) or {}) | {"sha256": plugin["sha256"][:12]}
  return kept


def folder(config: Mapping[str, Any], data_digest: str | None = None) -> Path:
  """Where the run of a config is kept: `<runs>/<task>/<encoding>/<digest>/seed=<n>`.

  Raises:
    UserError: the task's name cannot be the name of a folder.
  """
  name = str(config["task"]["name"])
  if name in ("", ".", "..") or "/" in name or "\0" in name:
    raise UserError(f"task.name={name}: it names a folder, so it must not be empty or hold a /")
  seed = f"seed={config['seed']}"
  return Path(config["runs"], name, config["encoding"], digest(config, data_digest), seed)


class Run:
  """A run's folder, in the hands of the one process that trains it.

    with Run(path, config) as run:
      run.rewind(run.checkpoints.find("latest") or 0)
      state = run.restore(state) or state
      ...
        run.log(step, metrics)
        run.save(step, state, metrics)
      run.finish(summary)

  A row is logged before the state of its step is saved: then a checkpoint vouches for all rows up
  to its step, and a run that goes on from it writes the others again. The best checkpoint is that
  with the highest `metric`, of equals the earliest; the `scored` newest evaluated ones stay too.

  Whether a run has `finished` can be asked without opening it.
  """

  def __init__(
    self,
    path: Path,
    config: Mapping[str, Any],
    *,
    rerun: bool = False,
    metric: str = "validation/accuracy",
    scored: int = 0,
  ):
    self.path = Path(path)
    self.output = self.path  # where this process writes what it makes
    self.metric = metric
    self.history: list[dict[str, Any]] = []
    self.checkpoints = Checkpoints(self.path / "checkpoints", scored=scored)
    self._config = dict(config)
    self._rerun = rerun
    self._rows: IO[str] | None = None
    self._stack = contextlib.ExitStack()

  def __enter__(self) -> Run:
    """Opens the folder, and makes it if need be.

    Raises:
      UserError: it cannot be written, another process trains the run, or another run is in it.
    """
    with contextlib.ExitStack() as stack:
      with _writing(self.path):
        self.path.mkdir(parents=True, exist_ok=True)
        stack.enter_context(lock(self.path))
        if self._rerun:
          self._clear()
        self._check()
        if self.finished is None:
          _write(self.path / "config.yaml", OmegaConf.to_yaml(OmegaConf.create(self._config)))
        self.history = _rows(self.path / "metrics.jsonl")
        self._rewrite()
        stack.callback(lambda: self._rows.close())
        stack.enter_context(_journal(self.path / "train.log"))
      stack.callback(self.checkpoints.close)
      self._stack = stack.pop_all()
    return self

  def __exit__(self, *error: Any) -> None:
    """Waits for the last checkpoint and lets go of the folder."""
    self._stack.__exit__(*error)

  @property
  def finished(self) -> dict[str, Any] | None:
    """The summary, if the run has finished."""
    return _summary(self.path)

  def log(self, step: int, metrics: Mapping[str, Any]) -> None:
    """Adds a row to metrics.jsonl; a kill after that does not lose it."""
    text = json.dumps({"step": step, **metrics}, default=_number)
    with _writing(self.path):
      self._rows.write(text + "\n")
      self._rows.flush()
    self.history.append(json.loads(text))

  def rewind(self, step: int) -> None:
    """Drops the rows after `step`, which a run going on from there is about to write again."""
    kept = [row for row in self.history if row["step"] <= step]
    if len(kept) < len(self.history):
      self.history[:] = kept
      with _writing(self.path):
        self._rewrite()

  def save(self, step: int, state: Any, metrics: Mapping[str, float] | None = None) -> None:
    """Begins to write a checkpoint; `state`, a pytree of arrays, may be donated afterwards.

    Without metrics it is kept while it is the newest, and is never the best.
    """
    with _writing(self.path):
      os.fsync(self._rows.fileno())
    score = None if metrics is None else metrics[self.metric]
    self.checkpoints.save(step, state, score)

  def restore(self, template: Any, which: str = "latest") -> Any:
    """The "latest" or the "best" state saved, laid out like `template`; None if there is none.

    Raises:
      UserError: the checkpoint is of another model, or cannot be read.
    """
    return self.checkpoints.restore(template, which)

  def wait(self) -> None:
    """Returns when what was saved is on disk."""
    self.checkpoints.wait()

  def finish(self, summary: Mapping[str, Any]) -> None:
    """Writes the summary, the last thing that a run does."""
    self.wait()
    with _writing(self.path):
      _write(self.path / "summary.json", json.dumps(summary, indent=2, default=_number) + "\n")

  def _clear(self) -> None:
    # By renaming, so that a kill leaves no checkpoint of which half is gone.
    trash = self.path / ".trash"
    shutil.rmtree(trash, ignore_errors=True)
    trash.mkdir()
    for name in OWNED:
      if (self.path / name).exists():
        (self.path / name).rename(trash / name)
    shutil.rmtree(trash)

  def _check(self) -> None:
    there = _config(self.path)
    if there is not None and _identity(there) != _identity(self._config):
      raise UserError(
        f"{self.path} holds a run of another config (see its config.yaml); move it away, or "
        "rerun=true overwrites it"
      )

  def _rewrite(self) -> None:
    file = self.path / "metrics.jsonl"
    text = "".join(json.dumps(row) + "\n" for row in self.history)
    if not file.exists() or file.read_bytes() != text.encode():
      _write(file, text)
    if self._rows is not None:
      self._rows.close()
    self._rows = file.open("a", encoding="utf-8")


class Follower(Run):
  """A run in the hands of a process that trains it with others, of which another writes it."""

  def __enter__(self) -> Run:
    """Reads the folder, which the process that writes has opened."""
    with contextlib.ExitStack() as stack:
      self.output = Path(stack.enter_context(tempfile.TemporaryDirectory()))
      self.history = _rows(self.path / "metrics.jsonl")
      self._rows = stack.enter_context((self.output / "metrics.jsonl").open("w"))
      stack.callback(self.checkpoints.close)
      self._stack = stack.pop_all()
    return self

  def finish(self, summary: Mapping[str, Any]) -> None:
    """Leaves the summary to the other."""
    self.wait()

  def _rewrite(self) -> None:
    pass


class Record(NamedTuple):
  """A run read back, finished or not."""

  path: Path
  config: dict[str, Any]
  history: list[dict[str, Any]]
  summary: dict[str, Any] | None

  def restore(self, template: Any, which: str = "best") -> Any:
    """As `Run.restore`, and nothing is written; with `train.average` that mean is the best."""
    average = self.config["train"].get("average") if which == "best" else None
    checkpoints = Checkpoints(self.path / "checkpoints", read_only=True)
    with contextlib.closing(checkpoints):
      if average and checkpoints.find(which) is not None:
        return checkpoints.average(template, average)[0]
      return checkpoints.restore(template, which)


def open_run(path: Path | str) -> Record:
  """Reads the run in a folder, which may be in training.

  Raises:
    UserError: there is no run in it.
  """
  path = Path(path)
  config = _config(path)
  if config is None:
    raise UserError(f"{path} is not a run's folder: it has no config.yaml")
  return Record(path, config, _rows(path / "metrics.jsonl"), _summary(path))


@contextlib.contextmanager
def lock(path: Path) -> Iterator[None]:
  """Holds the folder for this process; the system lets go of it when the process ends, however."""
  with (path / ".lock").open("a+") as file:
    try:
      fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
      file.seek(0)
      raise UserError(
        f"{path} is being trained by another process (pid {file.read().strip() or 'unknown'}); "
        "wait for it, or stop it"
      ) from None
    file.truncate(0)
    file.write(f"{os.getpid()}\n")
    file.flush()
    yield


@contextlib.contextmanager
def _journal(file: Path) -> Iterator[None]:
  """Copies what posexp logs into a file, and the exception that ends the run, if one does."""
  handler = logging.FileHandler(file, encoding="utf-8")
  handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
  handler.setLevel(logging.INFO)
  log = logging.getLogger("posexp")
  log.addHandler(handler)
  try:
    yield
  except BaseException as error:
    told = isinstance(error, UserError | KeyboardInterrupt | SystemExit)
    handler.stream.write(f"{error!r}\n" if told else traceback.format_exc())
    raise
  finally:
    log.removeHandler(handler)
    handler.close()


@contextlib.contextmanager
def _writing(path: Path) -> Iterator[None]:
  try:
    yield
  except OSError as error:
    raise UserError(
      f"the run's folder {path} cannot be written: {error.strerror or error}; runs=... keeps runs "
      "in another place"
    ) from error


def _identity(config: Mapping[str, Any]) -> tuple[str, Any]:
  # The path of the folder vouches for the content of the data, wherever that was at the time.
  return digest(config, data_digest=""), config.get("seed")


def _config(path: Path) -> dict[str, Any] | None:
  file = path / "config.yaml"
  return OmegaConf.to_container(OmegaConf.load(file)) if file.exists() else None


def _summary(path: Path) -> dict[str, Any] | None:
  file = path / "summary.json"
  return json.loads(file.read_text(encoding="utf-8")) if file.exists() else None


def _rows(file: Path) -> list[dict[str, Any]]:
  """The rows of a metrics.jsonl, less a last one that was not written to its end."""
  if not file.exists():
    return []
  *lines, rest = file.read_bytes().split(b"\n")
  rows = []
  for number, line in enumerate(lines, start=1):
    try:
      row = json.loads(line)
      row["step"]
      rows.append(row)
    except (ValueError, TypeError, KeyError):
      if number < len(lines) or rest:
        raise UserError(f"{file}, line {number}: not a row of metrics") from None
  return rows


def _write(file: Path, text: str) -> None:
  """Writes a file so that it is there whole or not at all."""
  scratch = file.with_name(f".{file.name}.tmp")
  with scratch.open("w", encoding="utf-8") as out:
    out.write(text)
    out.flush()
    os.fsync(out.fileno())
  scratch.replace(file)


def _canonical(value: Any) -> Any:
  """The same value for what counts as the same: 1 and 1.0 are one learning rate."""
  if isinstance(value, Mapping):
    return {str(key): _canonical(item) for key, item in value.items()}
  if isinstance(value, list | tuple):
    return [_canonical(item) for item in value]
  return int(value) if isinstance(value, float) and value.is_integer() else value


def _number(value: Any) -> Any:
  """A scalar of numpy or jax as Python's own, with the same value."""
  return value.item()
