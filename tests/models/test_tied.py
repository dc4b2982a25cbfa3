"""Maps of queries and keys that share a matrix or are orthogonal."""

import jax
import numpy as np
import pytest
from flax import nnx
from small import SMALL, rngs, some_tokens

from posexp.analysis.properties import VOCAB, paths
from posexp.encodings import encoding
from posexp.models.size import Size
from posexp.models.transformer import Stack


def stack(kind, name="sinusoidal", **size):
  return Stack(VOCAB, encoding(name), Size(**SMALL | size, qk=kind), rngs=rngs())


def trained(kind):
  """Return a stack after a step of gradient descent."""
  graphdef, params, rest = nnx.split(stack(kind), nnx.Param, ...)

  def loss(params):
    return (nnx.merge(graphdef, params, rest)(some_tokens())[..., :2] ** 2).sum()

  slopes = jax.grad(loss)(params)
  moved = jax.tree.map(lambda x, slope: x - 0.1 * slope, params, slopes)
  return nnx.merge(graphdef, moved, rest)


@pytest.mark.parametrize("kind", ["tied", "orthogonal", "identity"])
def test_what_is_asked_holds_after_training(kind):
  begun = stack(kind)
  for block, before in zip(trained(kind).blocks, begun.blocks, strict=True):
    maps = block.attention.query, block.attention.key
    assert (maps[0] is maps[1]) == (kind != "orthogonal")
    query, key = (np.asarray(each.matrix(), np.float64) for each in maps)
    assert np.abs(query - before.attention.query.matrix()).max() > 1e-3
    product, eye = query @ key.T, np.eye(len(query))
    assert np.allclose(product @ product.T, eye, atol=1e-5) == (kind != "tied")
    assert np.allclose(product, eye, atol=1e-5) == (kind == "identity")


def test_all_other_parts_begin_as_without_it():
  free, own = (paths(stack(kind)) for kind in ("free", "identity"))
  missing = {*free} - {*own}
  assert len(missing) == SMALL["num_layers"]
  assert all(each.endswith("attention/query/kernel") for each in missing)
  for path, x in own.items():
    np.testing.assert_array_equal(x, free[path])


@pytest.mark.parametrize(
  ("name", "size", "message"),
  [
    ("none", {"kind": "tied", "num_kv_heads": 2}, "see num_kv_heads"),
    ("complex", {"kind": "identity"}, "has maps of its own; leave qk at free"),
    ("none", {"kind": "orthogonal", "head_dim": 48}, "lower head_dim"),
  ],
)
def test_what_cannot_be_is_said(name, size, message):
  with pytest.raises(ValueError, match=message):
    stack(name=name, **size)
