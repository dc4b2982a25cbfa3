"""Text out of language models: what is drawn, and what a text of one's own costs."""

import functools
import itertools

import numpy as np
import pytest
from flax import nnx
from seed import some

from posexp.encodings.additive import Learned, Sinusoidal
from posexp.encodings.contextual import CoPE
from posexp.encodings.distance import FIRE
from posexp.encodings.relative import TransformerXL
from posexp.encodings.rngs import Rngs
from posexp.encodings.rotary import RoPE
from posexp.language import sampling
from posexp.language.sampling import Sampling
from posexp.language.vocabulary import END
from posexp.models.language_model import LanguageModelSpec
from posexp.models.positions import CONSECUTIVE, Positions
from posexp.models.size import Size

SEGMENT, VOCABULARY = 6, 11
MODELS = {  # encoding, memory, positions
  "long memory": (TransformerXL(), 15, CONSECUTIVE),
  "short memory": (FIRE(), 4, CONSECUTIVE),
  "same length": (TransformerXL(), 4, CONSECUTIVE),
  "absolute": (Sinusoidal(at="attention"), 6, CONSECUTIVE),
  "windows": (Learned(length=SEGMENT), 0, CONSECUTIVE),
  "spread windows": (Sinusoidal(), 0, Positions("randomized", 64, "spaced")),
  "spread memory": (RoPE(), 6, Positions("randomized", 64, "drawn")),
  "context": (CoPE(), 7, CONSECUTIVE),
}


@functools.cache
def built(encoding, memory, positions, same=False):
  """A language model that was not trained, and its parts."""
  size = Size(d_model=16, num_heads=2, d_ff=16, num_layers=2, memory=memory, same_length=same)
  model = LanguageModelSpec(VOCABULARY, encoding, size, positions).build(Rngs(params=0, encoding=1))
  return model, nnx.split(model, nnx.Param, ...)


@nnx.jit
def predict(model, batch, carry):
  return model.predict(batch, carry)


def predicted(model, text, memory):
  """log p of every token of texts [B,N] but the first, read in segments, or in windows."""
  found, carry = {}, model.initial_carry(len(text))
  targets = text.shape[1] - 1
  for start in range(0, targets, SEGMENT if memory else SEGMENT // 2):
    part = np.zeros((len(text), SEGMENT + 1), int)
    cut = text[:, start : start + SEGMENT + 1]
    part[:, : cut.shape[1]] = cut
    batch = {
      "tokens": part[:, :-1],
      "labels": part[:, 1:],
      "mask": np.ones((len(text), SEGMENT), bool),
      "fresh": np.full(len(text), start == 0 or not memory),
    }
    got, carry = predict(model, batch, carry)
    for place in range(min(SEGMENT, targets - start)):
      found.setdefault(start + place, -np.asarray(got["nll"])[:, place])  # of the first window
  return np.stack([found[place] for place in range(targets)], axis=1)


def drawn(parts, prompt, count, rows=1, **options):
  """Tokens [rows,count], and their log p."""
  found = sampling.generate(
    *parts, prompt, segment=SEGMENT, rows=rows, sampling=Sampling(**options)
  )
  return (np.stack(each, axis=1) for each in zip(*itertools.islice(found, count), strict=True))


@pytest.mark.parametrize(
  ("name", "length"), some([(name, (20, 0)[k % 2]) for k, name in enumerate(MODELS)], 1)
)
def test_tokens_have_the_probabilities_that_the_model_gives_for_the_whole_text(name, length):
  encoding, memory, positions = MODELS[name]
  model, parts = built(encoding, memory, positions, name == "same length")
  prompt = np.random.default_rng(0).integers(1, VOCABULARY, length).tolist()
  tokens, log_p = drawn(parts, prompt, 25, rows=2)
  text = np.concatenate([np.tile([END, *prompt], (2, 1)), tokens], axis=1)
  np.testing.assert_allclose(log_p, predicted(model, text, memory)[:, length:], atol=1e-4)
  assert (tokens[0] != tokens[1]).any()


@pytest.mark.parametrize("name", some(["same length", "spread windows", "spread memory"], 1))
def test_what_fits_in_a_segment_is_drawn_by_one_program_alike(name):
  encoding, memory, positions = MODELS[name]
  _, parts = built(encoding, memory, positions, name == "same length")
  expected, _ = drawn(parts, [3, 1], SEGMENT - 2, rows=2)
  graphdef, *weights = parts
  go_on = sampling.continuer(graphdef, SEGMENT, SEGMENT - 2)
  found = go_on(*weights, np.tile(np.int32([3, 1]), (2, 1)))
  np.testing.assert_array_equal(found, expected)
  assert len({tuple(row) for row in expected.tolist()}) > 1
  other = np.int32([[2, 2], [3, 1]])
  np.testing.assert_array_equal(go_on(*weights, other)[1:], expected[1:])


LOGITS = np.log([[0.4, 0.05, 0.3, 0.05, 0.2]]).astype(np.float32)


@pytest.mark.parametrize(
  ("options", "shares"),
  [
    ({"temperature": 0}, [1, 0, 0, 0, 0]),
    ({"temperature": 1e-37}, [1, 0, 0, 0, 0]),
    ({"top_k": 9}, [0.4, 0.05, 0.3, 0.05, 0.2]),
    ({"temperature": 0.5}, np.square([0.4, 0.05, 0.3, 0.05, 0.2]) / 0.295),
    ({"top_k": 2}, [4 / 7, 0, 3 / 7, 0, 0]),
    ({"top_p": 0.65}, [4 / 7, 0, 3 / 7, 0, 0]),
    ({"top_p": 0.75}, [4 / 9, 0, 3 / 9, 0, 2 / 9]),
    ({"top_p": 1e-6}, [1, 0, 0, 0, 0]),
    ({"top_k": 2, "top_p": 0.56}, [1, 0, 0, 0, 0]),  # 0.4 is 4/7 of what two have
  ],
)
def test_tokens_are_drawn_as_the_options_say(options, shares):
  rows = np.tile(LOGITS, (4_000, 1))
  found = np.asarray(sampling.draw(rows, np.int32(3), Sampling(**options).options()))
  counts = np.bincount(found, minlength=5) / len(found)
  np.testing.assert_allclose(counts, shares, atol=0.03)
  assert not counts[np.asarray(shares) == 0].any()


@pytest.mark.parametrize(
  ("encoding", "memory", "positions", "message"),
  [
    (Learned(length=6), 0, CONSECUTIVE, "7 tokens, but the encoding has 6 positions"),
    (RoPE(), 4, Positions("randomized", 10, "spaced"), "11 tokens, but positions.reach=10"),
  ],
)
def test_what_is_read_at_once_must_have_positions(encoding, memory, positions, message):
  size = Size(d_model=16, num_heads=2, num_layers=1, memory=memory)
  spec = LanguageModelSpec(VOCABULARY, encoding, size, positions)
  spec.check(6)
  with pytest.raises(ValueError, match=message):
    spec.check(7)
