"""posexp's own work, compiled: the model, the update step and the search that runs use."""

from __future__ import annotations

import dataclasses
import itertools
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import Array

from benchmarking.cases import ALL, IN_TURN, JAX, ONE, SEARCHES, Case
from benchmarking.timing import Timed, timed
from posexp.data import batches
from posexp.data.batches import Examples, Sequences
from posexp.encodings.rngs import Rngs
from posexp.encodings.span import Span
from posexp.models.attention import attend, form_of
from posexp.models.classifier import ClassifierSpec
from posexp.models.language_model import LanguageModelSpec
from posexp.models.transformer import Stack
from posexp.tasks.contract import ModelSpec
from posexp.tasks.results import Outputs
from posexp.training import devices, step
from posexp.training.evaluation import Snapshot
from posexp.training.optimizer import Training
from posexp.translation.encoded import EOS, Pairs
from posexp.translation.model import TranslatorSpec
from posexp.translation.search import Search
from posexp.translation.task import decode

STEPS = 10_000  # of the schedule, which no measurement comes to the end of
CLASSES = 2


class Ready(NamedTuple):
  """Work that has been done once, and what is known of it by then."""

  timed: Timed
  facts: dict[str, float | None]  # columns of the table


Call = Callable[[int], None]  # does the work so many times
Work = tuple[Call, Any, dict[str, float | None]]  # with the program, if it is one, and facts


def prepare(case: Case) -> Ready:
  """Compile a case and run it once.

  Raises:
    ValueError: the sizes do not fit the encoding.
  """
  if case.work == "attention":
    call, compiled, facts = attention(case)
  elif case.work in SEARCHES:
    call, compiled, facts = search(case)
  elif case.work == "forward":
    call, compiled, facts = forward(case)
  else:
    call, compiled, facts = train(case)
  call(1)
  return Ready(timed(call), facts | costs(compiled))


def costs(compiled: Any) -> dict[str, float | None]:
  """Return what the compiler says of a program, if it is one. The body of a loop counts once."""
  if compiled is None:
    return {}
  memory, cost = compiled.memory_analysis(), compiled.cost_analysis() or {}
  flops = cost.get("flops")
  return {
    "temporaries_mib": None if memory is None else memory.temp_size_in_bytes / 2**20,
    "gflops_compiled": None if not flops or flops < 0 else flops / 1e9,
  }


def repeated(once: Callable[[], Any]) -> Call:
  """Return the work as often as it is asked for, waiting for each result."""

  def call(calls: int) -> None:
    for _ in range(calls):
      jax.block_until_ready(once())

  return call


def spec(case: Case) -> ModelSpec:
  """Return the model of a case, as training builds it."""
  if case.model == "encoder":
    return ClassifierSpec(case.vocabulary, CLASSES, case.encoding, case.size)
  if case.model == "decoder":
    return LanguageModelSpec(case.vocabulary, case.encoding, case.size)
  return TranslatorSpec(case.vocabulary, case.vocabulary, case.encoding, case.size)


def batch(case: Case, seed: int = 0) -> dict[str, np.ndarray]:
  """Random tokens without padding."""
  draw = np.random.default_rng(seed)
  shape = (case.batch, case.length)

  def words() -> np.ndarray:
    return draw.integers(EOS + 1, case.vocabulary, shape, dtype=np.int32)

  mask, weight = np.ones(shape, bool), np.ones(case.batch, np.float32)
  if case.model == "encoder":
    labels = draw.integers(0, CLASSES, case.batch, dtype=np.int32)
    return {"tokens": words(), "mask": mask, "labels": labels, "weight": weight}
  shared = {"mask": mask, "labels": words(), "weight": weight}
  if case.model == "decoder":
    return {"tokens": words(), "fresh": np.zeros(case.batch, bool), **shared}
  return {"source": words(), "source_mask": mask, "target": words(), **shared}


def compile(function: Any, *args) -> tuple[Any, float]:
  """Return a jitted function compiled for its arguments, and how many seconds that took."""
  began = time.perf_counter()
  compiled = function.lower(*args).compile()
  return compiled, time.perf_counter() - began


def started(case: Case) -> tuple[step.Program, dict[str, Array], Any]:
  """Return the program of a run, a batch of it on the devices, and the key of its dropout."""
  rows = np.array([case.batch])
  asked: int | str = {ONE: 1, ALL: len(jax.local_devices())}.get(case.way, "auto")
  mesh = devices.mesh_for(rows, 1, devices.most_devices(asked, case.size.d_model, case.length))
  options = Training(batch_size=case.batch)
  program = step.program(spec(case), options, STEPS, mesh, case.batch)
  ((ready, _),) = devices.shard([batch(case)], mesh)
  return program, ready, step.keys(0)["dropout"]


def forward(case: Case) -> Work:
  """Return the predictions of evaluation."""
  program, ready, _ = started(case)
  state = program.init(0)
  carry = program.carry(case.batch)
  predict, seconds = compile(program.predict, state, ready, carry)
  return repeated(lambda: predict(state, ready, carry)), predict, facts_of(state.params, seconds)


