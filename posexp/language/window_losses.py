"""Losses of a language model on windows of a text, without the text before a window.

Shapes: B windows, W their width in tokens, T a segment.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array

from posexp.models.cross_entropy import AT_ONCE, scores
from posexp.models.language_model import LanguageModel


@functools.lru_cache(maxsize=32)
def window_losses(
  graphdef: nnx.GraphDef, segment: int, scored: int
) -> Callable[..., dict[str, Array]]:
  """Compile (params, settings, batch) -> nll in nats of the last `scored` targets per window.

  A batch has tokens and labels int [B,W] and, if tokens do not see all tokens before them,
  documents int [B,W]. A model without a memory reads a window at once. With a memory, W is a
  multiple of the segment, windows end at W, and tokens before a window have document −1: the memory
  starts empty, and segments without a window are not read. The result may then be wider than asked:
  it has up to `scored` targets of each segment.
  """

  @jax.jit
  def losses(params: Any, settings: Any, batch: dict[str, Array]) -> dict[str, Array]:
    model = nnx.merge(graphdef, params, settings)
    if model.stack.size.memory:
      return {"nll": in_segments(model, batch, segment, scored)}
    hidden, _ = model.hidden(batch, ())
    return {"nll": nll(model, hidden[:, -scored:], batch["labels"][:, -scored:])}

  return losses


def in_segments(model: LanguageModel, batch: dict[str, Array], segment: int, scored: int) -> Array:
  """Return the nll of windows read with a memory, float32 [B,W/T·min(T,scored)], 0 if not read."""
  (rows, width), scored = batch["tokens"].shape, min(segment, scored)
  first = jnp.argmax((batch["documents"] >= 0).any(0)) // segment

  def read(number: Array, state: tuple[Array, Any]) -> tuple[Array, Any]:
    losses, carry = state
    part = {
      name: jax.lax.dynamic_slice_in_dim(batch[name], number * segment, segment, axis=1)
      for name in ("tokens", "labels", "documents")
    }
    hidden, carry = model.hidden(part | {"fresh": jnp.zeros(rows, bool)}, carry)
    values = nll(model, hidden[:, -scored:], part["labels"][:, -scored:])
    return jax.lax.dynamic_update_slice(losses, values, (0, number * scored)), carry

  count = width // segment
  empty = jnp.zeros((rows, count * scored)), model.initial_carry(rows)
  return jax.lax.fori_loop(first, count, read, empty)[0]


def nll(model: LanguageModel, hidden: Array, labels: Array) -> Array:
  """Return −log p of labels int [B,T], float32 [B,T]; only few logits are formed at a time."""
  reader = model.reader
  at_once = max(1, AT_ONCE // (len(labels) * reader.kernel.shape[1]))
  of_parts = jax.lax.map(
    lambda token: scores(reader.logits(token[0]), token[1])[0],
    (hidden.swapaxes(0, 1), labels.T),
    batch_size=at_once,
  )
  return of_parts.T
