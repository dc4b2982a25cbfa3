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


def clipped(gate, up, most=7.0, shift=1.0):
  """The unit of gpt-oss; other values of `most` and `shift` are mistakes."""
  gate, up = np.minimum(gate, most), np.clip(up, -7, 7)
  return gate * sigmoid(1.702 * gate) * (up + shift)


UNITS = {"swiglu_clipped": clipped, "swiglu": lambda gate, up: gate * sigmoid(gate) * up}
UNITS["relu"] = lambda _, up: np.maximum(up, 0)


def defined(p, x, used, unit, over_all=False):
  """Return what the `used` best experts make of one token x [F]; `over_all` is a mistake."""
  logits = x @ p["router/kernel"] + p["router/bias"]
  best = np.argsort(-logits)[:used]
  shares = np.exp(logits) / np.exp(logits if over_all else logits[best]).sum()
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


def off(module, parameters, x, *how, **mistake):
  rows = x.reshape(-1, 6).astype(np.float64)
  expected = np.stack([defined(parameters, row, *how, **mistake) for row in rows])
  return np.abs(module(x).reshape(-1, 6) - expected).max() / np.abs(expected).max()


@pytest.mark.parametrize("used", [1, 2, 4])
@pytest.mark.parametrize("unit", UNITS)
def test_the_best_experts_are_weighted_by_the_softmax_of_their_logits(unit, used):
  assert off(*made(unit, used), used, UNITS[unit]) < 1e-6


@pytest.mark.parametrize(
  ("used", "unit", "mistake"),
  [
    (2, clipped, {"over_all": True}),
    (3, clipped, {}),
    (2, lambda *x: clipped(*x, most=np.inf), {}),
    (2, lambda *x: clipped(*x, shift=0), {}),
  ],
)
def test_a_mistake_shows(used, unit, mistake):
  assert off(*made("swiglu_clipped", 2), used, unit, **mistake) > 1e-3


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


def test_more_experts_than_there_are_cannot_be_used():
  with pytest.raises(ValueError, match="experts_used=2 are more than experts=1"):
    Size(experts=1)
