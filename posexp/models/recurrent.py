"""A recurrent network made of linear maps that an encoding may replace."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array

from posexp.encodings.rngs import Rngs


class LSTM(nnx.Module):
  """Long short-term memory (Hochreiter & Schmidhuber 1997; Gers et al. 2000), in one direction.

  c' = σ(f + 1) c + σ(i) tanh(g) and h' = σ(o) tanh(c'), with [i; f; g; o] = x W + h U + b. Gates
  act on each number, so on both parts of a complex feature. With `backward` the last token is read
  first.
  """

  def __init__(
    self,
    linear: Callable[..., Callable[[Array], Array]],
    in_features: int,
    hidden: int,
    *,
    backward: bool = False,
    rngs: Rngs,
  ):
    """Build the maps with `linear`, an encoding's factory such as `Encoding().linear`.

    Raises:
      ValueError: the widths do not suit `linear`.
    """
    self.input = linear(in_features, 4 * hidden, rngs=rngs.fork())
    self.recurrent = linear(hidden, 4 * hidden, bias=False, rngs=rngs.fork())
    self.hidden, self.backward = hidden, backward

  def __call__(self, x: Array, mask: Array) -> tuple[Array, Array]:
    """Read x [B,L,F], mask bool [B,L] of real tokens -> states [B,L,H] and the last one [B,H].

    Padding leaves the state unchanged, wherever it stands.
    """

    def step(state: tuple[Array, Array], given: tuple[Array, Array]):
      h, c = state
      z, real = given
      i, f, g, o = jnp.split(z + self.recurrent(h), 4, axis=-1)
      cell = jax.nn.sigmoid(f + 1) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
      h = jnp.where(real, jax.nn.sigmoid(o) * jnp.tanh(cell), h)
      return (h, jnp.where(real, cell, c)), h

    zeros = jnp.zeros((x.shape[0], self.hidden), x.dtype)
    given = self.input(x).swapaxes(0, 1), mask.T[:, :, None]
    (last, _), states = jax.lax.scan(step, (zeros, zeros), given, reverse=self.backward)
    return states.swapaxes(0, 1), last
