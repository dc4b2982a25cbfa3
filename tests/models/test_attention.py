"""What attention by kernels needs, and that blocks form nothing of queries times keys."""

import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from posexp.encodings import ENCODINGS, Span
from posexp.encodings.base import Relation
from posexp.encodings.complex_order import Complex
from posexp.encodings.relative import RPR, TransformerXL
from posexp.encodings.rngs import Rngs
from posexp.kernels.target import Target
from posexp.models import attention
from posexp.models.size import Size
from posexp.models.transformer import Stack

H, D, BLOCK = 2, 8, 8
CHOSEN = {
  "none": {},
  "split": {},
  "rope": {"share": 0.5},
  "xpos": {},
  "alibi": {"two_sided": "direction"},
  "t5": {"buckets": 8, "max_distance": 12},
  "kerple": {"symmetric": True},
  "fire": {},
  "sandwich": {"width": 16},
}
MANY = [
  *(ENCODINGS[name](**options) for name, options in CHOSEN.items()),
  Complex(),
  Complex(score="modulus"),
  ENCODINGS["split"](attention="content"),
  ENCODINGS["rope"](layout="half", values=True),
  RPR(k=2),
  RPR(k=3, table=5, share="layers"),
  RPR(k=2, share="none", beyond="zero"),
  RPR(k=0),
  RPR(k=40, keys=False),
  TransformerXL(),
  TransformerXL(share_biases=False, clamp=4),
  TransformerXL(a=False, b=False, c=False),
]


def built(encoding, causal):
  """A relation and what its layers share, with random numbers in all parameters."""
  rngs = Rngs(params=0, encoding=1)
  parts = [encoding.relation(H, D, causal=causal, rngs=rngs)]
  shared = encoding.shared(H, D, causal=causal, rngs=rngs)
  graphdef, params, rest = nnx.split(nnx.List([*parts, *[shared] * (shared is not None)]),
                                     nnx.Param, ...)  # fmt: skip
  draw = np.random.default_rng(3)

  def noisy(x):
    return jnp.asarray(np.asarray(x) + 0.5 * draw.uniform(size=x.shape), jnp.float32)

  return graphdef, jax.tree.map(noisy, params), rest


def attended(parts, params, q, k, v, span, dropout=None, form="reference"):
  graphdef, _, rest = parts
  relation, *shared = nnx.merge(graphdef, params, rest)
  if shared and form == "blocked":
    span = span.replace(shared_fn=shared[0])
  elif shared:
    span = span.replace(shared=shared[0](span))
  return attention.attend(relation, q, k, v, span, dropout, form)


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
    ("bfloat16", 0.0, None, 136, "128 channels, not 136"),
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
  parts = built(RPR(k=2), False)
  draw = np.random.default_rng(1)
  q, k, v, asked, way = (
    jnp.asarray(draw.normal(size=(1, 20, H, D)), jnp.float32) for _ in range(5)
  )
  dropout = attention.Dropout(0.4, jax.random.key(2))

  @jax.jit
  @jax.value_and_grad
  def loss(q):
    return (attended(parts, parts[1], q, k, v, span_of(20), dropout, "blocked") * asked).sum()

  slope = float((loss(q)[1] * way).sum())
  there, back = (float(loss(q + step * way)[0]) for step in (1e-2, -1e-2))
  assert slope == pytest.approx((there - back) / 2e-2, rel=1e-2)


def test_bfloat16_stays_near_float32():
  parts = built(TransformerXL(), False)
  draw = np.random.default_rng(1)
  q, k, v = (jnp.asarray(draw.normal(size=(1, 40, H, D)), jnp.float32) for _ in range(3))

  @jax.jit
  def found(*arrays):
    narrow = (x.astype(jnp.bfloat16) for x in arrays)
    return attended(parts, parts[1], *arrays, span_of(40)), attended(
      parts, parts[1], *narrow, span_of(40), form="blocked"
    )

  whole, narrow = found(q, k, v)
  assert narrow.dtype == jnp.bfloat16
  np.testing.assert_allclose(narrow.astype(jnp.float32), whole, atol=0.05)


