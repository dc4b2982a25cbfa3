"""Attention to long sequences equals its definition, wherever queries and keys stand.

Each place is the span of a layer. What is computed there from LONG tokens on, here from a few, is
compared with the definition, forward and backward.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from fused_rpr import FusedRPR
from seed import some
from small import B, rngs, stack

from posexp.encodings import ENCODINGS, Encoding, Span
from posexp.models import attention

D, BLOCK = 8, 4


@pytest.fixture(autouse=True)
def _short_blocks(monkeypatch):
  monkeypatch.setattr(attention, "ROWS", BLOCK)


def whole_sequences(causal):
  """Queries are the keys, and the last block is not full."""
  at = np.arange(11)[None]
  mask = at[:, None] < np.array([11, 6])[:, None, None]
  own = {"consecutive": True, "self_attention": True}
  return Span(at, at, mask, causal, **own, padding_last=True)


def gaps_in_positions(causal):
  at = np.array([[0, 2, 3, 9, 10, 11, 17, 18, 25]])
  return Span(at, at, np.ones((1, 1, 9), bool), causal, max_position=30)


def cached_keys(causal):
  """5 queries on 6 keys, whose positions are known only when the program runs."""
  key = np.arange(6)[None]
  mask = np.ones((1, 1, 6), bool)
  if causal:
    mask = key[:, None] <= key[:, 1:, None]
  return Span(key[:, 1:], key, mask)


def memory_before_queries(causal):
  """5 queries on 11 keys, of which the last are their own, and no memory in one row."""
  key = np.arange(11)[None]
  mask = key[:, None] >= np.array([0, 6])[:, None, None]
  return Span(key[:, 6:], key, mask, causal, consecutive=True)


def masks_of_single_queries(causal):
  at = np.arange(7)[None]
  mask = (np.random.default_rng(0).random((B, 7, 7)) < 0.6) | np.eye(7, dtype=bool)
  return Span(at, at, mask, causal, consecutive=True, self_attention=True)


PLACES = (
  whole_sequences,
  gaps_in_positions,
  cached_keys,
  memory_before_queries,
  masks_of_single_queries,
)


def holds(encoding, causal, place, form="blocked"):
  """Is what a form of attention computes in a place the definition, with gradients?"""
  graphdef, params, rest = nnx.split(stack(encoding, causal), nnx.Param, ...)
  span = jax.tree.map(jnp.asarray, place(causal))
  draw = np.random.default_rng(1)
  x = jnp.asarray(draw.normal(size=(B, span.key.shape[1], 32)), jnp.float32)
  asked = jnp.asarray(draw.normal(size=(B, span.query.shape[1], 32)), jnp.float32)

  def attended(form, span, params, x):
    model = nnx.merge(graphdef, params, rest)
    layer = model.blocks[0].attention
    layer.form = form
    return layer(x[:, -asked.shape[1] :], *layer.keys_values(x), model.ready(span))

  @jax.jit
  def found(span, params, x):
    both = (jax.vjp(functools.partial(attended, of, span), params, x) for of in (form, "reference"))
    # That positions are consecutive makes a program shorter, and changes nothing else.
    plain = attended("reference", span.replace(consecutive=False), params, x)
    return [(got, backward(asked)) for got, backward in both], plain

  (mine, whole), plain = found(span, params, x)
  np.testing.assert_allclose(plain, whole[0], rtol=1e-5, atol=1e-5)
  for one, other in zip(*map(jax.tree.leaves, (mine, whole)), strict=True):
    assert np.isfinite(other).all()
    np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5 * max(1, np.abs(other).max()))


OF_ATTENTION = {
  name: cls() for name, cls in ENCODINGS.items() if cls.relation is not Encoding.relation
} | {
  "sinusoidal at=attention": ENCODINGS["sinusoidal"](at="attention"),
  "split form=position_only": ENCODINGS["split"](form="position_only"),
  "complex score=modulus": ENCODINGS["complex"](score="modulus"),
  "rpr share=layers": ENCODINGS["rpr"](k=3, table=5, share="layers"),
  "rpr beyond=zero": ENCODINGS["rpr"](k=2, share="none", beyond="zero"),
  "transformer_xl clamp=4": ENCODINGS["transformer_xl"](share_biases=False, clamp=4),
}


def chosen():
  """Every encoding that is one of attention, once; those with vectors for offsets, everywhere."""
  for number, (name, encoding) in enumerate(OF_ATTENTION.items()):
    if name == "delta":  # parts of which would have the same states
      continue
    everywhere = name in ("rpr", "transformer_xl")
    places = PLACES if everywhere else [PLACES[number % len(PLACES)]]
    for turn, place in enumerate(places):
      causal = encoding.causal_only or (number + turn) % 2 == 0
      yield pytest.param(place, encoding, causal, id=f"{name} {place.__name__} {causal}")


@pytest.mark.parametrize(("place", "encoding", "causal"), some(chosen(), 1))
def test_long_attention_is_its_definition(place, encoding, causal):
  holds(encoding, causal, place)


CAUSAL = [name for name in OF_ATTENTION if name not in ("normalized", "delta")]


@pytest.mark.parametrize("name", some(CAUSAL, 1))
def test_causal_attention_in_halves_is_its_definition(name):
  holds(OF_ATTENTION[name], True, whole_sequences, "halves")


@pytest.mark.parametrize(
  ("encoding", "place", "causal"),
  [
    (ENCODINGS["alibi"]("direction"), whole_sequences, False),
    (ENCODINGS["transformer_xl"](a=False, b=False, c=False), memory_before_queries, True),
    (ENCODINGS["rpr"](k=2), whole_sequences, False),
    *(
      pytest.param(*case, marks=pytest.mark.slow)
      for case in (
        (ENCODINGS["rope"](share=0.5, values=True), memory_before_queries, True),
        (FusedRPR(k=3, table=5, share="layers"), memory_before_queries, True),
        (FusedRPR(k=40, keys=False), masks_of_single_queries, False),
      )
    ),
  ],
)
def test_what_kernels_are_given_makes_what_the_definition_gives(encoding, place, causal):
  relation = encoding.relation(2, D, causal=causal, rngs=rngs())
  if relation.supports_fused:
    return holds(encoding, causal, place, "fused")
  with pytest.raises(ValueError, match="an encoding that its kernels know"):
    attention.for_layer("fused", relation, D, "bfloat16", 0.0, None)
