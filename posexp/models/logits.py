"""Factors of the logits by the number of keys that a query sees, or by its position.

A factor multiplies queries, after a cache and before positions touch them, so every term of the
logits that a query is part of. Biases of positions alone keep their size.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import jax.numpy as jnp
from flax import nnx
from jax import Array

from posexp.encodings.span import Span

GROWTH = 0.1  # where `logits_growth` is null, as in all models with such a rule


class Rule(NamedTuple):
  """What `logits_by` names: the factor f(x), or s·f(x) + b with s and b trained for each head.

  f maps x, float32, and the numbers `logits_growth` and `logits_length`.
  """

  f: Callable[[Array, float, int], Array]
  counts: bool = False  # x is the number of keys that the query sees; else its position plus 1
  trained: tuple[str, ...] = ()  # s, or s and b
  growth: bool = True  # it has a logits_growth
  length: bool = True  # it needs a logits_length


def log(x: Array, growth: float, length: int) -> Array:
  """Return ln x."""
  return jnp.log(x)


def log_share(x: Array, growth: float, length: int) -> Array:
  """Return ln x / ln length."""
  return jnp.log(x) / math.log(length)


def steps(x: Array, growth: float, length: int) -> Array:
  """Return 1 + growth·ln(1 + ⌊x/length⌋)."""
  return 1 + growth * jnp.log1p(jnp.floor(x / length))


RULES = {
  # Nakanishi 2025, SSMax
  "ssmax": Rule(log, counts=True, trained=("s",), growth=False),
  "ssmax_bias": Rule(log, counts=True, trained=("s", "b"), growth=False),
  # Su 2021; as beside ReRoPE, at least 1 (Su 2023)
  "log_n": Rule(log_share, counts=True, growth=False),
  "log_n_clipped": Rule(lambda *x: jnp.maximum(log_share(*x), 1.0), counts=True, growth=False),
  # Models as Hugging Face's code has them (transformers 5.24.0)
  "llama4": Rule(steps),
  "ministral": Rule(lambda x, growth, length: steps(x - 1, growth, length)),
  "beam": Rule(lambda x, growth, length: (1 + x / length) ** growth),
  "inkling": Rule(lambda x, growth, length: 1 + growth * jnp.log(jnp.maximum(x / length, 1.0))),
  "mistral_large": Rule(log, trained=("s", "b"), growth=False, length=False),
}


class Factor(nnx.Module):
  """The factor of each query and head.

  s starts at 1 over the mean of ln n for n = 1 … `length`, so that factors are 1 on average, and b
  at 0. Where there is no length, they start at 0 and 1.
  """

  def __init__(
    self, by: str, num_heads: int, growth: float | None, length: int | None, scale: float
  ):
    self.by, self.growth, self.length, self.scale = by, growth or GROWTH, length, scale
    trained = () if by == "none" else RULES[by].trained
    s, b = (0.0, 1.0) if length is None else (length / math.lgamma(length + 1), 0.0)
    self.s = nnx.Param(jnp.full(num_heads, s)) if "s" in trained else None
    self.b = nnx.Param(jnp.full(num_heads, b)) if "b" in trained else None

  def __str__(self):
    return f"logits_scale={self.scale:g}" if self.by == "none" else f"logits_by={self.by}"

  def __call__(self, span: Span) -> Array:
    """Return the factor of queries, float32 [1 or B,1 or Q,1 or H,1]."""
    if self.by == "none":
      return jnp.full((1, 1, 1, 1), self.scale)
    rule = RULES[self.by]
    # Padding beyond a window sees no key.
    x = jnp.maximum(span.visible.sum(-1), 1) if rule.counts else span.query + 1
    factor = rule.f(x.astype(jnp.float32), self.growth, self.length)[:, :, None, None]
    if self.s is not None:
      factor = factor * self.s[...][:, None]
    if self.b is not None:
      factor = factor + self.b[...][:, None]
    return factor * self.scale
