"""What tests of several modules share."""

import os

import pytest

os.environ.setdefault("JAX_PLATFORMS", "cpu")


@pytest.fixture(scope="module")
def compile_quickly():
  """Compiles without optimizing: tests run many tiny programs once each."""
  import jax

  before = jax.config.values["jax_disable_most_optimizations"]
  jax.config.update("jax_disable_most_optimizations", True)
  yield
  jax.config.update("jax_disable_most_optimizations", before)


@pytest.fixture(scope="module")
def home(tmp_path_factory):
  """The current directory of a module's tests, and where they keep what is kept between runs."""
  import order

  path = tmp_path_factory.mktemp("home")
  with order.home(path):
    yield path
