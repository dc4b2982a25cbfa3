"""Limits, widths and refusals: where an encoding ends, and that it says so in one sentence."""

import functools
import operator
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import DEFAULTS, UNDEFINED
from flax import nnx
from seed import some
from small import SMALL, L, rngs, some_tokens, stack

from posexp.analysis.properties import VOCAB
from posexp.encodings import ENCODINGS
from posexp.encodings.disentangled import TUPE
from posexp.encodings.rngs import Rngs
from posexp.models.language_model import LanguageModelSpec
from posexp.models.positions import Positions
from posexp.models.size import Size
from posexp.models.transformer import Stack

LIMITED = [case for case in DEFAULTS if case.values[0].limit is not None]
assert {"learned", "split"} <= {case.id for case in LIMITED}


def built(encoding, *, causal, **size):
  return Stack(VOCAB, encoding, Size(**SMALL | size), causal=causal, rngs=rngs())


@pytest.mark.parametrize("encoding", LIMITED)
def test_beyond_the_limit_is_an_error(encoding):
  if UNDEFINED.get(encoding) is True:
    pytest.skip("not defined in a decoder")
  limit = encoding.limit
  tokens = jnp.ones((1, limit + 1), int)

  def shape_of(use):
    return jax.eval_shape(lambda: use(built(encoding, causal=True)))

  assert shape_of(lambda model: model(tokens[:, 1:])).shape == (1, limit, SMALL["d_model"])
  shape_of(lambda model: model.empty_cache(1, limit))
  for use in (
    lambda model: model(tokens),
    lambda model: model.empty_cache(1, limit + 1),
    lambda model: model.recur(tokens[:, :1], model.empty_memory(1, limit)),
  ):
    message = f"a sequence of {limit + 1} tokens, but the encoding has {limit} positions"
    with pytest.raises(ValueError, match=message):
      shape_of(use)


LIMIT = 4
SHORT = {"learned": {"length": LIMIT}, "binary": {"bits": 2}, "split": {"length": LIMIT}}
SHORT |= {"tupe": {"length": LIMIT}}
assert SHORT.keys() == {case.id for case in LIMITED}


@pytest.mark.parametrize("name", some(SHORT, 1))
def test_padding_needs_no_position(name):
  encoding = ENCODINGS[name](**SHORT[name])
  mask = np.arange(L) < np.array([[LIMIT], [2], [LIMIT + 1]])
  tokens = some_tokens(rows=3)
  encoder, decoder = (built(encoding, causal=causal) for causal in (False, True))

  @jax.jit
  def both(model):
    return model(tokens, mask), model(tokens[:, :LIMIT], mask[:, :LIMIT])

  for model in (encoder, decoder):
    padded, alone = map(np.asarray, both(model))
    np.testing.assert_array_equal(padded[:, :LIMIT], alone)
    assert not padded[:2, LIMIT:].any()
    # A token there has no position, and no plausible output.
    assert np.isnan(padded[2, LIMIT]).all()
    assert np.isfinite(padded[2, :LIMIT]).all()

  spec = LanguageModelSpec(VOCAB, encoding, Size(**SMALL))
  model = spec.build(rngs())
  batch = {"tokens": tokens[:2], "labels": tokens[:2], "mask": mask[:2], "weight": np.ones(2)}
  batch |= {"fresh": np.ones(2, bool)}

  @nnx.jit
  @nnx.value_and_grad
  def sloped(model):
    streams = Rngs(dropout=0, positions=1)
    return model.loss(batch, (), label_smoothing=0.0, rngs=streams)[0]["loss"]

  loss, slopes = sloped(model)
  assert np.isfinite(loss)
  assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(slopes))


@pytest.mark.parametrize("kind", ["randomized", "shifted"])
def test_padding_may_be_longer_than_the_reach(kind):
  positions = Positions(kind, LIMIT)
  mask = np.arange(L) < np.array([[LIMIT], [2]])
  found = np.asarray(positions.training(mask, lambda: jax.random.key(0)))
  assert found.max() == LIMIT - 1
  assert found[0, :LIMIT].tolist() == [*range(LIMIT)]


@pytest.mark.parametrize("encoding", LIMITED)
def test_positions_that_do_not_exist_give_nan(encoding):
  model, limit = stack(encoding), encoding.limit

  @jax.jit
  def both(positions):
    return model.embed(some_tokens(), positions), model(some_tokens(), positions=positions)

  for first_position, first, last in ((limit - 3, 0, 3), (-3, 3, L)):
    embedded, outputs = map(np.asarray, both(first_position + np.arange(L)[None]))
    exists = np.zeros(L, bool)
    exists[first:last] = True
    assert np.isfinite(embedded[:, exists]).all()
    if not isinstance(encoding, TUPE):  # whose positions meet in the logits
      assert np.isnan(embedded[:, ~exists]).any(-1).all()
    assert np.isnan(outputs).all()


SIZES = [
  {"d_model": 33, "num_heads": 3},  # an odd width
  {"d_model": 36, "num_heads": 12},  # odd heads
  {"d_ff": 49},  # an odd width inside
]
PICKY = dict.fromkeys(["clock", "sinusoidal", "transformer_xl"], SIZES[:1])
PICKY |= dict.fromkeys(["rope", "xpos", "fope", "selective_rope", "by_layer"], SIZES[:2])
PICKY |= dict.fromkeys(["complex", "split"], SIZES)


@pytest.mark.parametrize("name", ENCODINGS)
def test_a_width_that_does_not_suit_is_refused_in_one_sentence(name):
  encoding = ENCODINGS[name]()

  def build(size):
    nnx.eval_shape(lambda: built(encoding, causal=encoding.causal_only, **size))

  refused = PICKY.get(name, ())
  for size in refused:
    with pytest.raises(ValueError, match=r"odd|even") as found:
      build(size)
    assert re.fullmatch(r"[^.\n]+", str(found.value))
  # An odd width has odd heads, and an odd width inside goes with either.
  fitting = [size for size in SIZES[::-1] if size not in refused]
  build(functools.reduce(operator.or_, fitting, {}))
