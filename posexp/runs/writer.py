"""The writer of a run's folder, for the process that trains the run."""

from __future__ import annotations

import contextlib
import json
import logging
import operator
import os
import tempfile
import traceback
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Self

from filelock import FileLock, Timeout
from omegaconf import OmegaConf

from posexp import reading, storage
from posexp.errors import UserError, writing
from posexp.runs.checkpoints import Checkpoints, Rank, best_of
from posexp.runs.identity import CONFIG, ROWS, SEAL, SUMMARY, digest, seal
from posexp.runs.metrics import results, score
from posexp.runs.run import Broken, read_config, read_rows, read_summary

ACCURACY = score("validation/accuracy")
OWNED = (  # what `rerun` removes, in this order
  SUMMARY, SEAL, "checkpoints", ROWS, CONFIG, "tokenizer.*", "predictions", "context", "figures",
  "parent.json", "train.log", "wandb", "tensorboard",
)  # fmt: skip

# Folders and files that are written in place, by posexp or by a library.
WRITTEN_INTO = (
  ROWS, "train.log", "checkpoints", "predictions", "context", "figures", "wandb", "tensorboard",
)  # fmt: skip


class RunWriter:
  """A writer of a run's folder, for the one process that trains it.

    with RunWriter(path, config) as run:
      run.rewind(run.checkpoints.find("latest") or 0)
      state = run.checkpoints.restore(state) or state
      ...
        run.log(step, metrics)
        run.save(step, state, metrics)
      run.finish(summary)

  A row is logged before the state of its step is saved. So a checkpoint proves that all rows up
  to its step are there, and a run that goes on from it writes the later ones again. The best
  checkpoint has the best `metric`; among equals it has the lowest validation loss, and then it is
  the earliest. With `train.average`, that many of the newest evaluated ones are kept, too. `rerun`
  in the config removes what is in the folder.
  """

  def __init__(self, path: Path, config: Mapping[str, Any]):
    self.path = Path(path)
    self.output = self.path  # where this process writes its files
    self.started = True  # whether a step was ever taken: if not, a mistake leaves no folder behind
    self.metric = ACCURACY  # chooses the best checkpoint; training sets it to the task's
    self.history: list[dict[str, Any]] = []
    average = config.get("train", {}).get("average") or 0
    self.checkpoints = Checkpoints(self.path / "checkpoints", ranked=average)
    self._config = config
    self._damage: UserError | None = None  # of metrics.jsonl, after the rows of the history
    self._stack = contextlib.ExitStack()

  def __enter__(self) -> Self:
    """Open the folder, and make it if need be.

    Raises:
      UserError: it cannot be written, another process trains the run, or another run is in it.
    """
    with contextlib.ExitStack() as stack, self._writing:
      self._open(stack)
      stack.callback(self.checkpoints.close)
      self._stack = stack.pop_all()
    return self

  def __exit__(self, *error: Any) -> None:
    """Wait for the last checkpoint and close the folder."""
    self._stack.__exit__(*error)

  def log(self, step: int, metrics: Mapping[str, Any]) -> None:
    """Add a row to metrics.jsonl, which a kill afterwards does not lose."""
    text = json.dumps({"step": step, **metrics}, default=_item)
    self._reopen()
    self.started = True
    with self._writing, storage.appending(self.output / ROWS) as file:
      file.write(text + "\n")
    self.history.append(json.loads(text))

  def rewind(self, step: float, due: Mapping[int, bool] | None = None) -> None:
    """Drop the rows after `step`, which a run that goes on from there writes again.

    `due` are the steps up to there that must have a row: True if it is that of an evaluation.

    Raises:
      UserError: a due row is lost or damaged, or the folder cannot be written.
    """
    self.history = [row for row in self.history if row["step"] <= step]
    rows = {row["step"]: row for row in self.history}
    for each, evaluated in (due or {}).items():
      row = rows.get(each)
      if row is None or (evaluated and not {self.metric.key, "validation/loss"} <= row.keys()):
        raise self._damage or UserError(
          f"{self.path / ROWS}: the row of step {each} is lost; put the file back, or rerun=true "
          "starts the run afresh"
        )
    text = "".join(json.dumps(row) + "\n" for row in self.history)
    if text.encode() != reading.read(self.output / ROWS):
      self._reopen()
      with self._writing:
        storage.write(self.output / ROWS, text)

  def save(self, step: int, state: Any, metrics: Mapping[str, float] | None = None) -> None:
    """Begin to write a checkpoint; `state`, a pytree of arrays, may be donated afterwards.

    A checkpoint without metrics is kept while it is the newest, and is never the best.
    """
    self._sync()
    self.started = True
    self.checkpoints.save(step, state, None if metrics is None else self.rank(metrics))

  def rank(self, row: Mapping[str, float]) -> Rank:
    """Return how good the state of an evaluation is: the greatest rank is the best."""
    sign = 1 if self.metric.metric.higher_is_better else -1
    return Rank(sign * row[self.metric.key], -row["validation/loss"])

  def restore_best(self, template: Any) -> Any:
    """Return the state of the best evaluation, as `Checkpoints.load`."""
    ranks = {row["step"]: self.rank(row) for row in self.history if self.metric.key in row}
    return self.checkpoints.load(best_of(ranks), template)

  @property
  def ranks(self) -> list[Rank]:
    """Return the ranks of all evaluations so far."""
    return [self.rank(row) for row in self.history if self.metric.key in row]

  def finish(self, summary: Mapping[str, Any]) -> None:
    """Write the summary, the last thing that a run does; one with the same results stays."""
    self.checkpoints.wait()
    self._sync()
    text = json.dumps(summary, indent=2, default=_item, allow_nan=False) + "\n"
    with contextlib.suppress(Broken):
      if results(read_summary(self.path) or {}) == results(json.loads(text)):
        text = reading.read(self.path / SUMMARY).decode()
    with self._writing:
      seal(self.output, text)
      storage.write(self.output / SUMMARY, text)

  def _reopen(self) -> None:
    """Remove what says that the run is finished, before its rows change: the seal is of them."""
    for name in (SUMMARY, SEAL):  # of a run that has lost its checkpoints or its predictions
      storage.remove(self.output / name)

  def _sync(self) -> None:
    """Wait until the rows are on disk; UserError if they are gone."""
    with self._writing, (self.output / ROWS).open("rb") as file:
      os.fsync(file.fileno())

  def _open(self, stack: contextlib.ExitStack) -> None:
    made = [parent for parent in self.path.parents if not parent.exists()]
    self.path.mkdir(parents=True, exist_ok=True)
    stack.enter_context(lock(self.path))
    stack.push(lambda kind, *_: self._leave(kind, made))
    if self._config.get("rerun"):
      self._clear()
    for left in (*self.path.glob(".*.tmp"), *self.path.glob("predictions/.*.tmp")):
      storage.remove(left)  # of a process that was killed
    config = None
    with contextlib.suppress(Broken):  # then it is written again
      config = read_config(self.path)
    if config is not None and _identity(config) != _identity(self._config):
      raise UserError(
        f"{self.path} holds a run of another config (see its config.yaml); move it away, or "
        "rerun=true overwrites it"
      )
    if config is None or not (self.path / SUMMARY).exists():
      storage.write(self.path / CONFIG, OmegaConf.to_yaml(OmegaConf.create(self._config)))
    self.history, self._damage = read_rows(self.path)
    if self._damage is None:
      storage.appending(self.path / ROWS).close()
    kept = any(any(self.path.glob(name)) for name in (SUMMARY, SEAL, "checkpoints/*"))
    self.started = kept or bool(self.history or self._damage)
    stack.enter_context(_journal(self.path / "train.log"))

  def _leave(self, error: type[BaseException] | None, made: list[Path]) -> None:
    """Remove the folder of a run that was refused, or stopped, before its first step."""
    mistake = error and issubclass(error, UserError | OSError | KeyboardInterrupt | SystemExit)
    if mistake and not self.started:
      self._clear()
      for name in (".pid", ".lock"):
        storage.remove(self.path / name)
      for folder in (self.path, *made):
        with contextlib.suppress(OSError):  # something else is in it
          folder.rmdir()

  def _clear(self) -> None:
    for pattern in OWNED:
      for file in self.path.glob(pattern):
        storage.discard(file)

  @property
  def _writing(self) -> contextlib.AbstractContextManager[None]:
    return writing("the run's folder", self.path)


