"""What a run says that it cost: each in its own figure, and compilation in one alone."""

import types

import jax
import jax.numpy as jnp
import pytest
from order import compilations

import posexp
from posexp.training import costs
from posexp.training.optimizer import Rate
from posexp.training.step import Step


class Device:
  """A device that counts its bytes."""

  peak = 0

  def memory_stats(self):
    return {"peak_bytes_in_use": self.peak, "bytes_in_use": 1}


@pytest.fixture
def watch(monkeypatch):
  """A clock that stands still."""
  found = types.SimpleNamespace(now=1000.0)
  found.perf_counter = found.process_time = lambda: found.now
  monkeypatch.setattr(costs, "time", found)
  return found


STATE = types.SimpleNamespace(step=jnp.zeros(()))


def meter(history, device, seconds=0.0):
  step = types.SimpleNamespace(seconds=seconds, temporary_bytes=64)
  mesh = types.SimpleNamespace(local_devices=[Device(), device])
  return costs.Meter(history, step, mesh, begun=990.0), step


def test_compiling_and_evaluating_are_no_part_of_a_rate(watch):
  found, step = meter([], Device(), seconds=70.0)  # of an earlier run
  watch.now, step.seconds = 1012.0, 80.0
  found.count(30, STATE)
  watch.now = 1013.0
  found.count(30, STATE)
  first = found.read()
  watch.now = 1020.0  # after an evaluation
  found.restart()
  watch.now = 1021.0
  found.count(30, STATE)
  second = found.read()
  assert first["time/tokens_per_second"] == 20
  assert second["time/tokens_per_second"] == 30
  assert (first["time/seconds"], second["time/seconds"]) == (13, 21)
  assert first["time/compile_seconds"] == second["time/compile_seconds"] == 10
  assert first["time/first_step_seconds"] == second["time/first_step_seconds"] == 22


def test_sessions_add_up_and_the_first_step_is_that_of_the_first(watch):
  found, step = meter([], Device())
  watch.now, step.seconds = 1012.0, 10.0
  found.count(30, STATE)
  rows = [{"step": 1, "train/loss": 1.0} | found.read()]
  watch.now = 2000.0
  again, step = meter(rows, Device())
  watch.now, step.seconds = 2002.0, 0.5
  again.count(30, STATE)
  rows += [{"step": 2} | again.read()]
  found = costs.of_run(rows)
  assert found.pop("time/cpu_seconds") >= 0
  assert found == {
    "time/seconds": 14.0,
    "time/tokens_per_second": 17.5,
    "time/compile_seconds": 10.5,
    "time/input_seconds": 0.0,
    "time/first_step_seconds": 22.0,
    "memory/temporary_bytes": 64,
  }


def test_the_peak_is_that_of_the_fullest_device_and_of_no_earlier_run(watch):
  device = Device()
  device.peak = 500
  found, _ = meter([], device)
  watch.now += 1
  found.count(1, STATE)
  assert "memory/peak_bytes" not in found.read()
  device.peak = 700
  watch.now += 1
  assert found.read()["memory/peak_bytes"] == 700


def test_devices_wait_for_a_batch_only_when_their_steps_are_done(watch):
  def batches():
    while True:
      watch.now += 3
      yield {}, 30

  def state(ready):
    return types.SimpleNamespace(step=types.SimpleNamespace(is_ready=lambda: ready))

  found, _ = meter([{"step": 1, "time/input_seconds": 1.0, "time/first_step_seconds": 1}], Device())
  stream = batches()
  waits = []
  for ready in (True, False, True):
    assert found.next(stream, state(ready)) == ({}, 30)
    waits.append(found.read()["time/input_seconds"])
  assert waits == [4, 4, 7]


def test_the_first_job_begins_with_the_process(watch, monkeypatch):
  monkeypatch.setattr(costs, "_process", [posexp.BEGUN])
  assert [costs.job_begins(), costs.job_begins()] == [posexp.BEGUN, watch.now]


def test_processors_of_one_name_are_told_apart(monkeypatch):
  said = "cpu family\t: 25\nmodel\t\t: 1\nmodel name\t: AMD EPYC\n"
  monkeypatch.setattr(costs.Path, "read_text", lambda file: said)
  assert costs._processor() == "AMD EPYC family 25 model 1"
  said = "model name\t: Cortex\n"
  assert costs._processor() == "Cortex"


def test_a_step_is_compiled_once_for_each_shape_and_its_memory_is_known():
  @jax.jit
  def update(state, batch, key, rate):
    return state + jnp.sort(jnp.outer(batch["mask"], batch["mask"]).ravel())[-1]

  step = Step(update).at(Rate(0.0, 0.0))
  with compilations() as counts:
    for size in (8, 100, 8, 100, 100):
      mask = jax.device_put(jnp.ones((1, size)))
      state = step(jnp.zeros(()), {"mask": mask}, jax.random.key(0))
      assert float(state) == 1
  assert counts["update"] == 2
  assert step.temporary_bytes >= 4 * 100 * 100
  assert step.seconds > 0


def test_a_step_may_be_compiled_before_there_is_a_state():
  @jax.jit
  def update(state, batch, key, rate):
    if batch["mask"].size == 3:
      raise ValueError("no step on 3 tokens")
    return state + batch["mask"].sum()

  step, key = Step(update).at(Rate(0.0, 0.0)), jax.random.key(0)
  given = (jnp.zeros(()), [{"mask": jnp.ones((1, size))} for size in (8, 3, 9)])
  state, batches = given = jax.device_put(given, jax.devices()[0])
  shapes = jax.tree.map(
    lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), given
  )
  with compilations() as counts:
    step.begin(*shapes, key)
    step.await_xla()
    assert [float(step(state, batch, key)) for batch in (batches[2], batches[0])] == [9, 8]
  assert counts["update"] == 2
  with pytest.raises(ValueError, match="no step on 3 tokens"):
    step(state, batches[1], key)
