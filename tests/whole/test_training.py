"""The compiled half of training: what its state is made of, and over how many devices it goes."""

import dataclasses
import json
import platform
import subprocess
import sys

import jax
import numpy as np
import optax
import pytest
from commands import on_eight_devices

from posexp.encodings import ENCODINGS
from posexp.errors import UserError
from posexp.models.classifier import ClassifierSpec
from posexp.models.positions import Positions
from posexp.models.size import Size
from posexp.models.translator import TranslatorSpec
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
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])  # of operations alone
@pytest.mark.parametrize("name", ["none", "learned", "rpr", "t5", "transformer_xl", "complex"])
def test_a_state_comes_back_from_a_checkpoint_with_the_same_types(name, dtype):
  spec, _, state = made(name, dataclasses.replace(SIZE, dtype=dtype))
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
  sizes = [(64, 32), (64, 255), (64, 256), (256, 511), (257, 256), (64, 512)]
  assert [most_devices("auto", *size) for size in sizes] == [1, 1, 2, 2, 1, 1]
  assert (most_devices(), most_devices(8)) == (1, 8)
  assert len(mesh_for(np.array([6]), 1, most_devices(4))) == 3
  assert most_devices(9) == 8  # a run is opened where it was not trained
  with pytest.raises(UserError, match=r"train\.cpu_devices=9: .* this process has 8 cores; lower"):
    check_cores(9)


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
  tokens = np.random.default_rng(0).integers(3, 11, (2, rows, length)).astype(np.int32)
  return {
    "tokens": tokens[0],
    "source": tokens[0],
    "source_mask": mask,
    "target": tokens[1],
    "mask": mask,
    "labels": tokens[1],
    "weight": (np.arange(rows) % 4 != 1).astype(np.float32),
    "index": np.arange(rows, dtype=np.int32),
  }


def of_parts(spec, batch, *counts):
  """For each number of parts of a batch: the gradient and the window, and the bytes needed."""
  first = None
  for count in counts:
    options = Training(clip=None, label_smoothing=0.1, accumulate=count)
    run = program(spec, options, 100, mesh_for(np.array([len(batch["mask"])]), count))
    if first is None:
      state = run.init(0)
      first, places = jax.device_get(state), jax.tree.map(lambda leaf: leaf.sharding, state)
    state = run.update(jax.device_put(first, places), batch, keys(0)["dropout"])
    (mean,) = (each.mu for each in jax.tree.leaves(state.opt_state, is_leaf=adam) if adam(each))
    yield (mean, state.window.sums, state.window.weight), run.update.temporary_bytes


def adam(node):
  return isinstance(node, optax.ScaleByAdamState)


def assert_close(parts, whole):
  parts, whole = jax.device_get((parts, whole))
  scale = max(np.abs(leaf).max() for leaf in jax.tree.leaves(whole[0]))
  for one, other in zip(*map(jax.tree.leaves, (parts, whole)), strict=True):
    np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5 * scale)


@pytest.mark.slow
def test_a_batch_in_parts_has_the_gradient_of_the_whole_and_needs_less():
  spec = TranslatorSpec(11, 11, ENCODINGS["none"](), CERTAIN)
  # Of the eight parts, two have no weight at all.
  (whole, most), (parts, least) = of_parts(spec, uneven(32, 32), 1, 8)
  assert_close(parts, whole)
  assert least < most / 3


def test_parts_of_a_batch_share_its_draw_of_positions_and_may_all_have_no_target():
  at = Positions("randomized", 32)
  spec = ClassifierSpec(11, 3, ENCODINGS["sinusoidal"](), CERTAIN, positions=at)
  batch = uneven(4) | {"labels": np.arange(4, dtype=np.int32) % 3}
  (whole, _), (parts, _) = of_parts(spec, batch, 1, 2)
  assert_close(parts, whole)
  nothing = batch | {"weight": np.zeros(4, np.float32)}
  (((mean, sums, _), _),) = of_parts(spec, nothing, 2)
  assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves((mean, sums)))


def test_batches_without_equal_parts_are_refused():
  with pytest.raises(UserError, match=r"accumulate=5: batches have 16, 32 rows, .* divisor of 16"):
    mesh_for(np.array([32, 16]), 5)
  with pytest.raises(UserError, match=r"choose another train\.batch_size"):
    mesh_for(np.array([9, 4]), 2)


EIGHT = """
import json, sys
import jax, numpy as np
sys.path += [sys.argv[1], f"{sys.argv[1]}/whole"]
from test_training import ENCODINGS, Size, ClassifierSpec, Training, keys, program, uneven
from jax.sharding import Mesh
from posexp.training.devices import shard

size = Size(d_model=64, num_heads=2, d_ff=64, num_layers=1, dropout=0.0, attention="reference")
spec = ClassifierSpec(11, 3, ENCODINGS[name](), size)
batch = uneven(32) | {"labels": np.arange(32, dtype=np.int32) % 3}
found = {}
for case, devices, options in (
  ("one", 1, {}),
  ("eight", 8, {}),
  ("divided", 8, {"shard": "parameters", "accumulate": 2}),
):
  mesh = Mesh(np.array(jax.devices()[:devices]), ("data",))
  run = program(spec, Training(warmup=1, learning_rate=1e-2, **options), 100, mesh)
  state, losses = run.init(0), []
  for batch, _ in shard([batch] * 3, mesh):
    state = run.update(state, batch, keys(0)["dropout"])
    losses.append(float(state.window.sums["loss"] / state.window.weight))
  held = [leaf for leaf in jax.tree.leaves((state.params, state.opt_state))]
  found[case] = {
    "losses": losses,
    "all": sum(leaf.nbytes for leaf in held),
    "each": sum(leaf.addressable_shards[0].data.nbytes for leaf in held),
    "programs": run.update.jitted._cache_size(),
  }
  if case == "eight":
    given = state, batch, keys(0)["dropout"], run.update.rate
    text = run.update.jitted.lower(*given).compile().as_text()
exchanged = [each for each in ("all-reduce", "all-gather", "all-to-all") if each in text]
print(json.dumps([found, exchanged]))
"""


@pytest.mark.slow
@pytest.mark.parametrize("name", ["rpr", "transformer_xl"])
def test_eight_devices_share_batches_and_if_asked_parameters_and_exchange_sums_alone(name):
  found, exchanged = json.loads(on_eight_devices(f"name = {name!r}\n{EIGHT}"))
  for each in found.values():
    assert each["losses"] == pytest.approx(found["one"]["losses"], abs=1e-5)
    assert each["programs"] == 1
  assert found["eight"]["each"] == found["one"]["all"]
  assert found["divided"]["each"] < 1.2 * found["divided"]["all"] / 8
  assert exchanged == ["all-reduce"]


TAKEN = """\
import mmap, threading
from posexp.training import devices

def resident():
  with open("/proc/self/statm") as file:
    return int(file.read().split()[1]) * mmap.PAGESIZE

before = resident()
for run in range(3):
  devices.keep_freed_memory()
  for thread in threading.enumerate():
    if thread.name == "memory":
      thread.join()
  held = bytearray(50 << 20)
print(0.9 * devices.SOON < resident() - before < 1.2 * devices.SOON)  # the kernel counts roughly
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the memory of glibc")
def test_the_memory_that_a_run_takes_first_is_there_before_and_taken_once():
  done = subprocess.run([sys.executable, "-c", TAKEN], capture_output=True, text=True, check=True)
  assert done.stdout == "True\n"
