"""Mechanisms of 2023 to 2026 beside arrays of their reference implementations, with gradients."""

import collections
import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from seed import some

import posexp
from posexp.encodings import Span, reflections
from posexp.encodings.base import scaled
from posexp.encodings.rngs import Rngs
from posexp.kernels.gradients import weighted_sum
from posexp.models.logits import Factor
from posexp.models.size import Size
from posexp.models.transformer import Stack

# Each case has its options, arrays that go `in` (those with a path are parameters), what is
# `expected` where it is `shown`, and gradients for the cotangent `dout`.
GOLDEN = np.load(Path(__file__).with_name("references.npz"))
CASES = [name.removesuffix("/case") for name in GOLDEN if name.endswith("/case")]
BY_ENCODING = collections.defaultdict(list)
for name in CASES:
  BY_ENCODING[json.loads(str(GOLDEN[f"{name}/case"]))["encoding"]].append(name)
ONE_EACH = [case for names in BY_ENCODING.values() for case in some(names, 1)]
SMALL = {"d_model": 8, "num_heads": 2, "d_ff": 8, "num_layers": 3}


def by_path(state):
  return {"/".join(map(str, path)): x for path, x in nnx.to_flat_state(state)}


@pytest.mark.parametrize("name", ONE_EACH)
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

  @jax.jit
  def sloped(params, given, dout):
    got, backward = jax.vjp(found, params, given)
    return got, *backward(dout)

  got, of_params, of_given = sloped(params, given, jnp.asarray(dout))
  everything = of_given | by_path(of_params) | {"": got}
  for path, expected in (slopes | {"": own["expected"]}).items():
    most = 1e-5 * max(1, np.abs(expected).max())
    np.testing.assert_allclose(everything[path][...], expected, atol=most, err_msg=path)


def test_a_factor_may_be_of_the_layers_alone_that_see_everything():
  size = Size(**SMALL, logits_by="llama4", logits_length=4, logits_in="full")
  layers = posexp.encoding("by_layer", pattern=["alibi window=3", "none"])
  blocks = Stack(9, layers, size, causal=True, rngs=Rngs(params=0, encoding=1)).blocks
  assert [block.attention.factor is None for block in blocks] == [True, False, True]


def test_reflections_are_those_of_path():
  own = {key[5:]: jnp.asarray(GOLDEN[key]) for key in GOLDEN if key.startswith("path/")}
  *given, dout, log_f = (
    own[f"in/{name}"] for name in ("q", "k", "v", "w", "beta", "dout", "log_f")
  )
  span = Span.within(None, jnp.ones((2, 1, 9), bool), True)

  @jax.jit
  def found(q, k, v, w, beta):
    of_key = (lambda at: jnp.take(w, at[0], axis=1)[:, None]), jnp.arange(9)[None]
    logits = reflections.reflected(scaled(q), k, beta, span.visible, *of_key)
    seen = span.visible[:, None]
    weights = jax.nn.softmax(jnp.where(seen, logits, -jnp.inf))
    return weighted_sum(weights, v), jnp.where(seen, logits, 0)

  (got, logits), backward = jax.vjp(found, *given)
  slopes = dict(zip(("q", "k", "v", "w", "beta"), backward((dout, 0 * logits)), strict=True))
  slopes = {f"grad_{name}": slope for name, slope in slopes.items()}
  for name, each in (slopes | {"out": got, "logits_bhij": logits}).items():
    np.testing.assert_allclose(each, own[f"plain/{name}"], atol=1e-5, err_msg=name)

  layer = {key[13:]: own[key] for key in own if key.startswith("layer_oracle/")}
  kind = {"causal": True, "rngs": Rngs(params=0, encoding=1)}
  scores = {}
  arrays = {"none": "plain", "library": "forget_fla", "paper": "forget_paper_oracle"}
  for gates, array in arrays.items():
    chosen = posexp.encoding("path", gates=gates)
    relation, columns = chosen.relation(2, 8, **kind), chosen.columns(16, 2, 8, **kind).key
    for name, x in (("in", "W_w1"), ("out", "W_w2")):
      getattr(columns, f"kernel_{name}")[...] = layer[x].T
    columns.beta[...], columns.beta_bias[...] = layer["W_beta"].T, layer["b_beta"]
    relation.taps[...] = layer["conv"].reshape(2, 8, 3).transpose(2, 0, 1)
    direction, beta, *_ = jax.jit(columns.__call__)(layer["x"])
    at = span.replace(key_columns=[direction, beta, *[log_f] * (gates != "none")])
    logits = jax.jit(relation.score)(*given[:2], at)
    scores[array] = jnp.where(span.visible[:, None], logits, 0)
    added = own[f"{array}/logits_bhij"] - own["plain/logits_bhij"]
    np.testing.assert_allclose(scores[array] - scores["plain"], added, atol=1e-5)
  np.testing.assert_allclose(beta, layer["beta"], atol=1e-5)
  normal, places = relation.normals(direction, span.mask)
  for j in range(9):
    np.testing.assert_allclose(normal(places[..., j])[:, 0], layer["w"][:, j], atol=1e-5)
