"""Weights & Biases: the options of this tracker, and a run there.

Training logs it, or `posexp.sync` afterwards, from the run's folder.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import json
import logging
import os
import re
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal

import yaml

from posexp import reading, storage
from posexp.config.checks import Positive, check
from posexp.errors import UserError, pasted, printable
from posexp.runs import BOOKKEEPING, Run, RunWriter
from posexp.runs.run import times
from posexp.tracking.tracker import Tables, TrackedRun, Tracker
from posexp.wandb import offline, server

NOTE = "wandb/sent.json"  # of a run's folder: how much of it W&B has, and where
PROJECT = "posexp"  # where none is named
NAME = 128  # letters that W&B takes for the name of a run or a group
# Numbers that hardly change: no chart is needed to read them.
CONSTANT = ("time/compile_seconds", "time/first_step_seconds", "memory/temporary_bytes")
UNHEEDED = {  # why not
  "WANDB_DIR": "what W&B keeps of a run is in the run's folder",
  "WANDB_RESUME": "a run always goes on where it was stopped",
  "WANDB_INIT_TIMEOUT": "wandb.timeout says how long to wait",
  "WANDB_FORK_FROM": "a run begins anew or goes on",
  "WANDB_RESUME_FROM": "a run goes on from its newest checkpoint",
}

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
  name: str | None = None
  group: str | None = None
  job_type: str | None = None
  tags: tuple[str, ...] | str | None = None  # of a text, as WANDB_TAGS is, commas part them
  notes: str | None = None
  timeout: Positive = 15.0  # seconds for the server to answer before a run goes on offline
  console: Literal["off", "auto", "wrap", "redirect", "wrap_raw", "wrap_emu"] = "off"
  log_model: bool | Literal[0, 1, "end", "checkpoint"] = False  # unless off, the best one is sent

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
  def settled_mode(self) -> str:
    """The mode; for auto, that of `wandb offline` or `wandb disabled`, if one is in force."""
    said = os.environ.get("WANDB_DISABLED", "").lower() in ("true", "1", "yes")
    if self.mode == "disabled" or (self.mode == "auto" and said):
      return "disabled"
    swept = os.environ.get("WANDB_SWEEP_ID")  # by an agent, which sets WANDB_DIR
    for name, why in UNHEEDED.items():
      if os.environ.pop(name, None) and not (swept and name == "WANDB_DIR"):
        log.warning("%s is not heeded: %s", name, why)
    settled = server.settled().mode if self.mode == "auto" else ""
    return settled if settled in ("offline", "dryrun", "disabled") else self.mode

  @property
  def named_by(self) -> str | None:
    """The variable that an agent of a sweep of W&B sets."""
    named = os.environ.get("WANDB_RUN_ID") and self.settled_mode != "disabled"
    return "WANDB_RUN_ID" if named else None

  def open(
    self, run: RunWriter | Run, config: Mapping[str, Any], facts: Mapping[str, Any]
  ) -> TrackedRun:
    """Open the run in W&B, and log the rows of its history that W&B does not have.

    Raises:
      UserError: wandb.mode=online, and W&B cannot be reached; or W&B refuses a setting; or nothing
        can be written.
    """
    mode = self.settled_mode
    if mode == "disabled":
      return TrackedRun("disabled")
    settings = self.settings(config, facts, run.path)
    settings["id"] = os.environ.get("WANDB_RUN_ID") or settings["id"]
    if os.environ.get("WANDB_SWEEP_ID"):  # by an agent, which names the run
      settings |= {"id": None, "entity": None, "project": None}
      settings["config"] = _without_parameters(settings["config"])
    why = ""
    if mode not in ("offline", "dryrun"):
      try:
        server.connect(self.timeout / 2)
        if offline.unsent(run.path, settings["id"]):
          raise ConnectionError("what was logged offline before is not sent yet")
        opened = server.start(settings, self.timeout / 2, console=self.console)
        return WandbRun(opened, run, self)
      except Exception as error:
        server.reset()
        why = server.reason(error)
        if mode in ("online", "run"):
          raise UserError(
            f"wandb.mode=online: {why}; wandb.mode=offline keeps the data to be sent later"
          ) from error
    try:
      first = offline.next_step(run.path, settings["id"])
      opened = server.start(settings, console=self.console)
      return WandbRun(opened, run, self, first, f"offline{why and f' ({why})'}; send with: ")
    except Exception as error:
      raise UserError(
        f"wandb.mode=offline: {server.reason(error)}; wandb.mode=disabled trains without W&B"
      ) from error

  def settings(
    self, config: Mapping[str, Any], facts: Mapping[str, Any], folder: Path
  ) -> dict[str, Any]:
    """Return the arguments of `wandb.init` for the run in a folder.

    `facts` are properties by which runs are compared and that the config lacks, such as the number
    of parameters.

    Raises:
      UserError: W&B refuses a setting.
    """
    task, encoding = config["task"]["name"], printable(config["encoding"])
    group = f"{task}/{encoding}/{folder.absolute().parent.name}"
    trial = f"{task}/{encoding}/{config['trial']}/trials" if config.get("trial") else ""
    # Sections stay nested: W&B shows {"rpr": {"k": 4}} as rpr.k, and cannot filter by a dotted key.
    told = [key for key in config if key in ("seed", "trial") or key not in BOOKKEEPING]
    return {
      "id": _run_id(folder),
      "job_type": "trial" if trial else self.job_type or "train",
      "group": printable(trial or self.group or group)[:NAME],  # trials are no results
      "name": printable(self.name or f"{group}/seed={config['seed']}")[-NAME:],
      "tags": list(dict.fromkeys([printable(str(task))[:64], encoding[:64], *self.all_tags])),
      "notes": self.notes or None,
      "project": self.project or server.settled().project or PROJECT,
      "entity": self.entity or None,
      "config": {**{key: config[key] for key in told}, **facts},
      "dir": str(folder),
      "reinit": "finish_previous",
    }


class WandbRun(TrackedRun):
  """An open run of W&B, which gets the rows of a run's history that W&B does not have.

  Offline, W&B cannot know which rows it has: `first` is then the first step to be logged, and
  `line` the text before the command that sends the run.
  """

  def __init__(
    self, opened: Any, run: RunWriter | Run, options: Wandb, first: int = 0, line: str = ""
  ):
    super().__init__(f"{line}{_sync_command(run.path)}" if opened.offline else opened.url)
    self.run = opened
    self.folder = run.path
    self.options = options
    self._first = max(first, opened.step, opened.starting_step)
    self._step, self._finished = 0, False
    opened.define_metric("step", hidden=True)  # else a chart shows it over itself
    for prefix in ("train", "validation", "time", "memory"):
      opened.define_metric(f"{prefix}/*", step_metric="step")
    logged = times(run.path, run.history)
    for row in run.history:
      self.log(row["step"], row | {"_timestamp": logged[row["step"]]})

  def log(self, step: int, metrics: Mapping[str, Any]) -> None:
    """Add a row, unless W&B has the step already, from before the run was stopped.

    What is CONSTANT goes into the summary alone.
    """
    self._step = step
    if step >= self._first:
      row = {key: value for key, value in metrics.items() if key not in CONSTANT}
      self.run.summary.update({key: metrics[key] for key in CONSTANT if key in metrics})
      self.run.log({"step": step, **row}, step=step, commit=True)
    server.heard.flush()

  def summarize(self, summary: Mapping[str, Any]) -> None:
    """Set the run's result in W&B."""
    self.run.summary.update(dict(summary))
    self._finished = True
    best = self.folder / "checkpoints" / str(summary.get("step"))
    if self.options.log_model and best.is_dir():
      self.run.log_model(best, f"model-{self.run.id}")

  def samples(self, tables: Tables) -> None:
    """Log predictions as tables, but none that is empty or that W&B has already."""
    import wandb

    made = {
      name: wandb.Table(list(rows[0]), [list(row.values()) for row in rows])
      for name, rows in tables.items()
      if rows and self.run.summary.get(name) is None
    }
    if made:
      self.run.log(made)

  def close(self, status: int) -> None:
    """Send the rest and close the run; note how much of it W&B has, and where."""
    self.run.finish(exit_code=status)
    server.heard.flush()
    place = {"entity": self.run.entity, "project": self.run.project, "offline": self.run.offline}
    sent = {"server": self.run.settings.base_url, "step": self._step, "finished": self._finished}
    storage.write(self.folder / NOTE, json.dumps(sent | place) + "\n")

  def failed(self, error: Exception) -> str:
    """Return why, and how to send the rest."""
    server.reset()
    return f"{server.reason(error)}; send the rest with: {_sync_command(self.folder)}"


