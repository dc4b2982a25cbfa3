"""Parameter and FLOP counts, and the width that makes two encodings equal in one of them.

Everything is computed from shapes: nothing is allocated or compiled.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from flax import nnx
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, jaxpr_as_fun, jaxprs_in_params
from jax.sharding import Mesh
from jax.stages import Traced

from posexp.encodings import Encoding, all_encodings
from posexp.encodings.rngs import Rngs, abstract_model
from posexp.errors import UserError
from posexp.kernels.target import compiling
from posexp.models.attention import form_of
from posexp.models.backbones import AnySize
from posexp.models.positions import CONSECUTIVE
from posexp.models.size import Size
from posexp.models.transformer import Stack
from posexp.training.step import split

if TYPE_CHECKING:
  from posexp.tasks.contract import ModelSpec

RUNNING = {"cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp"}
TOLERANCE = 0.01  # largest relative distance of a matched count from the reference


def costs(build: Callable[[Rngs], nnx.Module], inputs: tuple, length: int) -> dict[str, float]:
  """Return the `parameters` of a model, and the `flops` of a forward pass per token.

  `inputs` are the shapes of the model's inputs. JAX's cost analysis counts operations in the
  program before it is optimized: an addition and a multiplication are one each, and zeros that are
  multiplied count like other numbers. On every machine, the program for a CPU is counted, since JAX
  counts its operations without compiling it.

  Raises:
    UserError: JAX was told to leave the CPU out.
  """

  def forward(state, inputs):
    return nnx.merge(graphdef, *state)(*inputs)

  try:
    mesh = Mesh(np.array(jax.local_devices(backend="cpu")[:1]), ("rows",))
  except RuntimeError as error:
    named = jax.config.jax_platforms
    raise UserError(
      f"JAX_PLATFORMS={named} leaves out the CPU, where the operations of a model are counted; "
      f"set JAX_PLATFORMS={named},cpu"
    ) from error
  with compiling(mesh), jax.default_device(mesh.devices.flat[0]):
    graphdef, *state = split(abstract_model(build))
    flops = operations(forward, state, inputs)
  parameters = sum(leaf.size for leaf in jax.tree.leaves(state[0]))
  return {"parameters": parameters, "flops": flops / length}


def operations(function: Callable[..., Any], *inputs: Any) -> float:
  """Count the operations of a function, by the shapes of its inputs."""
  traced = jax.jit(function).trace(*inputs)
  return _analyzed(traced) + _left_out(traced.jaxpr.jaxpr)


def _analyzed(traced: Traced) -> float:
  """Return the operations of a program if each of its loops ran once, by JAX's cost analysis."""
  return traced.lower().cost_analysis().get("flops", 0.0)


def _left_out(program: Jaxpr) -> float:
  """Return the operations of a program that the analysis leaves out.

  A loop runs as often as it says, but for what is the same each time, which XLA computes once. A
  running sum has an addition for each number, where the analysis counts one for each pair.
  """
  more = 0.0
  for eqn in program.eqns:
    if eqn.primitive.name == "scan" and eqn.params["length"]:
      body, times = eqn.params["jaxpr"], eqn.params["length"]
      step = jax.jit(jaxpr_as_fun(body)).trace(*body.in_avals)
      fixed = operations(*_fixed(body.jaxpr, eqn.params["num_consts"]))
      more += (times - 1) * (_analyzed(step) - fixed) + times * _left_out(body.jaxpr)
    elif eqn.primitive.name in RUNNING:
      function, *inputs = _part([eqn], eqn.invars)
      more += eqn.outvars[0].aval.size - _analyzed(jax.jit(function).trace(*inputs))
    else:
      inner = [*map(_left_out, jaxprs_in_params(eqn.params))]
      more += max(inner) if eqn.primitive.name == "cond" else sum(inner)
  return more


def _fixed(body: Jaxpr, constants: int) -> tuple[Any, ...]:
  """Return the part of a loop's body whose results are always the same, as `_part` does."""
  known, eqns = {*body.invars[:constants]}, []
  for eqn in body.eqns:
    if all(isinstance(each, Literal) or each in known for each in eqn.invars):
      known.update(eqn.outvars)
      eqns.append(eqn)
  return _part(eqns, body.invars[:constants])


def _part(eqns: Sequence[JaxprEqn], given: Sequence[Any]) -> tuple[Any, ...]:
  """Return a function of some steps of a program, and the shapes of what they are given."""
  made = [each for eqn in eqns for each in eqn.outvars]
  part = ClosedJaxpr(Jaxpr((), given, made, eqns), ())
  return jaxpr_as_fun(part), *part.in_avals


