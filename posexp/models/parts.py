"""Parts that a Transformer's block may have instead of those of 2017, and what they refuse."""

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
  scale: with 1, as in Gemma, the parameter is what the scale differs by from 1.
  """

  def __init__(self, features: int, *, parts: int = 1, epsilon: float = 1e-6, above: float = 0.0):
    self.parts, self.epsilon, self.above = parts, epsilon, above
    self.scale = nnx.Param(jnp.full(features, 1.0 - above))

  def __call__(self, x: Array) -> Array:
    wide = x.astype(jnp.float32)
    steepness = jax.lax.rsqrt(mean(wide * wide, self.parts) + self.epsilon)
    scale = self.scale[...].astype(jnp.float32) + self.above if self.above else self.scale[...]
    return (wide * spread(steepness, x.shape[-1]) * scale).astype(x.dtype)


def word_table(embed: Callable[..., Array]) -> tuple[nnx.Param, float] | None:
  """Return an embedding's table [V,D] of word vectors and its factor; None if it has no table.

  The table is that of the first module with a `word_table` and a `scale`.
  """
  for _, module in nnx.iter_modules(embed) if isinstance(embed, nnx.Module) else ():
    if hasattr(module, "word_table"):
      return module.word_table, module.scale
  return None


def check_untied(size: Size) -> None:
  """Raise ValueError if embeddings are to be tied in a model without an output layer for words."""
  if size.tie_embeddings:
    raise ValueError("tie_embeddings is for models that write words; leave it at false")


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
    ValueError: it is another norm; the message says to leave what `otherwise` says.
  """
  if type(made) is not LayerNorm:
    raise ValueError(f"{name_of(encoding)} has a norm of its own, so leave {otherwise}")
  given: dict[str, Any] = {"parts": made.parts, "epsilon": made.epsilon}
  if kind == "layer_scale":
    return LayerNorm(len(made.scale[...]), bias=False, **given)
  return RMSNorm(len(made.scale[...]), above=float(kind == "rms_one"), **given)


def qk_norm(encoding: Encoding, size: Size, width: int, rngs: Rngs) -> Any:
  """Return the norm of queries or keys, which is an RMS norm, or None without `size.qk_norm`."""
  if not size.qk_norm:
    return None
  like = encoding.norm(width, epsilon=size.norm_epsilon, rngs=rngs.fork())
  kind = "rms_one" if size.norm_kind == "rms_one" else "rms"
  return norm_like(like, encoding, kind, "qk_norm at false")


def normed(x: Array, norm: Callable[[Array], Array] | None, over_all: bool, heads: int) -> Array:
  """Split x [B,L,H·D] into heads [B,L,H,D], with a norm before (over all of them) or after."""
  if norm is not None and over_all:
    x = norm(x)
  x = x.reshape(*x.shape[:-1], heads, -1)
  return x if norm is None or over_all else norm(x)


def repeated(x: Array, num_heads: int) -> Array:
  """Repeat each head of keys or values in a row, [B,K,G,D] -> [B,K,H,D] for H heads."""
  return x if x.shape[2] == num_heads else jnp.repeat(x, num_heads // x.shape[2], axis=2)


class ToAllHeads(nnx.Module):
  """A map to the `own` heads of queries or keys, with each repeated up to `heads`, and no bias."""

  def __init__(self, linear: Callable[[Array], Array], own: int, heads: int):
    self.linear, self.own, self.heads = linear, own, heads

  def __call__(self, x: Array) -> Array:
    y = self.linear(x) - self.linear(jnp.zeros_like(x[:1, :1]))
    found = repeated(y.reshape(*y.shape[:-1], self.own, -1), self.heads)
    return found.reshape(*y.shape[:-1], -1)


def to_all_heads(
  linear: Callable[[Array], Array] | None, size: Size, own: int
) -> Callable[[Array], Array] | None:
  """Return a layer's map of queries or keys, which has `own` heads, as `Relation.bind` gets it.

  It maps [1 or B,L,F] to all heads of queries, [1 or B,L,H·D], without a bias.
  """
  if linear is None or (own == size.num_heads and not size.has_bias("qkv")):
    return linear
  return ToAllHeads(linear, own, size.num_heads)


def check_unbound(encoding: Encoding, size: Size) -> None:
  """Check that nothing is asked of queries and keys that are not made of hidden states.

  Raises:
    ValueError: they are to be normed or tied, or to have heads that are not d_model wide together.
  """
  plain = not size.qk_norm and size.qk == "free"
  if not plain or size.num_heads * size.width_of_head != size.d_model:
    raise ValueError(
      f"{name_of(encoding)} makes queries and keys of positions alone, by maps of its own, so "
      "leave qk_norm at false, qk at free and head_dim at null"
    )