def _without_parameters(config: Mapping[str, Any]) -> dict[str, Any]:
  """Return a config without the parameters of a W&B sweep.

  W&B adds these itself, under names with dots, the only ones by which its grid search and its
  Bayesian search find them.
  """
  left, file = copy.deepcopy(dict(config)), os.environ.get("WANDB_SWEEP_PARAM_PATH")
  for key in yaml.safe_load(Path(file).read_bytes()) if file else ():
    *path, last = key.split(".")
    section = functools.reduce(lambda at, part: at.get(part, {}), path, left)
    if path:
      section.pop(last, None)
  return left


def _run_id(folder: Path) -> str:
  """Return the id of a run in W&B, which is kept in its folder.

  The folder's name is no unique id: W&B would mix the rows of a run that is started afresh, here or
  on another machine, with those it has.
  """
  file = storage.unlinked(folder / "wandb") / "id"
  kept = reading.read(file)
  if kept is None or not re.fullmatch(rb"[\w.=-]{1,128}", kept):
    own = re.sub(r"[^\w.=-]", "_", folder.absolute().parent.name, flags=re.A)[:64]
    kept = (os.environ.get("WANDB_RUN_ID") or f"{own}-{secrets.token_hex(4)}").encode()
    storage.write(file, kept.decode())
  return kept.decode()


def _sync_command(folder: Path) -> str:
  """Return the command that sends a run from its folder."""
  return f"python -m posexp.sync {pasted(folder)}"
