"""ALiBi whose slopes depend on content, and biases that a small network mixes with the logits."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any, ClassVar, Literal

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import Array

from posexp.config.checks import Count, Positive
from posexp.encodings.base import Encoding, Matrix, Relation
from posexp.encodings.bias import ALiBi, distance, slopes
from posexp.encodings.distance import KERPLE, Interpolation
from posexp.encodings.rngs import Rngs
from posexp.encodings.span import Span

LEAK = 0.01  # of a LeakyReLU
UNITS = 8  # of convolutions, at a time


@dataclasses.dataclass(frozen=True)
class GRAPE(Encoding):
  """ALiBi with slopes that keys or queries open and close (Zhang et al. 2025, GRAPE-A).

  e_ij = q·k/√d − (i − j) m_h softplus(ω_h) (softplus(û_h·k_j/√d) + softplus(v̂_h·q_i/√d)): `gates`
  says which of the two there are. m_h are ALiBi's slopes, û = u/‖u‖; softplus(ω) starts at 1, u and
  v from N(0, 1/√d). Causal only. The authors normalize queries and keys (RMS) before.
  """

  alternative = ("gates", "both")
  causal_only: ClassVar[bool] = True
  gates: Literal["key", "query", "both"] = "key"

  def relation(self, num_heads, head_dim, *, causal, rngs):
    return Sloped(self.gates, num_heads, head_dim, rngs)


class Sloped(Relation):
  """q·k / √d − distance times a slope of each head, query and key."""

  terms = ("content", "slopes")

  def __init__(self, gates: str, num_heads: int, head_dim: int, rngs: Rngs):
    self.fixed = tuple(slopes(num_heads).tolist())
    self.omega = nnx.Param(jnp.full(num_heads, np.log(np.expm1(1.0)), jnp.float32))
    init, shape = nnx.initializers.normal(head_dim**-0.5), (num_heads, head_dim)
    self.u = None if gates == "query" else nnx.Param(init(rngs.encoding(), shape))
    self.v = None if gates == "key" else nnx.Param(init(rngs.encoding(), shape))

  def qk_and_bias(self, q, k, span):
    query, key, _ = super().qk_and_bias(q, k, span)
    steep = jnp.asarray(self.fixed, jnp.float32) * jax.nn.softplus(self.omega[...])
    opened = 0.0
    if self.u is not None:
      opened = gate(self.u[...], k)[:, :, None]
    if self.v is not None:
      opened = opened + gate(self.v[...], q)[..., None]
    return query, key, -span.keep("slopes") * distance(span) * steep[:, None, None] * opened


def gate(direction: Array, x: Array) -> Array:
  """Return softplus(û·x/√d) for u [H,D] and x [B,L,H,D]: float32 [B,H,L]."""
  unit = direction * jax.lax.rsqrt(jnp.square(direction).sum(-1, keepdims=True))
  products = jnp.einsum("hd,blhd->bhl", unit, x.astype(jnp.float32))
  return jax.nn.softplus(products * x.shape[-1] ** -0.5)


@dataclasses.dataclass(frozen=True)
class DAPE(Encoding):
  """A bias that a small network makes of the logits and another bias (Zheng et al. 2024).

  e_ij = A + P + f([A; P]), with A = q·k/√d of all heads, P the bias of `base`, and f a network
  2H → `width` → H with LeakyReLU for each pair of query and key. With `base=none`, e = A + f(A).
  In FIRE's network, of the same width, a LeakyReLU stands for ReLU, as in the authors' code;
  `threshold` is FIRE's. All layers share P, and each has its own f. An encoder has it with
  `base` = `alibi` or `none`.

  In `version` 2 (Zheng et al. 2024 b), which is causal only, both maps of f are convolutions over
  three of the keys that the query sees: the key before, the key itself and the key after. The
  second map also reads one place behind the last of them, as where a masked key follows in the
  authors' code.
  """

  alternative = ("base", "alibi")
  base: Literal["alibi", "kerple", "fire", "none"] = "kerple"
  width: Count = 32
  threshold: Positive = 512.0
  version: Literal[1, 2] = 1

  def __post_init__(self):
    super().__post_init__()
    if self.base != "fire" and self.threshold != 512:
      raise ValueError("threshold is for base=fire; leave it at 512")

  @property
  def causal_only(self) -> bool:
    return self.base in ("kerple", "fire") or self.version == 2

  @property
  def relative(self) -> bool:
    return self.base != "fire"

  @property
  def recurrent(self) -> bool:
    return True

  def relation(self, num_heads, head_dim, *, causal, rngs):
    kind = Mixed if self.version == 1 else Convolved
    return kind(self.base != "none", self.width, num_heads, rngs)

  def shared(self, num_heads, head_dim, *, causal, rngs, embed=None):
    made: dict[str, Callable[[], Callable[[Span], Array] | None]] = {
      "alibi": lambda: ALiBi().shared(num_heads, head_dim, causal=causal, rngs=rngs),
      "kerple": lambda: KERPLE().shared(num_heads, head_dim, causal=causal, rngs=rngs),
      "fire": lambda: Interpolation(num_heads, self.width, self.threshold, leak=LEAK, rngs=rngs),
      "none": lambda: None,
    }
    return made[self.base]()


class Mixed(Relation):
  """q·k / √d + a bias + a network of both, which mixes heads."""

  taps: ClassVar[int] = 1  # keys that each map of the network reads

  def __init__(self, biased: bool, width: int, num_heads: int, rngs: Rngs):
    self.biased = biased
    self.terms = ("content", "bias", "mixture") if biased else ("content", "mixture")
    around = nnx.initializers.uniform(2.0)
    inputs, hidden = self.taps * num_heads * (1 + biased), self.taps * width

    def drawn(*shape: int, fan_in: int) -> nnx.Param:  # U(±1/√fan_in), as PyTorch starts maps
      kind = Matrix if len(shape) > 1 else nnx.Param
      return kind((around(rngs.encoding(), shape) - 1) * fan_in**-0.5)

    self.kernel_in, self.bias_in = drawn(inputs, width, fan_in=inputs), drawn(width, fan_in=inputs)
    self.kernel_out = drawn(width, self.taps * num_heads, fan_in=hidden)
    self.bias_out = drawn(num_heads, fan_in=hidden)

  def score(self, q, k, span):
    every = span.replace(term_scale=None)  # the network reads all, also where a term is off
    logits = super().score(q, k, every).astype(jnp.float32)
    total = span.keep("content") * logits
    both = logits
    if self.biased:
      bias = jnp.broadcast_to(span.shared, logits.shape)
      both = jnp.concatenate([logits, bias], axis=1)
      total = total + span.keep("bias") * bias
    mixture = self.mixture(both, span) + self.bias_out[...][:, None, None]
    return total + span.keep("mixture") * mixture

  def mixture(self, both: Array, span: Span) -> Array:
    """Return the network of logits and bias [B,I,Q,K] without its last bias, [B,H,Q,K]."""

    def bent(unit: tuple[Array, Array, Array]) -> Array:
      kernel, bias, out = unit
      hidden = jax.nn.leaky_relu(jnp.einsum("bhqk,h->bqk", both, kernel) + bias, LEAK)
      return hidden[:, None] * out[:, None, None]

    units = self.kernel_in[...].T, self.bias_in[...], self.kernel_out[...]
    return added_up(bent, units, (len(both), len(self.bias_out), *both.shape[2:]))


def added_up(bent: Callable[[Any], Array], units: Any, shape: tuple[int, ...]) -> Array:
  """Sum the arrays that `bent` makes of each unit, one after another.

  Nothing of [Q,K,width] is formed, neither forward nor backward.
  """
  none, step = jnp.zeros(shape), jax.checkpoint(bent)
  return jax.lax.scan(lambda sum, unit: (sum + step(unit), None), none, units)[0]


class Convolved(Mixed):
  """q·k / √d + a bias + two convolutions of both, over the key before, the key and the key after.

  The keys that a query sees are moved to the front, with zeros around them. The first map reads the
  logits of three keys, the second one writes to three keys.
  """

  taps = 3

  def mixture(self, both, span):
    seen = span.visible
    place = jnp.where(seen, jnp.cumsum(seen, axis=2) - 1, seen.shape[2])[:, None]
    order = jnp.argsort(place, axis=3)
    front = jnp.take_along_axis(jnp.where(seen[:, None], both, 0), order, axis=3)
    wide = jnp.pad(front, [(0, 0), (0, 0), (0, 0), (1, 2)])
    keys = wide.shape[3] - 2  # one more, since the second map reads a place behind the last key
    near = jnp.concatenate([wide[..., tap : tap + keys] for tap in range(3)], axis=1)

    def bent(units: tuple[Array, Array, Array]) -> Array:
      kernel, bias, out = units
      hidden = jnp.einsum("biqk,ui->buqk", near, kernel) + bias[:, None, None]
      return jnp.einsum("buqk,uo->boqk", jax.nn.leaky_relu(hidden, LEAK), out)

    few = math.gcd(len(self.bias_in), UNITS)
    units = self.kernel_in[...].T, self.bias_in[...], self.kernel_out[...]
    units = jax.tree.map(lambda x: x.reshape(-1, few, *x.shape[1:]), units)
    mixed = added_up(bent, units, (len(both), 3 * len(self.bias_out), *near.shape[2:]))
    before, own, after = jnp.split(mixed, 3, axis=1)
    total = own.at[..., 1:].add(before[..., :-1]).at[..., :-1].add(after[..., 1:])
    return jnp.take_along_axis(total, place, axis=3)
