"""The script that measures hand-written gradients against plain JAX: it knows all of them."""

import pkgutil
import sys

import jax
import plain_jax
import pytest

import posexp
from posexp.kernels import gradients, lookup


def test_every_hand_written_gradient_is_measured():
  for module in pkgutil.walk_packages(posexp.__path__, "posexp."):
    if module.name.split(".")[1] in ("kernels", "models", "encodings"):
      __import__(module.name)
  modules = [module for name, module in sys.modules.items() if name.startswith("posexp.")]
  written = {f for m in modules for f in vars(m).values() if isinstance(f, jax.custom_vjp)}
  measured = {f for part in plain_jax.PARTS.values() for f in part.functions}
  assert written == {f for f in measured if isinstance(f, jax.custom_vjp)}


@pytest.mark.slow
def test_parts_are_left_to_jax_and_put_back():
  kept = dict(vars(gradients))
  with plain_jax.left_to_jax(list(plain_jax.PARTS.values())):
    assert not any(isinstance(f, jax.custom_vjp) for f in vars(gradients).values())
    assert not isinstance(lookup.by_key, jax.custom_vjp)
  assert dict(vars(gradients)) == kept
