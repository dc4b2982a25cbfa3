"""A run's mirror in Weights & Biases: what W&B is told of a run, and how it is reached.

`tracking` tells it while a run is trained, `posexp.sync` afterwards, from the run's folder.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
import secrets
import shutil
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from posexp.runs import BOOKKEEPING, digest

# W&B takes two seconds to import, and wandb.mode=disabled needs none of it: it is imported where
# used.

MODES = ("auto", "online", "offline", "disabled")
QUIET = {"silent": True, "quiet": True, "console": "off"}
FINISH = {"finish_timeout": 60.0, "finish_timeout_raises": True}  # seconds, to send what is left
UNTOLD = set(BOOKKEEPING) - {"seed"}  # of the config, since it says nothing of the experiment
RESULTS = ("step", "stopped_at", "averaged", "bleu_signature")  # of a summary, beside the metrics
DRAWN = ("train", "validation", "time", "memory")  # prefixes of metrics that are drawn over steps


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


@dataclasses.dataclass(frozen=True)
class Mark:
  """What is known to be on a server, kept beside what was sent."""

  server: str
  entity: str
  project: str
  content: Any  # as `held` gives it for runs

  def at(self, server: str, options: WandbOptions) -> bool:
    """Whether it is of the place that the options mean."""
    asked = (server, options.entity or self.entity, options.project)
    return (self.server, self.entity, self.project) == asked


class Mirror:
  """A run that is open in W&B. What fails raises an error of any kind."""

  def __init__(self, run: Any, path: Path):
    self.run = run
    self.path = path  # of the run's folder
    self._step, self._finished = 0, False
    for prefix in DRAWN:
      run.define_metric(f"{prefix}/*", step_metric="step")

  def catch_up(self, history: Iterable[Mapping[str, Any]]) -> None:
    """Adds the rows of a run's history that W&B does not have.

    Mirrors on disk that this one then replaces are removed: one whose process was killed has a torn
    end, at which `wandb sync` stops.
    """
    for row in history:
      self.log(row["step"], row)
    for folder in self.path.glob("wandb/offline-run-*"):
      if folder.name != Path(self.run.dir).parent.name and not any(folder.glob("*.synced")):
        shutil.rmtree(folder, ignore_errors=True)

  def log(self, step: int, metrics: Mapping[str, Any]) -> None:
    """Adds a row; one that W&B has already, from before the run was stopped, is not sent again."""
    self._step = step
    if step >= self.run.step:
      self.run.log({"step": step, **metrics}, step=step, commit=True)

  def summarize(self, summary: Mapping[str, Any]) -> None:
    """Sets what W&B shows as the run's result."""
    self.run.summary.update(dict(summary))
    self._finished = True

  def samples(self, rows: Sequence[Mapping[str, Any]]) -> None:
    """Shows what the model said of some examples as a table; all rows have the same columns."""
    if rows:
      self.run.log({"samples": table(rows)})

  def finish(self, exit_code: int = 0) -> None:
    """Sends what is left and closes the run, which has failed unless `exit_code` is 0."""
    self.run.finish(exit_code=exit_code)
    if not self.run.offline:
      mark(self.path / "wandb", self.run, held(self._step, self._finished))


def held(step: int, finished: bool) -> dict[str, Any]:
  """What a server has of a run that it has whole: the rows up to a step, and the summary if any."""
  return {"step": step, "finished": finished}


def table(rows: Sequence[Mapping[str, Any]]) -> Any:
  """A table of W&B; all rows have the same columns."""
  import wandb

  return wandb.Table(list(rows[0]), [list(row.values()) for row in rows])


def mark(folder: Path, run: Any, content: Any) -> None:
  """Notes that a server has some content of a run."""
  found = Mark(run.settings.base_url, run.entity, run.project, content)
  (folder / "sent.json").write_text(json.dumps(dataclasses.asdict(found)) + "\n")


def marked(folder: Path) -> Mark | None:
  """What was noted last, if anything was."""
  try:
    return Mark(**json.loads((folder / "sent.json").read_bytes()))
  except (OSError, ValueError, TypeError):
    return None


