"""A translator opened from its folder, and its attention maps, which are of what it found."""

import dataclasses
import io
import json

import finished
import jax
import numpy as np
import order
import pytest
import untrained
from flax import nnx
from states import assert_equal

from posexp.analysis import attention_weights, encoding_figures, probe
from posexp.analysis.line_translation import LineTranslator
from posexp.data import batches
from posexp.data.tokenizer import EOS
from posexp.encodings import Span
from posexp.encodings import encoding as encoding_of
from posexp.encodings.bias import ALiBi
from posexp.encodings.by_layer import ByLayer
from posexp.encodings.rngs import Rngs
from posexp.errors import UserError
from posexp.models.decoding import Search
from posexp.models.language_model import LanguageModelSpec
from posexp.models.positions import Positions
from posexp.models.size import Size
from posexp.tasks.translation import tokenizers
from posexp.training.restore import open_alone


@pytest.fixture(scope="module")
def found(tmp_path_factory):
  """A translator, and what it makes of a few texts."""
  path = tmp_path_factory.mktemp("runs") / "run"
  finished.translator(path)
  opened = open_alone(path, "translate", rows=16)
  said = LineTranslator(opened, Search(3), 16)(["red blue gray", "pink", "$5$", "gray pink"])
  assert not any(each.cut for each in said)
  return opened, said


def test_maps_are_of_the_translation_that_was_found(found):
  opened, said = found
  for each in said[0], said[3]:
    batch = attention_weights.pair(each.source, each.target)
    loss = opened.snapshot.program.predict(opened.snapshot.state, batch)[0]["loss"]
    assert -float(loss[0]) == pytest.approx(each.score, abs=1e-4)
    encoder, decoder, cross = attention_weights.of_translation(opened, each.source, each.target)
    s, t = len(each.source), len(each.target)
    assert encoder.weights.shape == (1, 2, s, s)
    assert decoder.weights.shape == (1, 2, t, t)
    assert cross.weights.shape == (1, 2, t, s)
    for seen in (encoder, decoder, cross):
      np.testing.assert_allclose(seen.weights.sum(-1), 1, atol=1e-5)
      assert seen.weights.min() >= 0
      assert (len(seen.queries), len(seen.keys)) == seen.weights.shape[2:]
    assert (np.triu(decoder.weights, 1) == 0).all()
    assert (decoder.keys[0], cross.keys[-1]) == ("[BOS]", "[EOS]")
    assert decoder.keys[1:] == decoder.queries[:-1]


def test_maps_are_the_weights_of_the_model(found):
  """Those of the first layer of the encoder, from its parts."""
  opened, said = found
  each = max(said, key=lambda one: len(one.source))
  seen, *_ = attention_weights.of_translation(opened, each.source, each.target)

  @nnx.jit
  def weights(model, tokens):
    block, positions = model.encoder.blocks[0], np.arange(tokens.shape[1])[None]
    read, k, *_ = block.held(model.encoder.read(tokens, positions, None))
    everything = np.ones((1, tokens.shape[1], tokens.shape[1]), bool)
    span = model.encoder.ready(Span(positions, positions, everything))
    return block.attention.relation.weights(block.attention.queries(read), k, span)[0]

  expected = weights(opened.snapshot.model(), np.array([each.source]))
  np.testing.assert_allclose(seen.weights[0], expected, atol=1e-5)


def test_names_of_tokens_are_no_mathematics(found):
  opened, _ = found
  # What is written is "$5$", whatever the model would have said.
  tokens = LineTranslator(opened, Search(1), 1).target.ids(["$5$"])[0]
  *_, cross = attention_weights.of_translation(opened, [*tokens, EOS], [*tokens, EOS])
  svg = io.StringIO()
  encoding_figures.weight_map(cross, "line 1: a price of $5$").savefig(svg, format="svg")
  assert "a price of $5$" in svg.getvalue()
  assert "".join(cross.keys[:-1]) == "␣$5$"


def test_pieces_are_what_tokens_say(found):
  opened, _ = found
  (tokens,) = LineTranslator(opened, Search(1), 1).source.ids(["one [EOS] $"])
  source, _ = tokenizers(opened.setup.task, opened.run.path)
  names = attention_weights.token_names(source, tokens)
  assert "".join(names).replace("␣", " ") == " one [EOS] $"
  assert attention_weights.token_names(source, [1, EOS]) == ["[BOS]", "[EOS]"]


def test_lengths_of_batches():
  assert [batches.padded_length(n) for n in (1, 8, 9, 16, 17, 100)] == [8, 8, 16, 16, 32, 128]
  assert batches.padded_length(17, limit=20) == 20


@pytest.mark.slow
def test_a_size_that_was_matched_is_the_one_of_the_checkpoint(home):
  matched = ["model.match=parameters", "model.match_to=none", "model.d_ff=128", "encoding=rpr"]
  path = untrained.run(home / "run", *order.NUMBERS, *order.MODEL, *matched)
  kept = (path / "config.yaml").read_text()
  params = open_alone(path, "translate").snapshot.state.params
  width = params["encoder"]["blocks"][0]["feed_forward"]["up"]["bias"].shape[0]
  assert width != 128
  (path / "config.yaml").write_text(kept.replace("match: parameters", "match: flops"))
  with pytest.raises(UserError, match="has not finished: which d_ff"):
    open_alone(path, "translate")
  (path / "summary.json").write_text(json.dumps({"d_ff": width}))
  assert_equal(open_alone(path, "translate").snapshot.state.params, params)


def test_each_layer_is_measured_within_its_own_window_in_texts_of_any_length():
  size = Size(d_model=8, num_heads=2, d_ff=8, num_layers=2, dropout=0.0)
  encoding = ByLayer(["rope window=2", "rope"])
  spec = LanguageModelSpec(9, encoding, size, Positions())
  ones = np.ones((2, 160), np.int32)  # so long that a decoder attends in halves
  batch = {"tokens": ones, "labels": ones, "mask": ones > 0, "weight": np.ones(2)}
  batch["fresh"] = batch["weight"] > 0
  model = spec.build(Rngs(params=0, encoding=1))
  seen = attention_weights.by_offset(model, Positions(), [batch], 1)
  np.testing.assert_allclose(seen.mass.sum(-1), 1, atol=1e-5)
  np.testing.assert_allclose(seen.uniform.sum(-1), 1, atol=1e-5)
  assert (seen.uniform[:, seen.offsets == -2] > 0).ravel().tolist() == [False, True]


def test_a_profile_is_of_the_logits_of_which_the_layer_makes_weights():
  size = Size(d_model=8, num_heads=2, d_ff=8, num_layers=2, dropout=0.0)

  def profile(encoding, causal=True, **options):
    model = probe.untrained(encoding, dataclasses.replace(size, **options), causal=causal)
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
  size = Size(d_model=8, num_heads=2, d_ff=8, num_layers=1, dropout=0.0)
  split = encoding_of("split", form="position_only")
  assert probe.profile(probe.untrained(split, size), 4).spread > 0
