"""How large a model is and what it costs, and widths at which encodings are equal in one of these.

Everything here is worked out from shapes: nothing is allocated and nothing is compiled.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
from flax import nnx

from posexp.errors import UserError
from posexp.models import classifier
from posexp.training import keys, split
from posexp.transformer import Size

if TYPE_CHECKING:
  from posexp.encodings import Encoding

TOLERANCE = 0.01  # how far from the reference a matched count may be


def costs(build: Callable[..., nnx.Module], length: int) -> dict[str, float]:
  """`parameters`, and `flops`: operations of a forward pass over `length` tokens, for each token.

  Those are what JAX's cost analysis counts in the program before it is optimized: an addition and
  a multiplication are one each, and zeros that are multiplied count like other numbers.
  """
  found = []

  def init(seeds):
    graphdef, *state = split(build, seeds)
    found.append(graphdef)
    return state

  state = jax.eval_shape(init, keys(0))
  tokens = jax.ShapeDtypeStruct((1, length), jnp.int32)
  mask = jax.ShapeDtypeStruct((1, length), bool)

  def forward(state, tokens, mask):
    return nnx.merge(found[0], *state)(tokens, mask)

  cost = jax.jit(forward).lower(state, tokens, mask).cost_analysis()
  parameters = sum(leaf.size for leaf in jax.tree.leaves(state[0]))
  return {"parameters": parameters, "flops": cost["flops"] / length}


@dataclasses.dataclass(frozen=True)
class Task:
  """What of a task the size of a model depends on."""

  vocab_size: int
  num_classes: int
  cls: bool  # is the text's class read at its first token?
  length: int  # of the longest batches


@functools.lru_cache
def counts(task: Task, encoding: Encoding, size: Size) -> dict[str, float]:
  """The `costs` of a classifier, for the longest texts.

  Raises:
    ValueError: the size does not suit the encoding.
  """
  build = classifier(task.vocab_size, task.num_classes, encoding, size, task.cls)
  return costs(build, task.length)


def facts(task: Task, encoding: Encoding, size: Size, given: Size) -> dict[str, float]:
  """Both counts of a model of `size`, and those of no encoding at the size that was `given`."""
  from posexp.encodings import Encoding

  given = dataclasses.replace(given, match="none", match_to="none")
  own, none = counts(task, encoding, size), counts(task, Encoding(), given)
  return {
    "parameters": own["parameters"],
    "parameters_of_none": none["parameters"],
    "flops_per_token": own["flops"],
    "flops_per_token_of_none": none["flops"],
    "d_ff": size.d_ff,
  }


def matched(task: Task, encoding: Encoding, size: Size) -> Size:
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
    goal = counts(task, reference, plain)[what]
  except ValueError as error:
    raise UserError(f"model.match_to={size.match_to}: {error}") from error

  def at(d_ff: int) -> float:
    return counts(task, encoding, dataclasses.replace(plain, d_ff=d_ff))[what]

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
