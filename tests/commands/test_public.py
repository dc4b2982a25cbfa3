"""What `import posexp` promises."""

import importlib.metadata
import inspect
import os
import pkgutil
import re
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
from posexp import machine

DOCS = Path(__file__).parents[2] / "docs"
DRAWN = ("rope", "rpr", "transformer_xl")[SEED % 3]


def test_the_page_and_dir_hold_what_is_promised_and_nothing_else():
  assert all(inspect.getdoc(getattr(posexp, name)) for name in posexp.__all__)
  page = (DOCS / "api.md").read_text(encoding="utf-8")
  paths = re.findall(r"^::: (\S+)$", page, re.MULTILINE)
  shown = {path.rpartition(".")[2]: pkgutil.resolve_name(path) for path in paths}
  assert all(getattr(posexp, name) is value for name, value in shown.items())
  assert {*shown, *re.findall(r"`posexp\.(\w+)`", page)} == {*dir(posexp)} == {*posexp.__all__}


def test_importing_posexp_imports_nothing_slow():
  code = "import sys, posexp; print({'jax', 'flax', 'hydra', 'numpy'} & set(sys.modules))"
  done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
  assert done.stdout == "set()\n"
  with pytest.raises(AttributeError, match="no attribute 'encodigns'"):
    _ = posexp.encodigns


SUM = """\
import posexp, jax, jax.numpy as jnp
n = jnp.arange(32_769.0)
rows, matrix = jnp.stack((n, 0 * n, 0 * n), 1), jnp.eye(3)
found = jax.jit(jax.vmap(lambda row: jnp.sum((matrix @ row) ** 2)))(rows)
print(float(jnp.abs(found / n**2 - 1)[1:].max()))
"""


def test_this_jax_sums_rightly_after_posexp_is_imported():
  tests_own = ("XLA_FLAGS", "JAX_DISABLE_MOST_OPTIMIZATIONS")
  env = {name: value for name, value in os.environ.items() if name not in tests_own}
  found = subprocess.run([sys.executable, "-c", SUM], env=env, capture_output=True, text=True)
  assert found.stderr == ""
  assert float(found.stdout) < 1e-6


@pytest.mark.parametrize(
  ("version", "given", "left"),
  [
    ("0.10.2", "", machine.SET),
    ("0.10.2.dev3", "--some=1", f"--some=1 {machine.SET}"),
    ("0.10.2", f"{machine.FLAG}=dot", f"{machine.FLAG}=dot"),
    ("0.11.1", "--some=1", "--some=1"),
    ("0.12.0.1", "", ""),
    ("0.10.2", "flags.txt", "flags.txt"),
  ],
)
def test_flags_of_xla_that_are_set_stay(version, given, left, monkeypatch, tmp_path):
  monkeypatch.chdir(tmp_path)
  Path("flags.txt").write_text(f"{machine.SET}\n")
  monkeypatch.setattr(importlib.metadata, "version", lambda name: version)
  monkeypatch.setitem(sys.modules, "jax._src.xla_bridge", None)  # JAX has not begun
  monkeypatch.setenv("XLA_FLAGS", given)
  machine.sum_rightly()
  assert os.environ["XLA_FLAGS"] == left


def test_it_is_said_where_the_flag_comes_too_late(monkeypatch, tmp_path):
  monkeypatch.setattr(importlib.metadata, "version", lambda name: "0.10.2")
  jax.devices()
  monkeypatch.setenv("XLA_FLAGS", "--some=1")
  with pytest.warns(UserWarning, match=r"jaxlib 0\.10\.2 .*: import posexp before JAX is used, or"):
    machine.sum_rightly()
  assert os.environ["XLA_FLAGS"] == f"--some=1 {machine.SET}"  # of processes that are started
  monkeypatch.chdir(tmp_path)
  Path("flags.txt").write_text("--some=1\n")
  monkeypatch.setenv("XLA_FLAGS", "flags.txt")
  with pytest.warns(UserWarning, match=r"add --xla_cpu\S+=-reduce to the file flags\.txt"):
    machine.sum_rightly()


def test_an_encoding_is_made_by_its_name():
  assert posexp.encoding("rpr", k=4) == posexp.ENCODINGS["rpr"](k=4)
  with pytest.raises(posexp.UserError, match=r"rpr\.m=4: there is no option rpr\.m"):
    posexp.encoding("rpr", m=4)


def test_the_example_trains_models_that_see_only_what_is_behind():
  model_of = runpy.run_path(str(DOCS / "own_model.py"))["Model"]
  tokens = np.random.default_rng(0).integers(0, 100, (1, 8)).repeat(2, axis=0)
  tokens[1, -1] = tokens[0, 0] + 1
  model = model_of(posexp.encoding(DRAWN), rngs=nnx.Rngs(0))
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


@pytest.mark.slow
def test_the_training_loop_learns_and_its_cache_gives_what_the_whole_text_does():
  example = runpy.run_path(str(DOCS / "own_training.py"))
  model, losses = example["train"](posexp.encoding(DRAWN), 60)
  assert losses[-5:].mean() < losses[:5].mean() / 2
  found = example["continued"](model, np.array([[1, 3], [2, 6]]), 6)
  logits = jax.jit(lambda tokens: model(tokens, tokens > 0))(found)
  np.testing.assert_array_equal(found[:, 2:], logits[:, 1:-1].argmax(-1))


def test_attention_is_that_of_the_stack():
  layer = posexp.Attention(posexp.encoding("t5"), 16, 2, rngs=nnx.Rngs(0))
  x = np.random.default_rng(0).normal(size=(2, 5, 16)).astype(np.float32)
  mask, positions = np.arange(5) < np.array([[3], [5]]), np.arange(5)[None]

  def attend(x):
    return layer(x, mask), layer(x[:1, :3]), layer(x, mask, positions=jnp.asarray(positions))

  masked, short, given = jax.jit(attend)(x)
  np.testing.assert_allclose(masked[0, :3], short[0], atol=1e-5)
  np.testing.assert_allclose(given, masked, atol=1e-5)
  second = posexp.Attention(posexp.encoding("t5"), 16, 2, share_with=layer, rngs=nnx.Rngs(1))
  assert second.shared is layer.shared


def test_what_is_not_in_attention_is_refused_in_one_sentence():
  for name in ("sinusoidal", "complex", "learned"):
    with pytest.raises(ValueError, match=r"^\w+ changes more of a Transformer than attention"):
      posexp.Attention(posexp.encoding(name), 16, 2, rngs=nnx.Rngs(0))
