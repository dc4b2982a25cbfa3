"""The compiled half of training: the state, the step that changes it, and a model's predictions.

All randomness comes from the seed: weights are drawn from keys of the seed; dropout, positions and
batches from (seed, step). No generator is stored, so a checkpoint needs nothing but the state.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from flax import nnx, struct
from jax import Array
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import Mesh

from posexp.data.batches import Batch
from posexp.encodings.rngs import STREAMS, GivenRngs, Path, Rngs, abstract_model, keys_at
from posexp.encodings.span import TermScale
from posexp.kernels.target import compiling
from posexp.machine import cores
from posexp.status import doing
from posexp.tasks.contract import ModelSpec
from posexp.training.devices import by_rows, check_memory, replicated, shardings
from posexp.training.optimizer import Rate, Training, decayed, make_optimizer

POSITIONS = 2**31  # far from the numbers of dropout's draws in a step, which count from 0
GATHERED = "gathered"  # jax.checkpoint's name for divided parameters made whole


class Window(struct.PyTreeNode):
  """Sum over the steps since the last row of the log."""

  sums: dict[str, Array]  # each metric, times the weight of its batch
  weight: Array
  broken: Array  # the first step whose loss is not finite; −1 if all are finite


class State(struct.PyTreeNode):
  """Everything that training carries from step to step."""

  step: Array
  params: Any
  settings: Any  # options that are traced (posexp.encodings.base.Setting)
  opt_state: Any
  window: Window
  carry: Any = ()  # what a step leaves for the next one (posexp.tasks.contract.Model)


class Program(NamedTuple):
  """The compiled functions of a run."""

  graphdef: nnx.GraphDef  # the structure of the model
  mesh: Mesh  # the devices
  shapes: State  # the shapes and devices of a state
  init: Callable[..., State]  # from the seed, and from parameters that are not to be drawn
  carry: Callable[[int], Any]  # the initial carry, from the number of rows
  update: Step
  clear: Callable[[State], State]  # with an empty window; the state is donated
  predict: Callable[..., tuple[dict[str, Array], Any]]  # (state, batch, carry, term_scale)


def keys(seed: int) -> dict[str, Array]:
  """Return the random keys of a run, by stream."""
  return dict(zip(STREAMS, jax.random.split(jax.random.key(seed), len(STREAMS)), strict=True))


def split(model: nnx.Module) -> tuple[nnx.GraphDef, Any, Any]:
  """Return the structure, the parameters and the settings of a model."""
  graphdef, params, settings = nnx.split(model, nnx.Param, ...)
  return graphdef, nnx.as_pure(params), nnx.as_pure(settings)


@functools.lru_cache(maxsize=8)
def program(spec: ModelSpec, training: Training, steps: int, mesh: Mesh, rows: int = 1) -> Program:
  """Return the functions that a run calls, compiled at their first call, once for all runs that are
  equal but for their learning rate.

  `rows` is the number of rows of a batch, for a model that carries something from step to step.
  """
  shared = _program(spec, dataclasses.replace(training, learning_rate=1.0), steps, mesh, rows)
  return shared._replace(update=shared.update.at(Rate.of(training, steps)))


@functools.lru_cache(maxsize=8)
def _program(spec: ModelSpec, training: Training, steps: int, mesh: Mesh, rows: int) -> Program:
  paths: list[Path] = []  # of the keys that weights are drawn from
  with compiling(mesh):
    model = abstract_model(spec.build, paths)
  graphdef, names = nnx.split(model)[0], model.metrics
  paths_decayed = decayed(model, training.decayed)
  optimizer = make_optimizer(training, steps, paths_decayed)

  @compiling(mesh)
  def start(given: list[Array]) -> State:
    _, params, settings = split(spec.build(GivenRngs(given)))
    step, carry = jnp.zeros((), jnp.int32), model.initial_carry(rows)
    return strong(State(step, params, settings, optimizer.init(params), empty(names), carry))

  @functools.cache
  def carry(rows: int) -> Any:
    return jax.jit(lambda: model.initial_carry(rows), out_shardings=by_rows(mesh))()

  given = [jax.eval_shape(jax.random.key, 0)] * len(paths)
  state = jax.eval_shape(start, given)
  where = layout(state, mesh, training.shard == "parameters")
  init = jax.jit(start, out_shardings=where, compiler_options=quickly(mesh))
  shapes = jax.tree.map(lambda leaf, sharding: leaf.update(sharding=sharding), state, where)

  def init_from(seed: int, given: Sequence[Array | None] = ()) -> State:
    """Return the first state; parameters that are `given`, in their order, are not drawn."""
    streams = keys_at(paths, keys(seed))
    if not given:
      return init(streams)

    def drawn(params: Any) -> list[Any]:
      pairs = zip(given, jax.tree.leaves(params), strict=True)
      return [leaf for known, leaf in pairs if known is None]

    def rest(streams: list[Array]) -> State:
      made = start(streams)  # of which XLA computes only what is returned
      return made.replace(params=drawn(made.params), opt_state=())

    layout = where.replace(params=drawn(where.params), opt_state=())
    made = jax.jit(rest, out_shardings=layout, compiler_options=quickly(mesh))(streams)
    new = iter(made.params)
    leaves = [next(new) if known is None else known for known in given]
    params = jax.tree.unflatten(jax.tree.structure(where.params), leaves)
    begin = jax.jit(lambda params: strong(optimizer.init(params)), out_shardings=where.opt_state)
    return made.replace(params=params, opt_state=begin(params))

  functions = compiled(Functions(graphdef, names, training, steps, paths_decayed, mesh))
  return Program(graphdef, mesh, shapes, init_from, carry, *functions)


def strong(tree: Any) -> Any:
  """Return arrays without weak types, which checkpoints lose: a step would be compiled twice."""
  return jax.tree.map(lambda leaf: jnp.asarray(leaf, leaf.dtype), tree)


def quickly(mesh: Mesh) -> dict[str, int] | None:
  """Return XLA's options for a program that is called once and, on a CPU, need not be fast."""
  on_cpu = mesh.devices.flat[0].platform == "cpu"
  return {"xla_backend_optimization_level": 1} if on_cpu else None  # 0 would round differently


