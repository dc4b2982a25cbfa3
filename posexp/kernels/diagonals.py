"""Products by offset: at consecutive positions, the pairs of one offset lie on a diagonal.

Shapes: B batch, Q queries, K keys, H heads, D width of a head, N parts.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from posexp.kernels.target import target

TOGETHER = 64  # the most queries in one product with the rows of offsets


def products(x: Array, rows: Array, keys: int) -> Array:
  """Return y[…,i,j] = x[i] · rows[j − i + Q − 1], [B,H,Q,K], for x [B,Q,H,D], rows [Q+K−1,H,D].

  A block of few queries needs few more rows than there are keys; all queries at once need Q more.
  """
  queries = x.shape[1]
  count = -(-queries // TOGETHER)
  size = -(-queries // count)
  more = count * size - queries
  x = jnp.pad(x, [(0, 0), (0, more), (0, 0), (0, 0)])
  rows = jnp.pad(rows, [(more, 1), (0, 0), (0, 0)])
  parts = jnp.stack([rows[(count - 1 - i) * size :][: size + keys] for i in range(count)])
  parted = diagonals(x.reshape(len(x), count, size, *x.shape[2:]), parts)
  return parted.reshape(*parted.shape[:2], count * size, keys)[:, :, :queries]


def skewed(x: Array, keys: int) -> Array:
  """Turn diagonals into columns: [...,Q,Q+K−1] -> [...,Q,K], y[i, j] = x[i, j − i + Q − 1]."""
  return shifted(jnp.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, 1)]), keys)


def shifted(x: Array, keys: int) -> Array:
  """Compute `skewed` for x [...,Q,Q+K], whose last column is ignored.

  In the flattened array, each query's row begins one place further left than the row before.
  """
  *outer, queries, width = x.shape
  flat = x.reshape(*outer, queries * width)[..., queries - 1 : queries * width - 1]
  return flat.reshape(*outer, queries, width - 1)[..., :keys]


@jax.custom_vjp
def diagonals(x: Array, rows: Array) -> Array:
  """Multiply x [B,N,Q,H,D] by rows [N,Q+K,H,D] of offsets; the last row is ignored.

  y[…,i,j] = x[i] · rows[j − i + Q − 1], [B,H,N,Q,K].
  """
  return forward(x, rows)[0]


def forward(x, rows):
  batch, parts, queries, heads, width = x.shape
  x = x.transpose(1, 3, 0, 2, 4).reshape(parts, heads, batch * queries, width)
  outputs = (x @ rows.transpose(0, 2, 3, 1)).reshape(parts, heads, batch, queries, -1)
  outputs = shifted(outputs, rows.shape[1] - queries)
  return outputs.transpose(2, 1, 0, 3, 4), (x, rows)


def backward(kept, grad):
  x, rows = kept
  batch, heads, parts, queries, keys = grad.shape
  # The index in `grad` of each pair of query and offset: a look-up is faster than shifting rows.
  i, r = np.arange(queries)[:, None], np.arange(queries + keys)
  j = r + i - (queries - 1)
  there = (j >= 0) & (j < keys)
  index = np.where(there, i * keys + j, 0).ravel()

  def placed(grad: Array) -> Array:
    flat = jax.lax.optimization_barrier(grad.transpose(2, 1, 0, 3, 4)).reshape(-1, queries * keys)
    flat = jax.vmap(lambda row: row[index])(flat).reshape(-1, *there.shape)
    flat = jnp.where(there, flat, 0).reshape(parts, heads, -1, *there.shape)
    return flat.transpose(2, 0, 1, 3, 4)

  # By rows, since XLA cannot partition an axis that merges sequences and heads.
  flat = target().by_rows(placed)(grad).transpose(1, 2, 0, 3, 4)
  flat = flat.reshape(parts, heads, batch * queries, queries + keys)
  of_x = (flat @ rows.transpose(0, 2, 1, 3)).reshape(parts, heads, batch, queries, -1)
  of_rows = x.swapaxes(2, 3) @ flat
  return of_x.transpose(2, 0, 3, 1, 4), of_rows.transpose(0, 3, 1, 2)


diagonals.defvjp(forward, backward)
