"""Checkpoints: which are kept, what can go on from them, and what a kill leaves."""

import errno
import functools
import shutil
import signal
import tempfile
from unittest import mock

import jax
import jax.numpy as jnp
import pytest
from commands import simulated
from flax import nnx
from seed import some
from states import CONFIG, SCORE, assert_equal, evaluated, make_state, python, save

from posexp.errors import UserError
from posexp.runs import RunWriter, read_run
from posexp.runs.checkpoints import Checkpoints


def kept(path):
  return sorted(int(step.name) for step in (path / "checkpoints").iterdir())


@pytest.mark.parametrize(
  ("scores", "expected", "best"),
  [
    ({1: 0.2, 2: 0.9, 3: 0.5, 4: 0.4}, [2, 4], 2),
    ({1: 0.2, 2: None, 3: 0.1}, [1, 3], 1),
    ({1: float("nan"), 2: 0.1, 3: float("nan")}, [2, 3], 2),
    ({1: None, 2: None}, [2], None),
    # Equal scores: the lower validation loss, and of equals the earliest.
    ({1: 0.5, 2: 0.5, 3: 0.5}, [1, 3], 1),
    ({1: (0.0, 5.6), 2: (0.0, 3.5), 3: (0.0, 3.5), 4: (0.0, 4.0)}, [2, 4], 2),
    ({1: (0.1, 9.0), 2: (0.0, 3.5)}, [1, 2], 1),
  ],
)
def test_the_newest_and_the_best_are_kept(tmp_path, scores, expected, best):
  first, *others = scores.items()
  with RunWriter(tmp_path, CONFIG) as run:
    save(run, *first)
  with RunWriter(tmp_path, CONFIG) as run:  # reopened after the first
    for other in others:
      save(run, *other)
    assert (kept(tmp_path), run.checkpoints.find("best")) == (expected, best)
    assert_equal(run.checkpoints.restore(make_state(99)), make_state(expected[-1]))
    found = run.checkpoints.restore(make_state(99), "best")
    if best is None:
      assert found is None
    else:
      assert_equal(found, make_state(best))


def test_what_is_saved_may_be_donated_at_once(tmp_path):
  @functools.partial(jax.jit, donate_argnums=0)
  def update(state):
    return jax.tree.map(lambda leaf: leaf + 1, state)

  state = {"step": jnp.zeros((), jnp.int32), "w": jnp.zeros(1_000_000)}
  with RunWriter(tmp_path, CONFIG) as run:
    for step in range(1, 4):
      state = update(state)
      run.save(step, state)
      state = update(update(state))
      saved = run.checkpoints.restore(state)
      assert float(saved["w"].min()) == float(saved["w"].max()) == int(saved["step"])
      assert int(saved["step"]) == 1 + 3 * (step - 1)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
  """A run with one checkpoint."""
  path = tmp_path_factory.mktemp("saved")
  with RunWriter(path, CONFIG) as run:
    save(run, 1, 0.5)
  return path


NAMES = ("thesis [2026]", "[!a]*?", "**", "a\\b", "line\nend \"q\" 'q'", "gs:", "x.__lock")
NAMES += ("\udcff", "{a,b} {0} %s 100% #1 ~ $HOME é 日本", "-rf", "/".join(["x" * 99] * 35))


@pytest.mark.parametrize("name", some(NAMES, 2))
def test_a_folder_may_have_any_name(tmp_path, monkeypatch, name):
  monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
  folder = tmp_path / name
  with RunWriter(folder, CONFIG) as run:
    run.save(1, make_state(1), evaluated(0.5))
    run.save(2, make_state(2), evaluated(0.4))
  assert kept(folder) == [1, 2]
  with RunWriter(folder, CONFIG) as run:
    assert_equal(run.checkpoints.restore(make_state(9)), make_state(2))
  assert_equal(read_run(folder).restore(make_state(9)), make_state(1))
  assert [path.name for path in tmp_path.iterdir()] == [name.partition("/")[0]]  # no link is left


def test_what_is_advised_about_damage_is_true(tmp_path):
  """Only the newest of several can be moved away; what the system refuses is no damage."""
  with RunWriter(tmp_path, CONFIG) as run:
    save(run, 1, 0.9)
    save(run, 2, 0.5)
  for step in (1, 2):
    (tmp_path / f"checkpoints/{step}/default/_METADATA").write_bytes(b"\0")
  with RunWriter(tmp_path, CONFIG) as run:
    with pytest.raises(UserError, match=r"2 is damaged \(.*\); move it away to go on from"):
      run.checkpoints.restore(make_state(9))
    with pytest.raises(UserError, match=r"1 is damaged \(.*\); put it back, or rerun=true"):
      run.checkpoints.restore(make_state(9), "best")
    for error in (OSError(errno.EMFILE, "Too many open files"), MemoryError()):
      with (
        mock.patch.object(run.checkpoints._manager, "metadata", side_effect=error),
        pytest.raises(UserError, match=r"2 cannot be read \(.*\); .*the same command goes on"),
      ):
        run.checkpoints.restore(make_state(9))
  shutil.rmtree(tmp_path / "checkpoints/2")
  with RunWriter(tmp_path, CONFIG) as run, pytest.raises(UserError, match="put it back"):
    run.checkpoints.restore(make_state(9))


