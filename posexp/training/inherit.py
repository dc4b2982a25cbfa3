"""How a run begins with the weights of another one, its parent: `init=RUN`."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from posexp import reading, storage
from posexp.config import show
from posexp.errors import UserError, near
from posexp.runs import Run, digest, parents, read_run
from posexp.tasks.contract import Data
from posexp.training.restore import open_beside
from posexp.training.setup import Setup
from posexp.training.sources import Source, path_of, source
from posexp.training.step import Program, State

log = logging.getLogger("posexp")

NOTES = "parent.json"  # in the folder of a run: what it has of its parent
NAMED = 6  # parameters in a line


def prepare(setup: Setup, folder: Path, new: bool) -> None:
  """Check that a run goes on with its parent's data; keep a source's tokens in a `new` folder.

  The tokens and the splits of parent and child are then the same, so a child never learns a text by
  which its parent was tested.

  Raises:
    UserError: the parent was trained on other data, or its config.yaml was changed; a source has no
      tokens, or is another model now.
  """
  if (released := source_of(setup.config)) is None:
    run = read_run(parents.path_of(setup.config))
    there = Setup.of(run.config)._replace(task=setup.task)
    if digest(run.config, **there.data_digests()) != run.digest:
      raise UserError(
        f"init={near(run.path)}: the data of this run are not those that it was trained on, or its "
        "config.yaml was changed; a run goes on with the data of the run that it starts from"
      )
  elif new:
    if released.record()["results"] != setup.config["init"]["results"]:
      raise UserError(
        f"init={released.name}: this is another model now than the run is named for; put that one "
        "back, or type the command again"
      )
    released.keep_tokens(folder)


def begin(setup: Setup, data: Data, program: Program, folder: Path) -> State:
  """Return the state before the first step: the parent's parameters, and new ones for the rest.

  Parameters are matched by their paths in the model. What is taken, new and dropped is logged, and
  written into the folder for `of_parent`.

  Raises:
    UserError: a parameter has another size in the parent, or the parent is damaged or has no
      checkpoint.
  """
  path, released = parents.path_of(setup.config), source_of(setup.config)
  own = _by_path(program.shapes.params)
  if released is not None:
    theirs = released.weights(setup.task, folder, getattr(data, "label_names", ()))
    path, config, step, before = Path(released.name), released.config(), 0, {"validation": {}}
  else:
    parent = open_beside(path, data, program.mesh)
    theirs, config = _by_path(parent.snapshot.state.params), parent.setup.config
    step, before = int(parent.snapshot.state.step), _before(parent.run)
  taken = [name for name in own if name in theirs]
  for name in taken:
    there, here = ([*params[name].shape] for params in (theirs, own))
    if there != here:
      raise UserError(
        f"init={near(path)}: {name} is {there} there and {here} here, and what a run takes from "
        f"another must have the same size{_differing(config, setup.config)}"
      )
  if not taken:
    first = min(theirs, default="nothing")
    raise UserError(
      f"init={near(path)}: none of its parameters has the name of one here: there is {first} "
      f"there, and {min(own)} here"
    )
  new, dropped = sorted(own.keys() - theirs.keys()), sorted(theirs.keys() - own.keys())
  some, every = (sum(own[name].size for name in names) for names in (taken, own))
  taking = f"step {step:,}: {some:,} of {every:,} parameters are taken"
  log.info("init      %s, %s", near(path), taking)
  for label, names in {"new": new, "dropped": dropped}.items():
    if names:
      more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
      log.info("          %s: %s%s", label, ", ".join(names[:NAMED]), more)
  notes = {"step": step, "taken": taken, "new": new, "dropped": dropped} | before
  storage.write(folder / NOTES, json.dumps(notes, indent=2) + "\n")

  def read(name: str) -> np.ndarray:
    array = np.asarray(theirs[name], own[name].dtype)
    if not np.isfinite(array).all():
      raise UserError(f"init={near(path)}: {name} has numbers that are not finite")
    return array

  given = [  # each is read and put on devices before the next one
    jax.device_put(read(name), leaf.sharding) if name in theirs else None
    for name, leaf in own.items()
  ]
  return program.init(setup.config["seed"], given)


def of_parent(folder: Path) -> dict[str, Any]:
  """Return the part of the summary that tells of the parent; nothing for a run without one."""
  notes = reading.parse(reading.read(folder / NOTES) or b"{}")
  costs = {key: notes.pop(key) for key in ("parent_steps", "time/parent_seconds") if key in notes}
  return costs | ({"parent": notes} if notes else {})


def _before(parent: Run) -> dict[str, Any]:
  """Return the best scores of a parent, and the costs of it and all of its ancestors."""
  summary = {"time/seconds": 0.0, "time/parent_seconds": 0.0, **parent.summary}
  return {
    "validation": {key: each for key, each in summary.items() if key.startswith("validation/")},
    "parent_steps": summary["stopped_at"] + summary.get("parent_steps", 0),
    "time/parent_seconds": summary["time/seconds"] + summary["time/parent_seconds"],
  }


def _by_path(tree: Any) -> dict[str, Any]:
  """Return parameters by their paths, as `path_of` returns them."""
  leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
  named = [(jax.tree_util.keystr(path, simple=True, separator="/"), leaf) for path, leaf in leaves]
  return {path_of(name): leaf for name, leaf in named}


def source_of(config: Mapping[str, Any]) -> Source | None:
  """Return the model of a source from which a resolved config starts, or None."""
  return source(config["init"]["path"])


def _differing(there: Mapping[str, Any], here: Mapping[str, Any]) -> str:
  """Return in words the options of the model and the encoding in which two configs differ."""
  sections = ["model"] + [here["encoding"]] * (there.get("encoding") == here["encoding"])
  options = [
    f"{section}.{key}={show(there[section].get(key))}"
    for section in sections
    if there.get(section)  # of weights from elsewhere no options may be known
    for key, value in (here.get(section) or {}).items()
    if there[section].get(key) != value
  ]
  return f"; there, {', '.join(options)}" if options else ""
