"""What is asked of JAX and of the machine before a run begins."""

import jax
import pytest

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
