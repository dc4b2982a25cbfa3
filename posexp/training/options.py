"""A trained model with other options of its encoding around the same weights."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
from flax import nnx

from posexp.encodings import make_encoding
from posexp.encodings.rngs import Rngs, abstract_model
from posexp.errors import UserError
from posexp.models.backbones import make_size
from posexp.tasks.contract import ModelSpec
from posexp.training.restore import TrainedModel
from posexp.training.step import keys, program, split

# Options of the model that no weight knows.
OF_MODEL = ("memory", "same_length", "attention", "window", "window_ends")


def with_options(trained: TrainedModel, options: Mapping[str, Any]) -> TrainedModel:
  """The same weights with other options by their full names: {"rope.scaling": "ntk", …}.

  Any option of the encoding will do with which the model has the same parameters, and those of the
  model in OF_MODEL. The carry is empty, and is made anew where the model is asked.

  Raises:
    UserError: an option is none of these, or its value is wrong or does not suit the model.
  """
  setup, spec = trained.setup, trained.spec
  name = setup.config["encoding"]
  config = {
    **setup.config,
    name: dict(setup.config.get(name) or {}),
    "model": dict(setup.config["model"]),
  }
  allowed = [f"model.{option}" for option in OF_MODEL if hasattr(spec.size, option)]
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
    difference = other_parameters(spec, other)
  except ValueError as error:
    raise UserError(f"{typed}: {error}") from error
  if difference:
    raise UserError(f"{typed}: {difference}, so a model must be trained with it")
  compiled = program(other, setup.training, 1, trained.snapshot.mesh)
  settings = jax.jit(lambda: split(other.build(Rngs(**keys(0))))[2])()
  state = trained.snapshot.state.replace(settings=settings, carry=())
  return trained._replace(
    setup=setup._replace(config=config, encoding=encoding),
    spec=other,
    snapshot=trained.snapshot._replace(program=compiled, state=state),
  )


def other_parameters(one: ModelSpec, other: ModelSpec) -> str | None:
  """How the parameters of a model differ from those of another; None if they do not.

  Nothing is allocated.

  Raises:
    ValueError: a model cannot be built.
  """
  before, after = map(shapes, (one, other))
  for path in sorted(before.keys() | after.keys()):
    if path not in after:
      return f"the model would have no {path}"
    if path not in before:
      return f"the model would have {path}, which was not trained"
    if before[path] != after[path]:
      return f"{path} would be {list(after[path])}, not {list(before[path])}"
  return None


def shapes(spec: ModelSpec) -> dict[str, tuple[int, ...]]:
  """The shape of each parameter of a model, by its path."""
  params = nnx.state(abstract_model(spec.build), nnx.Param)
  return {"/".join(map(str, path)): leaf.shape for path, leaf in nnx.to_flat_state(params)}
