"""A run's mirror in Weights & Biases: what metrics.jsonl and the summary hold, and nothing else."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import re
import secrets
import shlex
import shutil
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from posexp.errors import UserError

if TYPE_CHECKING:
  from posexp.run import Run

# W&B takes two seconds to import, and wandb.mode=disabled needs none of it: it is imported where
# used.

MODES = ("auto", "online", "offline", "disabled")
START = 3.0  # seconds of the timeout that are kept for starting offline
QUIET = {"silent": True, "quiet": True, "console": "off"}
FINISH = {"finish_timeout": 60.0, "finish_timeout_raises": True}  # seconds, to send what is left
UNTOLD = ("runs", "rerun", "wandb")  # sections of the config that say nothing of the experiment

log = logging.getLogger("posexp")


@dataclasses.dataclass(frozen=True)
class WandbOptions:
  """The options of the section `wandb`."""

  mode: str = "auto"
  project: str = "posexp"
  entity: str | None = None
  tags: tuple[str, ...] = ()
  notes: str | None = None
  timeout: float = 15.0  # seconds for the server to answer before a run goes on offline

  def __post_init__(self):
    if self.mode not in MODES:
      raise ValueError(f"mode must be one of {', '.join(MODES)}, not {self.mode!r}")
    if not self.project or set(self.project) & set("/\\#?%:"):
      raise ValueError(f"project must be a name without any of / \\ # ? % :, not {self.project!r}")
    if any(not 1 <= len(tag) <= 64 for tag in self.tags):
      raise ValueError("tags must have 1 to 64 letters each")
    if self.timeout <= 0:
      raise ValueError(f"timeout must be above 0, not {self.timeout:g}")


class Tracker:
  """The mirror of one run while it is trained; as a context manager it ends with the run.

  `line` says where the data goes. Once it is open nothing raises: a run is not lost because its
  mirror is.
  """

  def __init__(self, mirror: Any = None, line: str = "disabled"):
    self.line = line
    self._mirror = mirror

  def catch_up(self, history: Sequence[Mapping[str, Any]]) -> None:
    """Adds the rows of a run's history that W&B does not have."""
    for row in history:
      self.log(row["step"], row)

  def log(self, step: int, metrics: Mapping[str, Any]) -> None:
    """Adds a row; one that W&B has already, from before the run was stopped, is not sent again."""
    with self._surviving():
      if self._mirror is not None and step >= self._mirror.step:
        self._mirror.log({"step": step, **metrics}, step=step, commit=True)

  def summarize(self, summary: Mapping[str, Any]) -> None:
    """Sets what W&B shows as the run's result."""
    with self._surviving():
      if self._mirror is not None:
        self._mirror.summary.update(dict(summary))

  def samples(self, rows: Sequence[Mapping[str, Any]]) -> None:
    """Shows what the model said of some examples as a table; all rows have the same columns."""
    with self._surviving():
      if self._mirror is not None and rows:
        import wandb

        table = wandb.Table(list(rows[0]), [list(row.values()) for row in rows])
        self._mirror.log({"samples": table})

  def finish(self, exit_code: int = 0) -> None:
    """Sends what is left and closes the run, which has failed unless `exit_code` is 0."""
    with self._surviving():
      if self._mirror is not None:
        self._mirror.finish(exit_code=exit_code)
    self._mirror = None

  def __enter__(self) -> Tracker:
    return self

  def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
    if isinstance(error, SystemExit) and isinstance(error.code, int):
      self.finish(error.code)
    else:
      self.finish(0 if error is None else 1)

  @contextlib.contextmanager
  def _surviving(self) -> Iterator[None]:
    try:
      yield
    except Exception as error:  # W&B's have no class in common
      mirror, self._mirror = self._mirror, None
      _reset()
      log.warning(
        "W&B is told no more of this run (%s); what it has not got is sent by: %s",
        _reason(error),
        _sync(mirror),
      )


def start(
  options: WandbOptions, *, config: Mapping[str, Any], facts: Mapping[str, Any], run: Run
) -> Tracker:
  """Opens the mirror of a run, and brings it up to the run's history.

  `facts` are what the config does not say but runs are compared by: the number of parameters.

  Raises:
    UserError: wandb.mode=online, and W&B cannot be had.
  """
  deadline = time.monotonic() + options.timeout - START
  mode = options.mode
  if mode == "auto" and os.environ.get("WANDB_MODE") in MODES:
    mode = os.environ["WANDB_MODE"]
  if mode == "disabled":
    return Tracker()
  # Else W&B's reports on itself keep a process ten seconds if the server does not answer.
  os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
  import wandb

  told = _told(options, config, facts, run.path)
  why = ""
  if mode != "offline":
    earlier = set(run.path.glob("wandb/run-*"))
    try:
      return _online(wandb, told, run, deadline)
    except Exception as error:
      _reset()
      for folder in set(run.path.glob("wandb/run-*")) - earlier:  # of which nothing was sent
        shutil.rmtree(folder, ignore_errors=True)
      why = _reason(error)
      if mode == "online":
        raise UserError(
          f"wandb.mode=online: {why}; wandb.mode=offline keeps the data to be sent later"
        ) from error
  try:
    return _offline(wandb, told, run, why)
  except Exception as error:
    raise UserError(
      f"wandb.mode=offline: {_reason(error)}; wandb.mode=disabled trains without W&B"
    ) from error


