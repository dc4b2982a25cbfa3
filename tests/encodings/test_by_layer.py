"""Layers differ as their pattern says: in encoding, in how far they see, in what they cache."""

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from small import Rngs

from posexp import Attention, Layer, Size, Span, Stack, encoding
from posexp.analysis.properties import compiled
from posexp.config import encodings_node
from posexp.config.checks import show
from posexp.encodings import ENCODINGS
from posexp.models.attention import Kind, limited, since_start
from posexp.models.backbones import refusal
from posexp.training.matching import costs

H, D, L = 2, 8, 9
SIZE = {"d_model": 32, "num_heads": 4, "d_ff": 32, "dropout": 0.0}


def built(pattern, layers=3, causal=True, **size):
  made = encoding("by_layer", pattern=pattern)
  size = Size(num_layers=layers, **SIZE | size)
  return Stack(23, made, size, causal=causal, rngs=Rngs(params=0, encoding=1))


def tokens(length=L, seed=0):
  return jnp.asarray(np.random.default_rng(seed).integers(1, 23, (2, length)))


@pytest.mark.parametrize(
  ("options", "expected"),
  [
    ({"pattern": ["rope", "none"]}, ["rope", "none"] * 3),
    ({"pattern": ["2 rope", "none"]}, ["rope", "rope", "none"] * 2),
    ({"pattern": ["rope", "3 none"], "from_last": True}, [*["none"] * 2, "rope", *["none"] * 3]),
    ({"pattern": "smollm3"}, [*["rope"] * 3, "none", *["rope"] * 2]),
    ({"pattern": "gemma3"}, ["rope"] * 6),
    ({"pattern": "gemma4"}, ["rope"] * 6),
    ({"pattern": ["rpr k=3", "alibi"]}, ["rpr", "alibi"] * 3),
  ],
)
def test_a_pattern_repeats_over_the_layers(options, expected):
  kinds = {name: type(encoding(name)) for name in expected}
  found = [type(each.encoding) for each in encoding("by_layer", **options).layers(6)]
  assert found == [kinds[name] for name in expected]


def test_options_and_windows_of_each_part():
  near, far = encoding("rope", base=1e4, layout="half"), encoding("rope", base=1e6, layout="half")
  gemma = encoding("by_layer", pattern="gemma3")
  assert gemma.layers(6) == [*[Layer(near, 1024)] * 5, Layer(far)]
  assert encoding("by_layer", pattern="gemma3", window=8).layers(6)[0] == Layer(near, 8)
  chunked = encoding("by_layer", pattern=["none chunk=4", "rpr k=2 keys=false window=6"])
  assert chunked.layers(2) == [
    Layer(encoding("none"), chunk=4), Layer(encoding("rpr", k=2, keys=False), 6),
  ]  # fmt: skip


@pytest.mark.parametrize("name", sorted({*ENCODINGS} - {"by_layer"}))
def test_every_option_of_every_encoding_can_be_typed_in_a_pattern(name):
  given = {key: value for key, value in encodings_node()[name].items() if value not in (None, [])}
  words = (f"{key}={show(value)}" for key, value in given.items())
  (layer,) = encoding("by_layer", pattern=[f"{name} {' '.join(words)}"]).period
  assert layer.encoding == encoding(name)


def test_a_model_has_room_for_all_that_differs():
  made = encoding("by_layer", pattern=["3 rope", "none"])
  assert refusal("by_layer", made, Size(num_layers=4)) is None
  why = "some of that is in none of model.num_layers=3; 4 layers show all of it"
  assert why in refusal("by_layer", made, Size(num_layers=3))
  last = encoding("by_layer", pattern=["2 rope", "alibi", "2 none"], from_last=True)
  assert [made.least_layers, last.least_layers] == [4, 4]
  assert encoding("by_layer", pattern=["64 rope", "none"]).least_layers == 65
  with pytest.raises(ValueError, match=r"ByLayer differs by layer: build one attention for each"):
    Attention(made, 32, 4, rngs=nnx.Rngs(0))
  windows = encoding("by_layer", pattern=["none window=2"])  # which one attention would not have
  with pytest.raises(ValueError, match=r"or posexp\.Stack, which has their windows, too"):
    Attention(windows, 32, 4, rngs=nnx.Rngs(0))
  with pytest.raises(
    ValueError, match="by_layer has sinusoidal in a layer, which changes the input of"
  ):
    built(["rope", "sinusoidal"], layers=2)


