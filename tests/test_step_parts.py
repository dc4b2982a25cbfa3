"""Whose time is whose in a training step."""

import jax
import jax.numpy as jnp
import step_parts
from benchmarking.hlo import Program
from flax import nnx

from posexp.encodings.base import LayerNorm, Linear


def test_kernels_are_counted_to_the_part_whose_line_they_stand_for():
  linear, norm = Linear(8, 16, rngs=nnx.Rngs(0)), LayerNorm(16)

  def loss(x):
    return (norm(linear(x)) ** 2).sum()

  text = jax.jit(jax.grad(loss)).lower(jnp.ones((4, 8))).compile().as_text()
  program = Program(text)
  kernels = dict.fromkeys(program.computations[program.entry], 2.0) | {"unknown": 2.0}
  parts = step_parts.by_part(text, kernels, steps=2)
  assert parts.keys() == {"products with weights", "norms", step_parts.REST}
  assert sum(part.seconds for part in parts.values()) == len(kernels)
  # x W, and the gradient of x; that of W is not asked for
  assert parts["products with weights"].flops == 2 * (2 * 4 * 8 * 16)
  assert list(parts) == sorted(parts, key=lambda name: -parts[name].seconds)
  shown = step_parts.table(parts, 60.0)
  assert shown.splitlines()[-1].startswith("| step ")
  assert "100.0%" in shown.splitlines()[-1]
