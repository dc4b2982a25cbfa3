"""The bits of dropout: fair, and unlike each other wherever two could meet."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from posexp.kernels.random_bits import random_bits
from posexp.models.attention import Dropout

SHAPE = (64, 3, 37)
COUNT = 64 * 3 * 37


def bits(seed, shape=SHAPE):
  return np.asarray(random_bits(jax.random.fold_in(jax.random.key(0), seed), shape))


def test_every_bit_is_fair_and_the_numbers_are_uniform():
  drawn = np.stack([bits(seed) for seed in range(20)])
  share = [(drawn >> bit & 1).mean() for bit in range(32)]
  assert np.abs(np.array(share) - 0.5).max() < 4.5 * 0.5 / np.sqrt(drawn.size)
  assert stats.kstest(drawn.ravel() / 2**32, "uniform").pvalue > 1e-3


def test_numbers_of_one_array_all_differ():
  assert len(np.unique(bits(0))) == COUNT


@pytest.mark.parametrize("bit", [0, 31])
def test_neighbors_and_masks_of_other_keys_are_not_correlated(bit):
  masks = [2.0 * (bits(seed) >> bit & 1) - 1 for seed in range(12)]
  pairs = [float((a * b).mean()) for a, b in itertools.combinations(masks, 2)]
  for axis, lag in itertools.product(range(3), (1, 2)):
    pairs += [float((mask * np.roll(mask, lag, axis)).mean()) for mask in masks]
  assert np.abs(pairs).max() < 4.5 / np.sqrt(COUNT)
  assert np.std(pairs) == pytest.approx(1 / np.sqrt(COUNT), rel=0.3)


def test_keys_that_differ_in_one_bit_give_other_masks():
  words = jnp.array([5, 9], jnp.uint32)
  base = np.asarray(random_bits(jax.random.wrap_key_data(words), SHAPE))
  for word, bit in itertools.product((0, 1), range(0, 32, 5)):
    key = jax.random.wrap_key_data(words.at[word].set(words[word] ^ (1 << bit)))
    other = np.asarray(random_bits(key, SHAPE))
    agree = (base >> 31 == other >> 31).mean()
    assert abs(agree - 0.5) < 5 * 0.5 / np.sqrt(COUNT)


@pytest.mark.parametrize("rate", [0.1, 0.5, 1 - 1e-12])
def test_dropout_keeps_the_mean(rate):
  kept = np.asarray(Dropout(rate, jax.random.key(1))(jnp.ones(SHAPE)))
  np.testing.assert_allclose(kept[kept != 0], 1 / (1 - rate), rtol=1e-6)
  assert abs((kept != 0).mean() - (1 - rate)) < 4.5 * np.sqrt(rate * (1 - rate) / COUNT) + 1e-9
