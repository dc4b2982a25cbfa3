"""Checkpoints of a run: its newest states and its best one, written while training goes on."""

from __future__ import annotations

import contextlib
import errno
import functools
import logging
import math
import os
import re
import sys
import tempfile
import warnings
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from posexp import reading
from posexp.errors import WAYS_OUT, UserError

# Orbax takes a second to import, and a finished run needs none of it: it is imported where used.

WRITING = "could not be written ({reason}); those that were whole before it are kept"
READING = "is damaged ({reason}); {advice}, or rerun=true starts the run afresh"
REFUSED = "cannot be read ({reason}); {advice}"  # which says nothing of the checkpoint itself

# Orbax takes `*`, `?` and `[` in a path for a pattern, and TensorStore changes or refuses others.
PLAIN = re.compile(r"(?!/(gs|s3|az|hf)/|.*__lock)([A-Za-z]:)?[\w ./=-]*")
METADATA = ("_METADATA", "_CHECKPOINT_METADATA", "_sharding", "metrics")  # files of JSON
CHECKSUM = "crc32"  # of a checkpoint's metadata: Orbax reads arrays whose bytes have changed


class Rank(NamedTuple):
  """The quality of an evaluated state: the greatest rank is the best."""

  score: float  # the metric that chooses, negated if less of it is better
  minus_loss: float = -math.inf  # the negated validation loss, which decides between equal scores


