"""The compiled half of training: its state, its devices, and what is asked of JAX before it."""

import dataclasses
import json
from pathlib import Path

import jax
import numpy as np
import optax
import pytest
from commands import simulated
from states import python

from posexp.encodings import ENCODINGS
from posexp.errors import UserError
from posexp.models.classifier import ClassifierSpec
from posexp.models.positions import Positions
from posexp.models.size import Size
from posexp.training import devices
from posexp.training.devices import check_cores, mesh_for, most_devices, shard
from posexp.training.optimizer import Training
from posexp.training.step import keys, parameters, program

SIZE = Size(d_model=16, num_heads=2, d_ff=32, num_layers=1)
CERTAIN = dataclasses.replace(SIZE, dropout=0.0)


def made(name, size=SIZE, **options):
  """The program of a model with an encoding, and its first state in shape."""
  spec = ClassifierSpec(11, 3, ENCODINGS[name](), size)
  compiled = program(spec, Training(**options), 100, mesh_for(4))
  return spec, compiled, compiled.shapes


# No parameters, and those of every kind; test_optimizer.py looks at those of all.
@pytest.mark.parametrize("name", ["none", "transformer_xl", "complex"])
def test_a_state_comes_back_from_a_checkpoint_with_the_same_types(name):
  spec, _, state = made(name, dataclasses.replace(SIZE, dtype="bfloat16"))  # of operations alone
  leaves = jax.tree.leaves(state)
  assert not any(leaf.weak_type for leaf in leaves)
  assert {str(leaf.dtype) for leaf in leaves} <= {"float32", "int32", "bool"}
  assert parameters(spec) == sum(leaf.size for leaf in jax.tree.leaves(state.params))


def test_models_of_equal_structure_share_what_is_compiled():
  _, first, _ = made("rpr")
  _, again, _ = made("rpr")
  _, faster, _ = made("rpr", learning_rate=0.01)
  assert first is again
  assert first.update.jitted is faster.update.jitted
  assert (first.init, first.predict) == (faster.init, faster.predict)
  assert first.update.rate.peak == pytest.approx(0.001)
  assert faster.update.rate.peak == pytest.approx(0.01)
  for option in {"label_smoothing": 0.1}, {"clip": None}, {"optimizer_options": {"b2": 0.9}}:
    assert made("rpr", **option)[1].update.jitted is not first.update.jitted


@pytest.fixture
def eight(monkeypatch):
  """Eight devices of this process and of any other; a mesh is the list of its devices."""

  def local_devices(process_index=0):
    return [f"{process_index}.{number}" for number in range(8)]

  monkeypatch.setattr(jax, "local_devices", local_devices)
  monkeypatch.setenv("XLA_FLAGS", "--xla_force_host_platform_device_count=8")
  monkeypatch.setattr("posexp.training.devices.Mesh", lambda devices, names: list(devices))


def test_every_device_that_divides_a_batch_is_used(eight):
  assert [len(mesh_for(np.array([n]))) for n in (32, 20, 12, 7, 1, 11)] == [8, 5, 6, 7, 1, 1]
  assert [len(mesh_for(np.array([32, 24]), parts)) for parts in (1, 2, 4)] == [8, 4, 2]


def test_a_cpu_is_as_many_devices_as_are_asked_for_or_suit_the_sizes(eight, monkeypatch):
  assert most_devices() == 8  # that XLA_FLAGS asks for
  monkeypatch.setenv("XLA_FLAGS", "")
  sizes = [(64, 32), (64, 255), (64, 256), (256, 512), (257, 256), (64, 513)]
  assert [most_devices("auto", *size) for size in sizes] == [1, 1, 2, 2, 1, 1]
  assert (most_devices(), most_devices(8)) == (1, 8)
  assert len(mesh_for(np.array([6]), 1, most_devices(4))) == 3
  assert most_devices(9) == 8  # a run is opened where it was not trained
  with pytest.raises(UserError, match=r"train\.cpu_devices=9: .* this process has 8 cores; lower"):
    check_cores(9)
  monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
  check_cores(9)  # of which there are as many as there are


def test_processes_use_as_many_devices_each(eight, monkeypatch):
  monkeypatch.setattr(jax, "process_count", lambda: 2)
  assert mesh_for(np.array([4])) == ["0.0", "0.1", "1.0", "1.1"]
  assert len(mesh_for(np.array([64]))) == 16
  with pytest.raises(UserError, match="9, 10 rows do not divide among 2 processes"):
    mesh_for(np.array([10, 9]))


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


def uneven(rows=8, length=8):
  """A batch whose rows have 1 to `length` tokens each; a quarter of them only pad it."""
  mask = np.arange(length) < np.arange(1, rows + 1)[:, None] % length + 1
  tokens = np.random.default_rng(0).integers(3, 11, (rows, length)).astype(np.int32)
  return {
    "tokens": tokens,
    "mask": mask,
    "labels": np.arange(rows, dtype=np.int32) % 3,
    "weight": (np.arange(rows) % 4 != 1).astype(np.float32),
    "index": np.arange(rows, dtype=np.int32),
  }


def of_parts(spec, batch, *counts):
  """For each number of parts of a batch: the gradient and the window."""
  first = None
  for count in counts:
    options = Training(clip=None, label_smoothing=0.1, accumulate=count)
    run = program(spec, options, 100, mesh_for(np.array([len(batch["mask"])]), count))
    if first is None:
      state = run.init(0)
      first, places = jax.device_get(state), jax.tree.map(lambda leaf: leaf.sharding, state)
    state = run.update(jax.device_put(first, places), batch, keys(0)["dropout"])
    (mean,) = (each.mu for each in jax.tree.leaves(state.opt_state, is_leaf=adam) if adam(each))
    yield mean, state.window.sums, state.window.weight