def layout(state: State, mesh: Mesh, divided: bool) -> State:
  """Return the sharding of a state: its carry by rows, all other arrays as in `shardings`."""
  rest = shardings(state.replace(carry=()), mesh, divided)
  return rest.replace(carry=jax.tree.map(lambda _: by_rows(mesh), state.carry))


def empty(names: Iterable[str]) -> Window:
  """Return a window over no steps."""
  return Window({name: jnp.zeros(()) for name in names}, jnp.zeros(()), jnp.full((), -1, jnp.int32))


@dataclasses.dataclass(frozen=True)
class Functions:
  """The functions of a run, to be compiled; equal ones are compiled once."""

  graphdef: nnx.GraphDef
  names: tuple[str, ...]  # of the metrics
  training: Training
  steps: int
  decayed: frozenset[str]
  mesh: Mesh

  def update(self, state: State, batch: Batch, key: Array, rate: Rate) -> State:
    """Take a step of training."""
    gradient = self.gradient if self.training.accumulate == 1 else self.mean_gradient
    optimizer = make_optimizer(self.training, self.steps, self.decayed, rate)
    of_step = jax.random.fold_in(key, state.step)
    grads, values, weight, carry = gradient(state, batch, state.carry, of_step)
    updates, opt_state = optimizer.update(grads, state.opt_state, state.params)
    state = state.replace(
      step=state.step + 1,
      params=optax.apply_updates(state.params, updates),
      opt_state=opt_state,
      window=self.counted(state, values, weight),
      carry=carry,
    )
    return jax.lax.with_sharding_constraint(state, layout(state, self.mesh, self.divided))

  def gradient(
    self, state: State, batch: Batch, carry: Any, key: Array, positions: Array | None = None
  ) -> tuple[Any, dict[str, Array], Array, Any]:
    """Return the gradient of a batch's loss, its metrics, their weight, and the next carry.

    Random positions are drawn from the key `positions`; if it is None, from one made of `key`.
    """
    positions = jax.random.fold_in(key, POSITIONS) if positions is None else positions

    def loss(params: Any) -> tuple[Array, tuple]:
      if self.divided:
        params = jax.lax.with_sharding_constraint(params, replicated(self.mesh))
        params = jax.tree.map(lambda leaf: checkpoint_name(leaf, GATHERED), params)
      rngs = Rngs(dropout=key, positions=positions)
      model = nnx.merge(self.graphdef, params, state.settings)
      smoothing = self.training.label_smoothing
      values, weight, after = model.loss(batch, carry, label_smoothing=smoothing, rngs=rngs)
      return values["loss"], (values, weight, after)

    if self.divided:  # gather parameters again in the backward pass instead of keeping them
      policy = jax.checkpoint_policies.save_anything_except_these_names(GATHERED)
      loss = jax.checkpoint(loss, policy=policy)
    grads, (values, weight, after) = jax.grad(loss, has_aux=True)(state.params)
    where = shardings(grads, self.mesh, self.divided)
    return jax.lax.with_sharding_constraint(grads, where), values, weight, after

  def mean_gradient(
    self, state: State, batch: Batch, carry: Any, key: Array
  ) -> tuple[Any, dict[str, Array], Array, Any]:
    """Compute `gradient` from one part of the batch after another."""
    count = self.training.accumulate

    def parts(x: Array) -> Array:  # a part has rows of every device: rows i, i + n, i + 2n, …
      return x.reshape(-1, count, *x.shape[1:]).swapaxes(0, 1)

    def whole(x: Array) -> Array:
      return x.swapaxes(0, 1).reshape(-1, *x.shape[2:])

    def add(total: Any, part: Any) -> tuple[Any, Any]:
      number, batch, carry = part
      empty = batch["weight"].sum() == 0  # its mean is undefined
      batch = batch | {"weight": jnp.where(empty, 1, batch["weight"])}
      part_key = jax.random.fold_in(key, number)
      *means, weight, after = self.gradient(state, batch, carry, part_key, positions)
      weight = jnp.where(empty, 0, weight)
      total = jax.tree.map(lambda so_far, mean: so_far + weight * mean, total, (*means, 1.0))
      return total, after

    positions = jax.random.fold_in(key, POSITIONS)  # of the step, as without parts
    zeros = jax.tree.map(jnp.zeros_like, (state.params, dict.fromkeys(self.names, 0.0), 0.0))
    given = (jnp.arange(count), *jax.tree.map(parts, (batch, carry)))
    (*sums, weight), after = jax.lax.scan(add, zeros, given)
    divisor = jnp.where(weight == 0, 1, weight)  # where no target counts
    return *jax.tree.map(lambda each: each / divisor, sums), weight, jax.tree.map(whole, after)

  def counted(self, state: State, values: dict[str, Array], weight: Array) -> Window:
    """Add the metrics of one more step to the window."""
    before = state.window
    fine = jnp.isfinite(values["loss"]) | (before.broken >= 0)
    return Window(
      jax.tree.map(lambda total, value: total + value * weight, before.sums, values),
      before.weight + weight,
      jnp.where(fine, before.broken, state.step + 1),
    )

  def predict(
    self, state: State, batch: Batch, carry: Any = (), term_scale: TermScale | None = None
  ) -> tuple[dict[str, Array], Any]:
    """Return the model's predictions for every row, and the next carry."""
    return nnx.merge(self.graphdef, state.params, state.settings).predict(batch, carry, term_scale)

  @property
  def divided(self) -> bool:
    """True if parameters are divided among the devices."""
    return self.training.shard == "parameters"


