"""What `import posexp` promises."""

import inspect
import runpy
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from seed import SEED

import posexp
from posexp.models import attention

EXAMPLE = Path(__file__).parents[1] / "docs" / "own_model.py"


@pytest.mark.parametrize("name", posexp.__all__)
def test_every_promised_name_is_there_and_documented(name):
  value = getattr(posexp, name)
  assert name in dir(posexp)
  assert inspect.getdoc(value)
  assert name == "ENCODINGS" or value.__module__.startswith("posexp.")


def test_importing_posexp_imports_nothing_slow():
  code = "import sys, posexp; print({'jax', 'flax', 'hydra', 'numpy'} & set(sys.modules))"
  done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
  assert done.stdout == "set()\n"
  with pytest.raises(AttributeError, match="no attribute 'encodigns'"):
    _ = posexp.encodigns


def test_an_encoding_is_made_by_its_name():
  assert posexp.encoding("rpr", k=4) == posexp.ENCODINGS["rpr"](k=4)
  with pytest.raises(posexp.UserError, match=r"rpr\.m=4: there is no option rpr\.m"):
    posexp.encoding("rpr", m=4)


def test_the_example_trains_models_that_see_only_what_is_behind():
  model_of = runpy.run_path(str(EXAMPLE))["Model"]
  tokens = np.random.default_rng(0).integers(0, 100, (1, 8)).repeat(2, axis=0)
  tokens[1, -1] = tokens[0, 0] + 1
  name = ("rope", "rpr", "transformer_xl")[SEED % 3]
  model = model_of(posexp.encoding(name), rngs=nnx.Rngs(0))
  graphdef, params, rest = nnx.split(model, nnx.Param, ...)

  def logits(params, tokens):
    found = nnx.merge(graphdef, params, rest)(tokens)
    return found[0, :, 0].sum(), found

  gradient, found = jax.jit(jax.grad(logits, has_aux=True))(params, tokens)
  apart = np.abs(found[1] - found[0]).max(-1)
  assert apart[:-1].max() == 0
  assert apart[-1] > 0
  attention = [x for path, x in nnx.to_flat_state(gradient) if "attention" in path]
  assert all(np.abs(x[...]).max() > 0 for x in attention)


@pytest.fixture(scope="module")
def layer():
  return posexp.Attention(posexp.encoding("t5"), 16, 2, rngs=nnx.Rngs(0))


def test_attention_is_that_of_the_stack(layer):
  x = np.random.default_rng(0).normal(size=(2, 5, 16)).astype(np.float32)
  mask, positions = np.arange(5) < np.array([[3], [5]]), np.arange(5)[None]

  def attend(x):
    return layer(x, mask), layer(x[:1, :3]), layer(x, mask, positions=jnp.asarray(positions))

  masked, short, given = jax.jit(attend)(x)
  np.testing.assert_allclose(masked[0, :3], short[0], atol=1e-5)
  np.testing.assert_allclose(given, masked, atol=1e-5)
  second = posexp.Attention(posexp.encoding("t5"), 16, 2, share_with=layer, rngs=nnx.Rngs(1))
  assert second.shared is layer.shared


def test_long_sequences_are_attended_to_in_blocks_as_by_definition(layer, monkeypatch):
  x = np.random.default_rng(0).normal(size=(2, 7, 16)).astype(np.float32)
  whole = jax.jit(lambda x: layer(x))(x)
  monkeypatch.setattr(attention, "LONG", {"cpu": 4, "gpu": 4})
  monkeypatch.setattr(attention, "ROWS", 3)
  np.testing.assert_allclose(jax.jit(lambda x: layer(x))(x), whole, atol=1e-5)


def test_what_is_not_in_attention_is_refused_in_one_sentence():
  for name in ("sinusoidal", "complex", "learned"):
    with pytest.raises(ValueError, match=r"^\w+ changes more of a Transformer than attention"):
      posexp.Attention(posexp.encoding(name), 16, 2, rngs=nnx.Rngs(0))
