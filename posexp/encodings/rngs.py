"""Streams of random keys that cost little to trace and to compile."""

from __future__ import annotations

import functools
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
    self._keys = {
      name: jax.random.key(key) if isinstance(key, int) else key for name, key in keys.items()
    }
    self._drawn = dict.fromkeys(keys, 0)

  def __getattr__(self, name: str) -> Callable[[], Array]:
    if name.startswith("_") or name not in self._keys:
      raise AttributeError(f"there is no stream of random keys called {name}")
    return functools.partial(self._next, name)

  def _next(self, name: str) -> Array:
    return jax.random.fold_in(self._keys[name], self._count(name))

  def _count(self, name: str) -> int:
    self._drawn[name] += 1
    return self._drawn[name] - 1

  def fork(self) -> Rngs:
    """Return streams of the same names, each from its next key."""
    return Rngs(**{name: self._next(name) for name in self._keys})


Path = tuple[str | int, ...]  # of a key: its stream, then the count of each key that it comes from


class RecordingRngs(Rngs):
  """Streams that give the same key each time, and record in `paths` which key was due."""

  def __init__(self, paths: list[Path], **forked: Path):
    super().__init__(**dict.fromkeys(forked, 0))
    self._paths, self._forked = paths, forked

  def _path(self, name: str) -> Path:
    return (*self._forked[name], self._count(name))

  def _next(self, name: str) -> Array:
    self._paths.append(self._path(name))
    return self._keys[name]

  def fork(self) -> RecordingRngs:
    return RecordingRngs(self._paths, **{name: self._path(name) for name in self._keys})


class GivenRngs(Rngs):
  """Streams whose keys are given, in the order in which they will be drawn.

  A program that draws weights compiles in about half the time if it does not derive the keys.
  """

  def __init__(self, keys: Iterable[Array]):
    self._left = iter(keys)

  def __getattr__(self, name: str) -> Callable[[], Array]:
    if name.startswith("_"):
      raise AttributeError(name)
    return functools.partial(next, self._left)

  def fork(self) -> GivenRngs:
    return self


def keys_at(paths: Iterable[Path], first: Mapping[str, Array]) -> list[Array]:
  """Return the keys at these paths of `Rngs(**first)`."""
  made: dict[Path, Array] = {(name,): key for name, key in first.items()}

  def key(path: Path) -> Array:
    if path not in made:
      made[path] = jax.random.fold_in(key(path[:-1]), path[-1])
    return made[path]

  return [key(path) for path in paths]


def abstract_model(build: Callable[[Rngs], Any], paths: list[Path] | None = None) -> Any:
  """Build a model in shape only; add the path of each key that is drawn to `paths`.

  Nothing is allocated.
  """
  streams = {name: (name,) for name in STREAMS}
  return nnx.eval_shape(lambda: build(RecordingRngs([] if paths is None else paths, **streams)))
