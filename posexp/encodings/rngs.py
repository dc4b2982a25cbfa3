"""Streams of random keys that cost nothing to trace."""

from __future__ import annotations

import functools
from collections.abc import Callable

import jax
from jax import Array


class Rngs:
  """Streams of keys by name: `rngs.params()` is the next key of one, `rngs.fork()` new streams.

  `flax.nnx.Rngs` gives the same keys and may stand wherever these do, but it counts them in arrays:
  under a trace JAX goes through all that was traced before, each time that one is set, for a
  message that nobody reads. Most of the time in which a model was built went there. Flax's modules
  take these where they draw weights; `nnx.Dropout` takes a key, `rngs=rngs.dropout()`.
  """

  def __init__(self, **keys: Array | int):
    self._keys = {
      name: jax.random.key(key) if isinstance(key, int) else key for name, key in keys.items()
    }
    self._drawn = dict.fromkeys(keys, 0)

  def __getattr__(self, name: str) -> Callable[[], Array]:
    if name.startswith("_") or name not in self._keys:
      raise AttributeError(f"there is no stream of random keys called {name}")
    return functools.partial(self._next, name)

  def _next(self, name: str) -> Array:
    key = jax.random.fold_in(self._keys[name], self._drawn[name])
    self._drawn[name] += 1
    return key

  def fork(self) -> Rngs:
    """Streams of the same names, each from the next key of its own."""
    return Rngs(**{name: self._next(name) for name in self._keys})
