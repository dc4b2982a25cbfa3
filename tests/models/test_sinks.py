"""Sinks in the softmax, and outputs without a query's own value."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from seed import some
from slopes import float64
from small import SMALL, L, rngs, some_tokens

from posexp.analysis import properties
from posexp.analysis.properties import VOCAB, compiled
from posexp.encodings import Span, encoding
from posexp.encodings.base import Matrix, capped
from posexp.models.block import repeated
from posexp.models.sinks import Sink, without_own
from posexp.models.size import Size
from posexp.models.transformer import Stack

SIZES = SMALL | {"d_model": 48, "num_kv_heads": 2, "bias": "all"}
LOGITS = {"logits_scale": 1.5, "logits_by": "log_n", "logits_length": 6, "logits_cap": 3.0}
BOTH = {"sinks": "token", "own_value": "removed", "output_gate": True}
ASKED = {
  "none": ({}, LOGITS | {"sinks": "head"}),
  "rope": ({"layout": "half"}, LOGITS | BOTH),
  "rpr": ({"k": 2}, {"sinks": "head"} | LOGITS),
  "split": ({"form": "position_only"}, {"sinks": "token", "num_kv_heads": None}),
  "inkling": ({"extent": 4}, BOTH),
  "complex": ({}, BOTH | {"sinks": "head"}),
}


def built(name, **more):
  options, size = ASKED[name]
  size, kind = Size(**SIZES | size | more), {"causal": True, "max_position": 40, "rngs": rngs()}
  return properties.perturbed(Stack(VOCAB, encoding(name, **options), size, **kind))


@pytest.mark.parametrize("name", some(ASKED, 2))
def test_attention_is_that_of_the_definition(name):
  stack = built(name)
  layer, size = stack.blocks[0].attention, stack.size
  x = jax.random.normal(jax.random.key(0), (2, L, size.d_model))
  positions = jnp.cumsum(jnp.array([[3, 1, 2, 1, 4, 1], [0, 1, 5, 1, 1, 2]]), axis=1)
  mask = jnp.ones((2, L, L), bool).at[1, :, :2].set(False)  # the first two of the second see none
  span = stack.ready(Span(positions, positions, mask, True, max_position=40))
  held = layer.keys_values(x)
  k, v = (repeated(each, size.num_heads) for each in held[:2])
  q, at = layer.asked(x, held[2], span)
  logits = float64(capped(layer.relation.score(q, k, at), layer.relation.cap))
  logits = np.where(span.visible[:, None], logits, -np.inf)
  s = float64(layer.sink.kernel if size.sinks == "token" else layer.sink.logit)
  s = (float64(x) @ s).swapaxes(1, 2)[..., None] if s.ndim > 1 else s[:, None, None]
  most = np.maximum(logits.max(-1, keepdims=True), s)
  weights = np.exp(logits - most)
  weights /= weights.sum(-1, keepdims=True) + np.exp(s - most)
  y = layer.relation.combine(jnp.asarray(weights, jnp.float32), v, at)
  if size.own_value == "removed":
    unit = float64(v) / np.linalg.norm(float64(v), axis=-1, keepdims=True)
    y = y - (y * unit).sum(-1, keepdims=True) * unit
  y = jnp.asarray(y, jnp.float32).reshape(*x.shape[:2], -1)
  if layer.gate is not None:
    y = y * jax.nn.sigmoid(layer.gate(x))
  assert np.abs(layer(x, *held, span) - layer.out(y)).max() < 1e-5
  got = np.asarray(layer.relation.weights(q, k, at))
  np.testing.assert_allclose(got, weights, atol=1e-6)
  assert not got[1, :, :2].any()  # they see no key
  assert got.sum(-1).max() < 1


def test_a_sink_of_any_size_is_stable():
  stack = built("none", sinks="head")
  sink = stack.blocks[0].attention.sink
  graphdef, _, rest = nnx.split(stack, nnx.Param, ...)

  @jax.jit
  def sloped(params):
    value, back = jax.vjp(lambda each: nnx.merge(graphdef, each, rest)(some_tokens()), params)
    return value, back(jnp.ones_like(value))[0]

  def output(s):
    sink.logit[...] = jnp.full(4, s)
    value, slopes = sloped(nnx.state(stack, nnx.Param))
    assert all(jnp.isfinite(leaf).all() for leaf in jax.tree.leaves((value, slopes)))
    return value

  low, high = output(-60.0), output(60.0)
  stack.blocks[0].attention.sink = None
  np.testing.assert_allclose(low, compiled(stack, "__call__", some_tokens()), atol=1e-6)
  stack.blocks[0].attention.value.kernel[...] *= 0  # nothing is read but the bias
  stack.blocks[0].attention.value.bias[...] *= 0
  np.testing.assert_allclose(high, compiled(stack, "__call__", some_tokens()), atol=1e-6)


def test_nothing_is_left_of_an_output_that_is_a_part_of_the_own_value():
  v = jax.random.normal(jax.random.key(1), (2, L, 4, 12), jnp.bfloat16)
  share = jnp.linspace(0.1, 0.9, L, dtype=jnp.bfloat16)[:, None, None]  # as a sink leaves of it
  assert not without_own(share * v, v).any()
  other = v.at[0, 0, 0, 0].add(1)
  assert [*map(int, np.argwhere(np.asarray(without_own(other, v)))[0][:3])] == [0, 0, 0]


def test_a_value_of_zero_has_a_gradient_where_it_is_removed():
  y = jax.random.normal(jax.random.key(1), (2, L, 4, 12))
  slope = jax.jit(jax.grad(lambda v: without_own(y, v).sum()))
  assert np.isfinite(slope(jnp.zeros_like(y))).all()


def test_only_the_map_decays():
  kinds = {kind: Sink(Size(**SIZES, sinks=kind), rngs=rngs()) for kind in ("head", "token")}
  assert not isinstance(kinds["head"].logit, Matrix)
  assert isinstance(kinds["token"].kernel, Matrix)
  assert 0.015 < np.std(kinds["token"].kernel[...]) < 0.025
