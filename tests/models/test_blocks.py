"""Blocks beside that of 2017: their parts, alone and together, with encodings of every kind."""

import dataclasses
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from seed import SEED, drawn, some
from small import SMALL, case_of, rngs

from posexp.analysis import properties
from posexp.analysis.conformance import PROPERTIES, far_positions
from posexp.analysis.properties import VOCAB, paths
from posexp.encodings import Encoding, Span, encoding
from posexp.encodings.base import Layer
from posexp.encodings.rngs import Rngs
from posexp.models.block import Block
from posexp.models.feed_forward import Experts
from posexp.models.language_model import LanguageModelSpec
from posexp.models.size import Size
from posexp.models.transformer import Stack
from posexp.models.triangles import Triangles
from posexp.runs.identity import NEUTRAL
from posexp.training.matching import counts

GOLDEN = np.load(Path(__file__).with_name("block.npz"))  # blocks of Hugging Face 5.24.0
MODERN = {"norm_kind": "rms", "feed_forward": "swiglu", "qk_norm": True, "bias": "none"}
HEADS, GATED = {"num_kv_heads": 2, "head_dim": 48}, {"output_gate": True, "bias": "all"}
F, V = 128, 300
COUNTED = SMALL | {"d_model": F, "d_ff": F}  # four heads of 32
# Options; what they add to the parameters of a language model of one layer and V words; and to the
# products of a token.
BLOCKS = {
  "rms": ({"norm_kind": "rms"}, -3 * F, 0),
  "geglu": ({"feed_forward": "geglu"}, F * F + F, F * F),
  "tanh": ({"feed_forward": "geglu_tanh", "bias": "none"}, F * F - 2 * F - V, F * F),
  "swiglu": ({"feed_forward": "swiglu", "bias": "qkv"}, F * F + F - V, F * F),
  "experts": ({"experts": 3}, 2 * (2 * F * F + 2 * F) + 3 * F + 3, 2 * 2 * F * F + 3 * F),
  "clipped experts": (
    {"experts": 4, "experts_used": 3, "feed_forward": "swiglu_clipped", "bias": "none"},
    10 * F * F - 2 * F - V + 4 * F,
    10 * F * F + 4 * F,
  ),
  "biases": ({"bias": "all", "feed_forward": "gelu"}, 4 * F, 0),
  "qk norm": ({"qk_norm": True}, 2 * 32, 0),
  "one map": ({"qk": "tied"}, -F * F, 0),
  "sinks": ({"sinks": "head"}, 4, 0),
  "sinks of tokens": ({"sinks": "token"}, 4 * F, 4 * F),
  "without the own value": ({"own_value": "removed"}, 0, 0),
  "gate": (GATED, F * F + 5 * F, F * F),
  "convolution": ({"conv": 4}, 4 * 2 * F, 0),
  "of the input": ({"conv": 2, "conv_of": "input"}, 2 * F, 0),
  "kv heads": ({"num_kv_heads": 1}, -2 * F * 96, -2 * F * 96),
  "wide": ({"head_dim": 48}, 4 * F * 64, 4 * F * 64 + 2 * 16 * 64),
  "tied": ({"tie_embeddings": True}, -V * F - V, 0),
  "modern": (MODERN, F * F - 5 * F + 2 * 32 - V, F * F),
  "together": (
    MODERN | HEADS | GATED | {"sinks": "token", "own_value": "removed"},
    772 * F - 3 * F * F - F + 672,
    772 * F - 3 * F * F + 2048,
  ),
}
OPTIONS = {"rpr": {"k": 2, "share": "none"}, "sinusoidal": {"at": "attention"}}
NAMES = [
  "none", "rope", "rpr", "transformer_xl", "deberta", "sinusoidal", "complex", "split", "tupe",
]  # fmt: skip
ASKED = {name: encoding(name, **OPTIONS.get(name, {})) for name in NAMES}
LAYERS = encoding("by_layer", pattern=["none window=2", "rope chunk=4"])
TURNED = encoding("rope", imaginary=True, share=0.5, values=True, learned="head")
CONVOLVED = {"conv": 3, "conv_of": "input", "qk_norm": True}
CASES = [
  *(
    (name, each, block, options, None)
    for block, (options, *_) in BLOCKS.items()
    for name, each in ASKED.items()
  ),
  ("imaginary", TURNED, "heads", {"num_kv_heads": 2, "qk_norm": True, "bias": "all"}, True),
  ("layers", LAYERS, "convolution", {"conv": 4, "bias": "all"}, True),
  ("none", Encoding(), "convolution of the input", CONVOLVED, True),
  ("layers", LAYERS, "factor", {"logits_by": "ministral", "logits_length": 2}, True),
  (
    "layers",
    LAYERS,
    "factor and bias",
    {"logits_by": "ssmax_bias", "logits_length": 6, "logits_scale": 0.7},
    True,
  ),
  ("none", Encoding(), "both", {"own_value": "removed", "sinks": "token"}, True),
  *(
    (name, encoding(name), "triangles", {"triangles": True}, False)
    for name in ("none", "rope", "sinusoidal", "alibi", "t5")
  ),
]
LISTED = [
  pytest.param(asked.check, case, id=f"{asked.name}-{name}-{block}")
  for name, each, block, options, side in CASES
  # Without its own value nothing but rounding is left of the imaginary part of the first token,
  # which a norm of this part alone magnifies.
  if (name, block) != ("complex", "without the own value")
  for asked in PROPERTIES
  for causal in [causal for causal in asked.sides(each) if side in (None, causal)][:1]
  if asked.check is not far_positions
  for case in [dataclasses.replace(case_of(each, causal), options=tuple(options.items()))]
]
QUICK = [
  "cached decoding-layers-convolution", "memory-none-convolution of the input",
  "cached decoding-layers-factor", "cached decoding-none-both",
]  # fmt: skip
QUICK += drawn([each.id for each in LISTED if each.id.endswith("triangles")], 1)
OTHERS = drawn(LISTED, 5)
OTHERS += [x for x in LISTED if x.id.endswith(("together", "triangles")) or "-layers-" in x.id]


