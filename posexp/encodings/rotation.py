"""Relations that turn queries and keys by angles of their positions, or of each pair of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import Array

from posexp.encodings.base import Relation, Span, scaled
from posexp.encodings.columns import neighbors
from posexp.encodings.maps import mapped
from posexp.encodings.sinusoids import REACH, Turns, angles, scaled_up, sinusoids, turns
from posexp.kernels.gradients import scores


class Change(nnx.Module):
  """Trained changes rate·α of the logarithms of frequencies, [1 or H,M]; α starts at 0."""

  def __init__(self, rows: int, planes: int, rate: float):
    self.alpha = nnx.Param(jnp.zeros((rows, planes)))
    self.rate = rate

  def __call__(self, span: Span | None = None) -> Array:
    return self.rate * self.alpha[...]


def shared_change(span: Span) -> Array:
  """Return the change of frequencies that all layers share."""
  return span.shared


class Rotation(Relation):
  """Channels are points in planes, two for each, that turn `omega` radians per position.

  With a `change`, frequencies are multiplied by its exponential. `radius` multiplies turned queries
  and keys.
  """

  def __init__(
    self,
    omega: np.ndarray,
    head_dim: int,
    layout: str,
    radius: float = 1.0,
    change: Callable[[Span], Array] | None = None,
  ):
    self.omega = tuple(omega.tolist())
    self.turning = 2 * len(omega)
    self.layout, self.radius, self.change = layout, radius, change
    self.terms = ("rotated",) if self.turning == head_dim else ("rotated", "unrotated")

  def qk_and_bias(self, q, k, span):
    turned = self.turned(q, k, span)
    query, key = span.keep("rotated", axis=2) * turned[0], turned[1]
    if "unrotated" in self.terms:
      still = span.keep("unrotated", axis=2) * q[..., self.turning :]
      query = jnp.concatenate([query, still], axis=-1)
      key = jnp.concatenate([key, k[..., self.turning :]], axis=-1)
    return scaled(query), key, None

  def spectra(self, shared: Callable[[Span | None], Array] | None = None) -> dict[str, np.ndarray]:
    """Return the trained frequencies, float64 [1 or H,M], by the length for which they hold.

    `shared` is the change of frequencies that all layers share.
    """
    change = shared if self.change is shared_change else self.change
    factor = np.exp(np.asarray(change(None), np.float64)) if change else 1.0
    return {label: omega * factor for label, omega in self.by_length().items()}

  def by_length(self) -> dict[str, np.ndarray]:
    """Return the frequencies before training, float64 [1,M], by the length for which they hold."""
    return {"": np.array([self.omega])}

  def turned(self, q: Array, k: Array, span: Span) -> tuple[Array, Array]:
    """Return the turning channels of q [B,Q,H,D] and k [B,K,H,D], turned by their positions."""
    return tuple(
      self.turn(x, self.waves(positions, span), self.radius)
      for x, positions in ((q, span.query), (k, span.key))
    )

  def waves(self, positions: Array, span: Span) -> tuple[Array, Array]:
    """Return sin and cos of the angles at positions [1 or B,L]: [1 or B,L,1 or H,M]."""
    omega = np.array(self.omega)
    if self.change is None:
      sin, cos = sinusoids(positions, omega)
      return sin[:, :, None], cos[:, :, None]
    trained = scaled_up(turns(omega), jnp.asarray(omega, jnp.float32), self.change(span))
    angle = angles(positions[:, :, None, None], trained)
    return jnp.sin(angle), jnp.cos(angle)

  def turn(
    self, x: Array, waves: tuple[Array | float, Array | float], radius: Array | float = 1.0
  ) -> Array:
    """Turn x [B,L,H,D] by angles of these waves; multiply planes by `radius` [1 or B,L,1,M]."""
    sin, cos = (radius * wave for wave in waves)
    wide = x[..., : self.turning].astype(jnp.float32)
    if self.layout == "half":
      a, b = jnp.split(wide, 2, axis=-1)
      turned = jnp.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)
    else:
      a, b = wide[..., 0::2], wide[..., 1::2]
      turned = jnp.stack([a * cos - b * sin, b * cos + a * sin], axis=-1).reshape(wide.shape)
    return turned.astype(x.dtype)

  def planes(self, x: Array) -> Array:
    """Return the turning channels of x [B,L,H,D] by planes, float32 [M,B,L,H,2]."""
    wide = x[..., : self.turning].astype(jnp.float32)
    if self.layout == "half":
      return jnp.stack(jnp.split(wide, 2, axis=-1)).transpose(4, 1, 2, 3, 0)
    return jnp.moveaxis(wide.reshape(*wide.shape[:-1], -1, 2), -2, 0)


class TurnedValues(Rotation):
  """A rotation that turns values, too, and each query's sum of them back by its own position.

  z_i = R_−i Σ_j α_ij R_j v_j, so that i − j alone matters. `radius` multiplies no value.
  """

  def combine(self, weights, v, span):
    summed = super().combine(weights, self.moved(v, span.key, 1, span), span)
    return self.moved(summed, span.query, -1, span)

  def fused(self, q, k, v, span):
    summed = super().fused(q, k, self.moved(v, span.key, 1, span), span)
    return self.moved(summed, span.query, -1, span)

  def moved(self, x: Array, positions: Array, sign: int, span: Span) -> Array:
    """Return all channels of x [B,L,H,D], of which the turning ones are turned or turned back."""
    sin, cos = self.waves(positions, span)
    return jnp.concatenate([self.turn(x, (sign * sin, cos)), x[..., self.turning :]], axis=-1)


class OneForAll(nnx.Module):
  """A map of keys whose first channels, `common` of them, are the same in every head.

  It computes these once, and then the others of each head: [..., common + H·(D − common)].
  """

  def __init__(self, linear: Callable[[Array], Array], heads: int, common: int):
    self.linear, self.heads, self.common = linear, heads, common

  def __call__(self, x: Array) -> Array:
    one, own = jnp.split(self.linear(x), [self.common], axis=-1)
    own = own.reshape(*own.shape[:-1], self.heads, -1)
    one = jnp.broadcast_to(one[..., None, :], (*own.shape[:-1], self.common))
    return jnp.concatenate([one, own], axis=-1).reshape(*x.shape[:-1], -1)


class Imaginary(nnx.Module):
  """A map of queries to pairs of heads: one as it is, and the same turned by −90° in each plane.

  The logits of both are the real and the imaginary part of one complex product.
  """

  def __init__(self, linear: Callable[[Array], Array], pairs: int, rotation: Rotation):
    self.linear, self.pairs, self.rotation = linear, pairs, rotation

  def __call__(self, x: Array) -> Array:
    q = self.linear(x).reshape(*x.shape[:-1], self.pairs, -1)
    still = q[..., self.rotation.turning :]
    other = jnp.concatenate([self.rotation.turn(q, (-1.0, 0.0)), still], axis=-1)
    return jnp.stack([q, other], axis=-2).reshape(*x.shape[:-1], -1)


class Shifted(Rotation):
  """A rotation in which each key has the still channels of the last key before it that is seen."""

  def score(self, q, k, span):
    q = scaled(q)
    alike = span.mask.shape[1] == 1 and span.last is None
    own, before = neighbors(span.mask if alike else span.visible, 2)
    still = scores(q[..., self.turning :], k[..., self.turning :])
    still = jnp.take_along_axis(still, jnp.where(before < 0, own, before)[:, None], axis=3)
    moving = span.keep("rotated") * scores(*self.turned(q, k, span))
    return moving + span.keep("unrotated") * still


def sum_of_planes(of_plane: Callable[..., Array], given: Any, shape: tuple[int, ...]) -> Array:
  """Return the sum of a function's values for each row of the arrays `given`, float32.

  Nothing is kept for the backward pass but the arrays.
  """
  step = jax.checkpoint(of_plane)
  total = jnp.zeros(shape)
  return jax.lax.scan(lambda total, plane: (total + step(*plane), None), total, given)[0]


def length_seen(span: Span) -> Array:
  """Return the current length n of each query, int [1 or B,1 or Q].

  It is the last position that the query sees minus the first one, plus 1.
  """
  seen, key = span.visible, span.key[:, None]
  first = jnp.where(seen, key, REACH).min(-1)
  return jnp.where(seen, key, -REACH).max(-1) - first + 1


class Turning(Protocol):
  """The part of `RoPE` that a rotation of pairs uses."""

  layout: str
  map: str  # "none": distances are as they are
  radius: float
  by_length: bool  # whether frequencies depend on the current length
  trained_length: int

  def frequencies(self, head_dim: int, lengths: np.ndarray | None = None) -> np.ndarray:
    """Return radians per position, float64 [M]; of lengths int [N], [N,M]."""

  def distance(self, i: Array, j: Array) -> Array:
    """Return the distances int by which queries at i and keys at j ≤ i are turned."""


class PairRotation(Rotation):
  """A rotation whose angles depend on the pair of query and key.

  It serves maps of distance, and frequencies that depend on the current length n of a query: a key
  then has different angles for different queries, so logits are summed plane by plane. Where n
  cannot be more than `trained_length`, all queries share one row of frequencies.
  """

  def __init__(self, rope: Turning, head_dim: int, change: Callable[[Span], Array] | None = None):
    super().__init__(rope.frequencies(head_dim), head_dim, rope.layout, rope.radius, change)
    self.rope, self.head_dim = rope, head_dim
    self.fixed: Turns | None = None  # the frequencies [M] of all queries, where they are given

  def of_length(self, length: int) -> Turns:
    """Return the frequencies [M] of a text of `length` tokens."""
    return turns(self.rope.frequencies(self.head_dim, np.array([length]))[0])

  def waves(self, positions, span):
    if self.fixed is None:
      return super().waves(positions, span)
    angle = angles(positions[:, :, None, None], self.fixed)
    return jnp.sin(angle), jnp.cos(angle)

  def score(self, q, k, span):
    table = self.table(span)
    if len(table) == 1 and self.rope.map == "none":
      return super().score(q, k, span)
    total = self.by_plane(scaled(q), k, span, self.frequencies(table, span)).astype(q.dtype)
    total = span.keep("rotated") * total
    if "unrotated" in self.terms:
      query, key = scaled(q)[..., self.turning :], k[..., self.turning :]
      total = total + span.keep("unrotated") * scores(query, key)
    return total

  def by_length(self):
    if not self.rope.by_length:
      return super().by_length()
    lengths = self.rope.trained_length * np.array([1, 2, 4])
    rows = self.rope.frequencies(self.head_dim, lengths)
    return {f"n={n:,}": row[None] for n, row in zip(lengths, rows, strict=True)}

  def table(self, span: Span) -> np.ndarray:
    """Return frequencies, float64 [N,M], of each n from `trained_length` to the span's longest.

    There is one row if they are the same.
    """
    known = span.consecutive or span.max_position is not None
    longest, trained = span.farthest + 1 if known else REACH, self.rope.trained_length
    if self.fixed is not None or not self.rope.by_length or longest <= trained:
      return np.array([self.omega])
    return self.rope.frequencies(self.head_dim, np.arange(trained, longest + 1))

  def frequencies(self, table: np.ndarray, span: Span) -> Turns:
    """Return the frequencies [1 or B,1 or Q,1 or H,M] of each query, from the rows of a table."""
    if self.fixed is not None:
      return jax.tree.map(lambda x: x[None, None, None], self.fixed)
    row = jnp.zeros((1, 1), int)
    if len(table) > 1:
      row = jnp.maximum(length_seen(span) - self.rope.trained_length, 0)
    steps, parts, _ = turns(table)
    rows = Turns(steps[row][:, :, None], parts[row][:, :, None])
    if self.change is None:
      return rows
    omega = jnp.asarray(table, jnp.float32)[row][:, :, None]
    return scaled_up(rows, omega, self.change(span))

  def by_plane(self, q: Array, k: Array, span: Span, frequencies: Turns) -> Array:
    """Return logits [B,H,Q,K] of the turning channels of q, k, scaled by `radius`² alone."""
    distance = mapped(self.rope.distance, span.query, span.key)[:, None]

    def of_plane(query: Array, key: Array, frequency: Turns) -> Array:
      angle = angles(distance, frequency)
      quarter = jnp.stack([key[..., 1], -key[..., 0]], axis=-1)  # turned back by 90°
      straight, across = (jnp.einsum("bqhc,bkhc->bhqk", query, keys) for keys in (key, quarter))
      return jnp.cos(angle) * straight + jnp.sin(angle) * across

    by_plane = jax.tree.map(lambda x: x.transpose(3, 0, 2, 1)[..., None], frequencies)
    given = self.planes(q), self.planes(k), by_plane
    shape = len(q), q.shape[2], q.shape[1], k.shape[1]
    return self.radius**2 * sum_of_planes(of_plane, given, shape)
