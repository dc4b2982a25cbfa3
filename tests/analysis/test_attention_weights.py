"""Attention that is measured: in whole models, and of single layers without hidden states."""

import dataclasses

import jax
import numpy as np

from posexp.analysis import attention_weights, probe
from posexp.encodings import encoding as encoding_of
from posexp.encodings.bias import ALiBi
from posexp.encodings.by_layer import ByLayer
from posexp.encodings.rngs import Rngs
from posexp.models.language_model import LanguageModelSpec
from posexp.models.positions import Positions
from posexp.models.size import Size

SIZE = Size(d_model=8, num_heads=2, d_ff=8, num_layers=2, dropout=0.0)


def test_each_layer_is_measured_within_its_own_window_in_texts_of_any_length():
  encoding = ByLayer(["rope window=2", "rope"])
  spec = LanguageModelSpec(9, encoding, SIZE, Positions())
  ones = np.ones((2, 160), np.int32)  # so long that a decoder attends in halves
  batch = {"tokens": ones, "labels": ones, "mask": ones > 0, "weight": np.ones(2)}
  batch["fresh"] = batch["weight"] > 0
  model = spec.build(Rngs(params=0, encoding=1))
  seen = attention_weights.by_offset(model, Positions(), [batch], 1)
  np.testing.assert_allclose(seen.mass.sum(-1), 1, atol=1e-5)
  np.testing.assert_allclose(seen.uniform.sum(-1), 1, atol=1e-5)
  assert (seen.uniform[:, seen.offsets == -2] > 0).ravel().tolist() == [False, True]


def test_a_profile_is_of_the_logits_of_which_the_layer_makes_weights():
  def profile(encoding, causal=True, **options):
    model = probe.untrained(encoding, dataclasses.replace(SIZE, **options), causal=causal)
    return probe.profile(model, 6)

  plain, scaled = profile(ALiBi()), profile(ALiBi(), logits_scale=4.0)
  made = 4 * plain.terms["content"] + plain.terms["bias"]
  np.testing.assert_allclose(scaled.logits, made, atol=1e-5)
  bounded = profile(ALiBi(), logits_cap=0.5)
  np.testing.assert_allclose(bounded.logits, 0.5 * np.tanh(plain.logits / 0.5), atol=1e-5)
  # A head that sees one side only sees nothing of the other below a cap, either.
  sides = profile(ALiBi(two_sided="divided"), causal=False, logits_cap=0.5)
  ahead, behind = sides.offsets > 0, sides.offsets < 0
  weights = np.asarray(jax.nn.softmax(sides.logits, axis=-1))
  assert (weights[:, :, ahead].max((0, 2)) > 0).tolist() == [False, True]
  assert (weights[:, :, behind].max((0, 2)) > 0).tolist() == [True, False]
  assert profile(ByLayer(["rope window=2", "rope"])).offsets.tolist() == [-1, 0]


def test_a_profile_needs_no_hidden_states():
  split = encoding_of("split", form="position_only")
  assert probe.profile(probe.untrained(split, SIZE), 4).spread > 0
