"""Streams of random keys, beside those of Flax."""

import jax
import jax.numpy as jnp
import pytest
from flax import nnx

from posexp.encodings.rngs import GivenRngs, RecordingRngs, Rngs, keys_at


def drawn(rngs):
  """The keys of a model's parts: some of its own, then some of what it forks."""
  forked = rngs.fork()
  keys = [rngs.params(), rngs.params(), forked.params(), rngs.encoding(), rngs.fork().encoding()]
  return jax.random.key_data(jnp.stack(keys))


@pytest.mark.parametrize("seeds", [{"params": 3, "encoding": 4}, {"params": 0, "encoding": 2**31}])
def test_keys_are_those_of_flax(seeds):
  expected = drawn(nnx.Rngs(**seeds)).tolist()
  assert drawn(Rngs(**seeds)).tolist() == expected
  assert jax.jit(lambda: drawn(Rngs(**seeds)))().tolist() == expected
  assert len({tuple(key) for key in expected}) == len(expected)


def test_keys_that_are_made_beforehand_are_the_same():
  paths, first = [], {"params": jax.random.key(3), "encoding": jax.random.key(4)}
  recording = RecordingRngs(paths, params=("params",), encoding=("encoding",))
  drawn(recording)
  expected = [("params", 1), ("params", 2), ("params", 0, 0), ("encoding", 1), ("encoding", 2, 0)]
  assert paths == expected
  given = GivenRngs(keys_at(paths, first))
  assert drawn(given).tolist() == drawn(Rngs(**first)).tolist()
  with pytest.raises(StopIteration):
    given.params()
