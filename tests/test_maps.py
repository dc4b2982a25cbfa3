"""Attention maps are those of the translation that was found, and drawn as such."""

import io

import numpy as np
import pytest
from flax import nnx
from translators import TEXTS, untrained

from posexp.analysis import attention, figures
from posexp.analysis.line_translation import LineTranslator
from posexp.data.tokenizer import EOS
from posexp.encodings import Span
from posexp.models.decoding import Search
from posexp.training.restore import open_translator

pytestmark = pytest.mark.usefixtures("compile_quickly")


@pytest.fixture(scope="module")
def found(tmp_path_factory, compile_quickly):
  """A translator, and what it makes of a few translator."""
  path = tmp_path_factory.mktemp("runs") / "run"
  untrained(path)
  opened = open_translator(path)
  return opened, LineTranslator(opened, Search(2), 8)([*TEXTS, "four", "two one"])


def test_maps_are_of_the_translation_that_was_found(found):
  opened, said = found
  for each in said:
    batch = attention.pair(each.source, each.target)
    loss = opened.snapshot.program.predict(opened.snapshot.state, batch)[0]["loss"]
    assert -float(loss[0]) == pytest.approx(each.score, abs=1e-4)
    seen = attention.of_translation(opened, each.source, each.target)
    s, t = len(each.source), len(each.target)
    assert seen.encoder.shape == (1, 2, s, s)
    assert seen.decoder.shape == (1, 2, t, t)
    assert seen.cross.shape == (1, 2, t, s)
    for weights in (seen.encoder, seen.decoder, seen.cross):
      np.testing.assert_allclose(weights.sum(-1), 1, atol=1e-5)
      assert weights.min() >= 0
    assert (np.triu(seen.decoder, 1) == 0).all()
    assert (seen.read[0], seen.source[-1]) == ("[BOS]", "[EOS]")
    assert seen.read[1:] == seen.written[:-1]
    assert (len(seen.source), len(seen.written)) == (s, t)


def test_maps_are_the_weights_of_the_model(found):
  """Those of the first layer of the encoder, from its parts."""
  opened, said = found
  each = max(said, key=lambda one: len(one.source))
  seen = attention.of_translation(opened, each.source, each.target)
  state = opened.snapshot.state
  model = nnx.merge(opened.snapshot.program.graphdef, state.params, state.settings)
  tokens = np.array([each.source])
  block, positions = model.encoder.blocks[0], np.arange(tokens.shape[1])[None]
  x = model.encoder.read(tokens, positions, None)
  context = block.context(x)
  everything = np.ones((1, tokens.shape[1], tokens.shape[1]), bool)
  span = model.encoder.ready(Span(positions, positions, everything))
  k, _ = block.attention.keys_values(context)
  weights = block.attention.weights(context, k, span)[0]
  np.testing.assert_allclose(seen.encoder[0], weights, atol=1e-5)


def test_names_of_tokens_are_no_mathematics(found):
  opened, _ = found
  # What is written is "$5$", whatever the model would have said.
  tokens = LineTranslator(opened, Search(1), 1).target.ids(["$5$"])[0]
  seen = attention.of_translation(opened, [*tokens, EOS], [*tokens, EOS])
  name, figure = next(figures.translation_maps(seen, "line 1: a price of $5$"))
  assert name == "cross"
  svg = io.StringIO()
  figure.savefig(svg, format="svg")
  assert "a price of $5$" in svg.getvalue()
  assert "".join(seen.source[:-1]) == "␣$5$"


def test_pieces_are_what_tokens_say(found):
  opened, _ = found
  (tokens,) = LineTranslator(opened, Search(1), 1).source.ids(["one [EOS] $"])
  names = attention.token_names(opened.tokenizers[0], tokens)
  assert "".join(names).replace("␣", " ") == " one [EOS] $"
  assert attention.token_names(opened.tokenizers[0], [1, EOS]) == ["[BOS]", "[EOS]"]
