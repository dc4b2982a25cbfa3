"""The gated delta rule: a plain recurrence in float64, and mistakes that are found."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from small import SMALL, case_of, leaks, rngs

from posexp.analysis import properties
from posexp.analysis.properties import VOCAB
from posexp.encodings import Span, delta, encoding
from posexp.models.block import MultiHeadAttention
from posexp.models.size import Size
from posexp.models.transformer import Stack

DELTA = encoding("delta", beta=2.0)
SCHEDULE = encoding("by_layer", pattern=["delta", "rope", "none"])


def recurrence(q, k, v, decay, beta, late=False):
  """o of one row and head, [L,D] each; `late` reads the state before it fades, a mistake."""
  state, out = np.zeros((k.shape[1], v.shape[1])), []
  for t in range(len(q)):
    faded = np.exp(decay[t]) * state
    held = (state if late else faded).T @ k[t]
    state = faded + np.outer(k[t], beta[t] * (v[t] - held))
    out.append(state.T @ q[t])
  return np.array(out)


def layer():
  size = Size(**SMALL)
  built = MultiHeadAttention(DELTA, size, causal=True, cross=False, rngs=rngs())
  return properties.perturbed(built, seed=3)


def defined(layer, x, late=False):
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
  found = [recurrence(*(y[:, h] for y in each), late) for h in range(heads)]
  found = np.stack(found, 1)
  found = found / np.sqrt((found**2).mean(-1, keepdims=True) + 1e-6) * get(layer.relation.scale)
  gate = (x @ get(layer.query.kernel)).reshape(found.shape)
  return (found * gate * sigma(gate)).reshape(length, -1) @ get(layer.out.kernel)


def test_a_layer_is_the_recurrence_and_not_one_that_reads_before_the_state_fades():
  built, x = layer(), np.random.default_rng(0).normal(size=(9, SMALL["d_model"]))
  given = jnp.asarray(x[None], jnp.float32)
  span = Span.within(None, jnp.ones((1, 1, 9), bool), True)
  layer_of = nnx.jit(lambda built: built(given, *built.keys_values(given), span)[0])
  got = np.asarray(layer_of(built))
  np.testing.assert_allclose(got, defined(built, x), atol=2e-5)
  assert np.abs(got - defined(built, x, late=True)).max() > 1e-3


@pytest.mark.parametrize("count", [1, 3, 9, 20])
def test_gradients_are_those_of_the_recurrence(count):
  draw = np.random.default_rng(count)
  q, k, v, dout = draw.normal(size=(4, 1, count, 2, 5))
  decay, beta = -np.exp(draw.normal(size=(1, count, 2)) * 3), 2 * draw.random((1, count, 2))
  k[:, count // 2] = 0  # as of padding

  def plain(q, k, v, decay, beta):
    def step(state, given):
      q, k, v, decay, beta = given
      state = jnp.exp(decay)[..., None, None] * state
      held = jnp.einsum("bhde,bhd->bhe", state, k)
      state = state + k[..., None] * (beta[..., None] * (v - held))[..., None, :]
      return state, jnp.einsum("bhde,bhd->bhe", state, q)

    given = tuple(each.swapaxes(0, 1) for each in (q, delta.unit(k), v, decay, beta))
    return jax.lax.scan(step, jnp.zeros((1, 2, 5, 5)), given)[1].swapaxes(0, 1)

  def own(q, k, *others):
    before = jnp.tri(count, k=-1, dtype=bool)[None]
    return delta.ruled(q, delta.unit(k), *others, before).swapaxes(1, 2)

  with jax.enable_x64(True):
    given = [jnp.asarray(each) for each in (q, k, v, decay, beta)]

    @jax.jit
    def sloped(given, dout):
      both = (jax.vjp(f, *given) for f in (own, plain))
      return [(found, slopes(dout)) for found, slopes in both]

    (got, slopes), (expected, theirs) = sloped(given, jnp.asarray(dout))
    np.testing.assert_allclose(got, expected, atol=1e-10)
    for one, other in zip(slopes, theirs, strict=True):
      np.testing.assert_allclose(one, other, atol=1e-8 * max(1, np.abs(other).max()))


@pytest.mark.parametrize("kind", [SCHEDULE, pytest.param(DELTA, marks=pytest.mark.slow)])
def test_nothing_leaks_from_padding_documents_or_other_hypotheses(kind, monkeypatch):
  size = Size(**SMALL | {"num_layers": kind.least_layers})
  model = properties.perturbed(Stack(VOCAB, kind, size, causal=True, rngs=rngs()))
  assert max(leaks(model)) < 2e-5
  all_before = lambda span: jnp.tri(span.key.shape[1], k=-1, dtype=bool)[None]  # noqa: E731
  monkeypatch.setattr(delta, "nested", all_before)
  assert min(leaks(model)) > 1e-3


def test_a_schedule_decodes_as_the_whole():
  case = dataclasses.replace(case_of(SCHEDULE, True), length=7)
  assert list(properties.cached_decoding(case)) == []
