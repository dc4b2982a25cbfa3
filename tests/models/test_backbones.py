"""FastText, CNN and LSTM: their numbers, what suits them, and their runs."""

from pathlib import Path

import head_distances
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from order import command, only, write
from seed import some

from posexp import evaluate, inspect
from posexp.analysis.probe import perturbed
from posexp.encodings import ENCODINGS, encoding
from posexp.encodings.rngs import Rngs
from posexp.errors import UserError
from posexp.models.backbones import CNNSize, FastTextSize, LSTMSize, refusal
from posexp.models.classifier import ClassifierSpec
from posexp.models.size import Size
from posexp.runs import read_run
from posexp.training.restore import open_trained

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


# Those that do not are refused in tests/mistakes.py.
@pytest.mark.parametrize(
  ("name", "options"),
  [
    ("rpr", {"absolute": "sinusoidal"}),
    ("learned", {"combine": "product", "length": 9}),
    ("split", {"form": "added", "length": 9}),
    ("complex", {"network": "real", "wrap": 4, "shared_period": "word"}),
    ("complex", {"weights": "shared", "initial_phase": True}),
  ],
)
def test_so_do_its_options_unless_they_act_in_blocks(name, options):
  assert refusal(name, encoding(name, **options), SIZES["lstm"]) is None


@pytest.mark.parametrize(
  ("name", "size"),
  some([("split", "fasttext"), ("split", "lstm"), ("normalized", "cnn")], 1),
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
    ("binary", {"combine": "concat"}, True),
    ("split", {}, True),
    ("complex", {"order": False}, True),
    ("learned", {"combine": "product"}, False),
    ("complex", {}, False),
  ],
)
def test_a_mean_sees_order_where_positions_are_multiplied(name, options, blind):
  chosen = encoding(name, **options)
  assert chosen.order_blind == blind
  made = perturbed(model(chosen, SIZES["fasttext"]))
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


SWEPT = ["-m", "model=cnn", "encoding=complex,rpr", "rpr.k=2", "model.d_model=8"]
SWEPT += ["train.steps=4", "train.warmup=1", "train.learning_rate=1e-2"]


@pytest.mark.slow
def test_a_run_is_swept_measured_drawn_and_comes_back(home, few_positions, capsys):
  files = [each for each in write(home) if not each.startswith("model.")]
  status, out, err = command(*SWEPT, *files)
  assert (status, err) == (0, "")
  assert "sweep     1 run: 1 waiting; 1 left out\n" in out
  sentence = "rpr acts in attention, which model=cnn does not have; choose an encoding of the input"
  assert f"job 2/2: encoding=rpr: left out: {sentence}" in out
  assert "          cnn: d_model 8, filters 100 of each width 3, 4, 5, float32\n" in out
  assert "blind" not in out

  path = only("runs")
  (found,) = evaluate.evaluate(evaluate.arguments([str(path)]))
  assert found["on"]["accuracy"] == read_run(path).summary["test/accuracy"]
  for flags in (["--grid"], ["--without", "content"]):
    with pytest.raises(UserError, match="terms of attention, which model=cnn does not have"):
      evaluate.evaluate(evaluate.arguments([str(path), *flags]))

  drawn = {file.stem for file in inspect.inspect([f"run={path}"])}
  assert drawn == {"vectors", "products-by-offset", "frequencies-by-word"}
  assert "none in model=cnn, so what acts there is left out" in capsys.readouterr().out
  with pytest.raises(UserError, match="model=cnn has no attention to be compared"):
    head_distances.compare(path, [path])
  with pytest.raises(UserError, match="rpr acts in attention, which model=lstm does not have"):
    inspect.inspect(["encoding=rpr", "model=lstm"])

  trained = open_trained(path)
  assert trained.spec.size.backbone == "cnn"
  assert trained.snapshot.model().stacks == ()
