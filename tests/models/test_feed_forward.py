"""Experts against a definition of them, token by token in float64."""

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from small import rngs

from posexp.analysis.properties import paths
from posexp.encodings import Encoding
from posexp.encodings.rngs import Rngs
from posexp.models.feed_forward import Experts
from posexp.models.size import Size

SIZES = {"d_model": 6, "num_heads": 1, "d_ff": 5, "experts": 4, "dropout": 0.5}


def sigmoid(x):
  return 1 / (1 + np.exp(-x))


def clipped(gate, up):
  """The unit of gpt-oss."""
  gate, up = np.minimum(gate, 7), np.clip(up, -7, 7)
  return gate * sigmoid(1.702 * gate) * (up + 1)


UNITS = {"swiglu_clipped": clipped, "swiglu": lambda gate, up: gate * sigmoid(gate) * up}
UNITS["relu"] = lambda _, up: np.maximum(up, 0)


def defined(p, x, used, unit):
  """Return what the `used` best experts make of one token x [F]."""
  logits = x @ p["router/kernel"] + p["router/bias"]
  best = np.argsort(-logits)[:used]
  shares = np.exp(logits) / np.exp(logits[best]).sum()
  found = np.zeros_like(x)
  for e in best:

    def mapped(part, y, e=e):
      return y @ p[f"experts/{part}/kernel"][e] + p[f"experts/{part}/bias"][e]

    hidden = unit(mapped("gate", x) if "experts/gate/kernel" in p else None, mapped("up", x))
    found += shares[e] * mapped("down", hidden)
  return found


def made(unit: str, used: int):
  size = Size(**SIZES, feed_forward=unit, experts_used=used)
  module, draw = Experts(Encoding(), size, rngs=rngs()), np.random.default_rng(0)
  for _, leaf in nnx.to_flat_state(nnx.state(module, nnx.Param)):
    leaf[...] = jnp.asarray(draw.normal(0, 2, leaf.shape), jnp.float32)  # some reach the clips
  parameters = {path: np.asarray(x, np.float64) for path, x in paths(module).items()}
  return module, parameters, draw.normal(size=(2, 7, 6)).astype(np.float32)


@pytest.mark.parametrize(("unit", "used"), [("swiglu_clipped", 2), ("swiglu", 1), ("relu", 4)])
def test_the_best_experts_are_weighted_by_the_softmax_of_their_logits(unit, used):
  module, parameters, x = made(unit, used)
  run = nnx.jit(lambda module, x: module(x))
  rows = x.reshape(-1, 6).astype(np.float64)
  expected = np.stack([defined(parameters, row, used, UNITS[unit]) for row in rows])
  assert np.abs(run(module, x).reshape(-1, 6) - expected).max() / np.abs(expected).max() < 1e-6


def test_each_expert_starts_and_drops_on_its_own():
  module, _, x = made("relu", 4)
  fresh = paths(Experts(Encoding(), Size(**SIZES), rngs=rngs()))["experts/up/kernel"]
  assert len(np.unique(fresh)) == fresh.size
  assert np.abs(fresh).max() <= np.sqrt(6 / (6 + 5))  # Glorot's limit for the width of one
  for _, leaf in nnx.to_flat_state(nnx.state(module, nnx.Param)):
    leaf[...] = jnp.broadcast_to(leaf[...][:1], leaf.shape)  # all experts are one
  module.router.kernel[...] *= 0
  alone = module.experts.down.kernel[...][0]
  module.experts.down.kernel[...] = jnp.zeros((4, *alone.shape)).at[0].set(alone)
  one = module(x, Rngs(dropout=0))
  module.experts.down.kernel[...] = jnp.zeros((4, *alone.shape)).at[1].set(alone)
  assert np.abs(one - module(x, Rngs(dropout=0))).max() > 0.1
