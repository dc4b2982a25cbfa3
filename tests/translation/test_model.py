"""A translator in training, at positions that are drawn."""

import functools

import numpy as np
import pytest
from flax import nnx

from posexp.encodings.relative import RPR
from posexp.encodings.rngs import Rngs
from posexp.models.positions import Positions
from posexp.models.size import Size
from posexp.translation.model import TranslatorSpec

B, L, VOCAB = 3, 6, 23
SIZE = Size(d_model=32, num_heads=4, d_ff=32, num_layers=1, dropout=0.0)
MASK = np.arange(L) < np.array([[3], [6], [1]])
TOKENS = np.random.default_rng(0).integers(1, VOCAB, (B, L))


@pytest.mark.slow
def test_random_positions_do_not_tell_a_translator_how_long_its_target_is():
  @functools.cache
  def built(positions, slots):
    return TranslatorSpec(VOCAB, VOCAB, RPR(k=8), SIZE, positions, slots).build(
      Rngs(params=0, encoding=1)
    )

  @nnx.jit
  def program(model, pair):
    return model.hidden(pair, rngs=Rngs(positions=1, dropout=2))

  def hidden(positions, slots, width, length):
    real = np.arange(width) < length
    target = np.where(real, np.resize(np.arange(1, VOCAB), width), 0)
    pair = {"source": TOKENS, "source_mask": MASK, "target": np.tile(target, (B, 1))}
    pair["mask"] = np.tile(real, (B, 1))
    return np.asarray(program(built(positions, slots), pair))[:, :3]

  positions = Positions("randomized", 40)
  short = hidden(positions, 12, 4, 4)
  for width, length in ((L, 4), (L, L), (16, 4)):
    np.testing.assert_allclose(hidden(positions, 12, width, length), short, atol=2e-5)
  assert not np.allclose(hidden(positions, None, L, L), short, atol=1e-3)
