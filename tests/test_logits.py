"""Factors of the logits by length or position, beside the arrays of Hugging Face 5.24.0."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from posexp import encoding
from posexp.analysis import properties
from posexp.encodings import Relation, Span
from posexp.models.logits import Factor
from posexp.models.transformer import Size, Stack

GOLDEN = np.load(Path(__file__).with_name("columns.npz"))
FACTORS = {  # the name of the array, and the options
  "llama4_floor8192_scale0.1": ("llama4", None, 8192),
  "llama4_floor4_scale0.5": ("llama4", 0.5, 4),
  "ministral3_16384_beta0.1": ("ministral", None, 16384),
  "beam": ("beam", 0.1, 2048),
  "inkling2_floor16": ("inkling", 0.1, 16),
}
FORWARD = {"logits_by": "ministral", "logits_length": 2}
COUNTED = {"logits_by": "ssmax_bias", "logits_length": 6, "logits_scale": 0.7}


def array(name):
  return jnp.asarray(GOLDEN[f"logits/{name}"], jnp.float32)


@pytest.mark.parametrize("name", FACTORS)
def test_factors_are_those_of_the_references(name):
  by, rate, length = FACTORS[name]
  span = Span(*[jnp.asarray(GOLDEN["logits/positions"])[None]] * 2, jnp.ones((1, 1, 17), bool))
  got = Factor(by, 2, rate, length, 1.0)(span)
  np.testing.assert_allclose(got[0, :, 0, 0], array(f"{name}/factor"), rtol=2e-6)


@pytest.mark.parametrize("by", ["ssmax", "ssmax_bias"])
def test_ssmax_is_its_definition(by):
  *arrays, dout = (array(f"ssmax_in/{name}").swapaxes(1, 2) for name in ("q", "k", "v", "dout"))
  factor = Factor(by, 2, None, 9, 1.0)
  graphdef, params = nnx.split(factor)
  params = jax.tree.map(lambda x: x, params)
  for name in params:
    params[name][...] = array(f"ssmax_in/{name}")
  span = Span.within(None, jnp.ones((1, 1, 9), bool), True)

  def attended(params, q, k, v):
    q = q * nnx.merge(graphdef, params)(span)
    return Relation().attend(q, k, v, span, lambda weights: weights)

  got, backward = jax.vjp(attended, params, *arrays)
  np.testing.assert_allclose(got.swapaxes(1, 2), array(f"{by}/out"), atol=1e-5)
  slopes, q, k, _ = backward(dout)
  for name, x in (("q", q), ("k", k)):
    np.testing.assert_allclose(x.swapaxes(1, 2), array(f"{by}/grad_{name}"), atol=1e-5)
  for name in slopes:
    np.testing.assert_allclose(slopes[name][...], array(f"{by}/grad_{name}"), atol=2e-5)


NAMES = ["padding", "cached_decoding", "spans", "long_texts", "gradients", "bfloat16", "memory"]


@pytest.mark.parametrize("options", [FORWARD, COUNTED], ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_what_holds_with_a_factor(options, name):
  chosen = encoding("by_layer", pattern=["rope window=3", "alibi"])
  given = tuple(options.items())
  for causal in (True, False)[: 1 + (options is COUNTED and name in NAMES[:1])]:
    case = properties.Case(chosen, causal, options=given)
    assert (name == "memory" and options is FORWARD) or not list(getattr(properties, name)(case))


def test_layers_that_see_all_alone_have_the_factor_and_what_is_refused():
  few = {"d_model": 8, "num_heads": 2, "d_ff": 8, "num_layers": 3}
  llama = {"logits_by": "llama4", "logits_length": 4}
  build = lambda chosen, **options: Stack(  # noqa: E731
    9, chosen, Size(**few, **options), causal=chosen.causal_only, rngs=nnx.Rngs(0)
  )
  layers = encoding("by_layer", pattern=["fire window=3", "alibi"])
  blocks = build(layers, **llama, logits_in="full").blocks
  assert [block.attention.factor is None for block in blocks] == [True, False, True]
  for chosen, options, message in (
    (encoding("rope"), llama, "logits_by=llama4 is of positions in a text that is read forward"),
    (encoding("split", form="position_only"), {"logits_scale": 2.0}, "logits_scale=2 multiplies"),
    (layers, {"logits_by": "ssmax"}, "logits_length must be given with logits_by=ssmax"),
    (
      layers,
      {"logits_rate": 2.0},
      "logits_rate is for logits_by=llama4, ministral, beam, inkling;",
    ),
  ):
    with pytest.raises(ValueError, match=f"^{message}[^\n]*$"):
      build(chosen, **options)
