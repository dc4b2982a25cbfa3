"""Of each head of an encoder, one half of the channels looks back and the other looks ahead."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest
from seed import SEED, some
from small import case_of, rngs

from posexp.analysis import conformance, properties
from posexp.encodings import ENCODINGS, Span, encoding
from posexp.models.triangles import Triangles

AT = np.array([0, 1, 4, 5, 9, 30])
HOLD = [
  (name, check)
  for name in ("none", "rope", "sinusoidal", "alibi", "t5")
  for check in (
    properties.padding,
    properties.batch_mates,
    properties.explicit_positions,
    properties.spans,
    properties.long_texts,
    properties.gradients,
    properties.bfloat16,
    properties.terms,
    properties.shift,
    conformance.weights,
  )
  if check is not properties.shift or name != "sinusoidal"
]


@pytest.mark.parametrize(("name", "check"), some(HOLD, 1))
def test_a_property_holds(name, check):
  options = (("triangles", True),)
  case = dataclasses.replace(case_of(ENCODINGS[name](), causal=False), options=options)
  assert list(check(case)) == []


def cut(x):
  """The halves [B,L,H,2,D/2] of heads [B,L,H,D]."""
  return x.reshape(*x.shape[:3], 2, -1)


@pytest.mark.parametrize("name", ["none", "rope"])
def test_halves_look_back_and_ahead(name):
  q, k, v = np.random.default_rng(SEED).normal(size=(3, 2, 6, 3, 8))
  real = np.array([[1, 1, 1, 1, 1, 1], [0, 0, 1, 1, 1, 1]], bool)
  turned = [q, k]
  if name == "rope":
    angle = np.exp(1j * np.outer(AT, 1e4 ** (-np.arange(4) / 4)))[:, None]
    turned = [((x[..., ::2] + 1j * x[..., 1::2]) * angle) for x in (q, k)]
    turned = [np.stack([x.real, x.imag], -1).reshape(q.shape) for x in turned]
  logits = np.einsum("bihsd,bjhsd->bhsij", *map(cut, turned)) / 2
  back = AT[:, None] >= AT
  seen = np.stack([back, back.T]) & real[:, None, None, None]
  weights = np.exp(logits) * seen
  weights /= np.maximum(weights.sum(-1, keepdims=True), 1e-9)
  expected = np.einsum("bhsij,bjhsd->bihsd", weights, cut(v)).reshape(v.shape)
  relation = Triangles(encoding(name).relation(3, 8, causal=False, rngs=rngs()), 8)
  span = Span(*[jnp.asarray(AT)[None]] * 2, jnp.asarray(real)[:, None])

  found = relation.attend(*map(jnp.float32, (q, k, v)), span, lambda weights: weights)
  np.testing.assert_allclose(found[real], expected[real], atol=1e-5)
