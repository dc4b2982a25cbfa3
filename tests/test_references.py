"""Mechanisms of 2023 to 2026 beside arrays of their reference implementations, with gradients."""

import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import posexp
from posexp.analysis import properties
from posexp.encodings import Span
from posexp.encodings.rngs import Rngs
from posexp.models.logits import Factor
from posexp.models.transformer import Size, Stack

# Each case has its options, arrays that go `in` (those with a path are parameters), what is
# `expected` where it is `shown`, and gradients for the cotangent `dout`.
GOLDEN = np.load(Path(__file__).with_name("references.npz"))
CASES = [name.removesuffix("/case") for name in GOLDEN if name.endswith("/case")]
FORWARD = (("logits_by", "ministral"), ("logits_length", 2))
COUNTED = (("logits_by", "ssmax_bias"), ("logits_length", 6), ("logits_scale", 0.7))
SMALL = {"d_model": 8, "num_heads": 2, "d_ff": 8, "num_layers": 3}
LLAMA = {"logits_by": "llama4", "logits_length": 4}
LAYERS = posexp.encoding("by_layer", pattern=["fire window=3", "alibi"])


def by_path(state):
  return {"/".join(map(str, path)): x for path, x in nnx.to_flat_state(state)}


@pytest.mark.parametrize("name", CASES)
def test_numbers_are_those_of_the_references(name):
  own = {key.removeprefix(f"{name}/"): GOLDEN[key] for key in GOLDEN if key.startswith(f"{name}/")}
  case, dout = json.loads(str(own["case"])), own.get("dout", 0 * own["expected"])
  given, span, slopes = (
    {key.removeprefix(part): jnp.asarray(own[key]) for key in own if key.startswith(part)}
    for part in ("in/", "span/", "grad/")
  )
  heads, width = given["k"].shape[2:]
  chosen = posexp.encoding(case["encoding"], **case["options"])
  kind = {"causal": case["causal"], "rngs": Rngs(params=0, encoding=1)}
  by, *numbers = case["factor"] or ("none", None, None)
  parts = nnx.Dict(
    relation=chosen.relation(heads, width, **kind),
    shared=chosen.shared(heads, width, **kind) or (lambda span: None),
    columns=nnx.Dict(chosen.columns(given["x"].shape[2], heads, width, **kind)._asdict()),
    factor=Factor(by, heads, *numbers, 1.0),
  )
  for path, leaf in by_path(nnx.state(parts)).items():
    leaf[...] = given.pop(path)
  graphdef, params, rest = nnx.split(parts, nnx.Param, ...)

  @jax.jit
  def found(params, given):
    parts = nnx.merge(graphdef, params, rest)
    at, (key, query) = Span(**span, **case["span"], max_position=2**18), parts["columns"].values()
    factor, asked = parts["factor"](at), given["x"][:, -at.query.shape[1] :]
    asked = jax.tree.map(lambda x: x * factor, query and query(asked))
    at = at.replace(key_columns=key and key(given["x"]), query_columns=asked)
    at = at.replace(shared=parts["shared"](at))
    of, relation = (given["q"] * factor, given["k"]), parts["relation"]
    if case["method"] == "score":
      return jnp.where(own["shown"], relation.score(*of, at), 0)
    return jnp.where(own["shown"], relation.attend(*of, given["v"], at, lambda weights: weights), 0)

  got, backward = jax.vjp(found, params, given)
  of_params, of_given = backward(jnp.asarray(dout))
  everything = of_given | by_path(of_params) | {"": got}
  for path, expected in (slopes | {"": own["expected"]}).items():
    most = 1e-5 * max(1, np.abs(expected).max())
    np.testing.assert_allclose(everything[path][...], expected, atol=most, err_msg=path)


@pytest.mark.parametrize("options", [FORWARD, COUNTED], ids=str)
def test_what_holds_with_a_factor(options):
  case = properties.Case(LAYERS, causal=True, options=options)
  for name in ("padding", "cached_decoding", "spans", "long_texts", "gradients", "bfloat16"):
    assert list(getattr(properties, name)(case)) == [], name


@pytest.mark.parametrize(
  ("chosen", "options", "message"),
  [
    (posexp.encoding("rope"), LLAMA, "logits_by=llama4 is of positions in a text that is read for"),
    (posexp.encoding("split", form="position_only"), {"logits_scale": 2.0}, "logits_scale=2 multi"),
    (LAYERS, {"logits_by": "ssmax"}, "logits_length must be given with logits_by=ssmax"),
    (
      LAYERS,
      {"logits_rate": 2.0},
      "logits_rate is for logits_by=llama4, ministral, beam, inkling;",
    ),
    (LAYERS, LLAMA | {"logits_in": "full"}, ""),
  ],
)
def test_which_layers_have_a_factor_and_what_is_refused(chosen, options, message):
  kind = {"causal": chosen.causal_only, "rngs": Rngs(params=0, encoding=1)}
  if message:
    with pytest.raises(ValueError, match=f"^{message}[^\n]*$"):
      Stack(9, chosen, Size(**SMALL, **options), **kind)
  else:
    blocks = Stack(9, chosen, Size(**SMALL, **options), **kind).blocks
    assert [block.attention.factor is None for block in blocks] == [True, False, True]