@pytest.mark.parametrize("consecutive", [True, False])
@pytest.mark.parametrize(("window", "chunk"), [(4, None), (1, None), (None, 4), (3, 4), (40, None)])
def test_windows_and_chunks_count_tokens_as_hugging_face_does(window, chunk, consecutive):
  draw = np.random.default_rng(1)
  q, k = (draw.normal(size=(2, L, H, D)) for _ in "qk")
  at = np.arange(L) if consecutive else np.sort(draw.choice(60, L, replace=False))
  i, j = np.arange(L)[:, None], np.arange(L)
  seen = (j <= i) & (i - j < (window or L)) & (i // (chunk or L) == j // (chunk or L))
  logits = np.where(seen, np.einsum("bihd,bjhd->bhij", q, k) / D**0.5, -np.inf)
  expected = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
  mask, options = jnp.ones((1, 1, L), bool), {"consecutive": consecutive, "max_position": 64}
  span = Span(jnp.asarray(at)[None], jnp.asarray(at)[None], mask, True, **options)
  span = limited(span, Kind(0, window, chunk), jnp.arange(L), jnp.arange(L), causal=True)
  relation = encoding("none").relation(H, D, causal=True, rngs=None)
  found = relation.weights(jnp.asarray(q, jnp.float32), jnp.asarray(k, jnp.float32), span)
  np.testing.assert_allclose(found, expected, atol=1e-6)


def test_chunks_of_packed_documents_begin_with_them():
  model, given = built(["none chunk=4", "rope"], layers=2), tokens(11)
  documents = jnp.asarray([[0] * 3 + [1] * 8, [-1] * 5 + [0] * 6])  # and padding in front
  recur = {"documents": documents, "positions": since_start(documents)}
  found, _ = compiled(model, "recur", given, model.empty_memory(2, 0), **recur)
  for row, begin, end in ((0, 0, 3), (0, 3, 11), (1, 5, 11)):
    alone = compiled(model, "__call__", given[row : row + 1, begin:end])
    np.testing.assert_allclose(found[row, begin:end], alone[0], atol=2e-5)


def test_chunks_of_an_encoder_begin_after_padding_in_front():
  model, given = built(["none chunk=4"], layers=1, causal=False), tokens(8)
  mask = jnp.arange(8)[None] >= jnp.asarray([[3], [0]])
  found = model(given, mask, padding_last=False)
  for row, begin in ((0, 3), (1, 0)):
    alone = compiled(model, "__call__", given[row : row + 1, begin:])
    np.testing.assert_allclose(found[row, begin:], alone[0], atol=2e-5)


def test_an_encoder_sees_half_of_a_window_to_each_side():
  model, far = built(["none window=4"], layers=1, causal=False), tokens().at[:, 5].set(1)
  one, other = (compiled(model, "__call__", each) for each in (far, far.at[:, 5].set(2)))
  moved = np.abs(np.asarray(one - other)).max((0, 2)) > 0
  assert [*np.flatnonzero(moved)] == [3, 4, 5, 6, 7]


def test_a_cache_holds_no_more_than_a_window():
  model, given = built(["rope window=4", "none"], layers=2), tokens()
  cache = model.empty_cache(2, L)
  assert [key.shape[3] for key in cache.keys] == [3, L]
  whole = compiled(model, "__call__", given)
  # The last two tokens of this prompt are not of the text.
  prompt = given[:, :6].at[:, 4:].set(9)
  first, cache = compiled(model, "step", prompt, cache, count=jnp.int32(4))
  rest = [first[:, :4]]
  for i in range(4, L):
    output, cache = compiled(model, "step", given[:, i : i + 1], cache)
    rest.append(output)
  np.testing.assert_allclose(jnp.concatenate(rest, 1), whole, atol=2e-5)


def test_alternatives_see_their_own_window():
  """Two hypotheses in one cache, as in a beam search, are two texts."""
  model, given, (beam, length) = built(["alibi window=3", "none"], layers=2), tokens(5), (2, 5)
  slots = jnp.arange(beam * length)
  cache = model.empty_cache(1, beam * length, slots[None] // beam, rolling=False)
  outputs = []
  for i in range(length):
    seen = (slots[None] % beam == jnp.arange(beam)[:, None]) & (slots // beam <= i)
    output, cache = compiled(model, "step", given[None, :, i], cache, seen=seen[None])
    outputs.append(output[0])
  np.testing.assert_allclose(jnp.stack(outputs, 1), compiled(model, "__call__", given), atol=2e-5)


def test_a_window_costs_in_proportion_to_it():
  length = 1024
  inputs = jnp.ones((1, length), int)
  found = [
    costs(lambda rngs, p=p: built([p], layers=1), (inputs,), length)["flops"]
    for p in ("none", "none window=64")
  ]
  assert found[1] < 0.6 * found[0]
