"""What a run is to do, from its config, and the model that it trains, from its data."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
from jax.sharding import Mesh

from posexp.config import build, plugins, unknown_name
from posexp.config.checks import LARGEST, as_typed, check_effective
from posexp.config.schema import flat
from posexp.data import files
from posexp.data.batches import GRANULE
from posexp.encodings import Encoding, all_encodings, check_limit, make_encoding
from posexp.encodings.rngs import GivenRngs
from posexp.errors import Unsuited, UserError
from posexp.models.backbones import AnySize, make_size, refusal
from posexp.models.positions import Positions
from posexp.tasks import make_task
from posexp.tasks.contract import Data, ModelSpec, Task
from posexp.training.devices import check_memory
from posexp.training.matching import matched
from posexp.training.optimizer import Training
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
    """Raise UserError for options that do not exist or do not suit, by their full names."""
    plugins.check("optimizer", config)
    parts = {
      str(config["encoding"]): make_encoding(config),
      "task": make_task(config).settled(),
      "model": make_size(config),
      "positions": build(Positions, config.get("positions"), "positions"),
      "train": build(Training, config.get("train"), "train"),
    }
    setup = cls({**config, **_as_read(config, parts)}, *parts.values())
    values = flat(setup.config)
    try:  # an option that the task does not have is off; the encoding's own have been looked at
      check_effective(setup.encoding, lambda option: values.get(option, "." not in option))
    except ValueError as error:
      raise UserError(f"{config['encoding']}.{error}") from error
    if setup.size.match_to not in all_encodings():
      raise unknown_name("model.match_to", setup.size.match_to, list(all_encodings()))
    if setup.size.match != "none" and setup.size.varied is None:
      raise Unsuited(
        f"model.match={setup.size.match}: {setup.size.backbone} has no width beside model.d_model "
        "that could be chosen; leave it at none"
      )
    if why := refusal(str(config["encoding"]), setup.encoding, setup.size):
      raise Unsuited(why)
    return setup

  def data_digests(self) -> dict[str, str | None]:
    """sha256 of the user's own files, as `posexp.runs.digest` takes them.

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

  def refusals(self) -> tuple[str, ...]:
    """Return why the task or a part of the encoding refuses its sizes: "" for each that does not.

    It takes a small part of the time of a model. Where the answers of two runs that differ in
    numbers alone are equal, both or neither of their models can be built.
    """
    try:
      self.task.smallest_model(self.encoding, self.size, self.positions)
    except Exception as error:  # raised again by `least_parameters`
      return (str(error),)
    return _refusals(self.encoding, getattr(self.size, "num_heads", 1), self.size.d_model)

  def check_fits(self, parameters: int) -> None:
    """Raise UserError where a device cannot hold a model of so many while it is trained."""
    names = ("d_model", *filter(None, [self.size.varied]), "num_layers")
    given = {name: getattr(self.size, name) for name in names if hasattr(self.size, name)}
    widths = ", ".join(f"model.{name}={value}" for name, value in given.items())
    copies = COPIES if self.training.shard == "none" else 1  # the weights are whole on each device
    check_memory(
      4 * copies * parameters,
      f"model: {parameters:,} parameters ({widths}, the tables of {self.config['encoding']}) with "
      "what trains them",
      "choose smaller ones",
    )

  def steps(self, data: Data) -> int:
    """Return how many steps training takes on these data."""
    given = self.training
    epoch = data.steps_per_epoch(given.batch_size)  # also refuses batches that there cannot be
    if (steps := given.steps or given.epochs * epoch) > LARGEST:
      raise UserError(f"train.epochs={given.epochs}: {steps:,} steps are too many; set fewer")
    return steps

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
      4 * PER_TOKEN * tokens * spec.size.d_model * getattr(spec.size, "num_layers", 1),
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


@functools.lru_cache(maxsize=1024)
def _refusals(encoding: Encoding, heads: int, features: int) -> tuple[str, ...]:
  keys, answers = GivenRngs(()), []  # none: who comes to draw weights has looked at the sizes

  def ask() -> None:
    for causal in (False, True):
      for part, args, given in (
        ("embed", (4, features), {"scale": 1.0, "causal": causal}),
        ("vector", (features,), {}),  # which `embed` adds to what it draws
        ("linear", (features, features), {}),
        ("relation", (heads, features // heads), {"causal": causal}),
      ):
        try:
          if hasattr(encoding, part):
            getattr(encoding, part)(*args, **given, rngs=keys)
        except StopIteration:
          answers.append("")
        except Exception as error:  # the model raises it, too
          answers.append(str(error))

  jax.eval_shape(ask)
  return tuple(answers)


def _as_read(config: Mapping[str, Any], parts: Mapping[str, Any]) -> dict[str, Any]:
  """Return the sections with the values that their dataclasses hold, so that "4" and 4 are
  one run.
  """
  return {
    section: {key: _same(given, getattr(part, key, given)) for key, given in options.items()}
    for section, part in parts.items()
    if (options := config.get(section))
  }


def _same(given: Any, read: Any) -> Any:
  """Return what was given if it equals what was read, as 1 does 1.0; else the latter, as YAML has
  it.
  """
  read = list(read) if isinstance(read, tuple) else read
  return given if given == read else read
