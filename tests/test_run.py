"""A run's folder: its identity, its rows, its checkpoints, and what a kill leaves of them."""

import functools
import json
import logging
import os
import resource
import shutil
import signal
import subprocess
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import struct
from omegaconf import OmegaConf

from posexp.errors import UserError
from posexp.run import Run, digest, folder, open_run

CONFIG = {
  "encoding": "rpr",
  "rpr": {"k": 4, "keys": True},
  "task": {"name": "own", "train": "a.csv", "validation": None, "test": "b.csv"},
  "train": {"learning_rate": 1e-3, "clip": 1.0},
  "seed": 0,
  "runs": "runs",
  "rerun": False,
  "wandb": {"mode": "disabled"},
}
SCORE = "validation/accuracy"


@struct.dataclass
class State:
  step: Any
  params: Any
  opt_state: Any


def make_state(step, width=8, dtype=jnp.float32):
  """A state in which every number follows from the step."""
  params = {"blocks": {0: {"w": jnp.full((4, width), step, dtype)}}, "bias": jnp.ones(3) / step}
  state = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-3)).init(params)
  return State(jnp.asarray(step), params, jax.tree.map(lambda leaf: leaf + step, state))


def assert_equal(a, b):
  assert jax.tree.structure(a) == jax.tree.structure(b)
  for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
    assert x.dtype == y.dtype
    np.testing.assert_array_equal(np.asarray(x), np.asarray(y))


def with_task(**options):
  return {**CONFIG, "task": {**CONFIG["task"], **options}}


def python(code, *args, **env):
  return subprocess.Popen(
    [sys.executable, "-c", code, *args],
    stdout=subprocess.PIPE,
    stderr=subprocess.PIPE,
    text=True,
    env={**os.environ, "JAX_PLATFORMS": "cpu", **env},
  )


# Identity


def test_bookkeeping_does_not_change_the_digest():
  other = {**CONFIG, "seed": 7, "runs": "/elsewhere", "rerun": True, "wandb": {"mode": "online"}}
  assert digest(dict(reversed(other.items()))) == digest(CONFIG)
  assert len(digest(CONFIG)) == 12


@pytest.mark.parametrize(
  "change",
  [
    {"encoding": "none"},
    {"rpr": {"k": 5, "keys": True}},
    {"rpr": {"k": 4, "keys": False}},
    {"train": {"learning_rate": 2e-3, "clip": 1.0}},
    {"train": {"learning_rate": 1e-3, "clip": None}},
  ],
)
def test_what_changes_results_changes_the_digest(change):
  assert digest({**CONFIG, **change}) != digest(CONFIG)


def test_one_number_has_one_digest():
  assert digest({**CONFIG, "train": {"learning_rate": 0.001, "clip": 1}}) == digest(CONFIG)
  assert digest({**CONFIG, "rpr": {"k": 1, "keys": True}}) != digest(
    {**CONFIG, "rpr": {"k": True, "keys": True}}
  )


def test_moved_data_is_the_same_run():
  moved = with_task(train="/data/a.csv", test="/data/b.csv")
  assert digest(moved) != digest(CONFIG)
  assert digest(moved, "abc") == digest(CONFIG, "abc") != digest(CONFIG, "abd")


def test_the_folder_is_the_identity():
  path = folder({**CONFIG, "seed": 3}, "abc")
  assert path.parts == ("runs", "own", "rpr", digest(CONFIG, "abc"), "seed=3")


@pytest.mark.parametrize("name", ["", "..", "a/b"])
def test_a_task_name_that_is_no_folder_is_refused(name):
  with pytest.raises(UserError, match=r"task\.name"):
    folder(with_task(name=name))


# The folder


def test_a_folder_that_cannot_be_made(tmp_path):
  (tmp_path / "file").touch()
  with pytest.raises(UserError, match=r"cannot be written: Not a directory; runs="):
    Run(tmp_path / "file" / "run", CONFIG).__enter__()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_may_not_be_written(tmp_path):
  tmp_path.chmod(0o500)
  with pytest.raises(UserError, match="cannot be written: Permission denied"):
    Run(tmp_path / "run", CONFIG).__enter__()