class Checkpoints:
  """The newest checkpoint in a folder, the best one, and the `ranked` newest that have a rank.

  Only whole checkpoints are listed: one that was being written or deleted when its process was
  killed is never read. With `read_only` the folder may belong to a run in training.
  """

  def __init__(self, folder: Path, *, ranked: int = 0, read_only: bool = False):
    self.folder = folder
    self.ranked = ranked
    self.read_only = read_only
    self._saving: int | None = None  # the step of the checkpoint that was begun last

  def save(self, step: int, state: Any, rank: Rank | None = None) -> None:
    """Begin to write `state`, a pytree of arrays that may be donated as soon as this returns.

    A checkpoint without a rank is kept while it is the newest, and is never the best.

    Raises:
      UserError: this checkpoint, or the one before it, which is named, could not be written.
    """
    import orbax.checkpoint as ocp

    metrics = {name: float(value) for name, value in (rank._asdict() if rank else {}).items()}
    checksum = {CHECKSUM: _checksum(state)}
    self.wait()  # for the one before, whose failure is not this one's
    self._saving = step
    with self._explained(WRITING, step):
      self._manager.save(
        step, args=ocp.args.StandardSave(state), metrics=metrics, custom_metadata=checksum
      )

  def find(self, which: str) -> int | None:
    """Return the step of the "latest" or the "best" checkpoint; None if there is none."""
    self.wait()
    if not any(self.folder.glob("[0-9]*")):
      return None
    with self._explained(READING):
      best = best_of(self._ranks)  # which notices damaged ranks before any work
      return self._manager.latest_step() if which == "latest" else best

  def restore(self, template: Any, which: str = "latest") -> Any:
    """Return the state that `find` finds, or None if there is none.

    `template` is a pytree like it, of arrays or of `jax.ShapeDtypeStruct` with a sharding. The
    restored arrays have these shardings, whatever devices they were written on.

    Raises:
      UserError: the checkpoint is of another model, or cannot be read.
    """
    step = self.find(which)
    return None if step is None else self.load(step, template)

  def average(self, template: Any, count: int) -> tuple[Any, list[int]]:
    """Return the newest ranked state, with parameters averaged over the `count` newest ranked ones.

    The steps of these are returned, too; there is at least one. `count` is at most `ranked`.

    Raises:
      UserError: as `restore`.
    """
    import jax

    self.wait()
    with self._explained(READING):
      steps = sorted(self._ranks)[-count:]
    states = [self.load(step, template) for step in steps]
    mean = jax.tree.map(lambda *leaves: sum(leaves) / len(leaves), *(s.params for s in states))
    return states[-1].replace(params=mean), steps

  def load(self, step: int, template: Any) -> Any:
    """Return the state of a step, as `restore`; UserError if there is none."""
    import jax
    import orbax.checkpoint as ocp

    wanted = jax.tree.map(
      lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding), template
    )
    if step not in self._steps():
      raise UserError(
        f"{self.folder / str(step)} is lost; put it back, or rerun=true starts the run afresh"
      )
    with self._explained(READING, step):
      metadata = self._manager.metadata(step)
      if differing := difference(_shapes(metadata.item_metadata.tree), _shapes(wanted)):
        raise UserError(
          f"{self.folder / str(step)} is a checkpoint of another model or version: {differing}; "
          "rerun=true starts the run afresh"
        )
      state = self._manager.restore(step, args=ocp.args.StandardRestore(wanted))
      written, read = (metadata.custom_metadata or {}).get(CHECKSUM), _checksum(state)
      if None not in (written, read) and written != read:
        raise ValueError("its numbers are not those that were written")
      return state

  def layers(self) -> int:
    """Return the number of layers in the newest checkpoint; 0 if layers are not numbered."""
    if not (steps := self._steps()):
      return 0
    with self._explained(READING, steps[-1]):
      held = _shapes(self._manager.metadata(steps[-1]).item_metadata.tree)
    numbers = (re.search(r"/blocks/(\d+)/", name) for name in held)
    return max((1 + int(number[1]) for number in numbers if number), default=0)

  def should_preserve(self, checkpoints: Sequence[Any], *, context: Any) -> list[bool]:
    """Tell Orbax which checkpoints to keep, as its `PreservationPolicy`.

    Orbax's own BestN would keep the latest among equals, and all checkpoints without a rank.
    """
    ranks = _finite({checkpoint.step: checkpoint.metrics for checkpoint in checkpoints})
    kept = {checkpoints[-1].step, best_of(ranks), *sorted(ranks, reverse=True)[: self.ranked]}
    return [checkpoint.step in kept for checkpoint in checkpoints]

  def wait(self) -> None:
    """Wait until the saved state is on disk; UserError if it could not be written."""
    if "_manager" in vars(self):
      with self._explained(WRITING, self._saving):
        self._manager.wait_until_finished()

  def close(self) -> None:
    """Wait for what is being saved, and close Orbax."""
    self.wait()
    if manager := vars(self).pop("_manager", None):
      with self._explained(WRITING, self._saving):
        manager.close()
    if link := vars(self).pop("_link", None):
      link.cleanup()

  @functools.cached_property
  def _manager(self) -> Any:
    import orbax.checkpoint as ocp

    for path in self.folder.glob("[0-9]*/**/*"):
      if not path.is_dir():
        reading.check(path)
        if path.name in METADATA:
          reading.read(path)  # a mistake if it is too large
    for logger in ("absl", "asyncio"):  # where Orbax logs what it also raises
      logging.getLogger(logger).setLevel(logging.CRITICAL)
    _hush()
    options = ocp.CheckpointManagerOptions(
      best_fn=lambda metrics: metrics["score"],  # never called, but makes it keep the metrics
      preservation_policy=self,
      cleanup_tmp_directories=not self.read_only,
      read_only=self.read_only,
    )
    # Named here, since metadata could otherwise be read only after a save.
    handler = ocp.StandardCheckpointHandler()
    return ocp.CheckpointManager(self._plain_folder(), options=options, item_handlers=handler)

  def _plain_folder(self) -> Path:
    """Return an absolute path of the folder without special characters, by a link if need be."""
    folder = self.folder.absolute()
    if PLAIN.fullmatch(folder.as_posix()):
      return folder
    folder.mkdir(parents=True, exist_ok=True)
    place = tempfile.gettempdir()
    place = place if PLAIN.fullmatch(Path(place).as_posix()) else "/tmp"  # which has none, either
    self._link = tempfile.TemporaryDirectory(prefix="posexp-", dir=place)
    link = Path(self._link.name, "checkpoints")
    link.symlink_to(folder, target_is_directory=True)
    return link

  def _steps(self) -> list[int]:
    """Return the steps of the checkpoints in the folder, whole or not, in ascending order."""
    return sorted(int(path.name) for path in self.folder.glob("[0-9]*") if path.name.isdecimal())

  @property
  def _ranks(self) -> dict[int, Rank]:
    return _finite({step: self._manager.metrics(step) for step in self._manager.all_steps()})

  @contextlib.contextmanager
  def _explained(self, message: str, step: int | None = None) -> Iterator[None]:
    """Turn whatever Orbax raises, of many types and bare Exceptions too, into one sentence."""
    try:
      yield
    except UserError:
      raise
    except Exception as error:
      number = re.search(r"os_error_code='(\d+)'", str(error))
      code = int(number[1]) if number else getattr(error, "errno", None)
      if isinstance(error, MemoryError) or "EXHAUSTED" in str(error):
        code = errno.ENOMEM
      said = str(error).partition("\n")[0][:100] or type(error).__name__
      reason = os.strerror(code) if code else said
      what = f"a checkpoint in {self.folder}" if step is None else self.folder / str(step)
      steps, advice = self._steps(), "put it back"
      if not self.read_only and len(steps) > 1 and step == steps[-1]:
        advice = "move it away to go on from the checkpoint before it"
      if message is READING and code in WAYS_OUT.keys() - {errno.EISDIR}:
        message, advice = REFUSED, WAYS_OUT[code]
      raise UserError(f"{what} {message.format(reason=reason, advice=advice)}") from error


