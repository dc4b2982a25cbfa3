"""The optimizer: its schedule, its clipping, what weight decay acts on, and its options."""

import inspect
import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import optax.contrib
import pytest
from flax import nnx
from seed import some

from posexp.config import build
from posexp.encodings import ENCODINGS, encoding
from posexp.encodings.base import Matrix
from posexp.encodings.rngs import Rngs, abstract_model
from posexp.errors import UserError
from posexp.models.language_model import LanguageModelSpec
from posexp.models.size import Size
from posexp.models.transformer import Stack
from posexp.training.optimizer import NAMES, Training, decayed, make_optimizer, make_schedule
from posexp.training.step import keys, split


@pytest.mark.parametrize("warmup", [0, 10, 1000])
@pytest.mark.parametrize("schedule", ["cosine", "linear", "rsqrt", "constant"])
def test_the_schedule_is_its_formula(schedule, warmup):
  steps, peak = 50, 0.5
  made = make_schedule(Training(learning_rate=peak, schedule=schedule, warmup=warmup), steps)
  rise = min(warmup, steps - 1)

  def expected(step):
    if step < rise:
      return peak * (step + 1) / rise
    done = (step - rise) / (steps - rise)
    return {
      "cosine": peak * (1 + math.cos(math.pi * done)) / 2,
      "linear": peak * (1 - done),
      "rsqrt": peak * math.sqrt(max(rise, 1) / (max(rise, 1) + step - rise)),
      "constant": peak,
    }[schedule]

  rates = [float(made(step)) for step in range(steps)]
  assert rates == pytest.approx([expected(step) for step in range(steps)], rel=1e-5, abs=1e-7)
  assert min(rates) > 0
  assert float(make_schedule(Training(schedule=schedule), 1)(0)) == pytest.approx(1e-3)


def test_warmup_is_a_tenth_of_a_training_without_a_given_length():
  options = {"warmup": 1000, "least_steps": 500}
  assert Training(**options, epochs=None).warmup_of(500) == 50
  assert Training(**options).warmup_of(500) == 499
  with pytest.raises(UserError, match="epochs must be a number where neither steps nor"):
    build(Training, {"epochs": None}, "train")


PARAMS = {"kernel": jnp.ones((3, 2)), "table": jnp.ones((3, 2))}


def stepped(training):
  return first_update(make_optimizer(training, 2, frozenset({"kernel"})))


def first_update(optimizer):
  grads = jax.tree.map(lambda leaf: jnp.linspace(-1, 1, leaf.size).reshape(leaf.shape), PARAMS)
  return optimizer.update(grads, optimizer.init(PARAMS), PARAMS)[0]


@pytest.mark.parametrize("name", ["adamw", *some([each for each in NAMES if each != "adamw"], 5)])
def test_each_optimizer_is_that_of_optax_and_decays_only_matrices_of_linear_maps(name):
  given = {"clip": None, "schedule": "constant", "warmup": 0, "learning_rate": 0.5}
  plain = stepped(Training(optimizer=name, weight_decay=0.0, **given))
  make = getattr(optax, name, None) or getattr(optax.contrib, name)
  taken = inspect.signature(make).parameters
  decays = "weight_decay" in taken
  ours = ({"b2": 0.98} if name == "adamw" else {}) | ({"weight_decay": 0.0} if decays else {})
  if name == "muon":
    axes = {"kernel": optax.contrib.MuonDimensionNumbers(), "table": None}
    ours["muon_weight_dimension_numbers"] = axes
  expected = first_update(make(0.5, **ours))
  jax.tree.map(np.testing.assert_array_equal, plain, expected)
  if decays:
    decayed = stepped(Training(optimizer=name, weight_decay=0.1, **given))
    assert (decayed["kernel"] != plain["kernel"]).any()
    assert (decayed["table"] == plain["table"]).all()
  else:
    with pytest.raises(
      UserError, match=r"train\.weight_decay=0\.1 must be 0 with train\.optimizer"
    ):
      build(Training, {"optimizer": name}, "train")


def test_options_of_the_optimizer_are_obeyed():
  given = {"optimizer": "rmsprop", "clip": None, "weight_decay": 0.0}
  plain, other = (
    stepped(Training(**given, optimizer_options=each)) for each in (None, {"decay": 0})
  )
  scale = np.sqrt((1 - 0.9) / (1 - 0))  # of the first gradient, by the root of its mean square
  np.testing.assert_allclose(other["kernel"], scale * plain["kernel"], rtol=1e-4)