def told(
  options: WandbOptions, config: Mapping[str, Any], facts: Mapping[str, Any], path: Path
) -> dict[str, Any]:
  """What W&B is told of a run from its start, as arguments of `wandb.init`.

  `facts` are what the config does not say but runs are compared by: the number of parameters.
  """
  # Not from the folder's name alone: W&B would mix the rows of a run that is started afresh, here
  # or on another machine, with those it has.
  file = path / "wandb" / "id"
  file.parent.mkdir(exist_ok=True)
  name = file.read_text() if file.exists() else ""
  group = digest_of(config, path)
  if not name:
    name = f"{group}-{secrets.token_hex(4)}"
    file.write_text(name)
  shared = told_of_group(options, config["task"]["name"], config["encoding"], group)
  return shared | {
    "id": name,
    "name": f"{shared['group']}/seed={config['seed']}",
    "job_type": "train",
    "config": {**experiment(config), **facts},
    "notes": options.notes,
    "dir": str(path),
  }


def experiment(config: Mapping[str, Any]) -> dict[str, Any]:
  """What W&B is told of a config.

  Sections stay sections: W&B shows and groups {"rpr": {"k": 4}} as rpr.k, but has no way to filter
  by a key with a dot.
  """
  return {key: config[key] for key in config if key not in UNTOLD}


def digest_of(config: Mapping[str, Any], path: Path) -> str:
  """What the runs of a group have in common: from the folder, as long as it has not been moved."""
  name = path.absolute().parent.name
  return name if re.fullmatch("[0-9a-f]{12}", name) else digest(config)


def told_of_group(options: WandbOptions, task: str, encoding: str, group: str) -> dict[str, Any]:
  """What runs that differ in their seeds alone have in common."""
  return {
    "group": f"{task}/{encoding}/{group}",
    "tags": list(dict.fromkeys([task[:64], encoding, *options.tags])),
    "project": options.project,
    "entity": options.entity,
    "reinit": "finish_previous",
  }


def facts(summary: Mapping[str, Any] | None) -> dict[str, Any]:
  """The facts that training has told, from the summary of a finished run."""
  found = summary or {}
  return {key: found[key] for key in found if "/" not in key and key not in RESULTS}


def online(told: Mapping[str, Any], path: Path, deadline: float) -> Mirror:
  """A mirror on the server.

  Raises an error of any kind if it cannot be had before the deadline: of them ConnectionError if
  the server does not answer.
  """
  return Mirror(opened(told, deadline), path)


def offline(told: Mapping[str, Any], path: Path) -> Mirror:
  """A mirror on disk."""
  wandb = imported()
  wandb.setup(settings=wandb.Settings(**QUIET))
  settings = wandb.Settings(**QUIET, **FINISH)
  return Mirror(wandb.init(**told, mode="offline", settings=settings), path)


def opened(told: Mapping[str, Any], deadline: float) -> Any:
  """A run of W&B on the server; raises as `online`, and leaves nothing of it on disk then."""
  folder = Path(told["dir"])
  earlier = set(folder.glob("wandb/run-*"))
  try:
    wandb = connected(deadline)
    left = max(deadline - time.monotonic(), 1.0)
    settings = wandb.Settings(**QUIET, **FINISH, init_timeout=left)
    return wandb.init(**told, mode="online", resume="allow", settings=settings)
  except Exception:
    reset()
    for each in set(folder.glob("wandb/run-*")) - earlier:
      shutil.rmtree(each, ignore_errors=True)
    raise


def connected(deadline: float) -> Any:
  """The module wandb, where there is a key for a server that answers; raises as `online`."""
  wandb = imported()
  session = wandb.setup(settings=wandb.Settings(**QUIET, mode="online"))
  if not wandb.login(prompt=False, verify=False):
    raise wandb.Error("not logged in")
  reach(session.settings.base_url, deadline)
  return wandb


def imported() -> Any:
  """The module wandb."""
  # Else W&B's reports on itself keep a process ten seconds if the server does not answer.
  os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
  import wandb

  return wandb


def server() -> str:
  """Where W&B is."""
  wandb = imported()
  return wandb.setup(settings=wandb.Settings(**QUIET)).settings.base_url


def reset() -> None:
  """Ends W&B's process, which counts a run that failed as in use, or is broken itself."""
  import wandb

  with contextlib.suppress(Exception):
    wandb.teardown()
  wandb.run = None  # else there is no logging in any more


def reach(url: str, deadline: float) -> None:
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


def reason(error: Exception) -> str:
  """An error of W&B in a few words."""
  text = str(error).strip().partition("\n")[0]
  if re.search(r"\b401\b|verify credentials", text):
    return "W&B does not accept the API key"
  return text.partition(': {"')[0].rstrip(".") or type(error).__name__
