"""Recurrent networks, against a loop over tokens in float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from posexp.encodings.base import Encoding
from posexp.encodings.complex_order import Complex
from posexp.encodings.split import Split
from posexp.models.backbones import LSTM

B, L, F, H = 3, 6, 4, 8
LENGTHS = [6, 1, 4]
MASK = np.arange(L) < np.array(LENGTHS)[:, None]
MAPS = pytest.mark.parametrize(
  "encoding", [Encoding(), Complex(), Split()], ids=["none", "complex", "split"]
)
WAYS = pytest.mark.parametrize("backward", [False, True], ids=["forward", "backward"])


def lstm(encoding, **options):
  return LSTM(encoding.linear, F, H, **options, rngs=nnx.Rngs(0))


def inputs(seed=0):
  return np.random.default_rng(seed).normal(size=(B, L, F)).astype(np.float32)


def by_hand(model, x, length):
  """The states of one row of `length` tokens."""
  w, u, b = (
    np.asarray(each, np.float64)
    for each in (model.input.matrix(), model.recurrent.matrix(), model.input.bias[...])
  )
  h, c, states = np.zeros(H), np.zeros(H), []
  for t in range(length)[:: -1 if model.backward else 1]:
    i, f, g, o = np.split(x[t] @ w + h @ u + b, 4)
    c = c / (1 + np.exp(-f - 1)) + np.tanh(g) / (1 + np.exp(-i))
    h = np.tanh(c) / (1 + np.exp(-o))
    states.append(h)
  return np.array(states)


@MAPS
@WAYS
def test_it_is_the_formula(encoding, backward):
  model, x = lstm(encoding, backward=backward), inputs()
  states, last = nnx.jit(LSTM.__call__)(model, x, MASK)
  for row, length in enumerate(LENGTHS):
    known = by_hand(model, x[row], length)
    np.testing.assert_allclose(last[row], known[-1], atol=1e-6)
    found = states[row, :length]
    np.testing.assert_allclose(found[::-1] if backward else found, known, atol=1e-6)


@WAYS
def test_padding_changes_nothing(backward):
  model, x = lstm(Complex(), backward=backward), inputs()
  other = np.where(MASK[:, :, None], x, 7.0)

  @nnx.jit
  @nnx.value_and_grad
  def loss(model, x):
    states, last = model(x, MASK)
    return (states * MASK[:, :, None]).sum() + last.sum()

  values, grads = zip(*(loss(model, each) for each in (x, other)), strict=True)
  assert values[0] == values[1]
  for one, two in zip(*map(jax.tree.leaves, grads), strict=True):
    np.testing.assert_array_equal(one, two)
  assert all(np.abs(leaf).max() > 0 for leaf in jax.tree.leaves(grads[0]))


def test_it_follows_the_dtype_of_its_input():
  states, last = lstm(Encoding())(jnp.asarray(inputs(), jnp.bfloat16), MASK)
  assert states.dtype == last.dtype == jnp.bfloat16
