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
    return jax.random.fold_in(self._keys[name], self._count(name))

  def _count(self, name: str) -> int:
    self._drawn[name] += 1
    return self._drawn[name] - 1

  def fork(self) -> Rngs:
    """Streams of the same names, each from the next key of its own."""
    return Rngs(**{name: self._next(name) for name in self._keys})


Path = tuple[str | int, ...]  # of a key: its stream, then the count of each key that it comes from


class RecordingRngs(Rngs):
  """Streams that give the same key each time, and note in `paths` which would have been due."""

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

  What draws weights compiles in about half the time if it need not make its keys, too.
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
  """The keys at these paths of `Rngs(**first)`."""
  made = {(name,): key for name, key in first.items()}

  def key(path: Path) -> Array:
    if path not in made:
      made[path] = jax.random.fold_in(key(path[:-1]), path[-1])
    return made[path]

  return [key(path) for path in paths]


def abstract_model(build: Callable[[Rngs], Any], paths: list[Path] | None = None) -> Any:
  """What `build` makes, in shape only; `paths` gets those of the keys that weights are drawn from.

  Nothing is allocated.
  """
  streams = {name: (name,) for name in STREAMS}
  return nnx.eval_shape(lambda: build(RecordingRngs([] if paths is None else paths, **streams)))
