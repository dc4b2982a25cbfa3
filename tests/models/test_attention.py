"""What attention by kernels needs, and that blocks form nothing of queries times keys."""

import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import CASES, UNDEFINED
from flax import nnx
from seed import some
from small import SMALL, rngs

from posexp.encodings import Span
from posexp.encodings.base import Relation
from posexp.encodings.complex_order import Complex
from posexp.encodings.relative import RPR, TransformerXL
from posexp.encodings.rngs import Rngs
from posexp.kernels.target import Target
from posexp.models import attention
from posexp.models.size import Size
from posexp.models.transformer import Stack

H, D, BLOCK = 2, 8, 8


@pytest.fixture(autouse=True)
def _short_blocks(monkeypatch, request):
  if "formed" not in request.node.name:
    monkeypatch.setattr(attention, "ROWS", BLOCK)


@pytest.mark.parametrize(
  ("dtype", "dropout", "reach", "width", "said"),
  [
    ("float32", 0.0, None, 64, "dtype=bfloat16"),
    ("bfloat16", 0.1, None, 64, "dropout=0: "),
    ("bfloat16", 0.0, 100, 64, "positions that are consecutive"),
    ("bfloat16", 0.0, None, 20, "not 20"),
  ],
)
def test_what_kernels_need_is_said(monkeypatch, dtype, dropout, reach, width, said):
  monkeypatch.setattr(attention, "target", lambda: Target("gpu"))
  for form in ("auto", "fused"):
    chosen = attention.for_layer(form, Relation(), 64, "bfloat16", 0.0, None)
    assert attention.form_of(chosen, 128, 128) == "fused"
  assert attention.form_of("auto", 128, 128) == "reference"
  assert attention.form_of(attention.AUTO_FUSED, 128, 128, plain=False) == "reference"
  assert attention.for_layer("auto", Relation(), width, dtype, dropout, reach) == "auto"
  with pytest.raises(ValueError, match=said):
    attention.for_layer("fused", Relation(), width, dtype, dropout, reach)


def span_of(length, **more):
  positions = jnp.arange(length)[None]
  mask = jnp.ones((1, 1, length), bool)
  return Span(positions, positions, mask, consecutive=True, self_attention=True, **more)


def test_dropout_leaves_out_its_share_of_weights_and_scales_the_others():
  length, rate = 64, 0.3
  weights = jnp.eye(length)[None, :, None, :]  # values that show which weights they were summed by
  q = jnp.zeros((1, length, 1, D))
  dropout = attention.Dropout(rate, jax.random.key(5))
  seen = (
    attention.attend(Relation(), q, q, weights, span_of(length), dropout, "blocked")[0, :, 0]
    * length
  )
  kept = np.asarray(seen) != 0
  np.testing.assert_allclose(np.asarray(seen)[kept], 1 / (1 - rate), rtol=1e-5)
  assert abs(kept.mean() - (1 - rate)) < 0.03
  blocks = kept.reshape(8, -1)
  assert len(np.unique(blocks, axis=0)) == len(blocks)  # no two blocks alike


def test_gradients_with_dropout_are_those_of_the_same_dropout():
  relation = RPR(k=2).relation(H, D, causal=False, rngs=rngs())
  draw = np.random.default_rng(1)
  q, k, v, asked, way = (
    jnp.asarray(draw.normal(size=(1, 20, H, D)), jnp.float32) for _ in range(5)
  )
  dropout = attention.Dropout(0.4, jax.random.key(2))

  @jax.jit
  @jax.value_and_grad
  def loss(q):
    out = attention.attend(relation, q, k, v, span_of(20), dropout, "blocked")
    return (out * asked).sum()

  slope = float((loss(q)[1] * way).sum())
  there, back = (float(loss(q + step * way)[0]) for step in (1e-2, -1e-2))
  assert slope == pytest.approx((there - back) / 2e-2, rel=1e-2)


