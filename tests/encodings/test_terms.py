"""A trained model can be run without any term of its relation, in single layers and heads."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from seed import some
from small import rngs

from posexp.analysis import probe
from posexp.encodings import ENCODINGS, Encoding, Relation, Span
from posexp.encodings.bias import T5, ALiBi
from posexp.encodings.disentangled import TUPE
from posexp.encodings.distance import Sandwich
from posexp.encodings.relative import RPR, TransformerXL
from posexp.encodings.rotary import RoPE
from posexp.encodings.split import Split
from posexp.errors import UserError
from posexp.models.size import Size
from posexp.models.transformer import Stack

B, L, H, D, LAYERS = 2, 6, 4, 8, 2
SIZE = Size(d_model=H * D, num_heads=H, d_ff=32, num_layers=LAYERS, dropout=0.0)
TOKENS = np.random.default_rng(0).integers(0, 23, (B, L))

OF_ALL = [
  pytest.param(cls(), id=name) for name, cls in ENCODINGS.items() if cls().least_layers == 1
]


@functools.cache
def stack(encoding):
  """A stack whose u, v and tables are large enough to be seen."""
  built = Stack(23, encoding, SIZE, causal=encoding.causal_only, rngs=rngs())
  return probe.perturbed(built, seed=5)


run = nnx.jit(lambda model, kept=None: model(TOKENS, term_scale=kept))


def without(model, *off, layers=slice(None)):
  """The model's output when these terms are off, in these layers."""
  terms = model.blocks[0].attention.relation.terms
  kept = {term: np.ones((LAYERS, H), np.float32) for term in terms}
  for term in off:
    kept[term][layers] = 0
  return np.asarray(run(model, kept))


# Of those with one relation, such as that of `alibi`, one is enough: some are drawn.
@pytest.mark.parametrize(
  "encoding", some([*OF_ALL, RoPE(share=0.5), ALiBi("divided"), TUPE(buckets=8)], 2), ids=str
)
def test_every_term_can_be_left_out_of_any_head(encoding):
  model = stack(encoding)
  attention = model.blocks[0].attention
  relation = attention.relation
  draw = np.random.default_rng(1)
  q, k, v = (jnp.asarray(draw.normal(size=(B, L, H, D)), jnp.float32) for _ in "qkv")
  positions = jnp.arange(L)[None]
  span = model.ready(Span(positions, positions, jnp.ones((1, L, L), bool)))
  x = jnp.asarray(draw.normal(size=(B, L, H * D)), jnp.float32)
  _, span = attention.asked(x, attention.keys_values(x)[2], span)

  @jax.jit
  def parts(span):  # the logits and, for the same weights, what is summed: [B,H,...]
    weights = jnp.full((B, H, L, L), 1 / L) * jnp.arange(1, L + 1) / L
    found = relation.score(q, k, span), relation.combine(weights, v, span).swapaxes(1, 2)
    own = type(relation).weights is not Relation.weights
    return (*found, relation.weights(q, k, span)) if own else found

  whole = parts(span)
  for term in relation.terms:
    ones = {name: jnp.ones(H) for name in relation.terms}
    some = parts(span.replace(term_scale=ones | {term: jnp.ones(H).at[1].set(0)}))
    none = parts(span.replace(term_scale=ones | {term: jnp.zeros(H)}))
    for part, off, full in zip(some, none, whole, strict=True):
      np.testing.assert_allclose(part[:, [0, 2, 3]], full[:, [0, 2, 3]], atol=1e-6)
      np.testing.assert_allclose(part[:, 1], off[:, 1], atol=1e-6)
    assert any(np.abs(off - full).max() > 1e-3 for off, full in zip(none, whole, strict=True))


@pytest.mark.parametrize(
  ("encoding", "off", "same"),
  some(
    [
      (RPR(2), ["keys"], RPR(2, keys=False)),
      (RPR(2), ["values"], RPR(2, values=False)),
      *((TransformerXL(), [term], TransformerXL(**{term: False})) for term in "abcd"),
      (TransformerXL(), ["a", "b", "c"], TransformerXL(a=False, b=False, c=False)),
      *((cls(), ["bias"], Encoding()) for cls in (ALiBi, T5, Sandwich)),
      (TUPE(buckets=8), ["bias"], TUPE()),
      (Split(), ["content"], Split(attention="position")),
      (Split(), ["position"], Split(attention="content")),
    ],
    2,
  ),
  ids=str,
)
def test_leaving_a_term_out_is_the_encoding_that_lacks_it(encoding, off, same):
  model = stack(encoding)
  np.testing.assert_allclose(without(model, *off), run(weighted(same, model)), atol=1e-5)


def weighted(encoding, model):
  """A stack with this encoding and the weights of a model that has more."""
  lacking, own = nnx.clone(stack(encoding)), dict(nnx.to_flat_state(nnx.state(model, nnx.Param)))
  there = nnx.to_flat_state(nnx.state(lacking, nnx.Param))
  nnx.update(lacking, nnx.from_flat_state([(path, own[path]) for path, _ in there]))
  return lacking


def test_a_term_is_left_out_of_the_layers_that_are_asked():
  model, mixed = stack(ALiBi()), ENCODINGS["by_layer"](pattern=("none", "alibi"))
  expected = run(weighted(mixed, model))
  np.testing.assert_allclose(without(model, "bias", layers=0), expected, atol=1e-5)


def test_a_term_that_no_relation_has_is_named():
  span = Span.within(None, jnp.ones((1, 2, 2), bool), True, term_scale={"content": jnp.ones(4)})
  with pytest.raises(UserError, match=r"span.keep\('far'\): .* have only content$"):
    span.keep("far")
