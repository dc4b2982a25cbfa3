"""The property that positions may be far from 0 and from each other."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import Array

from posexp.analysis.properties import Case, Violation, compare, stack
from posexp.encodings import Span

LONG = 512  # tokens of a text that is long


def far_positions(case: Case) -> Iterator[Violation]:
  """Check that outputs and gradients far apart, far from 0 and in long texts are finite, and that a
  query sees what it sees alone.
  """
  most, draw = case.most, np.random.default_rng(9)
  model = stack(case, max_position=most)
  graphdef, params, rest = nnx.split(model, nnx.Param, ...)

  @functools.partial(jax.jit, static_argnums=(3, 4))
  def found(
    params: Any, places: Array, x: Array, consecutive: bool, i: int
  ) -> tuple[Array, Array, Array]:
    def attended(params: Any, x: Array, first: int = 0) -> tuple[Array, Array]:
      built = nnx.merge(graphdef, params, rest)
      layer, seen = built.blocks[i].attention, jnp.ones((1, 1, x.shape[1]), bool)
      options = {"max_position": most, "consecutive": consecutive}
      span = Span(places[:, first:], places, seen, case.causal, **options)
      outputs = layer(x[:, first:], *layer.keys_values(x), built.ready(span, layer=i))
      return outputs, built.embed(jnp.ones((1, 1), int), places[:, -1:], None)

    values, backward = jax.vjp(attended, params, x)
    slopes = backward(jax.tree.map(jnp.ones_like, values))
    finite = [jnp.isfinite(each).all() for each in jax.tree.leaves((values, slopes))]
    return values[0], attended(params, x, x.shape[1] - 1)[0], jnp.stack(finite).all()

  gaps = np.unique(np.geomspace(1, most, min(case.length, most)).astype(int)) - 1
  for name, places in (("gaps", gaps), ("a long text", np.arange(max(0, most - LONG), most))):
    x = jnp.asarray(draw.normal(size=(1, len(places), case.d_model)), jnp.float32)
    for i in model.distinct:
      whole, alone, finite = found(params, jnp.asarray(places)[None], x, places is not gaps, i)
      where = f"layer {i}, {name}, positions {places[0]:,} to {places[-1]:,}"
      if not finite:
        yield Violation(f"{where}: not finite")
      yield from compare(f"{where}, the last query alone", whole[:, -1:], alone)