@pytest.mark.parametrize(
  ("encoding", "form"),
  [
    pytest.param(each, ("reference", "blocked")[n % 2], marks=[pytest.mark.slow] * (n % 3 > 0))
    for n, each in enumerate(MANY)
  ],
)
def test_bfloat16_has_gradients(encoding, form):
  causal = encoding.causal_only
  parts = built(encoding, causal)
  positions = jnp.arange(20)[None]
  mask = jnp.ones((1, 1, 20), bool)
  span = Span(positions, positions, mask, causal, consecutive=True, self_attention=True)
  arrays = [jax.ShapeDtypeStruct((1, 20, H, D), jnp.bfloat16)] * 3

  def loss(q, k, v):  # of products of what is not float32 alone
    return attended(parts, parts[1], 2 * q, 2 * k, v, span, form=form).astype(jnp.float32).sum()

  for slope in jax.eval_shape(jax.grad(loss, argnums=(0, 1, 2)), *arrays):
    assert slope.dtype == jnp.bfloat16


LONG, WIDE = 2048, 16
BUFFERS = {"rpr": RPR(k=4), "transformer_xl": TransformerXL(), "modulus": Complex(score="modulus")}


def largest(encoding, form, length=LONG, **kind):
  """Numbers in the largest buffer of the compiled gradient of a layer with one head, and [L,F]."""
  size = Size(
    d_model=WIDE, num_heads=1, d_ff=WIDE, num_layers=1, dropout=0.1, attention=form
  )  # fmt: skip
  tokens = jnp.zeros((1, length), int)

  def made():
    return nnx.split(
      Stack(8, encoding, size, rngs=Rngs(params=0, encoding=1), **kind), nnx.Param, ...
    )

  graphdef, params, rest = made()

  def loss(params, tokens, mask, key):
    stack = nnx.merge(graphdef, params, rest)
    return stack(tokens, mask, rngs=Rngs(dropout=key)).sum()

  lowered = jax.jit(jax.grad(loss)).lower(params, tokens, tokens == 0, jax.random.key(0))
  shapes = re.findall(r"\b[a-z]+\d+\[([\d,]+)\]", lowered.compile().as_text())
  return max(math.prod(map(int, shape.split(","))) for shape in shapes)


@pytest.mark.parametrize(
  ("name", "causal"),
  [
    ("rpr", True),
    *(pytest.param(name, False, marks=pytest.mark.slow) for name in ("transformer_xl", "modulus")),
  ],
)
def test_nothing_as_long_as_queries_times_keys_is_formed_in_blocks(name, causal):
  assert largest(BUFFERS[name], "blocked", causal=causal) < LONG * LONG / 2


# Of the other encodings tests/analysis/test_conformance.py asks it.
@pytest.mark.parametrize("name", ["modulus"])
def test_nothing_of_queries_times_keys_times_width_is_ever_formed(name):
  length = 256
  assert length**2 <= largest(BUFFERS[name], "reference", length) < length**2 * WIDE / 2


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
  assert attention.form_of("auto", least, least, 8, to_its_end=True) != "halves"
  assert attention.form_of("reference", least, least, to_its_end=True) == "reference"


def test_a_source_is_attended_to_in_blocks_as_it_is_whole():
  draw = np.random.default_rng(4)
  encoded = jnp.asarray(draw.normal(size=(2, 30, WIDE)), jnp.float32)
  there = jnp.asarray(draw.random((2, 30)) < 0.6).at[:, 0].set(True)
  tokens = jnp.asarray(draw.integers(0, 8, (2, 20)))

  def hidden(form):
    size = Size(d_model=WIDE, num_heads=2, d_ff=8, num_layers=1, attention=form)
    rngs = Rngs(params=0, encoding=1)
    stack = Stack(8, RPR(k=2), size, causal=True, cross=True, rngs=rngs)
    return jax.jit(lambda: stack(tokens, tokens > 0, source=stack.source(encoded, there)))()

  np.testing.assert_allclose(hidden("blocked"), hidden("reference"), atol=1e-5)
