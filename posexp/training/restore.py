"""A run opened again: the model of one of its checkpoints, with its data or without.

The same weights may also be put into a model with other options of its encoding.
"""

from __future__ import annotations

import contextlib
import dataclasses
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from flax import nnx
from jax.sharding import Mesh

from posexp.config.checks import as_typed
from posexp.config.overrides import read
from posexp.config.schema import flat
from posexp.encodings import make_encoding
from posexp.encodings.rngs import Rngs, abstract_model
from posexp.errors import UserError, near
from posexp.models.backbones import make_size
from posexp.runs import FILES, Run, digest, read_run
from posexp.runs.checkpoints import Checkpoints, difference
from posexp.status import doing
from posexp.tasks.contract import Data, ModelSpec
from posexp.training.devices import mesh_for, prepare, replicated
from posexp.training.evaluation import Snapshot
from posexp.training.matching import matched
from posexp.training.setup import Setup
from posexp.training.sources import source
from posexp.training.step import Program, keys, program, split

# Options of the model that no weight knows.
OF_MODEL: tuple[str, ...] = ("memory", "same_length", "attention", "window", "window_ends")
OF_MODEL += ("logits_by", "logits_length", "logits_growth", "logits_in", "logits_scale")
MANY = 32  # layers, of which more take long to build
OF_DATA = (*(f"task.{name}" for name in FILES), "model.vectors")  # paths, which no digest has


class TrainedModel(NamedTuple):
  """The model of a run, with all that measuring it needs."""

  run: Run
  setup: Setup
  spec: ModelSpec  # with the width that was matched
  snapshot: Snapshot
  data: Data | None = None  # None of a model that was opened without


def open_for(
  command: str,
  path: Path | str,
  options: Sequence[str] = (),
  split: str | None = "test",
  rows: int = 1,
) -> TrainedModel:
  """Open a run, or a released model, for a command that measures a `split` of its data.

  If `split` is None, the command reads no data, and its batches have `rows` rows.

  Raises:
    UserError: as `open_trained` or `open_alone` do, or the test split of a trial is asked for.
  """
  prepare()
  if split is None:
    return open_alone(path, command, tuple(options), rows)
  trained = open_trained(path, tuple(options), command)
  if trained.run.trial and split == "test":
    raise UserError(
      f"{near(Path(path))} is a trial of a tuned sweep, which has no test score: measure its split "
      "validation, or name a run with the chosen options"
    )
  doing(f"measuring {near(Path(path))}")
  return trained


def open_trained(
  path: Path | str, options: Sequence[str] = (), command: str = "evaluate"
) -> TrainedModel:
  """Open a run that has finished or was stopped, and restore a checkpoint.

  `options`, as "rope.scaling=ntk", are those of `with_options`, and those of OF_DATA, which say
  where the data are now: "task.train=new.csv".

  Raises:
    UserError: there is no run, its task does not have the command, it has no checkpoint yet, or its
      data are gone or are others.
  """
  if (released := source(path)) is not None:
    trained = released.open(options, data=True)
    _check_command(command, path, trained.setup)
    return trained
  others = _values(options)
  moved = {key: others.pop(key) for key in OF_DATA if key in others}
  run, setup = _described(path, moved, command)
  doing(f"reading the data of {near(run.path)}")
  identity, task = run.path.resolve().parent.name, setup.task
  known = re.fullmatch("[0-9a-f]{12}", identity)
  typed = " ".join(f"{key}={value}" for key, value in moved.items())
  if typed and not known:
    raise UserError(
      f"{typed}: {path} is not in a folder named by its digest, which would tell whether these are "
      "its data; move it back, or lay the data where they were"
    )
  try:
    same = not known or digest(run.config, **setup.data_digests()) == identity
  except UserError as error:
    keys = [key for key in OF_DATA if flat(run.config).get(key)]
    if typed or not keys:
      raise
    where = " ".join(f"{key}=..." for key in keys)
    raise UserError(f"{error}; where the data have moved, {where} says where to") from error
  if not same:
    what = typed or f"{path}: the data, or its config.yaml,"
    raise UserError(f"{what} are not those that the run was trained on")
  data = task.prepare(run.path)
  spec = setup.model_for(data)
  snapshot = _restored(run, setup, setup.program(spec, data, setup.mesh(data)))
  return with_options(TrainedModel(run, setup, spec, snapshot, data), others)