def test_the_best_that_is_lost_is_not_replaced_by_another(tmp_path):
  with RunWriter(tmp_path, CONFIG) as run:
    for step, accuracy in ((1, 0.9), (2, 0.5)):
      run.log(step, evaluated(accuracy))
      save(run, step, accuracy)
    assert_equal(run.restore_best(make_state(9)), make_state(1))
    run.finish({"step": 1, SCORE: 0.9})
  shutil.rmtree(tmp_path / "checkpoints/1")
  with RunWriter(tmp_path, CONFIG) as run, pytest.raises(UserError, match="1 is lost; put it back"):
    run.restore_best(make_state(9))
  with pytest.raises(UserError, match="1 is lost; put it back"):
    read_run(tmp_path).restore(make_state(9))


def without_blocks(state):
  return state.replace(params={"bias": state.params["bias"]})


def with_scale(state):
  return state.replace(params={**state.params, "scale": jnp.ones(3)})


def test_parts_without_arrays_are_restored_whatever_their_type(tmp_path):
  parts = {"none": None, "tuple": (), "dict": {}, "nested": ({}, [()]), "state": nnx.State({})}
  state = {**vars(make_state(1)), **parts}
  with RunWriter(tmp_path, CONFIG) as run:
    run.save(1, state, evaluated(0.5))
  assert_equal(read_run(tmp_path).restore(state), state)


@pytest.mark.parametrize(
  ("model", "words"),
  [
    (lambda: make_state(1, width=16), r"params/blocks/0/w is float32 \[4, 8\] in the check"),
    (lambda: make_state(1, dtype=jnp.bfloat16), r"float32 \[4, 8\] in the checkpoint and bfl"),
    (lambda: without_blocks(make_state(1)), r"0/w is float32 \[4, 8\] in .* missing in the model"),
    (lambda: with_scale(make_state(1)), r"scale is missing in .* float32 \[3\] in the model"),
    (lambda: make_state(1).replace(opt_state=()), r"opt_state/1/0/count is int32 \[\] in the "),
  ],
)
def test_a_checkpoint_of_another_model_is_refused(saved, capfd, model, words):
  with pytest.raises(UserError, match=words) as error:
    read_run(saved).restore(model())
  assert "\n" not in str(error.value)
  assert capfd.readouterr() == ("", "")


@pytest.fixture(scope="module")
def removed(tmp_path_factory):
  """A run that has removed its second checkpoint, which `old` still has."""
  path = tmp_path_factory.mktemp("removed")
  with RunWriter(path / "run", CONFIG) as run:
    save(run, 1, 0.9)
    save(run, 2, 0.5)
    shutil.copytree(path / "run" / "checkpoints" / "2", path / "old")
    save(run, 3, 0.4)
  return path


@pytest.mark.parametrize("gone", ["_CHECKPOINT_METADATA", "metrics", "default"])
def test_a_kill_amid_the_removal_of_an_old_checkpoint(tmp_path, removed, gone):
  shutil.copytree(removed / "run", tmp_path, dirs_exist_ok=True)
  half = tmp_path / "checkpoints" / "2"
  shutil.copytree(removed / "old", half)
  if (half / gone).is_dir():
    shutil.rmtree(half / gone)
  else:
    (half / gone).unlink()
  with RunWriter(tmp_path, CONFIG) as run:
    assert int(run.checkpoints.restore(make_state(9)).step) == 3
    assert int(run.checkpoints.restore(make_state(9), "best").step) == 1
    save(run, 4, 0.1)
    assert kept(tmp_path) == [1, 4]


def test_another_process_may_read_while_a_run_is_trained(tmp_path):
  with RunWriter(tmp_path, CONFIG) as run:
    run.log(1, {SCORE: 0.5})
    save(run, 1, 0.5)
    unfinished = tmp_path / "checkpoints" / "2.orbax-checkpoint-tmp"
    unfinished.mkdir()
    record = read_run(tmp_path)
    assert_equal(record.restore(make_state(9)), make_state(1))
    assert record.history == [{"step": 1, SCORE: 0.5}]
    assert record.summary is None
    assert unfinished.exists()
  with RunWriter(tmp_path, CONFIG) as run:
    save(run, 2, 0.4)
  assert kept(tmp_path) == [1, 2]