@pytest.mark.parametrize("form", ["reference", "blocked"])
@pytest.mark.parametrize("encoding", some(CASES, 3))
def test_bfloat16_has_gradients(encoding, form):
  kind = {"num_layers": encoding.least_layers, "dtype": "bfloat16", "attention": form}
  size, causal = Size(**SMALL | kind), UNDEFINED.get(encoding) is False
  model = nnx.eval_shape(lambda: Stack(8, encoding, size, causal=causal, rngs=rngs()))
  graphdef, *state = nnx.split(model, nnx.Param, ...)

  def loss(*state):
    return nnx.merge(graphdef, *state)(jnp.ones((1, 20), int)).astype(jnp.float32).sum()

  slopes = jax.eval_shape(jax.grad(loss), *state)
  assert {str(leaf.dtype) for leaf in jax.tree.leaves(slopes)} == {"float32"}


LONG, WIDE = 2048, 16


@pytest.mark.slow
@pytest.mark.parametrize(
  ("encoding", "causal"),
  [(RPR(k=4), True), (TransformerXL(), False), (Complex(score="modulus"), False)],
)
def test_no_buffer_as_long_as_queries_times_keys_is_formed_in_blocks(encoding, causal):
  sizes = {"d_model": WIDE, "num_heads": 1, "d_ff": WIDE, "num_layers": 1, "dropout": 0.1}
  stack = Stack(8, encoding, Size(**sizes, attention="blocked"), causal=causal, rngs=rngs())
  tokens, (graphdef, params, rest) = jnp.zeros((1, LONG), int), nnx.split(stack, nnx.Param, ...)

  def loss(params, tokens, mask, key):
    stack = nnx.merge(graphdef, params, rest)
    return stack(tokens, mask, rngs=Rngs(dropout=key)).sum()

  lowered = jax.jit(jax.grad(loss)).lower(params, tokens, tokens == 0, jax.random.key(0))
  shapes = re.findall(r"\b[a-z]+\d+\[([\d,]+)\]", lowered.compile().as_text())
  assert max(math.prod(map(int, shape.split(","))) for shape in shapes) < LONG * LONG / 2


def test_auto_attends_in_blocks_to_long_sequences_only_and_a_cache_as_a_whole():
  long = attention.LONG["cpu"]
  assert attention.form_of("auto", long, long) == "blocked"
  assert attention.form_of("auto", long - 1, long) == "reference"
  assert attention.form_of("reference", long, long) == "reference"
  assert attention.form_of("blocked", 2, 2) == "blocked"
  assert attention.form_of("blocked", 1, long) == "reference"
  least = attention.HALVES_FROM
  halves = [(least, {"to_its_end": True}), (least - 1, {"to_its_end": True}), (least, {})]
  found = [attention.form_of("auto", each, each, **known) for each, known in halves]
  assert found == ["halves", "reference", "reference"]
  assert attention.form_of("auto", least, least, 8, to_its_end=True) == "blocked"  # a window
  assert attention.form_of("reference", least, least, to_its_end=True) == "reference"


def test_a_source_is_attended_to_in_blocks_as_it_is_whole():
  draw = np.random.default_rng(4)
  encoded = jnp.asarray(draw.normal(size=(2, 30, WIDE)), jnp.float32)
  there = jnp.asarray(draw.random((2, 30)) < 0.6).at[:, 0].set(True)
  tokens = jnp.asarray(draw.integers(0, 8, (2, 20)))

  def hidden(form):
    size = Size(d_model=WIDE, num_heads=2, d_ff=8, num_layers=1, attention=form)
    stack = Stack(8, RPR(k=2), size, causal=True, cross=True, rngs=rngs())
    return jax.jit(lambda: stack(tokens, tokens > 0, source=stack.source(encoded, there)))()

  np.testing.assert_allclose(hidden("blocked"), hidden("reference"), atol=1e-5)
