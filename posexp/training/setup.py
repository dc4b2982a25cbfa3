"""The parts of a run that its config describes, and the model for its data."""

from __future__ import annotations

import functools
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
from jax.sharding import Mesh

from posexp import machine
from posexp.config import RunOptions, build, look_up, plugins, resolve, show
from posexp.config.checks import LARGEST, as_typed, check_effective
from posexp.config.command_line import compose, explained
from posexp.config.composed import file_name
from posexp.config.overrides import read
from posexp.config.schema import flat
from posexp.data import files
from posexp.data.batches import GRANULE
from posexp.encodings import Encoding, all_encodings, check_limit, make_encoding, name_of
from posexp.errors import Unsuited, UserError, near
from posexp.models.backbones import AnySize, make_size, refusal
from posexp.models.positions import Positions
from posexp.runs import FILES, Run, folder, parents
from posexp.runs.identity import decisive, names_file
from posexp.tasks import make_task
from posexp.tasks.contract import Data, ModelSpec, Task
from posexp.training.devices import check_memory, mesh_for, most_devices
from posexp.training.matching import matched
from posexp.training.optimizer import Training
from posexp.training.sources import record_of, source
from posexp.training.step import Program, parameters, program

PER_TOKEN = 8  # vectors that a layer keeps of each token for its gradient, at the least
COPIES = 3  # of the weights: themselves, their gradients and, at the least, one moment


class Setup(NamedTuple):
  """The sections of a run's config, each as its dataclass."""

  config: dict[str, Any]  # with the values that were read: 4 where "4" was typed
  encoding: Encoding
  task: Task
  size: AnySize  # as given: where widths are matched, that of the reference
  positions: Positions
  training: Training

  @classmethod
  def of(cls, config: Mapping[str, Any]) -> Setup:
    """Return the setup of a config; UserError for options that do not exist or do not suit."""
    machine.a_device_for_each_core()  # before anything asks JAX for one
    parent = None
    if isinstance(init := config.get("init"), str):
      if (released := source(init)) is not None:
        config = {**config, "init": record_of(released)}
      else:
        path = _trained_by(init, config["runs"]) if parents.is_command(init) else init
        config, parent = parents.resolved({**config, "init": path})
    plugins.check("optimizer", config)
    name = str(config["encoding"])
    encoding, task, size = make_encoding(config), make_task(config).settled(), make_size(config)
    positions = build(Positions, config.get("positions"), "positions")
    training = build(Training, config.get("train"), "train")
    parts = {name: encoding, "task": task, "model": size, "positions": positions, "train": training}
    setup = cls({**config, **_as_read(config, parts)}, encoding, task, size, positions, training)
    values = flat(setup.config)
    for each in encoding.mixed:
      try:  # an option that the task does not have is off; the encoding's own have been looked at
        check_effective(each, lambda option: values.get(option, "." not in option))
      except ValueError as error:
        raise UserError(f"{name_of(each)}.{error}") from error
    look_up(all_encodings(), setup.size.match_to, "model.match_to")
    if setup.size.match != "none" and setup.size.varied is None:
      raise Unsuited(
        f"model.match={setup.size.match}: {setup.size.backbone} has no width beside model.d_model "
        "that could be chosen; leave it at none"
      )
    if why := refusal(name, setup.encoding, setup.size):
      raise Unsuited(why)
    if parent is not None:
      _check_parent(setup, parent)
    if training.label_smoothing and not task.smoothed:
      raise Unsuited(
        f"train.label_smoothing={training.label_smoothing:g} is for a loss of tokens or classes, "
        "and this task has another; leave it at 0"
      )
    if training.steps == 0 and setup.config.get("init") is None:
      raise UserError(
        "train.steps=0 measures the weights of another run as they are: name that run with "
        "init=RUN, or set steps"
      )
    named = _as_named_before(setup) if setup.config["task"].get("train") else setup.config
    return setup._replace(config=named)

  def data_digests(self) -> dict[str, str | None]:
    """Return the sha256 of the user's own files, as `posexp.runs.digest` takes them.

    Raises:
      UserError: a file is missing or empty.
    """
    vectors = self.size.vectors
    digest = files.digest({"vectors": vectors}) if vectors else None
    return {"data_digest": self.task.data_digest(), "vectors_digest": digest}

  def least_parameters(self) -> int:
    """Return the parameters of a model with hardly any words, which is built in shape only.

    Raises:
      Unsuited: the encoding, the task, the size and the positions do not suit each other.
      UserError: there is a mistake in an encoding or a task of the user's own.
    """
    with plugins.explained(self.config):
      try:
        return parameters(self.task.smallest_model(self.encoding, self.size, self.positions))
      except ValueError as error:
        parts = {self.config["encoding"]: self.encoding, "model": self.size, "task": self.task}
        raise Unsuited(as_typed(str(error), parts)) from error

  def check_fits(self, parameters: int) -> None:
    """Raise UserError if no device can hold a model with this many parameters in training."""
    names = ("d_model", self.size.varied, "num_layers")
    given = vars(self.size).items()
    widths = ", ".join(f"model.{name}={value}" for name, value in given if name in names)
    copies = COPIES if self.training.shard == "none" else 1  # the weights are whole on each device
    check_memory(
      4 * copies * parameters,
      f"model: {parameters:,} parameters ({widths}, the tables of {self.config['encoding']}) with "
      "what trains them",
      "choose smaller ones",
    )

  def mesh(self, data: Data) -> Mesh:
    """Return the devices for these data; UserError if a batch does not divide among them."""
    rows, given = data.rows_of(self.training.batch_size), self.training
    most = most_devices(given.cpu_devices, self.size.d_model, data.length)
    return mesh_for(rows, given.accumulate, most)

  def steps(self, data: Data) -> int:
    """Return how many steps training takes on these data."""
    given = self.training
    epoch = data.steps_per_epoch(given.batch_size)  # also refuses batches that there cannot be
    if given.steps is not None:
      return given.steps
    epochs = max(given.epochs or 0, given.least_epochs or 0)
    if (steps := epochs * epoch) > LARGEST:
      raise UserError(f"train.epochs={epochs}: {steps:,} steps are too many; set fewer")
    return max(steps, given.least_steps or 0)

  def program(self, spec: ModelSpec, data: Data, mesh: Mesh) -> Program:
    """Return the compiled functions of the run.

    Raises:
      UserError: a device cannot hold the model, or a batch.
    """
    rows = int(data.rows_of(self.training.batch_size).max())
    made = program(spec, self.training, self.steps(data), mesh, rows)  # in shape only
    self.check_fits(sum(leaf.size for leaf in jax.tree.leaves(made.shapes.params)))
    tokens = rows // self.training.accumulate * min(data.length, GRANULE)  # at the least
    check_memory(
      4 * PER_TOKEN * tokens * spec.size.d_model * spec.size.num_layers,
      f"train.batch_size={self.training.batch_size}: a step on {rows:,} rows",
      "choose a smaller one",
    )
    return made

  def model_for(self, data: Data) -> ModelSpec:
    """Return the model for these data, with the width that was matched.

    Raises:
      UserError: sequences are longer than the encoding's positions or than those that are drawn
        from, positions are drawn from farther than the encoding has them, or no width matches.
    """
    reach = self.positions.reach
    texts = f"the longest {data.item} has {data.longest} tokens"
    cut = hasattr(self.task, "max_length")
    shorten = "cut texts with task.max_length" if cut else f"leave longer {data.item}s out"
    if reach is not None and data.longest > reach:
      raise UserError(
        f"positions.reach={reach}: {texts}; set positions.reach={data.longest} or more, or "
        f"{shorten}"
      )
    drawn = f"positions are drawn from {reach}"
    why, lower = (texts, shorten) if reach is None else (drawn, "lower positions.reach")
    try:
      check_limit(self.encoding, max(data.longest, reach or 0), why, lower)
    except ValueError as error:
      raise UserError(str(error)) from None
    spec = data.model(self.encoding, self.size, self.positions)
    if self.size.vectors and getattr(spec, "vectors", None) is None:
      raise UserError(
        f"model.vectors={self.size.vectors} is for tasks that classify words, as "
        "task=text_classification does with task.tokenizer=word; leave it at null"
      )
    return matched(spec, data.length)