def adam(node):
  return isinstance(node, optax.ScaleByAdamState)


def test_parts_of_a_batch_share_its_draw_of_positions_and_may_all_have_no_target():
  at = Positions("randomized", 32)
  spec = ClassifierSpec(11, 3, ENCODINGS["sinusoidal"](), CERTAIN, positions=at)
  batch = uneven(4)
  whole, parts = jax.device_get([*of_parts(spec, batch, 1, 2)])
  scale = max(np.abs(leaf).max() for leaf in jax.tree.leaves(whole[0]))
  for one, other in zip(*map(jax.tree.leaves, (parts, whole)), strict=True):
    np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5 * scale)
  nothing = batch | {"weight": np.zeros(4, np.float32)}
  ((mean, sums, _),) = of_parts(spec, nothing, 2)
  assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves((mean, sums)))


def test_batches_without_equal_parts_are_refused():
  with pytest.raises(UserError, match=r"accumulate=5: batches have 16, 32 rows, .* divisor of 16"):
    mesh_for(np.array([32, 16]), 5)
  with pytest.raises(UserError, match=r"choose another train\.batch_size"):
    mesh_for(np.array([9, 4]), 2)


@pytest.mark.parametrize("count", ["two", "0", "-1", ""])
def test_a_number_of_cores_that_there_cannot_be_is_named(monkeypatch, count):
  monkeypatch.setenv("NPROC", count)
  with pytest.raises(UserError, match=f"NPROC={count}: set it to a number of cores, 1 or more"):
    devices.prepare()


def test_devices_that_are_not_here_are_named_with_the_way_out(monkeypatch):
  def none_here():
    raise RuntimeError("no driver")

  monkeypatch.setattr(jax, "devices", none_here)
  monkeypatch.setenv("JAX_PLATFORMS", "cuda")
  with pytest.raises(UserError, match="JAX_PLATFORMS=cuda: JAX finds no such device here; unset"):
    devices.find_devices()
  monkeypatch.delenv("JAX_PLATFORMS")
  with pytest.raises(UserError, match="JAX finds no device: no driver; JAX_PLATFORMS=cpu takes"):
    devices.find_devices()


def test_numbers_of_a_run_do_not_depend_on_settings_of_jax():
  given = {name: getattr(jax.config, name) for name in devices.SETTINGS}
  try:
    jax.config.update("jax_numpy_dtype_promotion", "strict")
    devices.prepare(find=False)
    assert {name: getattr(jax.config, name) for name in devices.SETTINGS} == devices.SETTINGS
  finally:
    for name, value in given.items():
      jax.config.update(name, value)


GATHERING = """
import types
import jax, jax.numpy as jnp, numpy as np
from posexp.training.devices import by_rows, mesh_for, prepare, replicated
from posexp.training.evaluation import Snapshot

prepare()
mesh = mesh_for(np.array([64]), most=2)

@jax.jit
def centered(params, settings, batch):
  rows = jax.lax.with_sharding_constraint(batch["x"], replicated(mesh))
  rows = jnp.tanh(rows @ params) - rows.mean(0)
  return {"x": jax.lax.with_sharding_constraint(rows, by_rows(mesh))}

x, index = np.ones((64, 256), np.float32), np.arange(64)
batch = {"x": x, "mask": x > 0, "index": index}
program = types.SimpleNamespace(
  mesh=mesh, carry=lambda rows: (),
  predict=lambda state, batch, carry, scale: (centered(state.params, None, batch), carry),
)
params = jax.device_put(x.T @ x, replicated(mesh))
snapshot = Snapshot(program, types.SimpleNamespace(params=params, settings=None), 64)
for found in (snapshot.predict([batch] * 200), snapshot.map(centered, [batch] * 200)):
  print(mesh.size, len(found["x"]))
"""


def test_batches_whose_rows_are_gathered_by_two_devices_do_not_wait_for_each_other():
  command = python(GATHERING, NPROC="2", XLA_FLAGS="")
  try:
    said = command.communicate(timeout=30)
  finally:
    command.kill()
  assert said[0] == "2 12800\n" * 2, said[1]


EIGHT = """
import json, sys
import jax, numpy as np
sys.path += [sys.argv[1], f"{sys.argv[1]}/whole"]
from test_training import CERTAIN, ENCODINGS, ClassifierSpec, Training, keys, program, uneven
from jax.sharding import Mesh
from posexp.training.devices import shard

spec = ClassifierSpec(11, 3, ENCODINGS["transformer_xl"](), CERTAIN)
for devices, options in ((1, {}), (8, {}), (8, {"shard": "parameters", "accumulate": 2})):
  mesh = Mesh(np.array(jax.devices()[:devices]), ("data",))
  run = program(spec, Training(warmup=1, learning_rate=1e-2, **options), 100, mesh)
  state, losses = run.init(0), []
  for batch, _ in shard([uneven(32)] * 3, mesh):
    state = run.update(state, batch, keys(0)["dropout"])
    losses.append(float(state.window.sums["loss"] / state.window.weight))
  print(json.dumps(losses))
"""


@pytest.mark.slow
def test_eight_devices_share_batches_and_if_asked_parameters():
  said, _ = python(EIGHT, str(Path(__file__).parents[1]), XLA_FLAGS=simulated(8)).communicate()
  one, *others = map(json.loads, said.splitlines())
  assert others == [pytest.approx(one, abs=1e-5)] * 2