def test_the_config_is_kept(tmp_path):
  config = {**CONFIG, "train": {"learning_rate": 3.3e-5, "note": "1e-3", "list": [1, None]}}
  with Run(tmp_path / "run", config):
    pass
  assert open_run(tmp_path / "run").config == config


@pytest.mark.parametrize("change", [{"rpr": {"k": 9}}, {"seed": 1}])
def test_a_folder_of_another_config_is_refused(tmp_path, change):
  with Run(tmp_path, CONFIG):
    pass
  with pytest.raises(UserError, match="holds a run of another config"):
    Run(tmp_path, {**CONFIG, **change}).__enter__()
  with Run(tmp_path, with_task(train="/moved/a.csv")):
    pass


def test_a_second_process_is_refused_until_the_first_is_killed(tmp_path):
  first = python(
    f"import time; from posexp.run import Run\nwith Run({str(tmp_path)!r}, {CONFIG!r}):\n"
    "  print('open', flush=True); time.sleep(60)"
  )
  assert first.stdout.readline() == "open\n"
  with pytest.raises(UserError, match=rf"trained by another process \(pid {first.pid}\)"):
    Run(tmp_path, CONFIG, rerun=True).__enter__()
  first.kill()
  first.communicate()
  with Run(tmp_path, CONFIG) as run:
    assert run.finished is None
    with pytest.raises(UserError, match=rf"pid {os.getpid()}"):
      Run(tmp_path, CONFIG).__enter__()


def test_rerun_clears_what_the_run_owns_and_nothing_else(tmp_path):
  with Run(tmp_path, CONFIG) as run:
    run.log(1, {SCORE: 0.5})
    run.save(1, make_state(1), {SCORE: 0.5})
    run.finish({"test/accuracy": 0.5})
  for name in ("notes.txt", "tokenizer.json", "predictions/test.jsonl", "wandb/id"):
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).touch()
  with Run(tmp_path, {**CONFIG, "rpr": {"k": 8, "keys": True}}, rerun=True) as run:
    assert run.finished is None
    assert run.history == []
    assert run.restore(make_state(1)) is None
    left = sorted(path.name for path in tmp_path.iterdir())
    assert left == [".lock", "config.yaml", "metrics.jsonl", "notes.txt", "train.log"]


def test_a_finished_run_is_known_without_opening_it(tmp_path):
  run = Run(tmp_path, CONFIG)
  assert run.finished is None
  assert list(tmp_path.iterdir()) == []
  with run:
    run.finish({"step": np.int32(7), "test/accuracy": np.float32(0.1), "devices": "1 cpu"})
  assert run.finished == {"step": 7, "test/accuracy": float(np.float32(0.1)), "devices": "1 cpu"}


def test_what_posexp_logs_and_how_a_run_fails_is_in_its_own_log(tmp_path):
  log = logging.getLogger("posexp")

  def fail():
    with Run(tmp_path, CONFIG):
      log.warning("step %d", 3)
      raise ZeroDivisionError("why")

  with pytest.raises(ZeroDivisionError):
    fail()
  log.warning("of another run")
  text = (tmp_path / "train.log").read_text()
  assert "step 3" in text
  assert "ZeroDivisionError: why" in text
  assert "of another run" not in text


def test_reading_what_is_no_run(tmp_path):
  with pytest.raises(UserError, match=r"no config\.yaml"):
    open_run(tmp_path)


# Rows


def test_rows_come_back_bit_by_bit(tmp_path):
  values = {"a": 0.1 + 0.2, "b": np.float32(0.1), "c": jnp.float32(1 / 3), "d": 5e-324, "n": 3}
  with Run(tmp_path, CONFIG) as run:
    run.log(1, values)
    run.log(2, {"e": float("nan"), "f": float("inf")})
    written = list(run.history)
  first, second = open_run(tmp_path).history
  assert first == written[0]
  assert first == {"step": 1, **{key: np.asarray(value).item() for key, value in values.items()}}
  assert np.isnan(second["e"])
  assert second["f"] == np.inf