class ReadOnlyRun(RunWriter):
  """A writer for the other processes that train the run, into a temporary folder of their own.

  In the run's folder they write nothing but their parts of checkpoints.
  """

  def _open(self, stack: contextlib.ExitStack) -> None:
    self.output = Path(stack.enter_context(tempfile.TemporaryDirectory()))
    self.history, self._damage = read_rows(self.path)


class Elsewhere(UserError):
  """An error about a run that another process trains."""


@contextlib.contextmanager
def lock(path: Path) -> Iterator[None]:
  """Hold a run's folder for this process; it is free again when the process ends, even by a kill.

  Raises:
    Elsewhere: another process holds it.
    UserError: a part of the folder is a link, so that this process would write somewhere else.
  """
  for name in WRITTEN_INTO:
    storage.unlinked(path / name)
  holder = path / ".pid"
  try:
    held = FileLock(path / ".lock").acquire(blocking=False)
  except Timeout:
    pid = (reading.read(holder) or b"unknown").decode(errors="replace")
    raise Elsewhere(
      f"{path} is being trained by another process (pid {pid}); wait for it, or stop it"
    ) from None
  with held:
    with storage.replacing(holder) as written:
      written.write_text(str(os.getpid()))
    yield


def is_held(path: Path) -> bool:
  """Return whether another process trains the run of a folder at this moment."""
  try:
    with lock(path):
      return False
  except Elsewhere:
    return True
  except (OSError, UserError):  # the folder is gone, or nobody can train in it
    return False


@contextlib.contextmanager
def _journal(file: Path) -> Iterator[None]:
  """Copy the log of posexp into a file, with the exception that ends the run, if one does."""
  handler = logging.StreamHandler(storage.appending(file))
  handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
  log = logging.getLogger("posexp")
  log.addHandler(handler)
  try:
    yield
  except BaseException as error:
    expected = isinstance(error, UserError | KeyboardInterrupt | SystemExit)
    with contextlib.suppress(OSError):  # on a full disk, say
      handler.stream.write(f"{error!r}\n" if expected else traceback.format_exc())
    raise
  finally:
    log.removeHandler(handler)
    with contextlib.suppress(OSError):
      handler.stream.close()


def _identity(config: Mapping[str, Any]) -> tuple[str, Any]:
  # Without the paths of data: the folder's name has the digest of their content.
  return digest(config, data_digest=""), config.get("seed")


_item = operator.methodcaller("item")  # a scalar of numpy or jax as Python's own