@pytest.mark.parametrize("name", some(ENCODINGS, 12))
def test_weight_decay_acts_on_the_matrices_of_linear_maps_alone(name):
  size = Size(d_model=16, num_heads=2, d_ff=32, num_layers=1)
  encoding = ENCODINGS[name]()
  causal = encoding.causal_only

  def make(rngs):
    return Stack(11, encoding, size, causal=causal, rngs=rngs)

  params = jax.eval_shape(lambda: split(make(Rngs(**keys(0))))[1])
  assert causal or not any(leaf.weak_type for leaf in jax.tree.leaves(params))
  assert {str(leaf.dtype) for leaf in jax.tree.leaves(params)} == {"float32"}
  leaves, _ = jax.tree_util.tree_flatten_with_path(params)
  shapes = {jax.tree_util.keystr(at, simple=True, separator="/"): x.shape for at, x in leaves}
  model = abstract_model(make)
  yes = decayed(model, "matrices")
  no = shapes.keys() - yes
  assert yes <= shapes.keys()
  assert all(len(shapes[path]) > 1 for path in yes)
  assert (yes != decayed(model, "kernels")) is (name in ("fire", "path"))
  for part in ("query", "key", "value", "out", "up", "down"):
    assert any(f"{part}/" in path for path in yes), part
  gates = ("kernel", "beta", "gate")  # of a token, which are maps of its hidden state
  assert all(path.endswith(gates) or "kernel" in path.rpartition("/")[2] for path in yes)
  for word in ("embed", "norm"):
    assert not any(word in path for path in yes), word
  assert any("embed" in path for path in no)
  assert any("norm" in path for path in no)


class Foreign(nnx.Module):
  """What another's encoding may have: a layer of Flax, and parameters that declare nothing."""

  def __init__(self, rngs):
    self.linear = nnx.Linear(2, 3, rngs=nnx.Rngs(0))
    self.table, self.kernel_in = nnx.Param(jnp.ones((2, 2))), nnx.Param(jnp.ones(2))
    self.gate = Matrix(jnp.ones((2, 2)))


def test_what_others_declare_decays_and_the_kernels_of_flax():
  assert decayed(Foreign(None), "matrices") == {"linear/kernel", "gate"}
  assert decayed(Foreign(None), "kernels") == {"linear/kernel", "kernel_in"}


def change(options, params, *grads):
  """The last of the updates that gradients give."""
  optimizer = make_optimizer(options, 100, frozenset({"kernel"}))

  @jax.jit
  def updates(params, grads):
    state = optimizer.init(params)
    for grad in grads:
      found, state = optimizer.update(grad, state, params)
    return found

  return updates(params, grads)


MATRICES = [("transformer_xl", {}), ("fire", {}), ("rope", {"experts": 2})]  # of other shapes


@pytest.mark.parametrize(("name", "sizes"), some(MATRICES, 1))
def test_muon_makes_the_steps_of_all_matrices_orthogonal_and_no_others(name, sizes):
  size = Size(d_model=16, num_heads=4, d_ff=16, num_layers=1, **sizes)
  model = LanguageModelSpec(16, encoding(name), size).build(Rngs(params=0, encoding=1))
  paths, (_, params, _) = decayed(model, "matrices"), split(model)
  optimizer = make_optimizer(Training(optimizer="muon", weight_decay=0), 9, paths)
  grads = jax.tree.map(lambda leaf: jax.random.normal(jax.random.key(0), leaf.shape), params)
  found, _ = optimizer.update(grads, optimizer.init(params), params)
  alike = set()
  for path, leaf in jax.tree_util.tree_leaves_with_path(found):
    path = jax.tree_util.keystr(path, simple=True, separator="/")
    step = np.asarray(leaf)[0] if "experts" in path and leaf.ndim == 3 else leaf
    if leaf.ndim > 1:
      values = np.linalg.svd(np.reshape(step, (len(step), -1)), compute_uv=False)
      alike |= {path} if values.min() > 0.4 * values.max() else set()
  assert paths <= alike  # and some small arrays by chance
  assert "stack/embed/table" not in alike


def test_gradients_are_clipped_by_their_common_norm():
  # Adam forgets the scale of its first gradient, so two are needed to see it.
  params = {"a": jnp.zeros(1), "b": jnp.zeros(1)}
  large, small = {"a": 30 * jnp.ones(1), "b": 40 * jnp.ones(1)}, {"a": 0.3, "b": 0.4}
  small = {name: value * jnp.ones(1) for name, value in small.items()}

  def second(options, first):
    return change(options, params, first, small)

  clipped = second(Training(clip=0.5), large)
  for name in params:
    np.testing.assert_allclose(clipped[name], second(Training(clip=0.5), small)[name], rtol=1e-6)
    free, same = (second(Training(clip=None), first)[name] for first in (large, small))
    assert abs(free - same) > 0.1 * abs(same)
