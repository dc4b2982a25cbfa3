"""Weights & Biases: the options of this tracker, and a run there.

Training logs it, or `posexp.sync` afterwards, from the run's folder.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import re
import secrets
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal

from posexp import storage
from posexp.config.checks import Positive, check
from posexp.errors import UserError, near, pasted, printable
from posexp.runs import BOOKKEEPING, Run, RunWriter
from posexp.tracking import wandb_server
from posexp.tracking.tracker import Tables, TrackedRun, Tracker, times

PROJECT = "posexp"  # where none is named
NAME = 128  # letters that W&B takes for the name of a run or a group
CURVES = ("train", "validation", "time", "memory")  # prefixes of metrics that are drawn over steps


# What W&B's variables say of a run, by the argument of `wandb.init`.
SAID = {
  "id": "WANDB_RUN_ID",
  "name": "WANDB_NAME",
  "group": "WANDB_RUN_GROUP",
  "job_type": "WANDB_JOB_TYPE",
}
UNHEEDED = ("WANDB_DIR", "WANDB_RESUME")  # a run's folder has its data, and it always goes on
START = 3.0  # seconds of the timeout that are kept for starting offline

log = logging.getLogger("posexp")


@dataclasses.dataclass(frozen=True)
class Wandb(Tracker):
  """Weights & Biases, online or offline.

  configs/tracker/wandb.yaml takes defaults from W&B's environment, where "" stands for none.
  """

  section: ClassVar[str | None] = "wandb"

  mode: Literal["auto", "online", "offline", "disabled", "dryrun", "run"] = "auto"
  project: str | None = None
  entity: str | None = None
  tags: tuple[str, ...] | str | None = None  # of a text, as WANDB_TAGS is, commas part them
  notes: str | None = None
  timeout: Positive = 15.0  # seconds for the server to answer before a run goes on offline

  def __post_init__(self):
    check(self)
    if self.project and set(self.project) & set("/\\#?%:"):
      raise ValueError(f"project must be a name without any of / \\ # ? % :, not {self.project!r}")
    if any(len(tag) > 64 for tag in self.all_tags):
      raise ValueError("tags must have 1 to 64 letters each")

  @property
  def all_tags(self) -> list[str]:
    """The tags, one by one."""
    given = self.tags.split(",") if isinstance(self.tags, str) else self.tags or ()
    return [tag.strip() for tag in given if tag.strip()]

  @property
  def named_project(self) -> str:
    """The project, be it the default."""
    return self.project or os.environ.get("WANDB_PROJECT") or PROJECT

  @property
  def disabled(self) -> bool:
    said = os.environ.get("WANDB_DISABLED", "").lower() in ("true", "1", "yes")
    return self.mode == "disabled" or (self.mode == "auto" and said)

  @property
  def named_by(self) -> str | None:
    """The variable that an agent of a sweep of W&B sets."""
    return "WANDB_RUN_ID" if "WANDB_RUN_ID" in os.environ and not self.disabled else None

  def open(
    self, run: RunWriter | Run, config: Mapping[str, Any], facts: Mapping[str, Any]
  ) -> TrackedRun:
    """Open the run in W&B, and log the rows of its history that W&B does not have.

    Raises:
      UserError: wandb.mode=online, and W&B cannot be reached; or nothing can be written.
    """
    if self.disabled:
      return TrackedRun("disabled")
    deadline = time.monotonic() + self.timeout - START
    for name in UNHEEDED:
      if name in os.environ:
        log.warning("%s is not heeded: what W&B keeps of a run is in %s", name, near(run.path))
    settings = self.settings(config, facts, run.path)
    settings |= {key: os.environ[name] for key, name in SAID.items() if os.environ.get(name)}
    if "WANDB_SWEEP_ID" in os.environ:  # whose agent has named them
      settings |= {"id": None, "entity": None, "project": None}
    why = ""
    if self.mode not in ("offline", "dryrun"):
      try:
        opened = WandbRun(wandb_server.open_online(settings, deadline), run)
        opened.line = opened.run.url
        return opened
      except Exception as error:
        wandb_server.reset()
        why = wandb_server.reason(error)
        if self.mode in ("online", "run"):
          raise UserError(
            f"wandb.mode=online: {why}; wandb.mode=offline keeps the data to be sent later"
          ) from error
        why = f" ({why})"
    try:
      opened = WandbRun(wandb_server.open_offline(settings), run)
    except Exception as error:
      raise UserError(
        f"wandb.mode=offline: {wandb_server.reason(error)}; wandb.mode=disabled trains without W&B"
      ) from error
    opened.line = f"offline{why}; send with: {_sync_command(run.path)}"
    return opened

  def settings(
    self, config: Mapping[str, Any], facts: Mapping[str, Any], folder: Path
  ) -> dict[str, Any]:
    """Return the arguments of `wandb.init` for the run in a folder.

    `facts` are properties by which runs are compared and that the config lacks, such as the number
    of parameters.
    """
    task, encoding = config["task"]["name"], printable(config["encoding"])
    group = f"{task}/{encoding}/{folder.absolute().parent.name}"
    return {
      "id": _run_id(folder),
      "job_type": "train",
      "group": printable(group)[:NAME],
      "name": printable(f"{group}/seed={config['seed']}")[-NAME:],
      "tags": list(dict.fromkeys([printable(str(task))[:64], encoding[:64], *self.all_tags])),
      "notes": self.notes or None,
      "project": self.named_project,
      "entity": self.entity or None,
      "config": {**experiment(config), **facts},
      "dir": str(folder),
      "reinit": "finish_previous",
    }


class WandbRun(TrackedRun):
  """An open run of W&B, which gets the rows of a run's history that it does not have.

  Earlier offline runs in the folder, which this one replaces, are removed: that of a process that
  was killed ends in half a record, at which `wandb sync` stops.
  """

  def __init__(self, opened: Any, run: RunWriter | Run):
    self.run = opened
    self.folder = run.path
    self._step, self._finished = 0, False
    opened.define_metric("step", hidden=True)  # else a chart shows it over itself
    for prefix in CURVES:
      opened.define_metric(f"{prefix}/*", step_metric="step")
    logged = times(run)
    for row in run.history:
      self.log(row["step"], row | {"_timestamp": logged[row["step"]]})
    for offline in run.path.glob(f"wandb/offline-run-*-{opened.id}"):
      if offline.name != Path(opened.dir).parent.name:
        shutil.rmtree(offline, ignore_errors=True)

  def log(self, step: int, metrics: Mapping[str, Any]) -> None:
    """Add a row, unless W&B has the step already, from before the run was stopped."""
    self._step = step
    if step >= max(self.run.step, self.run.starting_step):
      self.run.log({"step": step, **metrics}, step=step, commit=True)
    wandb_server.heard.flush()

  def summarize(self, summary: Mapping[str, Any]) -> None:
    """Set the run's result in W&B."""
    self.run.summary.update(dict(summary))
    self._finished = True

  def samples(self, tables: Tables) -> None:
    """Log predictions as tables, those that W&B has already and those without rows excepted."""
    import wandb

    made = {
      name: wandb.Table(list(rows[0]), [list(row.values()) for row in rows])
      for name, rows in tables.items()
      if rows and self.run.summary.get(name) is None
    }
    if made:
      self.run.log(made)

  def close(self, status: int) -> None:
    """Send what is left and close the run; note what the server has of it."""
    self.run.finish(exit_code=status)
    wandb_server.heard.flush()
    if not self.run.offline:
      place = {"server": self.run.settings.base_url}
      place |= {"entity": self.run.entity, "project": self.run.project}
      sent = place | extent(self._step, self._finished)
      storage.write(self.folder / "wandb" / "sent.json", json.dumps(sent) + "\n")

  def failed(self, error: Exception) -> str:
    """Return why, and how to send the rest."""
    wandb_server.reset()
    return f"{wandb_server.reason(error)}; send the rest with: {_sync_command(self.folder)}"


