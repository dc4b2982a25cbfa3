"""The properties of every encoding, and the smallest counterexample of one that does not hold.

`posexp.analysis.properties` has their definitions; here is where each of them is asked for.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import Array

from posexp.analysis import properties
from posexp.analysis.attention_weights import watch
from posexp.analysis.probe import refusal
from posexp.analysis.properties import EXACT, VOCAB, B, Case, Violation, compare, stack, tokens_of
from posexp.encodings import Encoding, Span
from posexp.encodings.sinusoids import REACH


def effect(case: Case) -> Iterator[Violation]:
  """Check that a model computes something else than one without positions does."""

  def operations(encoding: Encoding) -> str:
    model = stack(dataclasses.replace(case, encoding=encoding))
    traced = str(jax.make_jaxpr(model)(tokens_of(case)))
    return re.sub("0x[0-9a-f]+", "", traced)  # addresses of functions

  if type(case.encoding) is not Encoding and operations(case.encoding) == operations(Encoding()):
    yield Violation("the same operations as with encoding=none")


def weights(case: Case) -> Iterator[Violation]:
  """Check that hidden keys have no weight, that no weight is negative, and that those of a query
  sum to 1. A relation may declare another sum by `sums_to_one`: at most 1, or, at None, any.
  """
  model, tokens = stack.__wrapped__(case), tokens_of(case)  # one of its own, which is watched
  seen, _ = watch(model)
  model(tokens, case.mask)
  for layer, (block, attended) in enumerate(zip(model.blocks, seen, strict=True)):
    real = np.asarray(case.mask)[:, None, :, None]  # padding may see nothing
    given = np.where(real, np.asarray(attended.weights, np.float64), 0)
    hidden = np.where(np.asarray(attended.visible)[:, None], 0, np.abs(given)).max()
    if not hidden <= EXACT:
      yield Violation(f"layer {layer}: weights of keys that are not visible", float(hidden))
    if block.attention.relation.sums_to_one is None:
      continue
    if not given.min() >= -EXACT:
      yield Violation(f"layer {layer}: negative weights", float(-given.min()))
    sums = np.where(real[..., 0], given.sum(-1), 1)
    apart = np.abs(sums - 1) if block.attention.relation.sums_to_one else np.maximum(sums - 1, 0)
    if not apart.max() <= EXACT:
      yield Violation(f"layer {layer}: sums of weights", float(apart.max()))


def columns(case: Case) -> Iterator[Violation]:
  """Check that columns of a key or query depend on its own token alone, and so can be cached."""
  model, draw = stack(case), np.random.default_rng(11)
  shape = 2, case.length, case.d_model
  x = jnp.asarray(draw.normal(size=shape), jnp.float32)
  for i in model.distinct:
    layer = model.blocks[i].attention
    for who, make in (("key", layer.key_columns), ("query", layer.query_columns)):
      if make is None:
        continue
      whole = jax.tree.leaves(make(x))
      for token in range(case.length):
        alone = jax.tree.leaves(make(x[:, token : token + 1]))
        for one, every in zip(alone, whole, strict=True):
          what = f"layer {i}, columns of a {who} alone, token {token} of {case.length}"
          yield from compare(what, one, every[:, token : token + 1])


LONG = 512  # tokens of a text that is long


def far_positions(case: Case) -> Iterator[Violation]:
  """Check that outputs and gradients are finite for tokens far apart, far from 0 and in long texts,
  and that the last query has the same output alone as among all.
  """
  most, draw = case.most, np.random.default_rng(9)
  model = stack(case, max_position=most)
  graphdef, params, rest = nnx.split(model, nnx.Param, ...)

  @functools.partial(jax.jit, static_argnums=(3, 4))
  def found(
    params: Any, places: Array, x: Array, consecutive: bool, i: int
  ) -> tuple[Array, Array, Array]:
    def attended(params: Any, x: Array, first: int = 0) -> tuple[Array, Array]:
      built = nnx.merge(graphdef, params, rest)
      layer, seen = built.blocks[i].attention, jnp.ones((1, 1, x.shape[1]), bool)
      options = {"max_position": most, "consecutive": consecutive}
      span = Span(places[:, first:], places, seen, case.causal, **options)
      outputs = layer(x[:, first:], *layer.keys_values(x), built.ready(span, layer=i))
      return outputs, built.embed(jnp.ones((1, 1), int), places[:, -1:], None)

    values, backward = jax.vjp(attended, params, x)
    slopes = backward(jax.tree.map(jnp.ones_like, values))
    finite = [jnp.isfinite(leaf).all() for leaf in jax.tree.leaves((values, slopes))]
    return values[0], attended(params, x, x.shape[1] - 1)[0], jnp.stack(finite).all()

  gaps = np.unique(np.geomspace(1, most, min(case.length, most)).astype(int)) - 1
  for name, places in (("gaps", gaps), ("a long text", np.arange(max(0, most - LONG), most))):
    x = jnp.asarray(draw.normal(size=(1, len(places), case.d_model)), jnp.float32)
    for i in model.distinct:
      whole, alone, finite = found(params, jnp.asarray(places)[None], x, places is not gaps, i)
      where = f"layer {i}, {name}, positions {places[0]:,} to {places[-1]:,}"
      if not finite:
        yield Violation(f"{where}: not finite")
      yield from compare(f"{where}, the last query alone", whole[:, -1:], alone)


OPTIMIZED = "jax_disable_most_optimizations"


def compilation(case: Case) -> Iterator[Violation]:
  """Check that a compiled model gives the outputs of its operations one by one, at two sizes."""
  model = stack(case)
  graphdef, state = nnx.split(model)
  # What a class has jitted itself is taken apart at one size only: that takes seconds at each.
  apart = jax.disable_jit()
  sizes = (
    (B, case.length, contextlib.nullcontext()),
    (B + 1, min(2 * case.length, case.most), apart),
  )
  for rows, length, one_by_one in sizes:
    draw = np.random.default_rng(length)
    tokens = jnp.asarray(draw.integers(1, VOCAB, (rows, length)))
    mask = np.arange(length) < draw.integers(1, length + 1, (rows, 1))

    program = jax.jit(lambda state, *given: nnx.merge(graphdef, state)(*given))
    with as_in_training():
      got = program(state, tokens, mask)
    with one_by_one:
      expected = model(tokens, mask)
    yield from element(f"{rows} rows of {length} tokens", got, expected)


@contextlib.contextmanager
def as_in_training() -> Iterator[None]:
  """Have XLA optimize the programs of this context, unlike most programs of a check."""
  before = jax.config.read(OPTIMIZED)
  jax.config.update(OPTIMIZED, False)
  try:
    yield
  finally:
    jax.config.update(OPTIMIZED, before)


def element(what: str, got: Array, expected: Array) -> Iterator[Violation]:
  """Yield the element of two outputs [B,L,F] that differs most, if by more than rounding."""
  got, expected = np.asarray(got, np.float64), np.asarray(expected, np.float64)
  apart = np.abs(got - expected)
  apart = np.where(np.isnan(apart), np.inf, apart)
  if apart.max(initial=0) > EXACT:
    row, token, feature = place = np.unravel_index(apart.argmax(), apart.shape)
    yield Violation(
      f"{what}: row {row}, token {token}, feature {feature} is {got[place]:.4g} compiled, and "
      f"{expected[place]:.4g} one by one",
      float(apart.max()),
    )


class Property(NamedTuple):
  """A property, and where it is asked for."""

  check: Callable[[Case], Iterator[Violation]]
  encoder: bool = True  # also of attention to both sides
  declared: str = ""  # only of an encoding that declares this: `relative` or `recurrent`

  @property
  def name(self) -> str:
    return self.check.__name__.replace("_", " ")

  @property
  def claim(self) -> str:
    """What holds, in words."""
    return (self.check.__doc__ or self.name).removeprefix("Check that ")

  def sides(self, encoding: Encoding) -> list[bool]:
    """Return the kinds of attention to check: True for causal, False for both directions."""
    if self.declared and not getattr(encoding, self.declared):
      return []
    return [True, *[False] * (self.encoder and not encoding.causal_only)]


PROPERTIES = (
  Property(properties.padding),
  Property(properties.batch_mates),
  Property(properties.cached_decoding, encoder=False),
  Property(properties.cross_attention, encoder=False),
  Property(properties.memory, encoder=False, declared="recurrent"),
  Property(properties.explicit_positions),
  Property(properties.shift, declared="relative"),
  Property(properties.spans),
  Property(far_positions),
  Property(properties.long_texts),
  Property(compilation),
  Property(properties.gradients),
  Property(properties.bfloat16),
  Property(properties.same_start),
  Property(effect),
  Property(properties.terms),
  Property(weights),
  Property(columns),
)


class Outcome(NamedTuple):
  """Whether one property holds."""

  name: str
  status: str  # "holds", "fails" or "not declared"
  detail: str  # what holds, or the smallest counterexample


def examine(encoding: Encoding, reach: int = REACH) -> Iterator[Outcome]:
  """Yield every property of one encoding, with the smallest counterexample if it does not hold.

  Positions that are far apart are below `reach`.

  Raises:
    ValueError: no model can be built with the encoding.
  """
  count = max(2, encoding.least_layers)
  whole = {causal: Case(encoding, causal, layers=count) for causal in (True, False)}
  defined = [causal for causal, case in whole.items() if is_defined(case)]
  if not defined:
    stack(whole[encoding.causal_only])  # says why
  for asked in PROPERTIES:
    sides = [causal for causal in asked.sides(encoding) if causal in defined]
    cases = [Case(encoding, causal, layers=count, reach=reach) for causal in sides]
    failed = next((case for case in cases if fails(asked, case)), None)
    if failed is not None:
      smallest, counterexample = shrink(asked, failed)
      by = "" if np.isnan(counterexample.amount) else f", by {counterexample.amount:.3g}"
      yield Outcome(asked.name, "fails", f"{smallest}: {counterexample.what}{by}")
    else:
      yield Outcome(asked.name, "holds" if cases else "not declared", asked.claim)


def is_defined(case: Case) -> bool:
  """Return whether a model can be built."""
  return refusal(case.encoding, case.size(), case.causal) is None


def fails(each: Property, case: Case) -> Violation | None:
  """Return the first difference that a property finds; an exception is one, too."""
  try:
    return next(each.check(case), None)
  except Exception as error:
    return Violation(f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}")


def shrink(each: Property, case: Case) -> tuple[Case, Violation]:
  """Return the smallest case that fails: of the fewest layers, then heads, then tokens."""
  sizes = itertools.product((1, case.layers), (1, case.heads), range(2, case.length + 1))
  for layers, heads, length in sizes:
    smaller = dataclasses.replace(case, length=length, layers=layers, heads=heads)
    if is_defined(smaller) and (violation := fails(each, smaller)) is not None:
      return smaller, violation
  return case, fails(each, case)
