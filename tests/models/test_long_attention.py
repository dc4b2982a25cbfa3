"""Attention to long sequences equals its definition, wherever queries and keys stand.

Each property is a plain function of an encoding and of whether attention is causal. It compares
what is computed from LONG tokens on, here from a few, with the definition, forward and backward.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from fused_rpr import FusedRPR
from seed import some

from posexp.encodings import ENCODINGS, Encoding, Span
from posexp.encodings.rngs import Rngs
from posexp.models import attention

H, D, B, BLOCK = 2, 8, 2, 4


@pytest.fixture(autouse=True)
def _short_blocks(monkeypatch):
  monkeypatch.setattr(attention, "ROWS", BLOCK)
  monkeypatch.setitem(attention.LONG, "cpu", BLOCK)


def whole_sequences(encoding, causal):
  """Queries are the keys, and the last block is not full."""
  at = np.arange(11)[None]
  mask = at[:, None] < np.array([11, 6])[:, None, None]
  own = {"consecutive": True, "self_attention": True}
  holds(encoding, causal, Span(at, at, mask, causal, **own, padding_last=True))


def gaps_in_positions(encoding, causal):
  at = np.array([[0, 2, 3, 9, 10, 11, 17, 18, 25]])
  holds(encoding, causal, Span(at, at, np.ones((1, 1, 9), bool), causal, max_position=30))


def cached_keys(encoding, causal):
  """5 queries on 6 keys, whose positions are known only when the program runs."""
  key = np.arange(6)[None]
  mask = np.ones((1, 1, 6), bool)
  if causal:
    mask = key[:, None] <= key[:, 1:, None]
  holds(encoding, causal, Span(key[:, 1:], key, mask))


def memory_before_queries(encoding, causal):
  """5 queries on 11 keys, of which the last are their own, and no memory in one row."""
  key = np.arange(11)[None]
  mask = key[:, None] >= np.array([0, 6])[:, None, None]
  holds(encoding, causal, Span(key[:, 6:], key, mask, causal, consecutive=True))


def masks_of_single_queries(encoding, causal):
  at = np.arange(7)[None]
  mask = (np.random.default_rng(0).random((B, 7, 7)) < 0.6) | np.eye(7, dtype=bool)
  holds(encoding, causal, Span(at, at, mask, causal, consecutive=True, self_attention=True))


PROPERTIES = (
  whole_sequences,
  gaps_in_positions,
  cached_keys,
  memory_before_queries,
  masks_of_single_queries,
)


def holds(encoding, causal, span):
  """Is what `auto`, or the form patched in, computes on the span the definition, with gradients?"""
  span, rngs = jax.tree.map(jnp.asarray, span), Rngs(params=0, encoding=1)
  relation = encoding.relation(H, D, causal=causal, rngs=rngs)
  relation.bind(*(encoding.linear(H * D, H * D, bias=False, rngs=rngs) for _ in range(2)))
  embed = encoding.embed(3, H * D, scale=1.0, causal=causal, rngs=rngs)
  shared = encoding.shared(H, D, causal=causal, rngs=rngs, embed=embed)
  parts = {"relation": relation} | ({"shared": shared} if shared else {})
  columns = encoding.columns(H * D, H, D, causal=causal, rngs=rngs)._asdict()
  parts = nnx.Dict(parts | {name: make for name, make in columns.items() if make})
  graphdef, params, rest = nnx.split(parts, nnx.Param, ...)
  draw = np.random.default_rng(1)
  params = jax.tree.map(
    lambda x: np.asarray(np.asarray(x) + 0.5 * draw.random(x.shape), np.float32), params
  )
  lengths = span.query.shape[1], span.key.shape[1]
  q, asked, k, v = (
    jnp.asarray(draw.normal(size=(B, lengths[i], H, D)), jnp.float32) for i in (0, 0, 1, 1)
  )
  hidden = {name: x.reshape(*x.shape[:2], H * D) for name, x in (("key", k), ("query", q))}
  if not relation.uses_hidden:
    q, k = None, k[..., :0]

  def merged(params, span):
    """The relation and a span that has what layers share, in blocks and as a whole."""
    built = nnx.merge(graphdef, params, rest)
    for name in {"key", "query"} & {*built}:
      span = span.replace(**{f"{name}_columns": built[name](hidden[name])})
    if "shared" not in built:
      return built["relation"], span, span
    blocks = span.replace(shared_fn=built["shared"])
    return built["relation"], blocks, span.replace(shared=built["shared"](span))

  def gradients(form, *arrays):
    def loss(params, q, k, v):
      relation, blocks, whole = merged(params, span)
      at = blocks if form in attention.IN_PARTS else whole
      out = attention.attend(relation, q, k, v, at, form=form)
      return (out * asked).sum(), out

    return jax.grad(loss, argnums=(0, 3) if q is None else (0, 1, 2, 3), has_aux=True)(*arrays)

  def logits(params, q, k, v, *, consecutive):
    relation, _, whole = merged(params, span.replace(consecutive=consecutive))
    return jnp.where(span.visible[:, None], relation.score(q, k, whole), 0)

  @jax.jit
  def found(*arrays):
    auto = attention.form_of("auto", *lengths)
    both = [[gradients(form, *arrays)] for form in (auto, "reference")]
    if span.consecutive:  # that it is said makes a program shorter, and changes nothing else
      for each, said in zip(both, (True, False), strict=True):
        each.append(logits(*arrays, consecutive=said))
    return both

  for mine, whole in zip(*map(jax.tree.leaves, found(params, q, k, v)), strict=True):
    assert np.isfinite(whole).all()
    np.testing.assert_allclose(mine, whole, rtol=1e-5, atol=1e-5 * max(1, np.abs(whole).max()))


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
    places = PROPERTIES if everywhere else [PROPERTIES[number % len(PROPERTIES)]]
    for turn, place in enumerate(places):
      causal = encoding.causal_only or (number + turn) % 2 == 0
      yield pytest.param(place, encoding, causal, id=f"{name} {place.__name__} {causal}")


@pytest.mark.parametrize(("holds", "encoding", "causal"), some(chosen(), 1))
def test_long_attention_is_its_definition(holds, encoding, causal):
  holds(encoding, causal)


CAUSAL = [name for name in OF_ATTENTION if name not in ("normalized", "delta")]


@pytest.mark.parametrize("name", some(CAUSAL, 1))
def test_causal_attention_in_halves_is_its_definition(name, monkeypatch):
  monkeypatch.setattr(attention, "form_of", lambda *_: "halves")
  whole_sequences(OF_ATTENTION[name], True)


@pytest.mark.parametrize(
  ("encoding", "holds", "causal"),
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
def test_what_kernels_are_given_makes_what_the_definition_gives(
  encoding, holds, causal, monkeypatch
):
  relation = encoding.relation(H, D, causal=causal, rngs=Rngs(params=0, encoding=1))
  if not relation.supports_fused:
    with pytest.raises(ValueError, match="an encoding that its kernels know"):
      attention.for_layer("fused", relation, D, "bfloat16", 0.0, None)
    return
  monkeypatch.setattr(attention, "form_of", lambda *_: "fused")
  holds(encoding, causal)
