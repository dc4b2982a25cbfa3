"""FastText, CNN and LSTM: their numbers, what suits them, and what is in their runs."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from posexp.encodings import ENCODINGS, encoding
from posexp.encodings.rngs import Rngs
from posexp.models.backbones import CNNSize, FastTextSize, LSTMSize, refusal
from posexp.models.classifier import ClassifierSpec
from posexp.models.size import Size

# A case of Wang et al. 2020, appendix B, and of its real form, evaluated naively in float64: the
# logits of each network, and its parameters by their paths here. Biases of the forget gate
# are 1 less than its, as here 1 is added to them.
STORED = dict(np.load(Path(__file__).with_name("backbones.npz")))
SMALL = {"d_model": 16, "dropout": 0.0}
SIZES = {
  "fasttext": FastTextSize(**SMALL),
  "lstm": LSTMSize(**SMALL, hidden=8),
  "cnn": CNNSize(**SMALL, filters=6, widths=(2, 3)),
}
IN_ATTENTION = {
  "rpr", "transformer_xl", "rope", "xpos", "alibi", "t5", "kerple", "fire", "sandwich", "deberta",
  "tupe", "cope", "fox", "selective_rope", "inkling", "pope", "fope", "stick_breaking", "grape",
  "path", "delta", "dape", "by_layer",
}  # fmt: skip
VOCAB, L = 11, 8


def model(encoding, size, vocab=VOCAB):
  return ClassifierSpec(vocab, 3, encoding, size).build(Rngs(params=0, encoding=1))


def logits(model, tokens, lengths):
  mask = np.arange(tokens.shape[1]) < np.asarray(lengths)[:, None]
  return np.asarray(nnx.jit(type(model).__call__)(model, tokens, mask), np.float64)


@pytest.mark.parametrize(
  ("name", "form"),
  [
    *((name, "complex") for name in SIZES),
    ("lstm", "real"),
    *(pytest.param(name, "real", marks=pytest.mark.slow) for name in ("fasttext", "cnn")),
  ],
)
def test_they_are_the_networks_of_the_paper(name, form):
  pair = 1 if form == "real" else 2
  options = {"d_model": 6 * pair, "dropout": 0.0, "input_scale": (6 * pair) ** -0.5}
  size = {
    "fasttext": lambda: FastTextSize(**options),
    "lstm": lambda: LSTMSize(**options, hidden=5 * pair),
    "cnn": lambda: CNNSize(**options, filters=4 * pair),
  }[name]()
  made = model(encoding("learned" if form == "real" else "complex"), size)
  for path, param in nnx.to_flat_state(nnx.state(made, nnx.Param)):
    param[...] = STORED["/".join([name, form, *map(str, path)])]
  found = logits(made, STORED["tokens"], STORED["lengths"])
  np.testing.assert_allclose(found, STORED[f"{name}/{form}"], atol=2e-6, rtol=2e-6)


@pytest.mark.parametrize("name", ENCODINGS)
def test_an_encoding_suits_them_unless_it_acts_in_attention_alone(name):
  why = refusal(name, ENCODINGS[name](), SIZES["cnn"])
  assert (why is not None) == (name in IN_ATTENTION)
  if why:
    assert why.startswith(f"{name} acts in attention, which model=cnn does not have; choose ")
  assert refusal(name, ENCODINGS[name](), Size()) is None


@pytest.mark.parametrize(
  ("name", "options", "option"),
  [
    ("learned", {"at": "attention"}, "at"),
    ("split", {"form": "position_only"}, "form"),
    ("split", {"attention": "content"}, "attention"),
    ("rpr", {"absolute": "sinusoidal", "k": 4}, "k"),
    ("rpr", {"absolute": "sinusoidal"}, None),
    ("split", {"norms": "joint"}, "norms"),
    ("complex", {"score": "modulus"}, "score"),
    ("complex", {"order": False, "distances": "transformer_xl"}, "distances"),
    ("learned", {"combine": "product", "length": 9}, None),
    ("sinusoidal", {"base": 7.0}, None),
    ("split", {"form": "added", "length": 9}, None),
    ("complex", {"order": False}, None),
    ("complex", {"network": "real", "wrap": 4, "shared_period": "word"}, None),
    ("complex", {"weights": "shared", "initial_phase": True}, None),
  ],
)
def test_so_does_each_of_its_options(name, options, option):
  why = refusal(name, encoding(name, **options), SIZES["lstm"])
  if option is None:
    assert why is None
  else:
    default = getattr(ENCODINGS[name](), option)
    assert why == (
      f"{name}.{option} acts in a Transformer's blocks, which model=lstm does not have; leave it "
      f"at {default}"
    )


@pytest.mark.parametrize(
  ("name", "size"),
  [
    ("split", "fasttext"),
    ("complex", "lstm"),
    ("normalized", "cnn"),
    pytest.param("complex", "fasttext", marks=pytest.mark.slow),
    pytest.param("split", "lstm", marks=pytest.mark.slow),
  ],
)
def test_padding_changes_nothing_and_gradients_reach_all_parameters(name, size):
  made = model(encoding(name), SIZES[size])
  short = np.random.default_rng(0).integers(1, VOCAB, (2, 4))
  long = np.pad(short, ((0, 0), (0, 4)), constant_values=5)
  lengths = np.array([4, 1])

  @nnx.jit
  @nnx.value_and_grad(has_aux=True)
  def loss(model, tokens):
    found = model(tokens, jnp.arange(tokens.shape[1]) < lengths[:, None])
    return (found**2).sum(), found

  (_, one), grads = loss(made, short)
  (_, two), others = loss(made, long)
  np.testing.assert_allclose(one, two, atol=1e-6)
  for (path, leaf), other in zip(nnx.to_flat_state(grads), jax.tree.leaves(others), strict=True):
    np.testing.assert_allclose(leaf[...], other, atol=1e-5)
    assert np.abs(leaf[...]).max() > 0 or path[-1] == "frequency", path


@pytest.mark.parametrize(
  ("name", "options", "blind"),
  [
    ("none", {}, True),
    ("learned", {}, True),
    ("binary", {"combine": "concat"}, True),
    pytest.param("sinusoidal", {}, True, marks=pytest.mark.slow),
    ("split", {}, True),
    ("complex", {"order": False}, True),
    ("learned", {"combine": "product"}, False),
    pytest.param("sinusoidal", {"combine": "product"}, False, marks=pytest.mark.slow),
    ("complex", {}, False),
    ("complex", {"network": "real"}, False),
  ],
)
def test_a_mean_sees_order_where_positions_are_multiplied(name, options, blind):
  chosen = encoding(name, **options)
  assert chosen.order_blind == blind
  made = model(chosen, SIZES["fasttext"])
  params = nnx.state(made, nnx.Param)
  draw = np.random.default_rng(0)

  def noisy(x):
    return jnp.asarray(np.asarray(x) + 0.3 * draw.normal(size=x.shape), jnp.float32)

  nnx.update(made, jax.tree.map(noisy, params))
  one, two = logits(made, np.array([[1, 2, 3, 4], [4, 2, 3, 1]]), [4, 4])
  assert (np.abs(one - two).max() < 1e-5) == blind
  notes = ClassifierSpec(VOCAB, 2, chosen, SIZES["fasttext"]).notes
  assert notes == (
    ("the mean of words is the same in any order, and positions only add to it",) * blind
  )


def test_padding_may_go_on_beyond_the_positions_and_tokens_there_give_nan():
  made = model(encoding("learned", length=4), SIZES["cnn"])
  tokens = np.ones((2, 6), int)
  fits, too_long = logits(made, tokens, [4, 5])
  np.testing.assert_allclose(fits, logits(made, tokens[:1, :4], [4])[0], atol=1e-5)
  assert np.isnan(too_long).all()