@functools.lru_cache
def counts(spec: ModelSpec, length: int) -> dict[str, float]:
  """Return the `costs` of a model for inputs of `length` tokens.

  Raises:
    ValueError: the size does not suit the encoding.
  """
  # Attention is counted by its definition, in whatever form it is computed.
  form: dict[str, Any] = {"attention": "reference"} if isinstance(spec.size, Size) else {}
  changed: dict[str, Any] = {"size": dataclasses.replace(spec.size, **form)}
  if hasattr(spec, "vectors"):  # of words: as wide as the tables of this run's encoding alone
    changed["vectors"] = None
  whole = dataclasses.replace(spec, positions=CONSECUTIVE, **changed)
  length = min(length, spec.encoding.limit or length)
  return costs(whole.build, spec.inputs(length), length)


def facts(spec: ModelSpec, length: int, given: AnySize) -> dict[str, Any]:
  """Count parameters and FLOPs of a model, and of one with `none` at the size that was `given`."""
  given = dataclasses.replace(given, match="none", match_to="none")
  plain = dataclasses.replace(spec, encoding=Encoding(), size=given)
  own, none = counts(spec, length), counts(plain, length)
  varied = spec.size.varied
  return {
    "parameters": own["parameters"],
    "parameters_of_none": none["parameters"],
    "flops_per_token": own["flops"],
    "flops_per_token_of_none": none["flops"],
    **({varied: getattr(spec.size, varied)} if varied else {}),
  }


def forms(model: nnx.Module, length: int) -> str:
  """Name the forms in which a model's layers attend to `length` tokens, each once, or "none"."""
  found: dict[str, None] = {}
  for stack in (module for _, module in nnx.iter_modules(model) if isinstance(module, Stack)):
    for block, kind in zip(stack.blocks, stack.kinds, strict=True):
      window = kind.window if stack.causal else None
      found[form_of(block.attention.form, length, length, window, to_its_end=stack.causal)] = None
  return ", ".join(found) or "none"


def matched(spec: ModelSpec, length: int) -> ModelSpec:
  """Return the model with the width that gives it the reference's parameters or FLOPs.

  The width is `size.varied`, d_ff of a Transformer. The reference is the encoding `size.match_to`,
  with its default options and the width as given; FLOPs are those of inputs of `length` tokens. The
  returned model has match="none".

  Raises:
    UserError: no width comes within 1 % of the reference.
  """
  size = spec.size
  plain = dataclasses.replace(spec, size=dataclasses.replace(size, match="none", match_to="none"))
  if size.match == "none":
    return plain
  what, reference = size.match, all_encodings()[size.match_to]()
  if spec.encoding == reference:
    return plain
  try:
    goal = counts(dataclasses.replace(plain, encoding=reference), length)[what]
  except ValueError as error:
    raise UserError(f"model.match_to={size.match_to}: {error}") from error

  def with_width(width: int) -> ModelSpec:
    given: dict[str, Any] = {size.varied: width}
    return dataclasses.replace(plain, size=dataclasses.replace(plain.size, **given))

  def at(width: int) -> float:
    return counts(with_width(width), length)[what]

  pairs = spec.encoding.paired and "linear" in spec.encoding.acts_in
  width = closest(at, goal, step=2 if pairs else 1)
  reached, name = at(width), size.varied
  if abs(reached / goal - 1) > TOLERANCE:
    raise UserError(
      f"model.match={what}: with {name}={width} the model has {reached:,.0f} {what}, and "
      f"{size.match_to} has {goal:,.0f} with {name}={getattr(size, name)}, which no width comes "
      f"closer to; give a larger model.{name} or leave model.match=none"
    )
  return with_width(width)


def closest(at: Callable[[int], float], goal: float, step: int) -> int:
  """Return the multiple of `step` at which a count that grows with it is nearest to a goal."""
  # Both counts are linear in the width of a Transformer, and nearly linear in that of others.
  slope = (at(3 * step) - at(step)) / (2 * step)
  width = step * max(1, round((goal - at(step)) / (slope * step)) + 1)
  for _ in range(10):
    if abs(at(width) / goal - 1) <= TOLERANCE:
      break
    slope = (at(width + step) - at(width)) / step
    width = max(step, width + step * round((goal - at(width)) / (slope * step)))
  return width
