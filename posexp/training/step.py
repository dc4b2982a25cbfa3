"""The compiled half of training: the state, the step that changes it, and what a model predicts.

Randomness has one owner, the seed. Weights are drawn from keys of the seed, dropout and positions
from (seed, step), batches from (seed, step). No generator is stored, so that a state is all that a
checkpoint needs.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from flax import nnx, struct
from jax import Array
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import Mesh

from posexp.kernels.target import compiling
from posexp.training.devices import Batch, replicated, shardings
from posexp.training.optimizer import Training, make_optimizer

POSITIONS = 2**31  # dropout's draws of a step are counted from 0
GATHERED = "gathered"  # the name of parameters that were divided


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


class Step:
  """The step of training: from a state, which is donated, a batch and the key of dropout, a state.

  It is compiled ahead when a batch has a new shape, so that the costs of this are known.
  """

  def __init__(self, update: Callable[[State, Batch, Array], State]):
    self.jitted = update
    self._temporary: dict[tuple[int, ...], int] = {}  # bytes, by the shape of the batches
    self.seconds = 0.0  # of tracing and compiling, in this process

  @property
  def temporary_bytes(self) -> int:
    """What a step needs on a device beside its inputs and outputs, at the most."""
    return max(self._temporary.values(), default=0)

  def __call__(self, state: State, batch: Batch, key: Array) -> State:
    if (shape := batch["mask"].shape) not in self._temporary:
      jax.block_until_ready(state)  # the time of steps before this one is not that of compiling
      begun = time.perf_counter()
      # The jitted function finds what is compiled here, and has less to do for a call.
      program = self.jitted.lower(state, batch, key).compile()
      self.seconds += time.perf_counter() - begun
      self._temporary[shape] = getattr(program.memory_analysis(), "temp_size_in_bytes", 0)
    return self.jitted(state, batch, key)


class Program(NamedTuple):
  """The compiled functions of a run."""

  graphdef: Any  # the structure of the model
  init: Callable[[int], State]  # from the seed
  update: Step
  clear: Callable[[State], State]  # with an empty window; the state is donated
  predict: Callable[..., dict[str, Array]]  # from a state, for every example of a batch


def keys(seed: int) -> dict[str, Array]:
  """The random keys of a run, by stream."""
  names = ("params", "encoding", "dropout")
  return dict(zip(names, jax.random.split(jax.random.key(seed), len(names)), strict=True))


def split(
  build: Callable[[nnx.Rngs], nnx.Module], seeds: dict[str, Array]
) -> tuple[nnx.GraphDef, Any, Any]:
  """The structure, the parameters and the settings of the model that `build` makes."""
  graphdef, params, settings = nnx.split(build(nnx.Rngs(**seeds)), nnx.Param, ...)
  return graphdef, nnx.as_pure(params), nnx.as_pure(settings)


@functools.lru_cache(maxsize=8)
def program(spec: Any, training: Training, steps: int, mesh: Mesh) -> Program:
  """What a run calls; each function is compiled when it is first called, for runs that agree once.

  `spec.build(rngs)` makes a model with `loss(batch, label_smoothing=, rngs=)`, which gives metrics
  ("loss" among them) and their weight, with `metrics`, their names, and with `predict(batch)`.
  """
  with compiling(mesh):
    model = nnx.eval_shape(lambda: spec.build(nnx.Rngs(**keys(0))))
  graphdef, names = nnx.split(model)[0], model.metrics
  optimizer = make_optimizer(training, steps)

  @compiling(mesh)
  def start(seeds: dict[str, Array]) -> State:
    _, params, settings = split(spec.build, seeds)
    step = jnp.zeros((), jnp.int32)
    state = State(step, params, settings, optimizer.init(params), empty(names))
    # A weak type would not come back from a checkpoint, and what it is given to be compiled twice.
    return jax.tree.map(lambda leaf: jnp.asarray(leaf, leaf.dtype), state)

  where = shardings(jax.eval_shape(start, keys(0)), mesh, training.shard == "parameters")
  init = jax.jit(start, out_shardings=where)
  return Program(
    graphdef, lambda seed: init(keys(seed)), *compiled(graphdef, names, training, steps, mesh)
  )


def empty(names: Iterable[str]) -> Window:
  """A window on no step at all."""
  return Window({name: jnp.zeros(()) for name in names}, jnp.zeros(()), jnp.full((), -1, jnp.int32))


@functools.lru_cache(maxsize=8)
def compiled(
  graphdef: nnx.GraphDef, names: tuple[str, ...], training: Training, steps: int, mesh: Mesh
) -> tuple[Step, Callable, Callable]:
  """update, clear and predict of a `Program`: the same objects for models of equal structure."""
  optimizer = make_optimizer(training, steps)
  divided = training.shard == "parameters"

  def keep(tree: Any) -> Any:
    return jax.lax.with_sharding_constraint(tree, shardings(tree, mesh, divided))

  def slope(params: Any, settings: Any, batch: Batch, key: Array) -> tuple[Any, dict, Array]:
    """The gradient of the loss of a batch, its metrics, and their weight."""

    def loss(params):
      if divided:
        params = jax.lax.with_sharding_constraint(params, replicated(mesh))
        params = jax.tree.map(lambda leaf: checkpoint_name(leaf, GATHERED), params)
      rngs = nnx.Rngs(dropout=key, positions=jax.random.fold_in(key, POSITIONS))
      model = nnx.merge(graphdef, params, settings)
      values, weight = model.loss(batch, label_smoothing=training.label_smoothing, rngs=rngs)
      return values["loss"], (values, weight)

    if divided:  # what is gathered is not kept for the way back, but gathered again
      policy = jax.checkpoint_policies.save_anything_except_these_names(GATHERED)
      loss = jax.checkpoint(loss, policy=policy)
    grads, (values, weight) = jax.grad(loss, has_aux=True)(params)
    return keep(grads), values, weight

  def mean_slope(params: Any, settings: Any, batch: Batch, key: Array) -> tuple[Any, dict, Array]:
    """As `slope`, from one part of the batch after the other."""
    # A part has rows of every device: rows i, i + n, i + 2n, …
    split = functools.partial(jax.tree.map, lambda x: x.reshape(-1, count, *x.shape[1:]))
    parts = jax.tree.map(lambda x: x.swapaxes(0, 1), split(batch))

    def add(total, part):
      number, batch = part
      empty = batch["weight"].sum() == 0  # it has no mean
      batch = batch | {"weight": jnp.where(empty, 1, batch["weight"])}
      *means, weight = slope(params, settings, batch, jax.random.fold_in(key, number))
      weight = jnp.where(empty, 0, weight)
      return jax.tree.map(lambda so_far, mean: so_far + weight * mean, total, (*means, 1.0)), None

    nothing = jax.tree.map(jnp.zeros_like, (params, dict.fromkeys(names, 0.0), 0.0))
    (*sums, weight), _ = jax.lax.scan(add, nothing, (jnp.arange(count), parts))
    return *jax.tree.map(lambda each: each / weight, sums), weight

  count = training.accumulate
  gradient = slope if count == 1 else mean_slope

  @functools.partial(jax.jit, donate_argnums=0)
  @compiling(mesh)
  def update(state: State, batch: Batch, key: Array) -> State:
    of_step = jax.random.fold_in(key, state.step)
    grads, values, weight = gradient(state.params, state.settings, batch, of_step)
    updates, opt_state = optimizer.update(grads, state.opt_state, state.params)
    step = state.step + 1
    fine = jnp.isfinite(values["loss"]) | (state.window.broken >= 0)
    window = Window(
      jax.tree.map(lambda total, value: total + value * weight, state.window.sums, values),
      state.window.weight + weight,
      jnp.where(fine, state.window.broken, step),
    )
    params = optax.apply_updates(state.params, updates)
    return keep(state.replace(step=step, params=params, opt_state=opt_state, window=window))

  @functools.partial(jax.jit, donate_argnums=0)
  def clear(state: State) -> State:
    return state.replace(window=empty(names))

  @jax.jit
  @compiling(mesh)
  def predict(state: State, batch: Batch, kept: dict[str, Array] | None = None):
    return nnx.merge(graphdef, state.params, state.settings).predict(batch, kept)

  return Step(update), clear, predict


@functools.lru_cache(maxsize=32)
def parameters(spec: Any) -> int:
  """How many parameters a model has; nothing is allocated.

  Raises:
    ValueError: the model cannot be built; the sentence says which sizes do not suit.
  """

  params = jax.eval_shape(lambda: split(spec.build, keys(0))[1])
  return sum(leaf.size for leaf in jax.tree.leaves(params))
