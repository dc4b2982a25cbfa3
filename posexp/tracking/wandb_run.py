"""A run in Weights & Biases: its options, its settings, its rows, and what the server has of it.

`tracker` logs it while a run is trained, `posexp.sync` afterwards, from the run's folder.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import secrets
import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, get_args

from posexp import storage
from posexp.config.checks import Positive, check
from posexp.errors import UserError, printable
from posexp.runs import BOOKKEEPING

Mode = Literal["auto", "online", "offline", "disabled"]
MODES = {mode: mode for mode in get_args(Mode)[1:]} | {"dryrun": "offline", "run": "online"}
PROJECT = "posexp"  # where none is named
# Keys of a summary that are no metrics, and are results or layout rather than facts of the run.
RESULTS = (
  *("step", "stopped_at", "averaged", "bleu_signature", "generated"),
  *("headline", "metrics", "gates"),
)
NAME = 128  # letters that W&B takes for the name of a run or a group
CURVES = ("train", "validation", "time", "memory")  # prefixes of metrics that are drawn over steps


@dataclasses.dataclass(frozen=True)
class WandbOptions:
  """The options of the section `wandb`."""

  mode: Mode = "auto"
  project: str | None = None
  entity: str | None = None
  tags: tuple[str, ...] = ()
  notes: str | None = None
  timeout: Positive = 15.0  # seconds for the server to answer before a run goes on offline

  def __post_init__(self):
    check(self)
    if self.project is not None and (not self.project or set(self.project) & set("/\\#?%:")):
      raise ValueError(f"project must be a name without any of / \\ # ? % :, not {self.project!r}")
    if any(not 1 <= len(tag) <= 64 for tag in self.tags):
      raise ValueError("tags must have 1 to 64 letters each")


def with_environment(options: WandbOptions) -> WandbOptions:
  """Return options with what W&B's environment variables say, where nothing was typed.

  Raises:
    UserError: a variable has a value that W&B does not know.
  """
  said = {name.lower(): os.environ.get(f"WANDB_{name}") for name in ("PROJECT", "ENTITY", "NOTES")}
  said["tags"] = tuple(filter(None, map(str.strip, os.environ.get("WANDB_TAGS", "").split(","))))
  found = {key: value for key, value in said.items() if value and not getattr(options, key)}
  mode = os.environ.get("WANDB_MODE")
  if os.environ.get("WANDB_DISABLED", "").lower() in ("true", "1", "yes"):
    mode = "disabled"
  if options.mode == "auto" and mode:
    if mode not in MODES:
      raise UserError(
        f"WANDB_MODE={mode}: there are {', '.join(MODES)}; set one of these, or type wandb.mode=..."
      )
    found["mode"] = MODES[mode]
  try:
    return dataclasses.replace(options, **found)
  except ValueError as error:
    if "disabled" in (options.mode, found.get("mode")):  # then nothing else counts
      return dataclasses.replace(options, mode="disabled")
    raise UserError(f"WANDB_{str(error).partition(' ')[0].upper()}: {error}") from error


class WandbRun:
  """An open run of W&B, of the run in a folder. Any method may raise an error of any class."""

  def __init__(self, run: Any, folder: Path):
    self.run = run
    self.folder = folder
    self._step, self._finished = 0, False
    for prefix in CURVES:
      run.define_metric(f"{prefix}/*", step_metric="step")

  def catch_up(self, history: Iterable[Mapping[str, Any]]) -> None:
    """Log the rows of a run's history that W&B does not have.

    Earlier offline runs in the folder, which this one replaces, are removed: that of a process that
    was killed ends in half a record, at which `wandb sync` stops.
    """
    for row in history:
      self.log(row["step"], row)
    for offline in self.folder.glob(f"wandb/offline-run-*-{self.run.id}"):
      if offline.name != Path(self.run.dir).parent.name:
        shutil.rmtree(offline, ignore_errors=True)

  def log(self, step: int, metrics: Mapping[str, Any]) -> None:
    """Add a row, unless W&B has the step already, from before the run was stopped."""
    self._step = step
    if step >= max(self.run.step, self.run.starting_step):
      self.run.log({"step": step, **metrics}, step=step, commit=True)

  def summarize(self, summary: Mapping[str, Any]) -> None:
    """Set the run's result in W&B."""
    self.run.summary.update(dict(summary))
    self._finished = True

  def samples(self, tables: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
    """Log what the model predicted for some examples, as tables by their names, but for those
    without rows; the rows of one have the same keys.
    """
    import wandb

    made = {
      name: wandb.Table(list(rows[0]), [list(row.values()) for row in rows])
      for name, rows in tables.items()
      if rows
    }
    if made:
      self.run.log(made)

  def finish(self, exit_code: int = 0) -> None:
    """Send what is left and close the run, which has failed unless `exit_code` is 0."""
    self.run.finish(exit_code=exit_code)
    if not self.run.offline:
      record(self.folder / "wandb", self.run, extent(self._step, self._finished))


def record(folder: Path, run: Any, content: Any) -> None:
  """Note in a file that an open run of W&B has the content of a folder: of a run its `extent`."""
  place = {"server": run.settings.base_url, "entity": run.entity, "project": run.project}
  storage.write(folder / "sent.json", json.dumps(place | {"content": content}) + "\n")


def is_synced(folder: Path, server: str, options: WandbOptions, content: Any) -> bool:
  """Return whether the server is known to have the content, under the entity and project
  asked for.
  """
  try:
    found = json.loads((folder / "sent.json").read_bytes())
  except (OSError, ValueError):
    return False
  place = {"server": server, "project": options.project or PROJECT, "content": content}
  return found == place | {"entity": options.entity or found.get("entity")}


def extent(step: int, finished: bool) -> dict[str, Any]:
  """Return how much there is of a run: its rows up to a step, and whether it has its summary."""
  return {"step": step, "finished": finished}


def run_settings(
  options: WandbOptions, config: Mapping[str, Any], facts: Mapping[str, Any], folder: Path
) -> dict[str, Any]:
  """Return the arguments of `wandb.init` for a run.

  `facts` are properties by which runs are compared and that the config lacks, such as the number
  of parameters.
  """
  # The folder's name is no unique id: W&B would mix the rows of a run that is started afresh, here
  # or on another machine, with those it has.
  file = storage.unlinked(folder / "wandb") / "id"
  if not file.is_file() or not re.fullmatch(rb"[\w.=-]{1,128}", file.read_bytes()):
    own = re.sub(r"[^\w.=-]", "_", folder.absolute().parent.name, flags=re.A)[:64]
    storage.write(file, f"{own}-{secrets.token_hex(4)}")
  found = settings(options, config, folder.absolute().parent.name, f"seed={config['seed']}")
  found |= {"id": file.read_text(), "job_type": "train", "notes": options.notes}
  return found | {"config": {**experiment(config), **facts}, "dir": str(folder)}


def settings(
  options: WandbOptions, config: Mapping[str, Any], group: str, name: str
) -> dict[str, Any]:
  """Return the arguments of `wandb.init` that runs and their aggregate share, but for the
  `name`.
  """
  task, encoding = config["task"]["name"], config["encoding"]
  return {
    "group": printable(f"{task}/{encoding}/{group}")[:NAME],
    "name": printable(f"{task}/{encoding}/{group}/{name}")[-NAME:],
    "tags": list(dict.fromkeys([printable(task)[:64], printable(encoding)[:64], *options.tags])),
    "project": options.project or PROJECT,
    "entity": options.entity,
    "reinit": "finish_previous",
  }


def experiment(config: Mapping[str, Any]) -> dict[str, Any]:
  """Return the part of a config that describes the experiment.

  Sections stay nested: W&B shows and groups {"rpr": {"k": 4}} as rpr.k, but cannot filter by a key
  that has a dot.
  """
  return {key: config[key] for key in config if key == "seed" or key not in BOOKKEEPING}


def facts(summary: Mapping[str, Any] | None) -> dict[str, Any]:
  """Return the facts that training has logged, from the summary of a finished run."""
  return {
    key: value for key, value in (summary or {}).items() if "/" not in key and key not in RESULTS
  }