def open_alone(
  path: Path | str, command: str, options: Sequence[str] = (), rows: int = 1
) -> TrainedModel:
  """Open a run from its folder alone, without its data, for batches of so many rows.

  Raises:
    UserError: there is no run, its task does not have the command, it has no checkpoint yet, or a
      file of its folder is missing or another run's.
  """
  if (released := source(path)) is not None:
    return released.open(options, data=False)
  others = _values(options)
  run, setup = _described(path, {}, command)
  given = setup.task.kept_model(run.path, setup.encoding, setup.size, setup.positions)
  spec = _without_data(run, given)
  # No array of a checkpoint has a shape that depends on the number of steps.
  mesh, lanes = mesh_for(np.array([rows])), setup.training.batch_size
  compiled = program(spec, setup.training, 1, mesh, lanes)
  return with_options(TrainedModel(run, setup, spec, _restored(run, setup, compiled)), others)


def open_beside(path: Path | str, data: Data, mesh: Mesh) -> TrainedModel:
  """Open a finished run with data of its task that are at hand, on some devices.

  Raises:
    UserError: there is no run, or its checkpoint is lost or damaged.
  """
  run, setup = _described(path, {})
  spec = _without_data(run, data.model(setup.encoding, setup.size, setup.positions))
  rows = int(data.rows_of(setup.training.batch_size).max())
  compiled = program(spec, setup.training, 1, mesh, rows)
  return TrainedModel(run, setup, spec, _restored(run, setup, compiled), data)


def terms_of(spec: ModelSpec) -> list[tuple[str, ...]]:
  """Return the names of the terms of each layer's relation, an encoder's first.

  Nothing is allocated.
  """
  stacks = abstract_model(spec.build).stacks
  return [tuple(block.attention.relation.terms) for stack in stacks for block in stack.blocks]


def _values(options: Sequence[str]) -> dict[str, Any]:
  """Return typed options by their names; raise UserError if one has several values."""
  given = read(options)
  if several := [each.input_line for each in given if each.is_sweep_override()]:
    raise UserError(f"{several[0]}: give one value; each command measures one")
  return {each.key_or_group: each.value() for each in given}


def _check_command(command: str, path: Path | str, setup: Setup) -> None:
  """Raise UserError unless the task of a run has the command."""
  if command not in (known := ("evaluate", *setup.task.commands)):
    raise UserError(
      f"{path} is a run of {setup.config['task']['kind']}, whose commands are {', '.join(known)}; "
      f"{command} is for other tasks"
    )


def _described(
  path: Path | str, moved: Mapping[str, Any], command: str = "evaluate"
) -> tuple[Run, Setup]:
  """Return a run and its setup; UserError unless it has a checkpoint and its task the command."""
  run = read_run(path)
  for key, value in moved.items():
    section, _, option = key.partition(".")
    run.config[section] = run.config[section] | {option: value}
  setup = Setup.of(run.config)
  _check_command(command, path, setup)
  if not any((run.path / "checkpoints").glob("[0-9]*")):
    why = "it was not trained up to its first evaluation"
    if run.summary is not None:
      why = "what it had is lost; put it back, or rerun=true trains the run afresh"
    raise UserError(f"{run.path} has no checkpoint: {why}")
  asked = getattr(setup.size, "num_layers", 0)
  if asked > MANY:
    folder = run.path / "checkpoints"
    with contextlib.closing(Checkpoints(folder, read_only=True)) as checkpoints:
      if 0 < (held := checkpoints.layers()) < asked:
        raise UserError(
          f"{run.path}: model.num_layers is {asked:,} in its config.yaml, and {held} in its "
          "checkpoint; put back the one that was trained"
        )
  return run, setup


