"""The properties of every encoding in a Transformer, as functions that find counterexamples.

A property is a function of a `Case` that yields a `Violation` for each violation it finds.
Most models run eagerly and in few shapes: each operation is then compiled once for all properties
and encodings, which is several times faster than compiling every model. A model with other shapes
is compiled as a whole, since no other model could use its operations.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator
from typing import Any, NamedTuple
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import Array

from posexp.analysis.probe import perturbed
from posexp.encodings import Encoding, Span
from posexp.encodings.rngs import Rngs
from posexp.encodings.sinusoids import REACH
from posexp.errors import counted
from posexp.models import attention
from posexp.models.size import Size
from posexp.models.transformer import Stack

VOCAB, HEAD_DIM, D_FF, B = 23, 8, 32, 2
EXACT = 2e-5  # float32's rounding in outputs of size 1
HALF = 0.03  # bfloat16's, of the outputs' standard deviation
GAPS = 64  # positions are below it where they have gaps
STEP = 2e-3  # of finite differences
SLACK = 0.01  # between these and a gradient, of the gradient's norm


@dataclasses.dataclass(frozen=True)
class Case:
  """A small model with an encoding, and how long its sequences are."""

  encoding: Encoding
  causal: bool = False
  length: int = 6
  layers: int = 2
  heads: int = 4
  reach: int = REACH  # positions are below it
  options: tuple[tuple[str, Any], ...] = ()  # others of the model, with their values

  def __str__(self):
    side = "causal" if self.causal else "both sides"
    sizes = zip((self.length, self.layers, self.heads), ("token", "layer", "head"), strict=True)
    return ", ".join([*(counted(number, what) for number, what in sizes), side])

  @property
  def part(self) -> int:
    """The number of tokens before padding, in a prompt or in a first segment."""
    return (self.length + 1) // 2

  @property
  def mask(self) -> np.ndarray:
    """Real tokens of two rows of which the first is shorter, bool [B,L]."""
    return np.arange(self.length) < np.array([[self.part], [self.length]])

  @property
  def d_model(self) -> int:
    return self.heads * HEAD_DIM

  @property
  def most(self) -> int:
    """How many positions there are."""
    return min(self.reach, self.encoding.limit or self.reach)

  def size(self, **options: Any) -> Size:
    """Return the options of the model."""
    sizes = {"num_heads": self.heads, "num_layers": self.layers, "d_ff": D_FF, "dropout": 0.0}
    return Size(**{"d_model": self.d_model} | sizes | dict(self.options) | options)


class Violation(NamedTuple):
  """Where a property is violated, and by how much."""

  what: str
  amount: float = np.nan


@functools.lru_cache(maxsize=256)
def stack(
  case: Case, *, cross: bool = False, max_position: int | None = None, **size: Any
) -> Stack:
  """Return the model of a case, with noise added to all weights, since many start at 0 or 1.

  Raises:
    ValueError: the encoding is not defined for this case, or the size does not suit it.
  """
  rngs = Rngs(params=0, encoding=1)
  options = {"causal": case.causal, "cross": cross, "max_position": max_position}
  return perturbed(Stack(VOCAB, case.encoding, case.size(**size), **options, rngs=rngs), seed=5)


def tokens_of(case: Case, seed: int = 0) -> Array:
  """Return random tokens, int [B,L]."""
  return jnp.asarray(np.random.default_rng(seed).integers(1, VOCAB, (B, case.length)))


@functools.partial(jax.jit, static_argnums=(0, 1))
def run(
  method: str, graphdef: nnx.GraphDef, state: nnx.State, given: tuple, named: dict[str, Any]
) -> Any:
  """Return what a method of a model returns."""
  return getattr(nnx.merge(graphdef, state), method)(*given, **named)


def compiled(model: Stack, method: str, *given: Any, **named: Any) -> Any:
  """Return what a method of the model returns when it is compiled as one program."""
  return run(method, *nnx.split(model), given, named)


def paths(module: nnx.Module) -> dict[str, np.ndarray]:
  """Return the parameters of a module by their paths."""
  flat = nnx.to_flat_state(nnx.state(module, nnx.Param))
  return {"/".join(map(str, path)): np.asarray(leaf[...]) for path, leaf in flat}


def decoded(
  stack: Stack,
  tokens: Array,
  *,
  prompt: int = 1,
  source: tuple | None = None,
  positions: Array | None = None,
) -> Array:
  """Return outputs [B,L,F] of cached decoding for tokens [B,L]: a prompt, then one by one."""
  batch, length = tokens.shape
  cache, outputs = stack.empty_cache(batch, length, positions), []
  for start, end in [(0, prompt), *((i, i + 1) for i in range(prompt, length))]:
    output, cache = compiled(stack, "step", tokens[:, start:end], cache, source=source)
    outputs.append(output)
  return jnp.concatenate(outputs, axis=1)


def compare(what: str, got: Array, expected: Array, tolerance: float = EXACT):
  """Yield the largest difference of two arrays [B,L,...], if it is above `tolerance`."""
  apart = np.abs(np.asarray(got, np.float64) - np.asarray(expected, np.float64))
  apart = np.where(np.isnan(apart), np.inf, apart)
  if apart.max(initial=0) > tolerance:
    row, place, *_ = np.unravel_index(apart.argmax(), apart.shape)
    yield Violation(f"{what}: row {row}, token {place}", float(apart.max()))


def padding(case: Case) -> Iterator[Violation]:
  """Check that padding after a sequence changes none of its outputs."""
  model, tokens = stack(case), tokens_of(case)
  alone = compiled(model, "__call__", tokens[:, : case.part])
  real = np.tile(np.arange(case.length) < case.part, (B, 1))
  padded = model(tokens, real)[:, : case.part]
  yield from compare(f"{case.length - case.part} padded", padded, alone)


def batch_mates(case: Case) -> Iterator[Violation]:
  """Check that outputs depend neither on the other rows of a batch nor on their length."""
  model, tokens = stack(case), tokens_of(case)
  alone = model(tokens[:1, : case.part])
  others = tokens_of(case, 1).at[1, : case.part].set(tokens[0, : case.part])
  yield from compare("below another", model(others, case.mask[::-1])[1:, : case.part], alone)


def cached_decoding(case: Case) -> Iterator[Violation]:
  """Check that decoding with a cache gives the outputs of the whole sequence at once."""
  model, tokens = stack(case), tokens_of(case)
  yield from compare("token by token", decoded(model, tokens), model(tokens))
  later = jnp.arange(3, case.length + 3)[None]
  whole = model(tokens, positions=later)
  stepwise = decoded(model, tokens, prompt=case.part, positions=later)
  yield from compare(f"a prompt of {case.part} from position 3 on", stepwise, whole)


def cross_attention(case: Case) -> Iterator[Violation]:
  """Check that decoding with a source gives the outputs of one pass, whatever its padding."""
  for norm in ("pre", "post"):
    model, tokens = stack(case, cross=True, norm=norm), tokens_of(case)
    mask = np.arange(6) < np.array([[3], [6]])  # real tokens of two sources
    draw = np.random.default_rng(3)
    encoded = jnp.asarray(draw.normal(size=(B, 6, case.d_model)), jnp.float32)
    source = model.source(encoded, mask)
    whole = model(tokens, source=source)
    stepwise = decoded(model, tokens, source=source)
    yield from compare(f"{norm}-norm", stepwise, whole)
    elsewhere = model.source(jnp.where(mask[..., None], encoded, 9.0), mask)
    yield from compare("other padding", model(tokens, source=elsewhere), whole)


def memory(case: Case) -> Iterator[Violation]:
  """Check that segments with a memory give the outputs of the whole, as `recurrent` declares."""
  if not case.encoding.relative:
    # Positions count from the memory's first slot, so that what it holds was made at others: the
    # whole sequence can give that for a first layer's memory only, the words.
    case = dataclasses.replace(case, layers=1)
  model, tokens, part = stack(case), tokens_of(case), case.part
  slots = case.length  # more than there are tokens, so that some hold nothing
  first, kept = compiled(model, "recur", tokens[:, :part], model.empty_memory(B, slots))
  second, _ = compiled(model, "recur", tokens[:, part:], kept)
  alone = model(tokens, positions=slots + jnp.arange(case.length)[None])[:, :part]
  whole = model(tokens, positions=slots - part + jnp.arange(case.length)[None])
  yield from compare(f"a first segment of {part}", first, alone)
  yield from compare(f"then one of {case.length - part}", second, whole[:, part:])


def explicit_positions(case: Case) -> Iterator[Violation]:
  """Check that explicit positions 0, 1, 2, … give the same outputs as no positions."""
  model, tokens = stack(case), tokens_of(case)
  given = jnp.arange(case.length)[None] + jnp.zeros((B, 1), int)
  yield from compare("given", model(tokens, positions=given), model(tokens))


def shift(case: Case) -> Iterator[Violation]:
  """Check that a shift of all positions changes nothing. Declared by `relative`."""
  model, tokens = stack(case), tokens_of(case)
  moved = jnp.arange(case.length)[None] + jnp.array([[0], [37]])
  yield from compare("by 37", model(tokens, positions=moved), model(tokens))


def spans(case: Case) -> Iterator[Violation]:
  """Check that attention among some positions equals attention among all, the others masked."""
  graphdef, state = nnx.split(stack(case, max_position=GAPS))
  whole = case.length + case.part
  key = np.unique(np.linspace(0, whole - 1, case.length).astype(int))
  draw = np.random.default_rng(4)
  x = jnp.asarray(draw.normal(size=(B, whole, case.d_model)), jnp.float32)
  every, seen = np.arange(whole), np.ones((1, 1, len(key)), bool)
  hidden = np.isin(every, key)[None, None]
  asked = {"gaps": key, "fewer queries than keys": key[1:]}

  @functools.partial(jax.jit, static_argnums=1)
  def found(state: nnx.State, i: int) -> tuple[Array, dict[str, Array]]:
    model = nnx.merge(graphdef, state)
    layer = model.blocks[i].attention
    held = layer.keys_values(x)

    def attended(query: np.ndarray, key: np.ndarray, mask: np.ndarray, **options: Any) -> Array:
      places = jnp.asarray(query)[None], jnp.asarray(key)[None]
      span = Span(*places, jnp.asarray(mask), case.causal, max_position=GAPS, **options)
      seen = jax.tree.map(lambda each: each[:, key], held)
      return layer(x[:, query], *seen, model.ready(span, layer=i))

    expected = attended(every, every, hidden, consecutive=True)
    return expected, {name: attended(query, key, seen) for name, query in asked.items()}

  for i in nnx.merge(graphdef, state).distinct:
    expected, got = found(state, i)
    for name, query in asked.items():
      yield from compare(f"layer {i}, {name}", got[name], expected[:, query])


def long_texts(case: Case) -> Iterator[Violation]:
  """Check that the form of attention for long sequences equals the definition, as its gradients."""
  tokens = tokens_of(case)
  draw = np.random.default_rng(6)
  cotangent = jnp.asarray(draw.normal(size=(B, case.length, case.d_model)), jnp.float32)
  gaps = jnp.asarray(np.cumsum(draw.integers(1, 4, case.length)))[None]

  def found(form: str) -> tuple[dict[str, Array], list]:
    model = stack(case, max_position=GAPS, attention=form)
    graphdef, params, rest = nnx.split(model, nnx.Param, ...)

    def outputs(params):
      model = nnx.merge(graphdef, params, rest)
      padded = model(tokens, case.mask) * case.mask[..., None]
      values = {"padded": padded, "with gaps": model(tokens, positions=gaps)}
      if case.causal:
        _, kept = model.recur(tokens[:, : case.part], model.empty_memory(B, case.part))
        values["with a memory"] = model.recur(tokens, kept)[0]
      return values

    def sloped(params):
      values, backward = jax.vjp(outputs, params)
      return values, *backward(dict.fromkeys(values, cotangent))

    # Two tokens are long here, so that `auto` takes blocks.
    long = dict.fromkeys(attention.LONG, 2)
    with mock.patch.multiple(attention, ROWS=2, LONG=long):
      values, gradient = jax.jit(sloped)(params)
    return values, nnx.to_flat_state(gradient)

  (expected, slopes), (got, others) = found("reference"), found("auto")
  for name in expected:
    yield from compare(name, got[name], expected[name])
  for (path, slope), (_, other) in zip(slopes, others, strict=True):
    largest = max(1.0, float(jnp.abs(slope[...]).max()))
    apart = float(jnp.abs(slope[...] - other[...]).max())
    if not apart < 10 * EXACT * largest:
      yield Violation(f"gradient of {'/'.join(map(str, path))}", apart)


def gradients(case: Case) -> Iterator[Violation]:
  """Check that the gradient of every parameter equals finite differences.

  These say nothing where a function has a corner, so smooth functions stand in for ReLUs.
  """
  size = case.size()
  smooth: dict = {"feed_forward": "gelu"} if size.feed_forward == "relu" else {}
  smooth |= {"experts_used": size.experts} if size.experts else {}
  model, tokens = stack(case, **smooth), tokens_of(case)
  graphdef, params, rest = nnx.split(model, nnx.Param, ...)
  draw = np.random.default_rng(8)
  cotangent = draw.normal(size=(B, case.length, case.d_model))

  @jax.jit
  def output(params):
    with mock.patch.multiple(jax.nn, relu=jax.nn.softplus, leaky_relu=lambda x, _: jax.nn.silu(x)):
      return nnx.merge(graphdef, params, rest)(tokens, case.mask) * case.mask[..., None]

  @jax.jit
  def sloped(params):
    values, backward = jax.vjp(output, params)
    return backward(jnp.asarray(cotangent, values.dtype))[0]

  slopes = sloped(params)
  leaves, tree = jax.tree.flatten(params)
  for index, (path, slope) in enumerate(nnx.to_flat_state(slopes)):
    slope, apart = np.asarray(slope[...], np.float64), np.inf
    slack = SLACK * (0.5 + np.linalg.norm(slope))
    for _ in range(3):  # directions: rounding may spoil one
      if apart < slack:
        break
      way = draw.choice([-1.0, 1.0], slope.size).reshape(slope.shape)
      ends = []
      for step in (STEP, -STEP):
        moved = leaves[index] + jnp.asarray(step * way, jnp.float32)
        there = output(tree.unflatten([*leaves[:index], moved, *leaves[index + 1 :]]))
        ends.append((np.asarray(there, np.float64) * cotangent).sum())
      apart = min(apart, abs((ends[0] - ends[1]) / (2 * STEP) - (slope * way).sum()))
    if not apart < slack:
      name, norm = "/".join(map(str, path)), np.linalg.norm(slope)
      yield Violation(f"{name}, whose gradient is {norm:.3g} long", apart)


def bfloat16(case: Case) -> Iterator[Violation]:
  """Check that outputs in bfloat16 follow those in float32, and parameters stay in float32."""
  tokens = tokens_of(case)
  full, half = stack(case), stack(case, dtype="bfloat16")
  for path, x in paths(half).items():
    if x.dtype != np.float32:
      yield Violation(f"{path} is {x.dtype}")
  expected, got = full(tokens, case.mask), half(tokens, case.mask)
  if got.dtype != jnp.bfloat16:
    yield Violation(f"outputs are {got.dtype}")
  error = np.sqrt(np.mean(np.square(np.asarray(got, np.float64) - expected)))
  if not error < HALF * np.std(expected):
    yield Violation("outputs, in standard deviations", float(error / np.std(expected)))


def same_start(case: Case) -> Iterator[Violation]:
  """Check that all other parameters start with the same values as without positions."""

  def start(encoding: Encoding) -> dict[str, np.ndarray]:
    rngs = Rngs(params=0, encoding=1)
    size = case.size(output_gate=True)  # which draws after all that an encoding may draw
    built = Stack(VOCAB, encoding, size, causal=case.causal, rngs=rngs)
    return {path.replace("words/", ""): x for path, x in paths(built).items()}

  plain, own = start(Encoding()), start(case.encoding)
  for path in plain:
    if path in own and plain[path].shape == own[path].shape:
      apart = np.abs(plain[path] - own[path]).max()
      if apart > 0:
        yield Violation(path, float(apart))


def terms(case: Case) -> Iterator[Violation]:
  """Check that outputs with all terms on are as without switches, and finite with one off."""
  model, tokens = stack(case), tokens_of(case)
  names = dict.fromkeys(term for block in model.blocks for term in block.attention.relation.terms)
  every = {name: jnp.ones((case.layers, case.heads)) for name in names}
  far = np.unique(np.geomspace(1, case.most, case.length).astype(int))[None] - 1
  places = [None, far] if far.size == case.length else [None]
  yield from compare("all on", model(tokens, term_scale=every), model(tokens))
  for name in names:
    off = every | {name: jnp.zeros((case.layers, case.heads))}
    output = model(tokens, term_scale=off)
    if not jnp.isfinite(output).all():
      yield Violation(f"{name} off: not finite")
    elif all(  # a term may act on far keys alone
      jnp.array_equal(
        model(tokens, positions=at, term_scale=off), model(tokens, positions=at, term_scale=every)
      )
      for at in places
    ):
      yield Violation(f"{name} off: nothing changes")