SHARDED = """
import sys, jax, jax.numpy as jnp, numpy as np
from posexp.runs import RunWriter
mesh = jax.sharding.Mesh(np.array(jax.devices()), ("data",))
rows = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data"))
whole = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
template = {{
  "rows": jax.ShapeDtypeStruct((16,), jnp.float32, sharding=rows),
  "whole": jax.ShapeDtypeStruct((3,), jnp.float32, sharding=whole),
}}
with RunWriter(sys.argv[1], {config!r}) as run:
  state = run.checkpoints.restore(template)
  for name in state:
    assert state[name].sharding == template[name].sharding
    assert len(state[name].devices()) == 8
  run.save(2, jax.tree.map(lambda leaf: leaf + 1, state))
"""


def test_a_run_goes_on_with_another_number_of_devices(tmp_path):
  state = {"rows": jnp.arange(16.0), "whole": jnp.ones(3)}
  with RunWriter(tmp_path, CONFIG) as run:
    run.save(1, state)
  done = python(SHARDED.format(config=CONFIG), str(tmp_path), XLA_FLAGS=simulated(8))
  assert done.communicate() == ("", "")
  assert done.returncode == 0
  with RunWriter(tmp_path, CONFIG) as run:
    assert_equal(run.checkpoints.restore(state), jax.tree.map(lambda leaf: leaf + 1, state))


SAVING = """
import sys, jax.numpy as jnp
from posexp.runs import RunWriter
with RunWriter(sys.argv[1], {config!r}) as run:
  for step in range(1, 1000):
    metrics = {{"validation/accuracy": (7 * step % 11) / 11, "validation/loss": 1.0}}
    metrics = metrics if step % 3 else None
    run.log(step, metrics or {{"train/loss": 1 / step}})
    state = {{"step": jnp.asarray(step), "w": jnp.full(2_000_000, step, jnp.float32)}}
    run.save(step, state, metrics)
    print(step, flush=True)
"""


def test_killed_at_any_moment_nothing_saved_is_lost(tmp_path):
  template = {"step": jnp.asarray(0), "w": jnp.zeros(2_000_000)}
  saving = python(SAVING.format(config=CONFIG), str(tmp_path))
  for _ in range(6):  # the last of these is being written
    said = int(saving.stdout.readline())
  saving.send_signal(signal.SIGKILL)
  saving.communicate()
  with RunWriter(tmp_path, CONFIG) as run:
    newest, best = run.checkpoints.restore(template), run.checkpoints.restore(template, "best")
    step = int(newest["step"])
    assert step >= said - 1
    for state in (newest, best):
      assert float(state["w"].min()) == float(state["w"].max()) == int(state["step"])
    run.rewind(step)
    assert [row["step"] for row in run.history] == list(range(1, step + 1))
    scored = [row for row in run.history if SCORE in row]
    assert int(best["step"]) == max(scored, key=lambda row: (row[SCORE], -row["step"]))["step"]


def test_ranks_that_are_damaged_are_noticed_before_a_run_goes_on(tmp_path):
  with RunWriter(tmp_path, CONFIG) as run:
    save(run, 1, 0.9)
    save(run, 2, 0.5)
  (file,) = (tmp_path / "checkpoints/2/metrics").glob("metrics")
  for damaged in ('{"minus_loss": -1.0}', '{"score": "x", "minus_loss": -1.0}'):
    file.write_text(damaged)
    with (
      RunWriter(tmp_path, CONFIG) as run,
      pytest.raises(UserError, match="the metrics of step 2 are damaged"),
    ):
      run.checkpoints.restore(make_state(2))


def test_arrays_whose_bytes_have_changed_are_not_read(tmp_path):
  state = {"table": jax.random.normal(jax.random.key(0), (200, 64)), "step": jnp.array(3)}
  checkpoints = Checkpoints(tmp_path)
  checkpoints.save(3, state)
  checkpoints.close()
  files = (file for file in tmp_path.rglob("*") if file.is_file())
  largest = max(files, key=lambda file: file.stat().st_size)
  good, damage = largest.read_bytes(), []
  for place in range(0, len(good), len(good) // 7):
    changed = bytearray(good)
    changed[place] ^= 4
    largest.write_bytes(changed)
    try:  # a byte between two arrays changes nothing
      assert_equal(Checkpoints(tmp_path, read_only=True).restore(state), state)
    except UserError as error:
      damage.append(str(error))
  assert len(damage) > 4
  assert all("3 is damaged" in each for each in damage)
  largest.write_bytes(good)
  assert_equal(Checkpoints(tmp_path, read_only=True).restore(state), state)


def test_a_link_to_a_folder_of_special_characters_has_none_itself(tmp_path, monkeypatch):
  (tmp_path / "t[1]").mkdir()
  monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "t[1]"))
  found = Checkpoints(tmp_path / "x[1]")
  assert "[" not in str(found._plain_folder())
  found._link.cleanup()