def _without_data(run: Run, spec: ModelSpec) -> ModelSpec:
  """Return the model with its matched width, where the lengths of its data are not known.

  Raises:
    UserError: the width was matched by FLOPs, which depend on lengths, and the run has not
      finished.
  """
  if run.summary is not None:
    width = {spec.size.varied: run.summary[spec.size.varied]}
    size = dataclasses.replace(spec.size, **width, match="none", match_to="none")
    return dataclasses.replace(spec, size=size)
  if spec.size.match == "flops":
    raise UserError(
      f"{run.path} has not finished: which d_ff model.match=flops chose is written down "
      "then; train it to its end"
    )
  return matched(spec, 1)  # parameters do not depend on lengths


def _restored(run: Run, setup: Setup, compiled: Program) -> Snapshot:
  """Return the model with the weights of a checkpoint, whole on every device."""
  doing(f"restoring the weights of {near(run.path)}")
  template = jax.tree.map(
    lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=replicated(compiled.mesh)),
    compiled.shapes,
  )
  state = run.restore(template)
  if state is None:
    raise UserError(
      f"{run.path} has no best checkpoint: it was stopped before its first evaluation"
    )
  if run.summary is None:
    text = f"note: {near(run.path)} has not finished: this is its best checkpoint so far, of step"
    print(text, f"{int(state.step):,}", file=sys.stderr)
  return Snapshot(compiled, state, setup.training.batch_size)


def with_options(trained: TrainedModel, options: Mapping[str, Any]) -> TrainedModel:
  """Return the same weights in a model with other options: {"rope.scaling": "ntk", ...}.

  Options of the encoding may change if the model keeps the same parameters, and so may the options
  of the model in OF_MODEL. The carry is left empty, since predictions begin with one of their own.

  Raises:
    UserError: an option is none of these, or its value is wrong or does not suit the model.
  """
  if not options:
    return trained
  setup, spec = trained.setup, trained.spec
  name = setup.config["encoding"]
  config = {
    **setup.config,
    name: dict(setup.config.get(name) or {}),
    "model": dict(setup.config["model"]),
  }
  allowed = [f"model.{option}" for option in OF_MODEL if option in vars(spec.size)]
  for key, value in options.items():
    section, _, option = key.partition(".")
    if section != name and key not in allowed:
      raise UserError(
        f"{key}: a run of {name} can be measured with other options of {name}, and with other "
        f"{', '.join(allowed)}"
      )
    config[section][option] = value
  given = make_size(config)
  sizes = {key.removeprefix("model."): key for key in options if key in allowed}
  size = dataclasses.replace(spec.size, **{each: getattr(given, each) for each in sizes})
  encoding = make_encoding(config)
  other = dataclasses.replace(spec, encoding=encoding, size=size)
  typed = " ".join(f"{key}={value}" for key, value in options.items())
  try:
    differing = difference(shapes(spec), shapes(other))
  except ValueError as error:
    why = as_typed(str(error), {name: encoding, "model": size})
    raise UserError(why if why.startswith(typed) else f"{typed}: {why}") from error
  if differing:
    raise UserError(f"{typed}: {differing}, so a model must be trained with it")
  compiled = program(other, setup.training, 1, trained.snapshot.program.mesh)
  settings = jax.jit(lambda: split(other.build(Rngs(**keys(0))))[2])()
  state = trained.snapshot.state.replace(settings=settings, carry=())
  return trained._replace(
    setup=setup._replace(config=config, encoding=encoding),
    spec=other,
    snapshot=trained.snapshot._replace(program=compiled, state=state),
  )


def shapes(spec: ModelSpec) -> dict[str, list[int]]:
  """Return the shape of each parameter of a model, by its path; nothing is allocated.

  Raises:
    ValueError: the model cannot be built.
  """
  params = nnx.state(abstract_model(spec.build), nnx.Param)
  return {"/".join(map(str, path)): [*leaf.shape] for path, leaf in nnx.to_flat_state(params)}
