"""Logits lowered by a smooth function of the distance: KERPLE, FIRE and Sandwich."""

from __future__ import annotations

import dataclasses
from typing import Annotated, ClassVar, Literal

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array

from posexp.config.checks import Base, Count, Positive, at_most, even_from
from posexp.encodings.base import Encoding, Matrix, Span
from posexp.encodings.bias import Biased, SharedBias, distance
from posexp.encodings.rngs import Rngs
from posexp.encodings.sinusoids import frequencies, sinusoids

LEAST = 0.01  # the least value of KERPLE's parameters


@dataclasses.dataclass(frozen=True)
class KERPLE(SharedBias):
  """A conditionally positive definite kernel of the distance (Chi et al. 2022, eq. 5 and 6).

  e_ij = q·k/√d − p log(1 + a|i − j|) (`log`) or − a|i − j|^p (`power`, p at most 2), with a and p
  for each head, shared by all layers as in the authors' code, from U(0, 1) and U(0, 2), and at
  least 0.01. The paper and its code are causal: an encoder needs `symmetric`.
  """

  alternative = ("kind", "power")
  both_sides_by: ClassVar[str] = "symmetric"
  kind: Literal["log", "power"] = "log"
  symmetric: bool = False

  @property
  def causal_only(self) -> bool:
    return not self.symmetric

  def shared(self, num_heads, head_dim, *, causal, rngs, embed=None):
    return Kernel(num_heads, self.kind, rngs=rngs)


def held(param: nnx.Param, most: float = jnp.inf) -> Array:
  """Clip a parameter to LEAST … `most`; the gradient passes, so that it can come back."""
  value = param[...]
  return value + jax.lax.stop_gradient(jnp.clip(value, LEAST, most) - value)


class Kernel(nnx.Module):
  """−p log(1 + a distance) or −a distance^p, with a and p for each head."""

  def __init__(self, num_heads: int, kind: str, *, rngs: Rngs):
    self.kind = kind
    draw = jax.random.uniform
    self.p = nnx.Param(draw(rngs.encoding(), (num_heads,), minval=LEAST, maxval=2.0))
    self.a = nnx.Param(draw(rngs.encoding(), (num_heads,), minval=LEAST, maxval=1.0))

  def __call__(self, span: Span) -> Array:
    return span.of_offsets(self.value)

  def value(self, offset: Array) -> Array:
    """Return the bias of each head for offsets int [...]: [H,...]."""
    far = jnp.abs(offset).astype(jnp.float32)
    p, a = held(self.p, jnp.inf if self.kind == "log" else 2.0), held(self.a)
    p, a = (jnp.expand_dims(parameter, tuple(range(1, 1 + far.ndim))) for parameter in (p, a))
    if self.kind == "log":
      return -p * jnp.log1p(a * far)
    # d/dp of 0^p would be 0 · log 0: the inner `where` keeps NaN out of the gradient.
    return -a * jnp.where(far > 0, jnp.where(far > 0, far, 1.0) ** p, 0.0)


@dataclasses.dataclass(frozen=True)
class FIRE(Encoding):
  """Functional interpolation for relative positions (Li et al. 2024, eq. 3 to 5).

  e_ij = q·k/√d + f_h(ψ(i − j) / ψ(max(i, L))), ψ(x) = log(1 + |c|x), f a network 1 → width → H
  with ReLU. c starts at 0.1, and L at `threshold` as a trained multiple of it. Beyond L, distances
  count in proportion to the query's position, so only up to L do offsets alone decide. With a
  memory, positions are counted from the memory's first slot, so that the farthest possible key
  counts as 1 in every segment; from a text's start, all distances would go to 0. Causal only, since
  the future has no such proportion. `share_layers`: one f for all layers.
  """

  alternative = ("threshold", 16.0)
  relative: ClassVar[bool] = False
  recurrent: ClassVar[bool] = True
  causal_only: ClassVar[bool] = True
  width: Count = 32
  threshold: Positive = 512.0
  share_layers: bool = False

  def relation(self, num_heads, head_dim, *, causal, rngs):
    return Biased(None if self.share_layers else self.network(num_heads, rngs))

  def shared(self, num_heads, head_dim, *, causal, rngs, embed=None):
    return self.network(num_heads, rngs) if self.share_layers else None

  def network(self, num_heads: int, rngs: Rngs) -> Interpolation:
    """Build f, ψ and L."""
    return Interpolation(num_heads, self.width, self.threshold, rngs=rngs)