def train(case: Case) -> Work:
  """Update steps of one run; or of several, each with its own batch, in turn or under vmap."""
  program, ready, key = started(case)
  if case.lines:
    return epoch(case, program, key)
  if case.work != "seeds":
    states, batches = [program.init(0)], [ready]
  else:
    states = [program.init(seed) for seed in range(case.seeds)]
    batches = [jax.device_put(batch(case, seed)) for seed in range(case.seeds)]
  facts = {} if case.work == "seeds" else facts_of(states[0].params)
  function = program.update.jitted
  if case.work == "seeds" and case.way != IN_TURN:
    function = jax.jit(jax.vmap(function, in_axes=(0, 0, None, None)), donate_argnums=0)
    states, batches = (
      [jax.tree.map(lambda *leaves: jnp.stack(leaves), *trees)] for trees in (states, batches)
    )
  update, facts["compile_s"] = compile(function, states[0], batches[0], key, program.update.rate)

  def call(calls: int) -> None:
    for _ in range(calls):  # as in training, the host does not wait for a step
      for index, each in enumerate(batches):
        states[index] = update(states[index], each, key, program.update.rate)
    jax.block_until_ready(states)

  return call, update, facts


def epoch(case: Case, program: step.Program, key: Array) -> Work:
  """Update steps on random tokens in place of those of the lines, in batches as training makes."""
  draw, count = np.random.default_rng(0), len(case.lines)
  ids = [draw.integers(EOS + 1, case.vocabulary, n) for n in case.lines]
  lines = Examples.of(ids, draw.integers(0, CLASSES, count, dtype=np.int32))
  ends = batches.buckets(lines.lengths, case.length)
  found = batches.training(lines, ends, case.batch, seed=0, start=0)
  found = itertools.islice(found, count // case.batch)
  ready = [each for each, _ in devices.shard(found, program.mesh)]
  state = program.init(0)

  def call(calls: int) -> None:
    nonlocal state
    for _ in range(calls):
      for each in ready:
        state = program.update(state, each, key)
    jax.block_until_ready(state)

  call(1)
  return call, None, facts_of(state.params, program.update.seconds)


def facts_of(params: Any, seconds: float | None = None) -> dict[str, float | None]:
  """Return the number of parameters, and the time to compile."""
  return {"parameters": sum(x.size for x in jax.tree.leaves(params)), "compile_s": seconds}


def attention(case: Case) -> Work:
  """One layer's attention, from queries, keys and values to its output, forward and backward."""
  size, causal = dataclasses.replace(case.size, num_layers=1), case.model == "decoder"
  layer = Stack(CLASSES, case.encoding, size, causal=causal, rngs=Rngs(**step.keys(0)))
  graphdef, params, settings = step.split(layer)
  shape = (case.batch, case.length, size.num_heads, size.d_model // size.num_heads)
  seeds = jax.random.split(jax.random.key(0), 4)
  q, k, v, toward = (jax.random.normal(seed, shape).astype(size.dtype) for seed in seeds)
  positions = jnp.arange(case.length)[None]
  real = jnp.ones((1, 1, case.length), bool)

  def found(params: Any, q: Array, k: Array, v: Array) -> Array:
    if case.way == JAX:
      return jax.nn.dot_product_attention(q, k, v, is_causal=causal)
    stack = nnx.merge(graphdef, params, settings)
    span = stack.ready(
      Span(
        positions, positions, real, causal, consecutive=True, self_attention=True, padding_last=True
      )
    )
    if not stack.relation.uses_hidden:
      q, k = None, k[..., :0]
    layer, x = stack.blocks[0].attention, v.reshape(*v.shape[:2], -1)
    _, span = layer.asked(x, layer.key_columns and layer.key_columns(x), span)
    form = form_of(size.attention, case.length, case.length)
    return attend(stack.relation, q, k, v, span, form=form)

  @jax.jit
  def both(params: Any, q: Array, k: Array, v: Array, toward: Array):
    given, back = jax.vjp(found, params, q, k, v)
    return given, back(toward.astype(given.dtype))

  own, seconds = compile(both, params, q, k, v, toward)
  return repeated(lambda: own(params, q, k, v, toward)), own, {"compile_s": seconds}


class AsLong(Search):
  """A search whose hypotheses have as many tokens as their source; there is room for all others."""

  def most(self, source: Array | int) -> Array | int:
    return super().most(source) if isinstance(source, int) else source


def sources(case: Case) -> list[dict[str, np.ndarray]]:
  """Batches of random tokens, of which those of lines are made as in evaluation."""
  if not case.lines:
    return [batch(case) | {"index": np.arange(case.batch)}]
  draw = np.random.default_rng(0)
  lines = Sequences.of([draw.integers(EOS + 1, case.vocabulary, n - 1) for n in case.lines])
  pairs = Pairs(lines, lines)
  ends = batches.buckets(pairs.lengths, case.length)
  return list(batches.evaluation(pairs, ends, case.batch, pairs.by_length()))


def search(case: Case) -> Work:
  """Return translation of exactly as many tokens as the source has: [EOS] is never the best."""
  program, _, _ = started(case)
  state = program.init(0)
  params = jax.tree.map(lambda leaf: leaf, state.params)
  params["head"]["bias"] = params["head"]["bias"].at[EOS].set(-1e9)
  snapshot = Snapshot(program, state.replace(params=params), case.batch)
  batches = sources(case)

  def once() -> Outputs:
    return decode(snapshot, batches, AsLong(case.beam))

  began = time.perf_counter()
  once()
  return repeated(once), None, facts_of(params, time.perf_counter() - began)


def ceiling(dtype: str) -> tuple[Timed, float]:
  """Return a large matrix product, and its FLOPs: what the devices' arithmetic can do."""
  width = 1024 if jax.default_backend() == "cpu" else 8192
  a, b = (jax.random.normal(jax.random.key(seed), (width, width)).astype(dtype) for seed in (0, 1))
  product = jax.jit(jnp.matmul)
  return timed(repeated(lambda: product(a, b))), 2.0 * width**3