@functools.cache
def _hush() -> None:
  """Silence the warnings and tracebacks of an event loop that Orbax has left after an error."""
  warnings.filterwarnings("ignore", "coroutine .* was never awaited")
  before = sys.unraisablehook

  def hook(unraisable: Any) -> None:
    if not str(unraisable.exc_value).endswith(("Event loop is closed", "no attribute '_ssock'")):
      before(unraisable)

  sys.unraisablehook = hook


def best_of(ranks: Mapping[int, Rank]) -> int | None:
  """Return the step with the best rank, the earliest among equals; None if there is none."""
  return max(ranks, key=lambda step: (ranks[step], -step), default=None)


def _finite(metrics: Mapping[int, Mapping[str, float] | None]) -> dict[int, Rank]:
  """Return the ranks that have a finite score, by the steps of their checkpoints.

  Raises:
    ValueError: the metrics of a checkpoint are not a rank.
  """
  ranks = {}
  for step, measured in metrics.items():
    if measured:
      if measured.keys() != {*Rank._fields} or not all(map(reading.is_number, measured.values())):
        raise ValueError(f"the metrics of step {step} are damaged")
      ranks[step] = Rank(**measured)
  return {step: rank for step, rank in ranks.items() if math.isfinite(rank.score)}


def _checksum(state: Any) -> int | None:
  """Return the CRC-32 of all arrays; None where other processes hold parts of them."""
  import jax

  leaves = jax.tree.leaves(state)
  if not all(leaf.is_fully_addressable for leaf in leaves):
    return None
  checksum = 0
  for leaf in leaves:
    checksum = zlib.crc32(jax.device_get(leaf).reshape(-1).view("uint8"), checksum)
  return checksum


def _shapes(tree: Any) -> dict[str, str]:
  """Return the type and shape of each array in a tree, by its path."""
  import jax

  leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
  return {
    jax.tree_util.keystr(path, simple=True, separator="/"): f"{leaf.dtype} {list(leaf.shape)}"
    for path, leaf in leaves
  }


def difference(held: Mapping[str, Any], wanted: Mapping[str, Any]) -> str | None:
  """Return the first difference between the arrays of a checkpoint and of a model, in words.

  Both have shapes by path. The parameters come first; without a difference, None is returned.
  """
  differing = [name for name in {**held, **wanted} if held.get(name) != wanted.get(name)]
  for name in sorted(differing, key=lambda name: (not name.startswith("params/"), name)):
    there, here = (shapes.get(name, "missing") for shapes in (held, wanted))
    return f"{name} is {there} in the checkpoint and {here} in the model"
  return None