@functools.lru_cache(maxsize=8)
def compiled(functions: Functions) -> tuple[Step, Callable, Callable]:
  """Return update, clear and predict of a `Program`: the same objects for equal `functions`."""

  @functools.partial(jax.jit, donate_argnums=0)
  def clear(state: State) -> State:
    return state.replace(window=empty(functions.names))

  update = jax.jit(compiling(functions.mesh)(functions.update), donate_argnums=0)
  return Step(update), clear, jax.jit(compiling(functions.mesh)(functions.predict))


@functools.cache  # a sweep asks for the model of each of its runs
def parameters(spec: ModelSpec) -> int:
  """Count the parameters of a model; nothing is allocated.

  Raises:
    ValueError: the model cannot be built; the message says which sizes do not suit.
  """
  return sum(leaf.size for leaf in jax.tree.leaves(split(abstract_model(spec.build))[1]))


class Step:
  """The training step: (state, batch, key of dropout) -> state; the old state is donated.

  What it calls, `jitted`, also takes the rate.
  """

  rate: Rate  # of the run; `at` sets it

  def __init__(self, update: Any):
    self.jitted = update
    # XLA compiles on several cores: on two cores, two programs at a time save nothing.
    self.threads = ThreadPoolExecutor(max(1, cores() // 2))
    self._lowered: list[Future[Any]] = []  # the last program that was begun
    self._begun: dict[tuple[int, ...], Future[int]] = {}  # by the shape of the batches
    self._temporary: dict[tuple[int, ...], int] = {}  # bytes, by shapes that were called
    self.seconds = 0.0  # for which calls waited for compilation in this process

  def at(self, rate: Rate) -> Step:
    """Return this step at a rate of learning; both share what is compiled."""
    step = copy.copy(self)
    step.rate, step.seconds = rate, 0.0
    return step

  @property
  def temporary_bytes(self) -> int:
    """The most bytes that a step needs on a device besides its inputs and outputs."""
    return max(self._temporary.values(), default=0)

  def begin(self, state: Any, batches: Iterable[Batch], key: Array) -> None:
    """Begin to compile the step for such batches, on threads.

    State and batches are given by their shapes and devices (`jax.ShapeDtypeStruct`).
    """
    for batch in batches:
      if (shape := batch["mask"].shape) not in self._begun:
        lowered = self.threads.submit(self.jitted.lower, state, batch, key, self.rate)
        self._lowered = [lowered]
        self._begun[shape] = self.threads.submit(self._compile, lowered.result)

  def await_xla(self) -> None:
    """Wait until the last program begun is traced and handed to XLA, which needs no Python.

    Tracing anything else meanwhile would slow down both.
    """
    wait(self._lowered)  # an error is raised where the step is called

  def _compile(self, lowered: Callable[[], Any]) -> int:
    """Compile a step; return the bytes it needs on a device besides its inputs and outputs."""
    # The jitted function finds this program, and is faster to call than the program.
    program = lowered().compile()
    return getattr(program.memory_analysis(), "temp_size_in_bytes", 0)

  def __call__(self, state: Any, batch: Batch, key: Array) -> Any:
    if (shape := batch["mask"].shape) not in self._temporary:
      jax.block_until_ready(state)  # the time of steps before this one is not that of compiling
      doing(f"compiling a step on texts of {shape[1]} tokens")
      since = time.perf_counter()
      begun = self._begun.get(shape)
      lower = functools.partial(self.jitted.lower, state, batch, key, self.rate)
      temporary = begun.result() if begun else self._compile(lower)
      self.seconds += time.perf_counter() - since
      what = f"train.batch_size: a step on {shape[0]:,} rows of {shape[1]:,} tokens"
      check_memory(temporary, what, "lower it, or raise train.accumulate")
      self._temporary[shape] = temporary
    return self.jitted(state, batch, key, self.rate)
