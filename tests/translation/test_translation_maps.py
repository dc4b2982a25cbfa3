"""The attention maps of a translator that is opened from its folder, which are of what it found."""

import io

import finished
import numpy as np
import pytest
from flax import nnx

from posexp.encodings import Span
from posexp.training.restore import open_alone
from posexp.translation import maps
from posexp.translation.encoded import EOS
from posexp.translation.lines import LineTranslator
from posexp.translation.search import Search


@pytest.fixture(scope="module")
def found(tmp_path_factory):
  """A translator, and what it makes of a few texts."""
  path = tmp_path_factory.mktemp("runs") / "run"
  finished.translator(path)
  opened = open_alone(path, "translate", rows=16)
  translator = LineTranslator(opened, Search(3), 16)
  said = translator(["red blue gray", "pink", "$5$", "gray pink"])
  assert not any(each.cut for each in said)
  return opened, translator, said


def test_maps_are_of_the_translation_that_was_found(found):
  opened, translator, said = found
  for each in said[0], said[3]:
    batch = maps.pair(each.source, each.target)
    loss = opened.snapshot.program.predict(opened.snapshot.state, batch)[0]["loss"]
    assert -float(loss[0]) == pytest.approx(each.score, abs=1e-4)
    encoder, decoder, cross = maps.of_translation(translator, each)
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
  opened, translator, said = found
  each = max(said, key=lambda one: len(one.source))
  seen, *_ = maps.of_translation(translator, each)

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
  _, translator, said = found
  # What is written is "$5$", whatever the model would have said.
  tokens = [*translator.target.ids(["$5$"])[0], EOS]
  *_, cross = maps.of_translation(translator, said[2]._replace(source=tokens, target=tokens))
  svg = io.StringIO()
  maps.drawn(cross, "line 1: a price of $5$").savefig(svg, format="svg")
  assert "a price of $5$" in svg.getvalue()
  assert "".join(cross.keys[:-1]) == "␣$5$"


def test_pieces_are_what_tokens_say(found):
  tokenizer = found[1].source
  (tokens,) = tokenizer.ids(["one [EOS] $"])
  names = maps.token_names(tokenizer, tokens)
  assert "".join(names).replace("␣", " ") == " one [EOS] $"
  assert maps.token_names(tokenizer, [1, EOS]) == ["[BOS]", "[EOS]"]