@pytest.mark.parametrize("torn", ['{"step": 3, "a"', '{"step": 3}', "\0\0\0\n", "\udcff\n", "7\n"])
def test_a_torn_last_row_is_dropped(tmp_path, torn):
  with Run(tmp_path, CONFIG) as run:
    run.log(1, {"a": 1})
    run.log(2, {"a": 2})
  with (tmp_path / "metrics.jsonl").open("a", errors="surrogateescape") as file:
    file.write(torn)
  assert [row["step"] for row in open_run(tmp_path).history] == [1, 2]
  with Run(tmp_path, CONFIG) as run:
    run.log(3, {"a": 3})
  rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
  assert rows == [{"step": 1, "a": 1}, {"step": 2, "a": 2}, {"step": 3, "a": 3}]


def test_a_damaged_row_among_others_is_not_passed_over(tmp_path):
  with Run(tmp_path, CONFIG):
    pass
  (tmp_path / "metrics.jsonl").write_text('{"step": 1}\n{"st\n{"step": 3}\n')
  with pytest.raises(UserError, match=r"metrics\.jsonl, line 2"):
    open_run(tmp_path)


def test_rewind(tmp_path):
  with Run(tmp_path, CONFIG) as run:
    for step in (10, 20, 30):
      run.log(step, {"a": step})
    run.rewind(20)
    run.log(25, {"a": 0})
    assert [row["step"] for row in run.history] == [10, 20, 25]
  assert open_run(tmp_path).history == run.history


# Checkpoints


def save(run, step, score):
  run.save(step, make_state(step), None if score is None else {SCORE: score, "other": 1})
  run.wait()


def kept(path):
  return sorted(int(step.name) for step in (path / "checkpoints").iterdir())


@pytest.mark.parametrize("reopened", [False, True])
@pytest.mark.parametrize(
  ("mode", "scores", "expected", "best"),
  [
    ("max", {1: 0.2, 2: 0.9, 3: 0.5, 4: 0.4}, [2, 4], 2),
    ("min", {1: 0.9, 2: 0.2, 3: 0.5, 4: 0.4}, [2, 4], 2),
    ("max", {1: 0.5, 2: 0.5, 3: 0.5}, [1, 3], 1),
    ("min", {1: 0.5, 2: 0.5, 3: 0.5}, [1, 3], 1),
    ("max", {1: 0.2, 2: 0.3}, [2], 2),
    ("max", {1: 0.2, 2: None}, [1, 2], 1),
    ("max", {1: 0.2, 2: None, 3: 0.1}, [1, 3], 1),
    ("min", {1: 0.2, 2: None, 3: None}, [1, 3], 1),
    ("max", {1: float("nan"), 2: 0.1, 3: float("nan")}, [2, 3], 2),
    ("max", {1: None, 2: None}, [2], None),
  ],
)
def test_the_newest_and_the_best_are_kept(tmp_path, reopened, mode, scores, expected, best):
  if reopened:
    for step, score in scores.items():
      with Run(tmp_path, CONFIG, mode=mode) as run:
        save(run, step, score)
  with Run(tmp_path, CONFIG, mode=mode) as run:
    if not reopened:
      for step, score in scores.items():
        save(run, step, score)
    assert kept(tmp_path) == expected
    assert run.checkpoints.find("best") == best
    assert_equal(run.restore(make_state(99)), make_state(expected[-1]))
    if best is None:
      assert run.restore(make_state(99), "best") is None
    else:
      assert_equal(run.restore(make_state(99), "best"), make_state(best))


def test_a_new_run_has_no_checkpoint(tmp_path):
  with Run(tmp_path, CONFIG) as run:
    assert run.restore(make_state(1)) is None
    assert run.restore(make_state(1), "best") is None


def test_a_step_is_saved_once(tmp_path):
  with Run(tmp_path, CONFIG) as run:
    save(run, 5, None)
    with pytest.raises(ValueError, match="does not come after"):
      save(run, 5, 0.5)


def test_what_is_saved_may_be_donated_at_once(tmp_path):
  @functools.partial(jax.jit, donate_argnums=0)
  def update(state):
    return jax.tree.map(lambda leaf: leaf + 1, state)

  state = {"step": jnp.zeros((), jnp.int32), "w": jnp.zeros(1_000_000)}
  with Run(tmp_path, CONFIG) as run:
    for step in range(1, 6):
      state = update(state)
      run.save(step, state)
      state = update(update(state))
      saved = run.restore(state)
      assert float(saved["w"].min()) == float(saved["w"].max()) == int(saved["step"])
      assert int(saved["step"]) == 1 + 3 * (step - 1)


