"""What is asked of JAX and of the machine before a run begins."""

import jax
import pytest
from states import python

from posexp.errors import UserError
from posexp.training import devices


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
