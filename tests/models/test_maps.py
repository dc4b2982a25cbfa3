"""Short causal convolutions: their definition, and what a token must not read."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small import SMALL, leaks, rngs

from posexp.analysis import properties
from posexp.analysis.properties import VOCAB, Case
from posexp.encodings import Encoding, encoding
from posexp.models import convolution
from posexp.models.convolution import in_row
from posexp.models.size import Size
from posexp.models.transformer import Stack

LAYERS = encoding("by_layer", pattern=["none window=2", "rope chunk=4", "none window=5"])
KINDS = [{"conv": 4, "bias": "all"}, {"conv": 3, "conv_of": "input", "qk_norm": True}]


def stack(**options):
  size = Size(**SMALL | {"num_layers": 2} | options)
  return properties.perturbed(Stack(VOCAB, Encoding(), size, causal=True, rngs=rngs()))


def some(*shape):
  return np.random.default_rng(len(shape)).normal(size=shape)


def defined(x, taps, groups):
  """Σ_n w_n ⊙ x_{t−n} over tokens of the same group, one by one."""
  out = np.zeros(x.shape)
  for row, t in np.ndindex(x.shape[:2]):
    for n, tap in enumerate(taps):
      if t >= n and groups[row, t] == groups[row, t - n] >= 0:
        out[row, t] += tap * x[row, t - n]
  return out


@pytest.mark.parametrize("length", [1, 2, 7])
def test_it_is_its_definition_as_are_its_gradients(length):
  groups = np.array([[-1, -1, 0, 0, 0, 0, 0], [3, 3, 1, 1, 1, 1, -1]])[:, :length]
  x, dout, taps = some(2, length, 5), some(2, length, 5) + 1, some(4, 5)
  with jax.enable_x64(True):
    f = lambda x, taps: in_row(jnp.asarray(groups), 4)((x,), (taps,))[0]  # noqa: E731
    got, backward = jax.vjp(f, jnp.asarray(x), jnp.asarray(taps))
    of_x, of_taps = backward(jnp.asarray(dout))
  np.testing.assert_allclose(got, defined(x, taps, groups), atol=1e-12)
  step = 1e-3  # the result is linear in both
  for given, slope in ((x, of_x), (taps, of_taps)):
    for place in np.ndindex(given.shape):
      given[place] += step
      moved = (dout * defined(x, taps, groups)).sum()
      given[place] -= 2 * step
      expected = (moved - (dout * defined(x, taps, groups)).sum()) / (2 * step)
      given[place] += step
      np.testing.assert_allclose(slope[place], expected, atol=1e-9)


@pytest.mark.parametrize("options", KINDS)
@pytest.mark.parametrize(
  "name", ["cached_decoding", "memory", pytest.param("long_texts", marks=pytest.mark.slow)]
)
def test_what_holds_with_a_convolution(name, options):
  of = Encoding() if name == "memory" else LAYERS
  case = Case(of, True, length=8, layers=of.least_layers, options=tuple(options.items()))
  assert list(getattr(properties, name)(case)) == []


@pytest.mark.parametrize("options", KINDS)
def test_nothing_leaks_from_padding_documents_or_other_hypotheses(options):
  assert max(leaks(stack(**options))) < 2e-5
  assert stack(**options).empty_cache(2, 0).length == 0  # as beam search begins


def test_a_leak_is_found(monkeypatch):
  everything = lambda groups, width: in_row(None, width)  # noqa: E731
  monkeypatch.setattr("posexp.models.transformer.in_row", everything)
  slots = convolution.slots_before
  forgets = lambda own, count, seen=None: slots(own, count)  # noqa: E731
  monkeypatch.setattr("posexp.models.transformer.slots_before", forgets)
  assert min(leaks(stack(**KINDS[0]))) > 1e-3


def test_it_sees_the_order_that_attention_alone_does_not():
  tokens = jnp.asarray([[3, 5, 7, 9], [5, 3, 7, 9]])
  one = {"num_layers": 1}
  first, other = (
    np.abs(np.diff(stack(**one | each)(tokens)[:, -1], axis=0)).max() for each in ({}, KINDS[0])
  )
  assert first < 1e-5 < 1e-3 < other


def test_all_other_parts_start_as_without_it_and_it_starts_near_the_identity():
  plain, own = (
    properties.paths(Stack(VOCAB, Encoding(), Size(**SMALL, **each), causal=True, rngs=rngs()))
    for each in ({}, KINDS[0])
  )
  more = {path: x for path, x in own.items() if "conv" in path}
  assert [x.shape for x in more.values()] == [(4, 32)] * 2
  assert all(0.015 < x.std() < 0.025 for x in more.values())
  assert own.keys() - more.keys() >= plain.keys()
  for path, x in plain.items():
    np.testing.assert_array_equal(own[path], x)


def test_an_encoder_has_none():
  with pytest.raises(ValueError, match="conv=4 reads the tokens before each one"):
    Stack(VOCAB, Encoding(), Size(**SMALL, conv=4), rngs=rngs())
