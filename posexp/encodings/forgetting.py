"""Forgetting attention: a bias from gates of the tokens between a key and a query."""

from __future__ import annotations

import dataclasses
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import Array

from posexp.config.checks import Positive
from posexp.encodings.base import Columns, Encoding, Matrix, Relation
from posexp.encodings.columns import sums_between
from posexp.encodings.rngs import Rngs
from posexp.kernels.gradients import add_bias, matmul

Times = tuple[Positive, Positive]


@dataclasses.dataclass(frozen=True)
class FoX(Encoding):
  """Forgetting attention, a bias of gates that forget what is behind them (Lin et al. 2025).

  e_ij = q·k/√d + Σ_{t=j+1}^{i} ln f_t, f_t = σ(w_h·x_t + b_h): one gate per token and head, made of
  the layer's input. Equal gates are ALiBi with the slope −ln f. w starts from N(0, 0.02), b at
  `start`: 0 is the authors' code, in which the weight of a key at first halves with each token; 5
  is that of x-transformers, with gates of 0.993. `times` = (T_min, T_max) lets b start so that
  f = exp(−1/T_h), T_h from T_min to T_max on a logarithmic scale over heads.

  `gates=bias` has no w, and `gates=fixed` trains nothing: these are the paper's controls. The paper
  has no encoder. Here one has two gates per head, as in x-transformers: those of keys j+1 … i for
  keys j behind the query i, the others, of keys i+1 … j, for keys ahead. The rest of the paper's
  `Pro` block is left out: norms of queries and keys, an output gate, and shifted keys.
  """

  alternative = ("start", 5.0)
  gates: Literal["hidden", "bias", "fixed"] = "hidden"
  start: float = 0.0
  times: Times | None = None

  def __post_init__(self):
    super().__post_init__()
    if self.times is not None and self.start != 0:
      raise ValueError("start has no effect with times; leave it at 0")

  def relation(self, num_heads, head_dim, *, causal, rngs):
    return Forgetting()

  def columns(self, features, num_heads, head_dim, *, causal, rngs):
    return Columns(key=LogGates(self, features, num_heads, sides=2 - causal, rngs=rngs))

  def bias(self, num_heads: int) -> np.ndarray:
    """Return the biases of gates at the start, float64 [H]."""
    if self.times is None:
      return np.full(num_heads, self.start)
    return -np.log(np.expm1(1 / np.geomspace(*self.times, num_heads)))


class LogGates(nnx.Module):
  """ln σ(x w + b) for each head, float32 [B,K,H], once for each side; the first is behind."""

  def __init__(self, fox: FoX, features: int, num_heads: int, *, sides: int, rngs: Rngs):
    self.sides, bias = sides, np.tile(fox.bias(num_heads), sides)
    self.fixed = tuple(bias.tolist()) if fox.gates == "fixed" else None
    self.bias = None if fox.gates == "fixed" else nnx.Param(jnp.asarray(bias, jnp.float32))
    init = nnx.initializers.normal(0.02)
    drawn = fox.gates == "hidden"
    self.kernel = Matrix(init(rngs.encoding(), (features, len(bias)))) if drawn else None

  def __call__(self, x: Array) -> list[Array]:
    bias = jnp.asarray(self.fixed, jnp.float32) if self.bias is None else self.bias[...]
    if self.kernel is None:
      logits = jnp.broadcast_to(bias, (*x.shape[:2], len(bias)))
    else:
      logits = add_bias(matmul(x.astype(jnp.float32), self.kernel[...]), bias)
    return jnp.split(jax.nn.log_sigmoid(logits), self.sides, axis=-1)


class Forgetting(Relation):
  """q·k / √d + the sum of the logarithms of the gates from a key to the query."""

  terms = ("content", "gates")

  def qk_and_bias(self, q, k, span):
    query, key, _ = super().qk_and_bias(q, k, span)
    behind, *ahead = span.key_columns
    return query, key, span.keep("gates") * sums_between(behind, span, *ahead)