def is_synced(run: Run, server: str, options: Wandb) -> bool:
  """Return whether a server is known to have all of a run, in the project and entity asked for."""
  try:
    found = json.loads((run.path / "wandb" / "sent.json").read_bytes())
    entity = found["entity"]
  except (OSError, ValueError, KeyError, TypeError):
    return False
  place = {"server": server, "entity": options.entity or entity, "project": options.named_project}
  return found == place | extent(run.step, run.summary is not None)


def extent(step: int, finished: bool) -> dict[str, Any]:
  """Return how much there is of a run: its rows up to a step, and whether it has its summary."""
  return {"step": step, "finished": finished}


def experiment(config: Mapping[str, Any]) -> dict[str, Any]:
  """Return the part of a config that describes the experiment.

  Sections stay nested: W&B shows and groups {"rpr": {"k": 4}} as rpr.k, but cannot filter by a key
  that has a dot.
  """
  return {key: config[key] for key in config if key == "seed" or key not in BOOKKEEPING}


def _run_id(folder: Path) -> str:
  """Return the id of a run in W&B, which is kept in its folder.

  The folder's name is no unique id: W&B would mix the rows of a run that is started afresh, here or
  on another machine, with those it has.
  """
  file = storage.unlinked(folder / "wandb") / "id"
  if not file.is_file() or not re.fullmatch(rb"[\w.=-]{1,128}", file.read_bytes()):
    own = re.sub(r"[^\w.=-]", "_", folder.absolute().parent.name, flags=re.A)[:64]
    storage.write(file, f"{own}-{secrets.token_hex(4)}")
  return file.read_text()


def _sync_command(folder: Path) -> str:
  """Return the command that sends a run from its folder."""
  return f"python -m posexp.sync {pasted(folder)}"
