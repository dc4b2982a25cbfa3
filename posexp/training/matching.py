"""How large a model is and what it costs, and widths at which encodings are equal in one of these.

Everything here is worked out from shapes: nothing is allocated and nothing is compiled.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import TYPE_CHECKING

import jax
from flax import nnx

from posexp.errors import UserError
from posexp.models import attention
from posexp.models.transformer import Size
from posexp.training.step import keys, split

if TYPE_CHECKING:
  from posexp.encodings import Encoding
  from posexp.models.heads import Kind

TOLERANCE = 0.01  # how far from the reference a matched count may be


def costs(build: Callable[..., nnx.Module], inputs: tuple, length: int) -> dict[str, float]:
  """`parameters`, and `flops`: operations of a forward pass, for each of its `length` tokens.

  `inputs` are the shapes of what the model is called with. Operations are those that JAX's cost
  analysis counts in the program before it is optimized: an addition and a multiplication are one
  each, and zeros that are multiplied count like other numbers.
  """
  found = []

  def init(seeds):
    graphdef, *state = split(build, seeds)
    found.append(graphdef)
    return state

  state = jax.eval_shape(init, keys(0))

  def forward(state, inputs):
    return nnx.merge(found[0], *state)(*inputs)

  cost = jax.jit(forward).lower(state, inputs).cost_analysis()
  parameters = sum(leaf.size for leaf in jax.tree.leaves(state[0]))
  return {"parameters": parameters, "flops": cost["flops"] / length}


@functools.lru_cache
def counts(kind: Kind, encoding: Encoding, size: Size) -> dict[str, float]:
  """The `costs` of a model of this kind, for the longest inputs.

  Raises:
    ValueError: the size does not suit the encoding.
  """
  # The analysis counts a loop over blocks once: the definition has all operations in sight.
  whole = dataclasses.replace(size, attention="reference")
  return costs(kind.build(encoding, whole), kind.inputs, kind.length)


def facts(kind: Kind, encoding: Encoding, size: Size, given: Size) -> dict[str, float]:
  """Both counts of a model of `size`, and those of no encoding at the size that was `given`."""
  from posexp.encodings import Encoding

  given = dataclasses.replace(given, match="none", match_to="none")
  own, none = counts(kind, encoding, size), counts(kind, Encoding(), given)
  return {
    "parameters": own["parameters"],
    "parameters_of_none": none["parameters"],
    "flops_per_token": own["flops"],
    "flops_per_token_of_none": none["flops"],
    "d_ff": size.d_ff,
    "attention": attention_of(kind, encoding, size),
  }


def attention_of(kind: Kind, encoding: Encoding, size: Size) -> str:
  """How the model attends to the longest inputs: `attention.form_of` them."""
  build = kind.build(encoding, size)
  stack = nnx.eval_shape(lambda: build(rngs=nnx.Rngs(params=0, encoding=0))).stacks[0]
  return attention.form_of(size.attention, stack.relation, kind.length, kind.length)


def matched(kind: Kind, encoding: Encoding, size: Size) -> Size:
  """The size with that d_ff at which the model has as many parameters or FLOPs as the reference.

  The reference is the encoding `size.match_to`, with its default options and d_ff as given. What
  is returned asks for no matching.

  Raises:
    UserError: no width comes within 1 % of it.
  """
  from posexp.encodings import ENCODINGS

  plain = dataclasses.replace(size, match="none", match_to="none")
  if size.match == "none":
    return plain
  what, reference = size.match, ENCODINGS[size.match_to]()
  if encoding == reference:
    return plain
  try:
    goal = counts(kind, reference, plain)[what]
  except ValueError as error:
    raise UserError(f"model.match_to={size.match_to}: {error}") from error

  def at(d_ff: int) -> float:
    return counts(kind, encoding, dataclasses.replace(plain, d_ff=d_ff))[what]

  step = width_step(at)
  # Both counts are straight lines in the width.
  slope = (at(3 * step) - at(step)) / (2 * step)
  d_ff = step * max(1, round((goal - at(step)) / (slope * step)) + 1)
  reached = at(d_ff)
  if abs(reached / goal - 1) > TOLERANCE:
    raise UserError(
      f"model.match={what}: with d_ff={d_ff} the model has {reached:,.0f} {what}, and "
      f"{size.match_to} has {goal:,.0f} with d_ff={size.d_ff}, which no width comes closer to; "
      f"give a larger model.d_ff or leave model.match=none"
    )
  return dataclasses.replace(plain, d_ff=d_ff)


def width_step(at: Callable[[int], float]) -> int:
  """The least number of which every multiple is a width that the encoding can have.

  Raises:
    ValueError: no width up to 64 suits it.
  """
  for step in (1, 2, 4, 8, 16, 32, 64):
    try:
      at(step), at(3 * step)
    except ValueError as error:
      refused = error
    else:
      return step
  raise refused