@pytest.mark.parametrize(
  ("check", "case"),
  [each for each in LISTED if each.id in QUICK]
  + [pytest.param(*each.values, id=each.id, marks=pytest.mark.slow) for each in OTHERS],
)
def test_a_property_holds_in_every_block(check, case):
  assert list(check(case)) == []


@pytest.mark.parametrize("name", ["qwen3", "gpt2"])
def test_a_block_is_that_of_a_released_family(name):
  sizes = {"num_heads": 3, "d_model": 30, "d_ff": 44, "bias": "all", "feed_forward": "gelu_tanh"}
  positions = Encoding()  # those of GPT-2 are at the input
  if name == "qwen3":
    sizes = MODERN | {"num_heads": 6, "num_kv_heads": 2, "head_dim": 8, "d_model": 32, "d_ff": 40}
    positions = encoding("rope", base=1e6, layout="half")
  size = Size(**sizes, norm_epsilon=1e-3, dropout=0.0)
  block = Block(Layer(positions), size, causal=True, cross=False, rngs=rngs())
  given = {key.removeprefix(f"{name}/"): GOLDEN[key] for key in GOLDEN if key.startswith(name)}
  x, expected, mask = (given.pop(key) for key in ("in", "out", "mask"))
  assert {path: x.shape for path, x in paths(block).items()} == {p: given[p].shape for p in given}
  for path, leaf in nnx.to_flat_state(nnx.state(block, nnx.Param)):
    leaf[...] = jnp.asarray(given["/".join(map(str, path))])
  span, x = Span.within(None, jnp.asarray(mask)[:, None], True), jnp.asarray(x)
  attend = nnx.jit(lambda block, x: block(x, block.held(x), span))
  got = attend(block, x)
  np.testing.assert_allclose(got[mask], expected[mask], atol=1e-5 * np.abs(expected).max())


def test_a_gate_multiplies_each_channel_before_the_last_map():
  size = Size(**SMALL | HEADS | GATED)
  attention = properties.perturbed(Stack(VOCAB, Encoding(), size, rngs=rngs())).blocks[0].attention
  x, gate = jnp.sin(jnp.arange(320.0)).reshape(2, 5, 32), attention.gate
  attention.out = jnp.array
  span, cached = Span.within(None, jnp.ones((1, 1, 5), bool), False), attention.keys_values(x)
  assert [each.shape for each in cached[:2]] == [(2, 5, 2, 48)] * 2
  gated, attention.gate = attention(x, *cached, span), None
  open = 1 / (1 + np.exp(-(x @ gate.kernel[...] + gate.bias[...])))
  np.testing.assert_allclose(gated, open * attention(x, *cached, span), atol=1e-5)


