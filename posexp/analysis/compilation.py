"""The property that a compiled model is the model."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import Array

from posexp.analysis.properties import EXACT, VOCAB, B, Case, Violation, stack

OPTIMIZED = "jax_disable_most_optimizations"


def compilation(case: Case) -> Iterator[Violation]:
  """Check that a compiled model gives what its operations give one by one, at two sizes."""
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
  """Have programs optimized in it, though most of a check are not."""
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
