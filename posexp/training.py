"""The compiled half of training: the state, the step that changes it, and what a model predicts.

Randomness has one owner, the seed. Weights are drawn from keys of the seed, dropout and positions
from (seed, step), batches from (seed, step). No generator is stored, so that a state is all that a
checkpoint needs.
"""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx, struct
from jax import Array
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from posexp import cache
from posexp.optimizer import Training, make_optimizer

Batch = dict[str, np.ndarray]
POSITIONS = 2**31  # dropout's draws of a step are counted from 0


@struct.dataclass
class Window:
  """Sums over the steps since the last row of the log."""

  sums: dict[str, Array]  # each metric, times the weight of its batch
  weight: Array
  broken: Array  # the first step whose loss is not finite; −1 while there is none


@struct.dataclass
class State:
  """All that training carries from step to step."""

  step: Array
  params: Any
  settings: Any  # options that are traced (posexp.encodings.base.Setting)
  opt_state: Any
  window: Window


class Program(NamedTuple):
  """The compiled functions of a run."""

  graphdef: Any  # the structure of the model
  init: Callable[[int], State]  # from the seed
  update: Callable[[State, Batch, Array], State]  # with the key of dropout; the state is donated
  clear: Callable[[State], State]  # with an empty window; the state is donated
  predict: Callable[..., dict[str, Array]]  # from a state, for every example of a batch


def keep_compiled() -> None:
  """Keeps what is compiled on disk, so that the next process starts in seconds."""
  kept = os.environ.get("JAX_COMPILATION_CACHE_DIR") or str(cache.folder() / "jax")
  jax.config.update("jax_compilation_cache_dir", kept)
  jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
  jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


def keys(seed: int) -> dict[str, Array]:
  """The random keys of a run, by stream."""
  names = ("params", "encoding", "dropout")
  return dict(zip(names, jax.random.split(jax.random.key(seed), len(names)), strict=True))


def mesh_for(rows: np.ndarray) -> Mesh:
  """As many local devices as divide every size of batches, in one row."""
  devices = jax.local_devices()
  whole = math.gcd(*np.asarray(rows).ravel().tolist())
  count = next(n for n in range(len(devices), 0, -1) if whole % n == 0)
  return Mesh(np.array(devices[:count]), ("data",))


def shard(batches: Iterable[Batch], mesh: Mesh) -> Iterator[tuple[dict[str, Array], int]]:
  """Batches divided among the devices and its number of real tokens, one batch ahead of its use."""
  sharding = NamedSharding(mesh, PartitionSpec("data"))
  ahead = None
  for batch in batches:
    tokens = int(batch["mask"].sum())
    ahead, ready = (jax.device_put(batch, sharding), tokens), ahead
    if ready is not None:
      yield ready
  if ahead is not None:
    yield ahead


def split(build: Callable[..., nnx.Module], seeds: dict[str, Array]) -> tuple[Any, Any, Any]:
  """The structure, the parameters and the settings of the model that `build(rngs=...)` makes."""
  graphdef, params, settings = nnx.split(build(rngs=nnx.Rngs(**seeds)), nnx.Param, ...)
  return graphdef, nnx.as_pure(params), nnx.as_pure(settings)


@functools.lru_cache(maxsize=8)
def program(
  build: Callable[..., nnx.Module], training: Training, steps: int, mesh: Mesh
) -> Program:
  """What a run calls; each function is compiled when it is first called, for runs that agree once.

  `build(rngs=...)` makes a model with `loss(batch, label_smoothing=, rngs=)`, which gives metrics
  ("loss" among them) and their weight, with `metrics`, their names, and with `predict(batch)`.
  """
  found = []
  jax.eval_shape(lambda seeds: found.extend(split(build, seeds)[:1]), keys(0))  # structure alone
  names = build.func.metrics
  optimizer = make_optimizer(training, steps)

  @functools.partial(jax.jit, out_shardings=NamedSharding(mesh, PartitionSpec()))
  def start(seeds: dict[str, Array]) -> State:
    _, params, settings = split(build, seeds)
    step = jnp.zeros((), jnp.int32)
    state = State(step, params, settings, optimizer.init(params), empty(names))
    # A weak type would not come back from a checkpoint, and what it is given to be compiled twice.
    return jax.tree.map(lambda leaf: jnp.asarray(leaf, leaf.dtype), state)

  graphdef = found[0]
  return Program(
    graphdef, lambda seed: start(keys(seed)), *compiled(graphdef, names, training, steps)
  )


def empty(names: Iterable[str]) -> Window:
  """A window on no step at all."""
  return Window({name: jnp.zeros(()) for name in names}, jnp.zeros(()), jnp.full((), -1, jnp.int32))


@functools.lru_cache(maxsize=8)
def compiled(graphdef: nnx.GraphDef, names: tuple[str, ...], training: Training, steps: int):
  """update, clear and predict of a `Program`: the same objects for models of equal structure."""
  optimizer = make_optimizer(training, steps)

  @functools.partial(jax.jit, donate_argnums=0)
  def update(state: State, batch: Batch, key: Array) -> State:
    def loss(params):
      of_step = jax.random.fold_in(key, state.step)
      rngs = nnx.Rngs(dropout=of_step, positions=jax.random.fold_in(of_step, POSITIONS))
      model = nnx.merge(graphdef, params, state.settings)
      values, weight = model.loss(batch, label_smoothing=training.label_smoothing, rngs=rngs)
      return values["loss"], (values, weight)

    grads, (values, weight) = jax.grad(loss, has_aux=True)(state.params)
    updates, opt_state = optimizer.update(grads, state.opt_state, state.params)
    step = state.step + 1
    fine = jnp.isfinite(values["loss"]) | (state.window.broken >= 0)
    window = Window(
      jax.tree.map(lambda total, value: total + value * weight, state.window.sums, values),
      state.window.weight + weight,
      jnp.where(fine, state.window.broken, step),
    )
    params = optax.apply_updates(state.params, updates)
    return state.replace(step=step, params=params, opt_state=opt_state, window=window)

  @functools.partial(jax.jit, donate_argnums=0)
  def clear(state: State) -> State:
    return state.replace(window=empty(names))

  @jax.jit
  def predict(state: State, batch: Batch, kept: dict[str, Array] | None = None):
    return nnx.merge(graphdef, state.params, state.settings).predict(batch, kept)

  return update, clear, predict


@functools.lru_cache(maxsize=32)
def parameters(build: Callable[..., nnx.Module]) -> int:
  """How many parameters a model has; nothing is allocated.

  Raises:
    ValueError: the model cannot be built; the sentence says which sizes do not suit.
  """

  params = jax.eval_shape(lambda: split(build, keys(0))[1])
  return sum(leaf.size for leaf in jax.tree.leaves(params))