def _as_named_before(setup: Setup) -> dict[str, Any]:
  """Return the config of a task on a file, named by its kind if there are runs of that name.

  Tasks on files had their kind as their name before they were named after the files.
  """
  config, task = setup.config, setup.config["task"]
  name, kind = task["name"], task["kind"]
  if name == kind or name != file_name(str(task.get("train"))):
    return config
  named = {**config, "task": {**task, "name": kind}}
  there = Path(config["runs"], kind).is_dir() and folder(named, **setup.data_digests()).parent
  return named if there and there.is_dir() else config


@functools.cache
def _trained_by(line: str, runs: str) -> str:
  """Return the folder of the runs, one for each seed, that a command line has trained.

  Raises:
    UserError: the options are wrong, or no such run has begun.
  """
  try:
    words = shlex.split(line)
    with explained(read(words)):
      setup = Setup.of(resolve(compose(words)) | {"runs": runs})
  except (UserError, ValueError) as error:  # a quote that is not closed
    raise UserError(f"init={line}: {error}") from error
  path = folder(setup.config, **setup.data_digests()).parent
  if not path.is_dir():
    typed = shlex.join([*words, *([] if runs == RunOptions.runs else [f"runs={runs}"])])
    raise UserError(
      f"init={line}: these options have trained no run, which would be {near(path)}; train it "
      f"first: python -m posexp.train {typed}"
    )
  return str(path)


def _check_parent(setup: Setup, parent: Run) -> None:
  """Raise UserError unless a run and its parent have the same task, with the same tokens."""
  here, there = (decisive(config)["task"] for config in (setup.config, parent.config))
  free = {"name", *setup.task.adjustable}
  if setup.task.data_digest():
    free |= {key for key in FILES if names_file(key, here.get(key))}
  differing = [key for key in {**there, **here} if here.get(key) != there.get(key)]
  also = "and a run has the data and the tokens of the run that it starts from"
  for option in [key for key in differing if key not in free]:
    if option == "kind":
      tasks = f"it is a run of {there['name']}, and not of {here['name']}"
      raise UserError(f"init={near(parent.path)}: {tasks}, {also}; choose another run or task")
    raise UserError(
      f"init={near(parent.path)}: it was trained with task.{option}={show(there.get(option))}, "
      f"{also}; choose the same"
    )


def _as_read(config: Mapping[str, Any], parts: Mapping[str, Any]) -> dict[str, Any]:
  """Return the sections with the values of their dataclasses, so that "4" and 4 are one run."""
  sections: dict[str, Any] = {}
  for section, part in parts.items():
    for key, given in (config.get(section) or {}).items():
      read = getattr(part, key, given)
      read = list(read) if isinstance(read, tuple) else read
      # A value that equals the one that was read stays as it is, as 1 does for 1.0.
      sections.setdefault(section, {})[key] = given if given == read else read
  return sections
