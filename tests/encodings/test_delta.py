"""The gated delta rule: a plain recurrence in float64, and mistakes that are found."""

import jax.numpy as jnp
import numpy as np
import pytest
import slopes
from flax import nnx
from small import SMALL, rngs

from posexp.analysis import properties
from posexp.encodings import Span, delta, encoding
from posexp.models.block import MultiHeadAttention
from posexp.models.size import Size

DELTA = encoding("delta", beta=2.0)


def recurrence(q, k, v, decay, beta):
  """o of one row and head, [L,D] each."""
  state, out = np.zeros((k.shape[1], v.shape[1])), []
  for t in range(len(q)):
    state = np.exp(decay[t]) * state
    state = state + np.outer(k[t], beta[t] * (v[t] - state.T @ k[t]))
    out.append(state.T @ q[t])
  return np.array(out)


def defined(layer, x):
  """A layer's output for x [L,F], in float64 and token by token."""
  get = lambda param: np.asarray(param[...], np.float64)  # noqa: E731
  sigma = lambda y: 1 / (1 + np.exp(-y))  # noqa: E731
  of, taps, (length, heads) = layer.key_columns, get(layer.relation.taps), (len(x), 4)
  maps = of.kernel_query, layer.key.kernel, layer.value.kernel
  raw = np.concatenate([(x @ get(each)).reshape(length, heads, -1) for each in maps], -1)
  past = np.concatenate([np.zeros((len(taps) - 1, *raw.shape[1:])), raw])
  mixed = sum(tap * past[len(taps) - 1 - n :][:length] for n, tap in enumerate(taps))
  q, k, v = np.split(mixed * sigma(mixed), 3, -1)
  q, k = (y / np.sqrt((y**2).sum(-1, keepdims=True) + 1e-6) for y in (q, k))
  beta = 2 * sigma(x @ get(of.kernel_beta))
  decay = -np.exp(get(of.log_rate)) * np.log1p(np.exp(x @ get(of.kernel_decay) + get(of.bias)))
  each = (q * q.shape[-1] ** -0.5, k, v, decay, beta)
  found = [recurrence(*(y[:, h] for y in each)) for h in range(heads)]
  found = np.stack(found, 1)
  found = found / np.sqrt((found**2).mean(-1, keepdims=True) + 1e-6) * get(layer.relation.scale)
  gate = (x @ get(layer.query.kernel)).reshape(found.shape)
  return (found * gate * sigma(gate)).reshape(length, -1) @ get(layer.out.kernel)


def test_a_layer_is_the_recurrence():
  built = MultiHeadAttention(DELTA, Size(**SMALL), causal=True, cross=False, rngs=rngs())
  built = properties.perturbed(built, seed=3)
  x = np.random.default_rng(0).normal(size=(9, SMALL["d_model"]))
  given = jnp.asarray(x[None], jnp.float32)
  span = Span.within(None, jnp.ones((1, 1, 9), bool), True)
  layer_of = nnx.jit(lambda built: built(given, *built.keys_values(given), span)[0])
  np.testing.assert_allclose(layer_of(built), defined(built, x), atol=2e-5)


@pytest.mark.parametrize("count", [1, 9])
def test_gradients_are_those_of_the_recurrence(count):
  draw = np.random.default_rng(count)
  q, k, v = draw.normal(size=(3, 1, count, 2, 5))
  decay, beta = -np.exp(draw.normal(size=(1, count, 2))), 2 * draw.random((1, count, 2))
  k[:, count // 2] = 0  # as of padding

  def own(q, k, *others):
    before = jnp.tri(count, k=-1, dtype=bool)[None]
    return delta.ruled(q, delta.unit(k), *others, before).swapaxes(1, 2)

  def naive(q, k, *others):
    given = q, k / np.sqrt((k**2).sum(-1, keepdims=True) + 1e-6), *others
    heads = [recurrence(*(each[0, :, h] for each in given)) for h in range(2)]
    return np.stack(heads, 1)[None]

  slopes.check(own, naive, q, k, v, decay, beta)
