"""ALiBi whose slopes depend on content, and biases that a small network mixes with the logits."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import ClassVar, Literal

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import Array

from posexp.config.checks import Count, Positive
from posexp.encodings.base import Encoding, Relation
from posexp.encodings.bias import ALiBi, distance, slopes
from posexp.encodings.distance import KERPLE, Interpolation
from posexp.encodings.rngs import Rngs
from posexp.encodings.span import Span

LEAK = 0.01  # of a LeakyReLU


@dataclasses.dataclass(frozen=True)
class GRAPE(Encoding):
  """ALiBi with slopes that keys or queries open and close (Zhang et al. 2025, GRAPE-A).

  e_ij = q·k/√d − (i − j) m_h softplus(ω_h) (softplus(û_h·k_j/√d) + softplus(v̂_h·q_i/√d)): `gates`
  says which of the two there are. m_h are ALiBi's slopes, û = u/‖u‖; softplus(ω) starts at 1, u and
  v from N(0, 1/√d). Causal only. The authors normalize queries and keys (RMS) before.
  """

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
  found = jnp.einsum("hd,blhd->bhl", unit, x.astype(jnp.float32))
  return jax.nn.softplus(found * x.shape[-1] ** -0.5)


@dataclasses.dataclass(frozen=True)
class DAPE(Encoding):
  """A bias that a small network makes of the logits and another bias (Zheng et al. 2024).

  e_ij = A + P + f([A; P]), with A = q·k/√d of all heads, P the bias of `base`, and f a network
  2H → `width` → H with LeakyReLU for each pair of query and key. With `base=none`, e = A + f(A).
  In FIRE's network, of the same width, a LeakyReLU stands for ReLU, as in the authors' code;
  `threshold` is FIRE's.
  An encoder has it with `base` = `alibi` or `none`. All layers share P, and each has its own f.
  """

  base: Literal["alibi", "kerple", "fire", "none"] = "kerple"
  width: Count = 32
  threshold: Positive = 512.0

  def __post_init__(self):
    super().__post_init__()
    if self.base != "fire" and self.threshold != 512:
      raise ValueError("threshold is for base=fire; leave it at 512")

  @property
  def causal_only(self) -> bool:
    return self.base in ("kerple", "fire")

  @property
  def relative(self) -> bool:
    return self.base != "fire"

  @property
  def recurrent(self) -> bool:
    return True

  def relation(self, num_heads, head_dim, *, causal, rngs):
    return Mixed(self.base != "none", self.width, num_heads, rngs)

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

  def __init__(self, biased: bool, width: int, num_heads: int, rngs: Rngs):
    self.biased = biased
    self.terms = ("content", "bias", "mixture") if biased else ("content", "mixture")
    around = nnx.initializers.uniform(2.0)
    inputs = num_heads * (1 + biased)

    def drawn(*shape: int, fan_in: int) -> nnx.Param:  # U(±1/√fan_in), as PyTorch starts maps
      return nnx.Param((around(rngs.encoding(), shape) - 1) * fan_in**-0.5)

    self.kernel_in, self.bias_in = drawn(inputs, width, fan_in=inputs), drawn(width, fan_in=inputs)
    self.kernel_out = drawn(width, num_heads, fan_in=width)
    self.bias_out = drawn(num_heads, fan_in=width)

  def score(self, q, k, span):
    every = span.replace(term_scale=None)  # the network reads all, also where a term is off
    logits = super().score(q, k, every).astype(jnp.float32)
    total = span.keep("content") * logits
    both = logits
    if self.biased:
      bias = jnp.broadcast_to(span.shared, logits.shape)
      both = jnp.concatenate([logits, bias], axis=1)
      total = total + span.keep("bias") * bias

    def bent(unit: tuple[Array, Array, Array]) -> Array:
      kernel, bias, out = unit
      hidden = jax.nn.leaky_relu(jnp.einsum("bhqk,h->bqk", both, kernel) + bias, LEAK)
      return hidden[:, None] * out[:, None, None]

    # Unit by unit, so that nothing of [Q,K,width] is formed.
    units = self.kernel_in[...].T, self.bias_in[...], self.kernel_out[...]
    none, step = jnp.zeros(logits.shape), jax.checkpoint(bent)
    mixture = jax.lax.scan(lambda sum, unit: (sum + step(unit), None), none, units)[0]
    return total + span.keep("mixture") * (mixture + self.bias_out[...][:, None, None])
