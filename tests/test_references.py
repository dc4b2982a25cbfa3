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
FORWARD = {"logits_by": "ministral", "logits_length": 2}
COUNTED = {"logits_by": "ssmax_bias", "logits_length": 6, "logits_scale": 0.7}


def by_path(state):
  return {"/".join(map(str, path)): x for path, x in nnx.to_flat_state(state)}


@pytest.mark.parametrize("name", CASES)
def test_numbers_are_those_of_the_references(name):
  own = {key.removeprefix(f"{name}/"): GOLDEN[key] for key in GOLDEN if key.startswith(f"{name}/")}
  case = json.loads(str(own["case"]))
  given, span, slopes = (
    {key.removeprefix(part): jnp.asarray(own[key]) for key in own if key.startswith(part)}
    for part in ("in/", "span/", "grad/")
  )
  (*_, heads, width), features = given["k"].shape, given["x"].shape[2]
  chosen = posexp.encoding(case["encoding"], **case["options"])
  kind = {"causal": case["causal"], "rngs": Rngs(params=0, encoding=1)}
  by, *numbers = case["factor"] or ("none", None, None)
  parts = nnx.Dict(
    relation=chosen.relation(heads, width, **kind),
    shared=chosen.shared(heads, width, **kind) or (lambda span: None),
    columns=nnx.Dict(chosen.columns(features, heads, **kind)._asdict()),
    factor=Factor(by, heads, *numbers, 1.0),
  )
  for path, leaf in by_path(nnx.state(parts, nnx.Param)).items():
    leaf[...] = given.pop(path)
  graphdef, params, rest = nnx.split(parts, nnx.Param, ...)

  @jax.jit
  def found(params, given):
    parts = nnx.merge(graphdef, params, rest)
    maps = parts["columns"]
    at = Span(**span, causal=case["causal"], last=case["last"], max_position=2**18)
    asked = given["x"][:, -at.query.shape[1] :]
    columns = [make and make(x) for make, x in zip(maps.values(), (given["x"], asked), strict=True)]
    at = at.replace(key_columns=columns[0], query_columns=columns[1])
    at = at.replace(shared=parts["shared"](at))
    factor = parts["factor"](at)
    at = at.replace(query_columns=jax.tree.map(lambda x: x * factor, at.query_columns))
    of = [given["q"] * factor, given["k"], given["v"], at, lambda weights: weights]
    if case["method"] == "score":
      del of[2], of[-1]
    return jnp.where(own["shown"], getattr(parts["relation"], case["method"])(*of), 0)

  got, backward = jax.vjp(found, params, given)
  scale = max(1, np.abs(own["expected"]).max())
  np.testing.assert_allclose(got, own["expected"], atol=1e-5 * scale)
  of_params, of_given = backward(jnp.asarray(own.get("dout", 0 * got)))
  of_given |= by_path(of_params)
  for path, slope in slopes.items():
    most = 1e-5 * max(1, np.abs(slope).max())
    np.testing.assert_allclose(of_given[path][...], slope, atol=most, err_msg=path)


HOLDS = ["padding", "cached_decoding", "spans", "long_texts", "gradients", "bfloat16", "memory"]


@pytest.mark.parametrize("options", [FORWARD, COUNTED], ids=str)
@pytest.mark.parametrize("name", HOLDS)
def test_what_holds_with_a_factor(options, name):
  layers = posexp.encoding("by_layer", pattern=["rope window=3", "alibi"])
  case = properties.Case(layers, causal=True, options=tuple(options.items()))
  relative = options is COUNTED  # positions count from the memory's first slot
  assert (name == "memory" and not relative) or not list(getattr(properties, name)(case))


def test_which_layers_have_a_factor_and_what_is_refused():
  few = {"d_model": 8, "num_heads": 2, "d_ff": 8, "num_layers": 3}
  llama = {"logits_by": "llama4", "logits_length": 4}

  def build(name, options, **size):
    chosen = posexp.encoding(name, **options)
    size = Size(**few, **size)
    return Stack(9, chosen, size, causal=chosen.causal_only, rngs=Rngs(params=0, encoding=1)).blocks

  layers = "by_layer", {"pattern": ["fire window=3", "alibi"]}
  blocks = build(*layers, **llama, logits_in="full")
  assert [block.attention.factor is None for block in blocks] == [True, False, True]
  for chosen, options, message in (
    (("rope", {}), llama, "logits_by=llama4 is of positions in a text that is read forward"),
    (("split", {"form": "position_only"}), {"logits_scale": 2.0}, "logits_scale=2 multiplies"),
    (layers, {"logits_by": "ssmax"}, "logits_length must be given with logits_by=ssmax"),
    (
      layers,
      {"logits_rate": 2.0},
      "logits_rate is for logits_by=llama4, ministral, beam, inkling;",
    ),
  ):
    with pytest.raises(ValueError, match=f"^{message}[^\n]*$"):
      build(*chosen, **options)
