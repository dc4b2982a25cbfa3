"""Streams of random keys that cost little to trace and to compile."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import jax
from flax import nnx
from jax import Array

STREAMS = ("params", "encoding", "dropout")  # of a run


class Rngs:
  """Streams of keys by name: `rngs.params()` is the next key of one, `rngs.fork()` new streams.

  `flax.nnx.Rngs` gives the same keys and may be used instead, but it counts them in arrays. Each
  time one is set under a trace, JAX searches all that was traced before, only to prepare an error
  message; building a model spent most of its time there. Flax's modules take these streams where
  they draw weights; `nnx.Dropout` takes a key, `rngs=rngs.dropout()`.
  """

  def __init__(self, **keys: Array | int):
    self._keys: dict[str, Any] = {
      name: jax.random.key(key) if isinstance(key, int) else key for name, key in keys.items()
    }
    self._drawn = dict.fromkeys(keys, 0)
    self._fold: Callable[[Any, int], Any] = jax.random.fold_in
    self._draw: Callable[[Any], Array] = lambda key: key

  def __getattr__(self, name: str) -> Callable[[], Array]:
    if name.startswith("_") or name not in self._keys:
      raise AttributeError(f"there is no stream of random keys called {name}")
    return lambda: self._draw(self._next(name))

  def _next(self, name: str) -> Any:
    self._drawn[name] += 1
    return self._fold(self._keys[name], self._drawn[name] - 1)

  def fork(self) -> Rngs:
    """Return streams of the same names, each from its next key."""
    made = copy.copy(self)
    made._keys = {name: self._next(name) for name in self._keys}
    made._drawn = dict.fromkeys(self._keys, 0)
    return made


Path = tuple[str | int, ...]  # of a key: its stream, then the count of each key that it comes from


class RecordingRngs(Rngs):
  """Streams of keys that record the path of each draw, and give the same key each time."""

  def __init__(self, paths: list[Path], **forked: Path):
    super().__init__(**forked)
    key = jax.random.key(0)

    def draw(path: Path) -> Array:
      paths.append(path)
      return key

    self._fold, self._draw = lambda path, number: (*path, number), draw


class GivenRngs(Rngs):
  """Streams whose keys are given, in the order in which they will be drawn.

  A program that draws weights compiles in about half the time if it does not derive the keys.
  """

  def __init__(self, keys: Iterable[Array]):
    super().__init__(**dict.fromkeys(STREAMS))
    left = iter(keys)
    self._fold, self._draw = lambda key, number: None, lambda key: next(left)


def keys_at(paths: Iterable[Path], first: Mapping[str, Array]) -> list[Array]:
  """Return the keys at these paths of `Rngs(**first)`."""
  paths = [*paths]
  made: dict[Path, Array] = {(name,): key for name, key in first.items()}
  for path in paths:
    for end in range(1, len(path)):
      if path[: end + 1] not in made:
        made[path[: end + 1]] = jax.random.fold_in(made[path[:end]], path[end])
  return [made[path] for path in paths]


def abstract_model(build: Callable[[Rngs], Any], paths: list[Path] | None = None) -> Any:
  """Build a model in shape only; add the path of each key that is drawn to `paths`.

  Nothing is allocated.
  """
  streams = {name: (name,) for name in STREAMS}
  return nnx.eval_shape(lambda: build(RecordingRngs([] if paths is None else paths, **streams)))