class Interpolation(nnx.Module):
  """A small network of ψ(distance) / ψ(max(i, threshold)), ψ(x) = log(1 + |c x|).

  Its units are ReLU, or LeakyReLU if they `leak`.
  """

  def __init__(
    self, num_heads: int, width: int, threshold: float, *, leak: float = 0.0, rngs: Rngs
  ):
    self.threshold, self.leak = threshold, leak
    around = nnx.initializers.uniform(2.0)

    def drawn(*shape: int, fan_in: int) -> nnx.Param:  # U(±1/√fan_in), as in the authors' code
      kind = Matrix if len(shape) > 1 else nnx.Param
      return kind((around(rngs.encoding(), shape) - 1) * fan_in**-0.5)

    self.kernel_in, self.bias_in = drawn(width, fan_in=1), drawn(width, fan_in=1)
    self.kernel_out = drawn(width, num_heads, fan_in=width)
    self.bias_out = drawn(num_heads, fan_in=width)
    self.c = nnx.Param(jnp.asarray(0.1))
    self.stretch = nnx.Param(jnp.asarray(1.0))

  def __call__(self, span: Span) -> Array:
    def psi(x: Array) -> Array:
      return jnp.log1p(jnp.abs(self.c[...] * x))

    threshold = jnp.abs(self.stretch[...] * self.threshold)
    reach = jnp.maximum(span.query.astype(jnp.float32), threshold)[:, None, :, None]
    x = psi(distance(span)) / (psi(reach) + 1e-6)

    return self.network(x)

  def network(self, x: Array) -> Array:
    """Return out · relu(x·in + bias) + bias for x [1 or B,1,Q,K]: [1 or B,H,Q,K].

    For each head this is a straight line between the x at which units turn on or off. So nothing of
    [Q,K,width] is formed: each x finds its piece, and then the slope and level of that piece.
    """
    weight, bias, out = self.kernel_in[...], self.bias_in[...], self.kernel_out[...]
    bend = jnp.where(weight == 0, jnp.inf, -bias / jnp.where(weight == 0, 1.0, weight))
    order = jnp.argsort(bend)
    bend, weight, bias, out = bend[order], weight[order], bias[order], out[order]
    passed = jnp.arange(len(bend)) < jnp.arange(len(bend) + 1)[:, None]  # [pieces,width]
    on = jnp.where(weight == 0, bias > 0, (weight > 0) == passed).astype(x.dtype)
    if self.leak:
      on = jnp.maximum(on, self.leak)
    slope, level = on @ (out * weight[:, None]), on @ (out * bias[:, None]) + self.bias_out[...]
    piece = jnp.searchsorted(jax.lax.stop_gradient(bend), jax.lax.stop_gradient(x[:, 0]))
    lines = jnp.moveaxis(jnp.concatenate([slope, level], axis=-1)[piece], -1, 1)
    slope, level = jnp.split(lines, 2, axis=1)
    return slope * x + level


@dataclasses.dataclass(frozen=True)
class Sandwich(SharedBias):
  """The inner product of sinusoidal positions as a bias (Chi et al. 2023, eq. 5).

  e_ij = q·k/√d + (Σ_t cos((i − j) base^(−2t/width)) − width/2) · H / (8h), t = 1 … width/2, for
  head h = 1 … H: 0 on the diagonal and below it elsewhere. Nothing is trained. `width` is the
  paper's d̄. The paper is causal, but the bias is symmetric, so an encoder can use it.
  """

  alternative = ("base", 100.0)
  width: Annotated[int, even_from(2), at_most(2**12)] = 128
  base: Base = 10000.0

  def shared(self, num_heads, head_dim, *, causal, rngs, embed=None):
    return Products(num_heads, self.width, self.base)


class Products(nnx.Module):
  """Inner products of sinusoidal positions, minus that at offset 0, steeper in early heads."""

  def __init__(self, num_heads: int, width: int, base: float):
    self.num_heads, self.width, self.base = num_heads, width, base

  def __call__(self, span: Span) -> Array:
    omega = frequencies(self.width, self.base) * self.base ** (-2 / self.width)  # from t = 1 on
    # cos(a − b) = cos a cos b + sin a sin b, which is exact wherever the positions are.
    query, key = (jnp.concatenate(sinusoids(place, omega), -1) for place in (span.query, span.key))
    products = jnp.einsum("bqw,bkw->bqk", query, key, precision=jax.lax.Precision.HIGHEST)
    head = jnp.arange(1, self.num_heads + 1)[:, None, None]
    return (products - self.width / 2)[:, None] * (self.num_heads / (8 * head))