def without_blocks(state):
  return state.replace(params={"bias": state.params["bias"]})


def with_scale(state):
  return state.replace(params={**state.params, "scale": jnp.ones(3)})


@pytest.mark.parametrize(
  ("model", "words"),
  [
    (lambda: make_state(1, width=16), r"params/blocks/0/w is float32 \[4, 8\] there and float32 "),
    (lambda: make_state(1, dtype=jnp.bfloat16), r"float32 \[4, 8\] there and bfloat16 \[4, 8\] "),
    (lambda: without_blocks(make_state(1)), "holds params/blocks/0/w, which this model does not"),
    (lambda: with_scale(make_state(1)), "it lacks params/scale"),
    (lambda: make_state(1).replace(opt_state=()), "it holds opt_state/1/0/count"),
  ],
)
def test_a_checkpoint_of_another_model_is_refused(tmp_path, capfd, model, words):
  with Run(tmp_path, CONFIG) as run:
    save(run, 1, 0.5)
  capfd.readouterr()
  with Run(tmp_path, CONFIG) as run, pytest.raises(UserError, match=words) as error:
    run.restore(model())
  assert "\n" not in str(error.value)
  assert capfd.readouterr() == ("", "")


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # orbax's threads
@pytest.mark.parametrize("part", ["default/_METADATA", "default/d", "default", "metrics/metrics"])
def test_a_damaged_checkpoint_is_one_sentence(tmp_path, part):
  with Run(tmp_path, CONFIG) as run:
    save(run, 1, 0.5)
  damaged = tmp_path / "checkpoints" / "1" / part
  if damaged.is_dir():
    shutil.rmtree(damaged)
  else:
    damaged.write_bytes(b"\0\0")
  with Run(tmp_path, CONFIG) as run, pytest.raises(UserError, match="is damaged") as error:
    run.restore(make_state(1))
  assert "\n" not in str(error.value)


@pytest.mark.parametrize("gone", ["_CHECKPOINT_METADATA", "metrics", "default", "metrics/metrics"])
def test_a_kill_amid_the_removal_of_an_old_checkpoint(tmp_path, gone):
  with Run(tmp_path, CONFIG) as run:
    save(run, 1, 0.9)
    save(run, 2, 0.5)
    shutil.copytree(tmp_path / "checkpoints" / "2", tmp_path / "old")
    save(run, 3, 0.4)
  half = tmp_path / "checkpoints" / "2"
  shutil.move(tmp_path / "old", half)
  if (half / gone).is_dir():
    shutil.rmtree(half / gone)
  else:
    (half / gone).unlink()
  with Run(tmp_path, CONFIG) as run:
    assert int(run.restore(make_state(9)).step) == 3
    assert int(run.restore(make_state(9), "best").step) == 1
    save(run, 4, 0.1)
    assert kept(tmp_path) == [1, 4]


def test_a_full_disk_is_one_sentence_and_costs_nothing_saved(tmp_path, capfd):
  big = {"w": jax.random.normal(jax.random.key(0), (500_000,))}
  with Run(tmp_path, CONFIG) as run:
    run.save(1, big, {SCORE: 0.5})
  limits = resource.getrlimit(resource.RLIMIT_FSIZE)

  def fill_up():
    try:
      with Run(tmp_path, CONFIG) as run:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))
        run.save(2, big, {SCORE: 0.6})
    finally:
      resource.setrlimit(resource.RLIMIT_FSIZE, limits)

  with pytest.raises(UserError, match=r"could not be written to .* \(File too large\)") as error:
    fill_up()
  assert "\n" not in str(error.value)
  assert capfd.readouterr() == ("", "")
  with Run(tmp_path, CONFIG) as run:
    assert_equal(run.restore(big), big)
    assert run.checkpoints.find("best") == 1
    run.save(2, big, {SCORE: 0.6})
  assert kept(tmp_path) == [2]


