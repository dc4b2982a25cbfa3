"""Layers differ as their pattern says: in encoding, in how far they see, in what they cache."""

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from seed import some
from small import stack

from posexp import Attention, Layer, Size, Span, encoding
from posexp.analysis.properties import VOCAB, compiled
from posexp.config import encodings_node
from posexp.config.checks import show
from posexp.encodings import ENCODINGS
from posexp.models.attention import Kind, limited
from posexp.models.backbones import refusal

H, D, L = 2, 8, 9


def built(pattern):
  return stack(encoding("by_layer", pattern=pattern), causal=True)


@pytest.mark.parametrize(
  ("options", "expected"),
  [
    ({"pattern": ["rope", "none"]}, ["rope", "none"] * 3),
    ({"pattern": ["rope", "3 none"], "from_last": True}, [*["none"] * 2, "rope", *["none"] * 3]),
    ({"pattern": "smollm3"}, [*["rope"] * 3, "none", *["rope"] * 2]),
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
  why = refusal("by_layer", made, Size(num_layers=3))
  assert "some of that is in none of model.num_layers=3; 4 layers show all of it" in why
  last = encoding("by_layer", pattern=["2 rope", "alibi", "2 none"], from_last=True)
  assert [made.least_layers, last.least_layers] == [4, 4]
  windows = encoding("by_layer", pattern=["none window=2"])  # which one attention would not have
  with pytest.raises(ValueError, match=r"or posexp\.Stack, which has their windows, too"):
    Attention(windows, 32, 4, rngs=nnx.Rngs(0))
  with pytest.raises(
    ValueError, match="by_layer has sinusoidal in a layer, which changes the input of"
  ):
    built(["rope", "sinusoidal"])


@pytest.mark.parametrize(
  ("window", "chunk", "consecutive"),
  some([(4, None, True), (4, None, False), (1, None, False), (None, 4, True), (3, 4, False)], 2),
)
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


def test_an_encoder_has_chunks_after_padding_and_half_of_a_window_to_each_side():
  at, mask = jnp.arange(8), jnp.arange(8)[None] >= jnp.asarray([[3], [0]])
  span = Span(at[None], at[None], mask[:, None])

  def seen(window, chunk):
    within = at - jnp.asarray([[3], [0]])
    found = limited(span, Kind(0, window, chunk), at, at, False, within).visible
    return np.broadcast_to(found, (2, 8, 8))

  i, j = np.indices((8, 8))
  real = (i >= 3) & (j >= 3)
  assert (seen(None, 4)[0][3:] == (real & ((i - 3) // 4 == (j - 3) // 4))[3:]).all()
  assert (seen(None, 4)[1] == (i // 4 == j // 4)).all()
  assert (seen(4, None)[0][3:] == (real & (abs(i - j) <= 2))[3:]).all()
  assert seen(4, 4)[0].any(-1).all()  # padding sees a key, too


def test_a_cache_holds_no_more_than_a_window():
  model = built(["rope window=4", "none"])
  given = jnp.asarray(np.random.default_rng(0).integers(1, VOCAB, (2, L)))
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