@pytest.mark.parametrize("name", [*some([*BLOCKS][:-1], 1), "together"])
def test_parameters_and_products_are_counted_and_nothing_else_starts_otherwise(name):
  options, more, products = BLOCKS[name]
  specs = [LanguageModelSpec(V, Encoding(), Size(**COUNTED, **given)) for given in ({}, options)]
  plain, own = (counts(spec, 16) for spec in specs)
  assert own["parameters"] - plain["parameters"] == more
  # Beside products there are norms and activations: 80 operations of a channel at most.
  assert own["flops"] - plain["flops"] == pytest.approx(2 * products, abs=80 * F)
  before, after = (paths(spec.build(rngs())) for spec in specs)
  for path in before.keys() & after.keys():
    same = before[path].shape == after[path].shape
    assert np.array_equal(before[path], after[path]) if same else options.keys() & HEADS, path
  assert {f"model.{key}" for key in options} <= NEUTRAL.keys()


def test_defaults_leave_digests_alone():
  for field in dataclasses.fields(Size):
    assert field.default in NEUTRAL.get(f"model.{field.name}", (field.default,))


def cut(x):
  """The halves [B,L,H,2,D/2] of heads [B,L,H,D]: one looks back, and the other ahead."""
  return x.reshape(*x.shape[:3], 2, -1)


@pytest.mark.parametrize("name", ["none", "rope"])
def test_triangles_look_back_and_ahead(name):
  at = np.array([0, 1, 4, 5, 9, 30])
  q, k, v = np.random.default_rng(SEED).normal(size=(3, 2, 6, 3, 8))
  real = np.array([[1, 1, 1, 1, 1, 1], [0, 0, 1, 1, 1, 1]], bool)
  turned = [q, k]
  if name == "rope":
    angle = np.exp(1j * np.outer(at, 1e4 ** (-np.arange(4) / 4)))[:, None]
    turned = [((x[..., ::2] + 1j * x[..., 1::2]) * angle) for x in (q, k)]
    turned = [np.stack([x.real, x.imag], -1).reshape(q.shape) for x in turned]
  logits = np.einsum("bihsd,bjhsd->bhsij", *map(cut, turned)) / 2
  back = at[:, None] >= at
  seen = np.stack([back, back.T]) & real[:, None, None, None]
  weights = np.exp(logits) * seen
  weights /= np.maximum(weights.sum(-1, keepdims=True), 1e-9)
  expected = np.einsum("bhsij,bjhsd->bihsd", weights, cut(v)).reshape(v.shape)
  relation = Triangles(encoding(name).relation(3, 8, causal=False, rngs=rngs()), 8)
  span = Span(*[jnp.asarray(at)[None]] * 2, jnp.asarray(real)[:, None])

  found = relation.attend(*map(jnp.float32, (q, k, v)), span, lambda weights: weights)
  np.testing.assert_allclose(found[real], expected[real], atol=1e-5)


# Experts, against a definition of them, token by token in float64.

EXPERTS = {"d_model": 6, "num_heads": 1, "d_ff": 5, "experts": 4, "dropout": 0.5}


def sigmoid(x):
  return 1 / (1 + np.exp(-x))


def clipped(gate, up):
  """The unit of gpt-oss."""
  gate, up = np.minimum(gate, 7), np.clip(up, -7, 7)
  return gate * sigmoid(1.702 * gate) * (up + 1)


UNITS = {"swiglu_clipped": clipped, "swiglu": lambda gate, up: gate * sigmoid(gate) * up}
UNITS["relu"] = lambda _, up: np.maximum(up, 0)


def of_experts(p, x, used, unit):
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


def made_experts(unit: str, used: int):
  size = Size(**EXPERTS, feed_forward=unit, experts_used=used)
  module, draw = Experts(Encoding(), size, rngs=rngs()), np.random.default_rng(0)
  for _, leaf in nnx.to_flat_state(nnx.state(module, nnx.Param)):
    leaf[...] = jnp.asarray(draw.normal(0, 2, leaf.shape), jnp.float32)  # some reach the clips
  parameters = {path: np.asarray(x, np.float64) for path, x in paths(module).items()}
  return module, parameters, draw.normal(size=(2, 7, 6)).astype(np.float32)


@pytest.mark.parametrize(("unit", "used"), [("swiglu_clipped", 2), ("swiglu", 1), ("relu", 4)])
def test_the_best_experts_are_weighted_by_the_softmax_of_their_logits(unit, used):
  module, parameters, x = made_experts(unit, used)
  run = nnx.jit(lambda module, x: module(x))
  rows = x.reshape(-1, 6).astype(np.float64)
  expected = np.stack([of_experts(parameters, row, used, UNITS[unit]) for row in rows])
  assert np.abs(run(module, x).reshape(-1, 6) - expected).max() / np.abs(expected).max() < 1e-6


def test_each_expert_starts_and_drops_on_its_own():
  module, _, x = made_experts("relu", 4)
  fresh = paths(Experts(Encoding(), Size(**EXPERTS), rngs=rngs()))["experts/up/kernel"]
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