def test_another_process_may_read_while_a_run_is_trained(tmp_path):
  with Run(tmp_path, CONFIG) as run:
    run.log(1, {SCORE: 0.5})
    save(run, 1, 0.5)
    unfinished = tmp_path / "checkpoints" / "2.orbax-checkpoint-tmp"
    unfinished.mkdir()
    record = open_run(tmp_path)
    assert_equal(record.restore(make_state(9)), make_state(1))
    assert record.history == [{"step": 1, SCORE: 0.5}]
    assert record.summary is None
    assert unfinished.exists()
  with Run(tmp_path, CONFIG) as run:
    save(run, 2, 0.4)
  assert kept(tmp_path) == [1, 2]


SHARDED = """
import sys, jax, jax.numpy as jnp, numpy as np
from posexp.run import Run
mesh = jax.sharding.Mesh(np.array(jax.devices()), ("data",))
rows = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data"))
whole = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
template = {{
  "rows": jax.ShapeDtypeStruct((16,), jnp.float32, sharding=rows),
  "whole": jax.ShapeDtypeStruct((3,), jnp.float32, sharding=whole),
}}
with Run(sys.argv[1], {config!r}) as run:
  state = run.restore(template)
  for name in state:
    assert state[name].sharding == template[name].sharding
    assert len(state[name].devices()) == 8
  run.save(2, jax.tree.map(lambda leaf: leaf + 1, state))
"""


def test_a_run_goes_on_with_another_number_of_devices(tmp_path):
  state = {"rows": jnp.arange(16.0), "whole": jnp.ones(3)}
  with Run(tmp_path, CONFIG) as run:
    run.save(1, state)
  flags = "--xla_force_host_platform_device_count=8"
  done = python(SHARDED.format(config=CONFIG), str(tmp_path), XLA_FLAGS=flags)
  assert done.communicate() == ("", "")
  assert done.returncode == 0
  with Run(tmp_path, CONFIG) as run:
    assert_equal(run.restore(state), jax.tree.map(lambda leaf: leaf + 1, state))


SAVING = """
import sys, jax.numpy as jnp
from posexp.run import Run
with Run(sys.argv[1], {config!r}) as run:
  step = run.checkpoints.find("latest") or 0
  run.rewind(step)
  while True:
    step += 1
    metrics = {{"validation/accuracy": (7 * step % 11) / 11}} if step % 3 else None
    run.log(step, metrics or {{"train/loss": 1 / step}})
    state = {{"step": jnp.asarray(step), "w": jnp.full(2_000_000, step, jnp.float32)}}
    run.save(step, state, metrics)
    print(step, flush=True)
"""


def test_killed_at_any_moment_nothing_saved_is_lost(tmp_path):
  template = {"step": jnp.asarray(0), "w": jnp.zeros(2_000_000)}
  for kill in range(2):
    saving = python(SAVING.format(config=CONFIG), str(tmp_path))
    for _ in range(5 + 3 * kill):  # the last of these is being written
      said = int(saving.stdout.readline())
    saving.send_signal(signal.SIGKILL)
    saving.communicate()
    with Run(tmp_path, CONFIG) as run:
      newest, best = run.restore(template), run.restore(template, "best")
      step = int(newest["step"])
      assert step >= said - 1
      for state in (newest, best):
        assert float(state["w"].min()) == float(state["w"].max()) == int(state["step"])
      run.rewind(step)
      assert [row["step"] for row in run.history] == list(range(1, step + 1))
      scored = [row for row in run.history if SCORE in row]
      assert int(best["step"]) == max(scored, key=lambda row: (row[SCORE], -row["step"]))["step"]


# Speed


def test_a_finished_run_is_read_without_jax_and_orbax(tmp_path):
  with Run(tmp_path, CONFIG) as run:
    save(run, 1, 0.5)
    run.finish({"step": 1})
  code = (
    "import sys; from posexp.run import Run, open_run\n"
    f"assert Run({str(tmp_path)!r}, {{}}).finished == {{'step': 1}}\n"
    f"assert open_run({str(tmp_path)!r}).summary == {{'step': 1}}\n"
    "assert not {'jax', 'orbax', 'wandb'} & sys.modules.keys()"
  )
  done = python(code)
  assert done.communicate() == ("", "")
  assert done.returncode == 0


def test_the_config_that_is_kept_can_be_typed_again(tmp_path):
  with Run(tmp_path, CONFIG):
    pass
  assert OmegaConf.load(tmp_path / "config.yaml") == OmegaConf.create(CONFIG)
