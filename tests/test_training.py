"""The compiled half of training: what its state is made of, and over how many devices it goes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from posexp.encodings import ENCODINGS
from posexp.models import classifier
from posexp.optimizer import Training
from posexp.training import mesh_for, parameters, program, shard
from posexp.transformer import Size

SIZE = Size(d_model=16, num_heads=2, d_ff=32, num_layers=1)


DECODERS = {"xpos", "kerple", "fire", "cope"}  # not for encoders, which classifiers are


def made(name, seed=0, **options):
  """The program of a model with an encoding, and its first state in shape."""
  build = classifier(11, 3, ENCODINGS[name](), SIZE, False)
  compiled = program(build, Training(**options), 100, mesh_for(4))
  return build, compiled, jax.eval_shape(lambda: compiled.init(seed))


@pytest.mark.parametrize("name", [name for name in ENCODINGS if name not in DECODERS])
def test_a_state_comes_back_from_a_checkpoint_with_the_same_types(name):
  build, _, state = made(name)
  leaves = jax.tree.leaves(state)
  assert not any(leaf.weak_type for leaf in leaves)
  assert {str(leaf.dtype) for leaf in leaves} <= {"float32", "int32", "bool"}
  assert parameters(build) == sum(leaf.size for leaf in jax.tree.leaves(state.params))


def test_models_of_equal_structure_share_what_is_compiled():
  _, first, _ = made("rpr")
  _, again, _ = made("rpr", seed=1)
  _, other, _ = made("rpr", label_smoothing=0.1)
  assert first is again
  assert first.update is not other.update


def test_every_device_that_divides_a_batch_is_used(monkeypatch):
  monkeypatch.setattr(jax, "local_devices", lambda: [Device(i) for i in range(8)])
  monkeypatch.setattr("posexp.training.Mesh", lambda devices, names: devices)
  assert [len(mesh_for(size)) for size in (32, 20, 12, 7, 1, 11)] == [8, 5, 6, 7, 1, 1]


class Device:
  def __init__(self, number):
    self.number = number


def test_batches_go_to_the_device_one_ahead_and_none_is_lost():
  taken = []

  def batches():
    for i in range(3):
      taken.append(i)
      yield {"mask": np.arange(4) < i, "tokens": np.full(4, i)}

  given = shard(batches(), mesh_for(4))
  batch, tokens = next(given)
  assert (taken, tokens) == ([0, 1], 0)
  assert isinstance(batch["tokens"], jax.Array)
  rest = [(int(batch["tokens"][0]), tokens) for batch, tokens in given]
  assert rest == [(1, 1), (2, 2)]


def test_a_loss_that_is_not_a_number_is_known_by_its_first_step(compile_quickly):
  _, compiled, _ = made("none")
  state = compiled.init(0)
  batch = {
    "tokens": jnp.ones((4, 8), jnp.int32),
    "mask": jnp.ones((4, 8), bool),
    "labels": jnp.zeros(4, jnp.int32),
    "weight": jnp.ones(4),
    "index": jnp.arange(4),
  }
  broken = []
  for step in range(1, 6):
    if step == 3:
      state = state.replace(params=jax.tree.map(lambda leaf: leaf * jnp.nan, state.params))
    state = compiled.update(state, batch, jax.random.key(0))
    broken.append(int(state.window.broken))
  assert broken == [-1, -1, 3, 3, 3]
  assert int(compiled.clear(state).window.broken) == -1
