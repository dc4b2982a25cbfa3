"""Maps of queries and keys that share a matrix, or are orthogonal, all through training.

The product of two sinusoids is a function of their offset, and behind W_Q and W_K it need not be.
W_Q and W_K are [D, H·d], with the maps of all heads side by side, of which each head sees its part.
"""

from __future__ import annotations

from collections.abc import Callable

import jax.numpy as jnp
from jax import Array

from posexp.encodings.base import Encoding, Linear
from posexp.models.size import Size

Maps = tuple[Callable[[Array], Array], Callable[[Array], Array]]


class Orthonormal(Linear):
  """x Q + b, where Q is the orthonormal factor of the kernel's QR decomposition."""

  def __init__(self, linear: Linear):
    self.kernel, self.bias = linear.kernel, linear.bias

  def matrix(self) -> Array:
    """Return Q, [in_features, out_features]; it is unique, as the diagonal of R is positive."""
    q, r = jnp.linalg.qr(super().matrix().astype(jnp.float32))
    return q * jnp.where(jnp.diagonal(r) < 0, -1.0, 1.0)


def tied(query: Callable, key: Callable, encoding: Encoding, size: Size) -> Maps:
  """Return the maps of queries and keys as `size.qk` asks for.

  With `tied`, W_K = W_Q (as in Kitaev et al. 2020, where the keys are normed, too). With
  `orthogonal`, the columns of W_Q are orthonormal and so are those of W_K, so that W_Q W_Kᵀ is
  orthogonal if H·d = D. With `identity`, W_K = W_Q and its columns are orthonormal: W_Q W_Kᵀ = I.

  Raises:
    ValueError: keys have fewer heads, heads are wider than the model together, or the encoding has
      maps of its own.
  """
  if size.qk != "orthogonal" and size.kv_heads != size.num_heads:
    raise ValueError(f"qk={size.qk} needs a head of keys for each query's; see num_kv_heads")
  if size.qk != "tied":
    if not (type(query) is type(key) is Linear):
      kind = type(encoding).__name__
      raise ValueError(f"qk={size.qk}: {kind} has maps of its own; leave qk at free")
    if size.num_heads * size.width_of_head > size.d_model:
      raise ValueError(f"qk={size.qk}: heads are wider than d_model together; lower head_dim")
    query, key = Orthonormal(query), Orthonormal(key)
  return (query if size.qk == "orthogonal" else key), key