def _told(
  options: WandbOptions, config: Mapping[str, Any], facts: Mapping[str, Any], path: Path
) -> dict[str, Any]:
  """What W&B is told of a run, whether online or offline."""
  task, encoding, digest, seed = path.parts[-4:]
  # Not from the folder's name alone: W&B would mix the rows of a run that is started afresh, here
  # or on another machine, with those it has.
  file = path / "wandb" / "id"
  file.parent.mkdir(exist_ok=True)
  name = file.read_text() if file.exists() else ""
  if not name:
    name = f"{digest}-{secrets.token_hex(4)}"
    file.write_text(name)
  return {
    "id": name,
    "name": f"{task}/{encoding}/{digest}/{seed}",
    "group": f"{task}/{encoding}/{digest}",
    "job_type": "train",
    "tags": list(dict.fromkeys([task[:64], encoding, *options.tags])),
    "config": {**_flat({key: config[key] for key in config if key not in UNTOLD}), **facts},
    "project": options.project,
    "entity": options.entity,
    "notes": options.notes,
    "dir": str(path),
    "reinit": "finish_previous",
  }


def _online(wandb: Any, told: dict[str, Any], run: Run, deadline: float) -> Tracker:
  """A mirror on the server; an error of any kind if it cannot be had before the deadline."""
  session = wandb.setup(settings=wandb.Settings(**QUIET, mode="online"))
  if not wandb.login(prompt=False, verify=False):
    raise wandb.Error("not logged in")
  _reach(session.settings.base_url, deadline)
  settings = wandb.Settings(**QUIET, **FINISH, init_timeout=max(deadline - time.monotonic(), 1.0))
  mirror = wandb.init(**told, mode="online", resume="allow", settings=settings)
  _define(mirror)
  tracker = Tracker(mirror, mirror.url)
  tracker.catch_up(run.history)
  _drop_unsent(run.path, mirror)
  return tracker


def _offline(wandb: Any, told: dict[str, Any], run: Run, why: str) -> Tracker:
  """A mirror on disk."""
  wandb.setup(settings=wandb.Settings(**QUIET))
  mirror = wandb.init(**told, mode="offline", settings=wandb.Settings(**QUIET, **FINISH))
  _define(mirror)
  tracker = Tracker(mirror, f"offline{f' ({why})' if why else ''}; send with: {_sync(mirror)}")
  if not _sent(run.path):  # else the server has the history, and adds to it what this one holds
    tracker.catch_up(run.history)
    _drop_unsent(run.path, mirror)
  return tracker


def _reset() -> None:
  """Ends W&B's process, which counts a run that failed as in use, or is broken itself."""
  import wandb

  with contextlib.suppress(Exception):
    wandb.teardown()
  wandb.run = None  # else there is no logging in any more


def _define(mirror: Any) -> None:
  """Has W&B draw every metric over the steps of training."""
  for prefix in ("train", "validation", "time"):
    mirror.define_metric(f"{prefix}/*", step_metric="step")


def _sent(path: Path) -> bool:
  """Whether an earlier mirror of a run has gone to the server."""
  return any(path.glob("wandb/run-*")) or any(path.glob("wandb/offline-run-*/*.synced"))


def _drop_unsent(path: Path, mirror: Any) -> None:
  """Removes mirrors on disk that one with the whole history replaces.

  A mirror whose process was killed has a torn end, at which `wandb sync` stops.
  """
  for folder in path.glob("wandb/offline-run-*"):
    if folder.name != Path(mirror.dir).parent.name and not any(folder.glob("*.synced")):
      shutil.rmtree(folder, ignore_errors=True)


def _reach(url: str, deadline: float) -> None:
  """Raises ConnectionError unless a W&B server answers in time, whatever it says."""
  body = b'{"query": "query Viewer { viewer { id } }"}'
  request = urllib.request.Request(
    f"{url}/graphql", data=body, headers={"Content-Type": "application/json"}
  )
  left = max(deadline - time.monotonic(), 1.0)
  errors: list[Exception | None] = []

  def ask() -> None:
    try:
      urllib.request.urlopen(request, timeout=left).close()
    except urllib.error.HTTPError:
      errors.append(None)  # an answer, since it was not told who asks
    except Exception as error:  # raised below, in the thread that waits
      errors.append(error)
    else:
      errors.append(None)

  # In a thread, since the timeout of a socket covers neither the look-up of a name nor slow drops.
  thread = threading.Thread(target=ask, daemon=True)
  thread.start()
  thread.join(left)
  if not errors or isinstance(errors[0], TimeoutError):
    raise ConnectionError(f"{url} does not answer")
  if errors[0] is not None:
    raise ConnectionError(f"{url} cannot be reached") from errors[0]


def _flat(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
  """{"rpr": {"k": 4}} as {"rpr.k": 4}, which W&B can group and filter by."""
  flat: dict[str, Any] = {}
  for key, value in config.items():
    if isinstance(value, Mapping):
      flat |= _flat(value, f"{prefix}{key}.")
    else:
      flat[f"{prefix}{key}"] = value
  return flat


def _sync(mirror: Any) -> str:
  """The command that sends what a mirror has kept on disk."""
  folder = Path(mirror.dir).parent
  near = os.path.relpath(folder)
  online = [] if folder.name.startswith("offline-") else ["--include-online"]
  path = str(folder) if near.startswith("..") else near
  return shlex.join(["wandb", "sync", *online, path])


def _reason(error: Exception) -> str:
  """An error of W&B in a few words."""
  text = str(error).strip().partition("\n")[0]
  if re.search(r"\b401\b", text):
    return "W&B does not accept the API key"
  return text.partition(': {"')[0].rstrip(".") or type(error).__name__
