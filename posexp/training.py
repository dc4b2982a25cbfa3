"""The compiled half of training: the state, the step that changes it, and what a model predicts.

Randomness has one owner, the seed. Weights are drawn from keys of the seed, dropout from
(seed, step), batches from (seed, step). No generator is stored, so that a state is all that a
checkpoint needs.
"""

from __future__ import annotations

import functools
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
  opt_state: Any
  window: Window


class Program(NamedTuple):
  """The compiled functions of a run; runs that agree in everything but the seed share them."""

  init: Callable[[int], State]  # from the seed
  update: Callable[[State, Batch, Array], State]  # with the key of dropout; the state is donated
  clear: Callable[[State], State]  # with an empty window; the state is donated
  predict: Callable[[Any, Batch], dict[str, Array]]  # from params, for every example of a batch


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


def mesh_for(batch_size: int) -> Mesh:
  """As many local devices as divide a batch, in one row."""
  devices = jax.local_devices()
  count = next(n for n in range(len(devices), 0, -1) if batch_size % n == 0)
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


@functools.lru_cache(maxsize=8)
def program(
  build: Callable[..., nnx.Module], training: Training, steps: int, mesh: Mesh
) -> Program:
  """Compiles (when first called) what a run needs.

  `build(rngs=...)` makes the model; equal models must come from the same object, which is what
  `posexp.models.classifier` sees to. The model has `loss(batch, label_smoothing=, rngs=)`, which
  gives metrics ("loss" among them) and their weight, `predict(batch)`, and `metrics`, the names.
  """
  optimizer = make_optimizer(training, steps)
  whole = NamedSharding(mesh, PartitionSpec())

  def split(seeds: dict[str, Array]):
    model = build(rngs=nnx.Rngs(**seeds))
    graphdef, params = nnx.split(model)
    return graphdef, nnx.as_pure(params), model.metrics

  graphdef, metrics = None, ()

  def trace(seeds):
    nonlocal graphdef, metrics
    graphdef, params, metrics = split(seeds)
    return params

  jax.eval_shape(trace, keys(0))  # for the structure alone

  def empty() -> Window:
    return Window({name: jnp.zeros(()) for name in metrics}, jnp.zeros(()), jnp.full((), -1))

  @functools.partial(jax.jit, out_shardings=whole)
  def start(seeds: dict[str, Array]) -> State:
    params = split(seeds)[1]
    return State(jnp.zeros((), jnp.int32), params, optimizer.init(params), empty())

  def init(seed: int) -> State:
    return start(keys(seed))

  @functools.partial(jax.jit, donate_argnums=0)
  def update(state: State, batch: Batch, key: Array) -> State:
    def loss(params):
      rngs = nnx.Rngs(dropout=jax.random.fold_in(key, state.step))
      model = nnx.merge(graphdef, params)
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
    return State(step, optax.apply_updates(state.params, updates), opt_state, window)

  @functools.partial(jax.jit, donate_argnums=0)
  def clear(state: State) -> State:
    return state.replace(window=empty())

  @jax.jit
  def predict(params, batch: Batch) -> dict[str, Array]:
    return nnx.merge(graphdef, params).predict(batch)

  return Program(init, update, clear, predict)


def parameters(build: Callable[..., nnx.Module]) -> int:
  """How many parameters a model has; nothing is allocated.

  Raises:
    ValueError: the model cannot be built; the sentence says which sizes do not suit.
  """

  def params():
    return nnx.as_pure(nnx.state(build(rngs=nnx.Rngs(**keys(0)))))

  return sum(leaf.size for leaf in jax.tree.leaves(jax.eval_shape(params)))
