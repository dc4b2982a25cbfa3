"""Compares a function, and its derivatives, with the same written naively in float64."""

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

STEP = 1e-5


def draw(*shape, seed=0):
  return np.random.default_rng(seed).normal(size=shape)


def float64(param):
  return np.asarray(param[...], np.float64)


def close(got, expected, tolerance=2e-6):
  np.testing.assert_allclose(got, expected, rtol=tolerance, atol=tolerance)


def pairs(x):
  """Neighbors [..., 2M] as complex numbers [..., M]."""
  x = np.asarray(x, np.float64)
  return x[..., 0::2] + 1j * x[..., 1::2]


def interleaved(z):
  return np.stack([z.real, z.imag], -1).reshape(*z.shape[:-1], -1)


def holding(module, **arrays):
  """The module with these arrays in its parameters of these names."""
  graphdef, state = nnx.split(module)
  flat = [
    (path, leaf.replace(arrays.pop(path[-1])) if path[-1] in arrays else leaf)
    for path, leaf in nnx.to_flat_state(state)
  ]
  assert not arrays
  return nnx.merge(graphdef, nnx.from_flat_state(flat))


def check(function, naive, *arguments, tolerance=1e-5):
  """Both take `arguments` and give an array; each argument has a derivative in some direction."""
  exact = [np.asarray(x, np.float64) for x in arguments]
  single = [jnp.asarray(x, jnp.float32) for x in exact]
  expected = naive(*exact)
  draw = np.random.default_rng(11)
  weight = draw.normal(size=expected.shape)

  @jax.jit
  def found(*single):
    got, backward = jax.vjp(function, *single)
    return got, backward(jnp.asarray(weight, got.dtype))

  got, gradients = found(*single)
  np.testing.assert_allclose(got, expected, rtol=tolerance, atol=tolerance)
  for index, gradient in enumerate(gradients):
    way = draw.normal(size=exact[index].shape)
    way /= np.linalg.norm(way)

    def moved(step, index=index, way=way):
      there = [*exact[:index], exact[index] + step * way, *exact[index + 1 :]]
      return (naive(*there) * weight).sum()

    slope = (moved(STEP) - moved(-STEP)) / (2 * STEP)
    got = (np.asarray(gradient, np.float64) * way).sum()
    scale = max(0.01, np.linalg.norm(gradient))
    assert abs(got - slope) < 10 * tolerance * scale, (index, got, slope)
