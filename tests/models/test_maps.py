"""Convolutions before attention, and maps of queries and keys that are tied or orthogonal."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import slopes
from flax import nnx
from seed import some
from small import SMALL, leaks, rngs, some_tokens, stack

from posexp.analysis.properties import VOCAB
from posexp.encodings import encoding
from posexp.models.convolution import in_row
from posexp.models.size import Size
from posexp.models.transformer import Stack

KINDS = [{"conv": 4, "bias": "all"}, {"conv": 3, "conv_of": "input", "qk_norm": True}]


def defined(x, taps, groups):
  """Σ_n w_n ⊙ x_{t−n} over tokens of the same group, one by one."""
  out = np.zeros(x.shape)
  for row, t in np.ndindex(x.shape[:2]):
    for n, tap in enumerate(taps):
      if t >= n and groups[row, t] == groups[row, t - n] >= 0:
        out[row, t] += tap * x[row, t - n]
  return out


@pytest.mark.parametrize("length", [1, 7])
def test_it_is_its_definition_as_are_its_gradients(length):
  groups = np.array([[-1, -1, 0, 0, 0, 0, 0], [3, 3, 1, 1, 1, 1, -1]])[:, :length]
  slopes.check(
    lambda x, taps: in_row(jnp.asarray(groups), 4)((x,), (taps,))[0],
    lambda x, taps: defined(x, taps, groups),
    slopes.draw(2, length, 5),
    slopes.draw(4, 5),
  )


@pytest.mark.parametrize(
  ("parts", "options"),
  [
    *some([(["none"], options) for options in KINDS], 1),
    (["alibi chunk=4 window=3"], {}),
    (["delta", "rope"], {}),
  ],
)
def test_nothing_leaks_from_padding_documents_or_other_hypotheses(parts, options):
  model = stack(encoding("by_layer", pattern=parts), causal=True, num_layers=2, **options)
  assert max(leaks(model)) < 2e-5
  assert model.empty_cache(2, 0).length == 0  # as beam search begins


def mapped(kind, name="sinusoidal", **size):
  return Stack(VOCAB, encoding(name), Size(**SMALL | size, qk=kind), rngs=rngs())


def trained(kind):
  """Return a stack after a step of gradient descent."""
  graphdef, params, rest = nnx.split(mapped(kind), nnx.Param, ...)

  def loss(params):
    return (nnx.merge(graphdef, params, rest)(some_tokens())[..., :2] ** 2).sum()

  slopes = jax.jit(jax.grad(loss))(params)
  moved = jax.tree.map(lambda x, slope: x - 0.1 * slope, params, slopes)
  return nnx.merge(graphdef, moved, rest)


@pytest.mark.parametrize("kind", ["tied", "orthogonal", "identity"])
def test_what_is_asked_holds_after_training(kind):
  begun = mapped(kind)
  for block, before in zip(trained(kind).blocks, begun.blocks, strict=True):
    maps = block.attention.query, block.attention.key
    assert (maps[0] is maps[1]) == (kind != "orthogonal")
    query, key = (np.asarray(each.matrix(), np.float64) for each in maps)
    assert np.abs(query - before.attention.query.matrix()).max() > 1e-3
    product, eye = query @ key.T, np.eye(len(query))
    assert np.allclose(product @ product.T, eye, atol=1e-5) == (kind != "tied")
    assert np.allclose(product, eye, atol=1e-5) == (kind == "identity")
