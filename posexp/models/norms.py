"""The norms of a Transformer: their kinds, the features of each, and norms of queries and keys."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array

from posexp.encodings import name_of
from posexp.encodings.base import Encoding, LayerNorm
from posexp.encodings.rngs import Rngs
from posexp.kernels.gradients import mean, spread
from posexp.models.size import Size


class RMSNorm(nnx.Module):
  """x / √(mean x² + ε) · scale (Zhang & Sennrich 2019), computed in float32.

  Features may be `parts` interleaved vectors, as in `LayerNorm`. The result is rounded to the dtype
  of x after it is scaled, as in Gemma and OLMo 2; Llama rounds before. `above` is added to the
  scale: with 1, as in Gemma, the parameter is the scale minus 1.
  """

  def __init__(self, features: int, *, parts: int = 1, epsilon: float = 1e-6, above: float = 0.0):
    self.parts, self.epsilon, self.above = parts, epsilon, above
    self.scale = nnx.Param(jnp.full(features, 1.0 - above))

  def __call__(self, x: Array) -> Array:
    wide = x.astype(jnp.float32)
    steepness = jax.lax.rsqrt(mean(wide * wide, self.parts) + self.epsilon)
    scale = self.scale[...].astype(jnp.float32) + self.above if self.above else self.scale[...]
    return (wide * spread(steepness, x.shape[-1]) * scale).astype(x.dtype)


def norm_of(encoding: Encoding, features: int, size: Size, rngs: Rngs) -> Callable[[Array], Array]:
  """Build a norm of the chosen kind for `features` as the encoding has them: together or in parts.

  Raises:
    ValueError: the encoding has a norm of its own that is of no kind.
  """
  made = encoding.norm(features, epsilon=size.norm_epsilon, rngs=rngs)
  if size.norm_kind == "layer":
    return made
  return norm_like(made, encoding, size.norm_kind, "norm_kind at layer")


def norm_like(made: Any, encoding: Encoding, kind: str, otherwise: str) -> Callable[..., Array]:
  """Return a norm of another kind in place of an encoding's LayerNorm.

  Raises:
    ValueError: the encoding has another norm; `otherwise` names the option to leave, for the
      message.
  """
  if type(made) is not LayerNorm:
    raise ValueError(f"{name_of(encoding)} has a norm of its own, so leave {otherwise}")
  given: dict[str, Any] = {"parts": made.parts, "epsilon": made.epsilon}
  if kind == "layer_scale":
    return LayerNorm(len(made.scale[...]), bias=False, **given)
  return RMSNorm(len(made.scale[...]), above=float(kind == "rms_one"), **given)


def qk_norm(encoding: Encoding, size: Size, width: int, rngs: Rngs) -> Any:
  """Return the norm of queries or keys, which is an RMS norm."""
  like = encoding.norm(width, epsilon=size.norm_epsilon, rngs=rngs.fork())
  kind = "rms_one" if size.norm_kind == "rms_one" else "rms"
  return norm_like(like, encoding, kind, "qk_norm at false")


def normed(x: Array, norm: Callable[[Array], Array] | None, over_all: bool, heads: int) -> Array:
  """Split x [B,L,H·D] into heads [B,L,H,D], with a norm before (over all of them) or after."""
  if norm is not None and over_all:
    x = norm(x)
  x = x.reshape(*x.shape[:-1], heads, -1)
  return x if norm is None or over_all else norm(x)
