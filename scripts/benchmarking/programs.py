"""posexp's own work, compiled: the model, the update step and the search that runs use."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import Array

from benchmarking.cases import APART, JAX, SEARCHES, Case
from benchmarking.language import LanguageSpec
from benchmarking.timing import Timed, timed
from posexp.data.tokenizer import EOS
from posexp.encodings.span import Span
from posexp.models import decoding
from posexp.models.attention import attend
from posexp.models.classifier import ClassifierSpec
from posexp.models.transformer import Stack
from posexp.models.translator import TranslatorSpec
from posexp.tasks.contract import ModelSpec
from posexp.training import devices, step
from posexp.training.optimizer import Training

STEPS = 10_000  # of the schedule, which no measurement comes to the end of
CLASSES = 2


class Ready(NamedTuple):
  """Work that has been done once, with what is known of it by then."""

  timed: Timed
  facts: dict[str, float | None]  # columns of the table


def prepare(case: Case) -> Ready:
  """Compiles what a case asks for and does it once.

  Raises:
    ValueError: the sizes do not suit the encoding.
  """
  if case.work == "attention":
    call, compiled, facts = attention(case)
  elif case.work in SEARCHES:
    call, compiled, facts = search(case)
  elif case.work == "seeds":
    call, compiled, facts = seeds(case)
  else:
    call, compiled, facts = run(case)
  call(1)
  return Ready(timed(call), facts | costs(compiled))


def costs(compiled: Any) -> dict[str, float | None]:
  """What the compiler says of a program. The body of a loop counts once."""
  memory, cost = compiled.memory_analysis(), compiled.cost_analysis() or {}
  flops = cost.get("flops")
  return {
    "temporaries_mib": None if memory is None else memory.temp_size_in_bytes / 2**20,
    "gflops_compiled": None if not flops or flops < 0 else flops / 1e9,
  }


def spec(case: Case) -> ModelSpec:
  """The model of a case, as training builds it."""
  if case.model == "encoder":
    return ClassifierSpec(case.vocabulary, CLASSES, case.encoding, case.size)
  if case.model == "decoder":
    return LanguageSpec(case.vocabulary, case.encoding, case.size)
  return TranslatorSpec(case.vocabulary, case.vocabulary, case.encoding, case.size)


def batch(case: Case, seed: int = 0) -> dict[str, np.ndarray]:
  """Random tokens, of which none is padding."""
  draw = np.random.default_rng(seed)
  shape = (case.batch, case.length)

  def words() -> np.ndarray:
    return draw.integers(EOS + 1, case.vocabulary, shape, dtype=np.int32)

  mask, weight = np.ones(shape, bool), np.ones(case.batch, np.float32)
  if case.model == "encoder":
    labels = draw.integers(0, CLASSES, case.batch, dtype=np.int32)
    return {"tokens": words(), "mask": mask, "labels": labels, "weight": weight}
  if case.model == "decoder":
    return {"tokens": words(), "mask": mask, "labels": words(), "weight": weight}
  return {
    "source": words(),
    "source_mask": mask,
    "target": words(),
    "mask": mask,
    "labels": words(),
    "weight": weight,
  }


def compile(function: Any, *args) -> tuple[Any, float]:
  """A jitted function compiled for its arguments, and how many seconds that took."""
  began = time.perf_counter()
  compiled = function.lower(*args).compile()
  return compiled, time.perf_counter() - began


def started(case: Case) -> tuple[step.Program, dict[str, Array], Any]:
  """The program of a run, a batch of it on the devices, and the key of its dropout."""
  rows = np.array([case.batch])
  mesh = devices.mesh_for(rows)
  options = Training(batch_size=case.batch)
  program = step.program(spec(case), options, STEPS, mesh)
  ((ready, _),) = devices.shard([batch(case)], mesh)
  return program, ready, step.keys(0)["dropout"]


def run(case: Case) -> tuple[Callable[[int], None], Any, dict]:
  """The update step, or what evaluation predicts."""
  program, ready, key = started(case)
  state = program.init(0)
  facts = {"parameters": sum(leaf.size for leaf in jax.tree.leaves(state.params))}
  if case.work == "forward":
    predict, facts["compile_s"] = compile(program.predict, state, ready)

    def forward(calls: int) -> None:
      for _ in range(calls):
        jax.block_until_ready(predict(state, ready))

    return forward, predict, facts
  update, facts["compile_s"] = compile(program.update.jitted, state, ready, key)
  kept = [state]

  def step(calls: int) -> None:
    for _ in range(calls):  # as in training, the host does not wait for a step
      kept[0] = update(kept[0], ready, key)
    jax.block_until_ready(kept[0])

  return step, update, facts


def seeds(case: Case) -> tuple[Callable[[int], None], Any, dict]:
  """The update steps of several runs, each with a batch of its own: in turn, or under vmap."""
  program, ready, key = started(case)
  states = [program.init(seed) for seed in range(case.seeds)]
  batches = [jax.device_put(batch(case, seed)) for seed in range(case.seeds)]
  if case.way == APART:
    update, seconds = compile(program.update.jitted, states[0], ready, key)

    def apart(calls: int) -> None:
      for _ in range(calls):
        for seed, each in enumerate(batches):
          states[seed] = update(states[seed], each, key)
      jax.block_until_ready(states)

    return apart, update, {"compile_s": seconds}
  stacked, data = (
    jax.tree.map(lambda *leaves: jnp.stack(leaves), *trees) for trees in (states, batches)
  )
  function = jax.jit(jax.vmap(program.update.jitted, in_axes=(0, 0, None)), donate_argnums=0)
  update, seconds = compile(function, stacked, data, key)
  kept = [stacked]

  def together(calls: int) -> None:
    for _ in range(calls):
      kept[0] = update(kept[0], data, key)
    jax.block_until_ready(kept[0])

  return together, update, {"compile_s": seconds}


def attention(case: Case) -> tuple[Callable[[int], None], Any, dict]:
  """One layer's relation from queries, keys and values to what they give, and back."""
  size, causal = case.size, case.model == "decoder"

  def layer(rngs: nnx.Rngs) -> Stack:
    return Stack(CLASSES, case.encoding, size, causal=causal, rngs=rngs)

  size = dataclasses.replace(size, num_layers=1)
  graphdef, params, settings = step.split(layer, step.keys(0))
  shape = (case.batch, case.length, size.num_heads, size.d_model // size.num_heads)
  seeds = jax.random.split(jax.random.key(0), 4)
  q, k, v, toward = (jax.random.normal(seed, shape).astype(size.dtype) for seed in seeds)
  positions = jnp.arange(case.length)[None]
  real = jnp.ones((1, 1, case.length), bool)

  def found(params: Any, q: Array, k: Array, v: Array) -> Array:
    if case.way == JAX:
      return jax.nn.dot_product_attention(q, k, v, is_causal=causal)
    stack = nnx.merge(graphdef, params, settings)
    span = stack.ready(Span(positions, positions, real, causal, consecutive=True, first=True))
    if not stack.relation.of_stream:
      q, k = None, k[..., :0]
    return attend(stack.relation, q, k, v, span, None)

  @jax.jit
  def both(params: Any, q: Array, k: Array, v: Array, toward: Array):
    given, back = jax.vjp(found, params, q, k, v)
    return given, back(toward.astype(given.dtype))

  own, seconds = compile(both, params, q, k, v, toward)

  def call(calls: int) -> None:
    for _ in range(calls):
      jax.block_until_ready(own(params, q, k, v, toward))

  return call, own, {"compile_s": seconds}


def search(case: Case) -> tuple[Callable[[int], None], Any, dict]:
  """Translations of exactly as many tokens as the source has: no [EOS] is ever the best."""
  program, ready, _ = started(case)
  state = program.init(0)
  params = jax.tree.map(lambda leaf: leaf, state.params)
  params["head"]["bias"] = params["head"]["bias"].at[EOS].set(-1e9)
  options = decoding.Search(case.beam, max_length=case.length)
  found = decoding.searcher(program.graphdef, options)
  own, seconds = compile(found, params, state.settings, ready)

  def call(calls: int) -> None:
    for _ in range(calls):
      jax.block_until_ready(own(params, state.settings, ready))

  return (
    call,
    own,
    {
      "compile_s": seconds,
      "parameters": sum(leaf.size for leaf in jax.tree.leaves(params)),
    },
  )


def ceiling(dtype: str) -> tuple[Timed, float]:
  """A large product of matrices, and its FLOPs: what the devices' arithmetic can do."""
  width = 1024 if jax.default_backend() == "cpu" else 8192
  a, b = (jax.random.normal(jax.random.key(seed), (width, width)).astype(dtype) for seed in (0, 1))
  product = jax.jit(jnp.matmul)

  def call(calls: int) -> None:
    for _ in range(calls):
      jax.block_until_ready(product(a, b))

  return timed(call), 2.0 * width**3
