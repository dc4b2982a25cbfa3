"""The context that a language model needs: losses of the same targets by their context.

The context of a target is the number of tokens that the model reads before it. Windows begin that
many tokens before, wherever segments and documents begin; earlier tokens are not read.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import Array

from posexp.data.examples import Batch
from posexp.data.streams import Stream
from posexp.data.vocabulary import END
from posexp.errors import UserError
from posexp.models.cross_entropy import AT_ONCE, scores
from posexp.models.language_model import LanguageModel
from posexp.runs.context_losses import ContextLosses
from posexp.status import doing
from posexp.tasks.contract import Snapshot

POSITIONS = 1024  # targets to draw, if there are as many
TARGETS = 4_096  # to draw in rows, if there are as many
ROW = 16  # neighboring targets that are drawn together; a power of two


def drawn(stream: Stream, longest: int, count: int | None = None, row: int = 1) -> np.ndarray:
  """Draw `count` rows of neighboring targets with at least `longest` tokens before them.

  Returns:
    The place of the last target of each row, int64 [N].

  Raises:
    UserError: the text is too short.
  """
  found = (len(stream.tokens) - longest) // row
  if found < (count or 1):
    asked = f", and {count:,} are asked for; choose fewer positions, or" if count else "; choose"
    raise UserError(
      f"a context of {longest:,} tokens: only {max(found, 0):,} of the {stream.targets:,} targets "
      f"have as many before them{asked} shorter contexts"
    )
  count = count or min(POSITIONS, found)
  random = np.random.default_rng([0, longest])
  return longest + row - 1 + row * np.sort(random.choice(found, count, replace=False))


def refused(snapshot: Snapshot, stream: Stream, context: int) -> str | None:
  """Return why the model cannot read a context of this length, in a few words; None if it can."""
  model = snapshot.model()
  most, memory = model.positions.limit(model.stack.limit), model.stack.size.memory
  needed = memory + stream.segment if memory else context
  return f"needs {needed:,} positions of {most:,}" if most is not None and needed > most else None


def losses(
  snapshot: Snapshot,
  stream: Stream,
  last: np.ndarray,
  context: int,
  *,
  scored: int = 1,
  longest: int | None = None,
) -> np.ndarray:
  """Return −log p in nats of the last `scored` targets of N windows: float32 [N,scored].

  Windows have `context` tokens; `last` int [N] are the places of their last targets. With a memory,
  contexts up to `longest` share a program; without one, each has its own.
  """
  memory = snapshot.model().stack.size.memory
  width = -(-(longest or context) // stream.segment) * stream.segment if memory else context
  scored_at_once = min(scored, stream.segment) if memory else scored
  read = window_losses(snapshot.graphdef, stream.segment, scored_at_once)
  found = snapshot.map(read, _batches(stream, last, context, width, snapshot.batch_size, memory))
  return found["nll"][:, -scored:]


def _batches(
  stream: Stream, last: np.ndarray, context: int, width: int, rows: int, memory: int
) -> Iterator[Batch]:
  """Yield windows that end before the places `last`, padded in front to `width` tokens."""
  for first in range(0, len(last), rows):
    index = first + np.arange(rows)
    ends = last[np.minimum(index, len(last) - 1), None]
    place = ends + np.arange(-width, 0)
    real = place >= ends - context
    place = np.maximum(place, 0)
    batch = {
      "tokens": np.where(real, stream.tokens[place], END).astype(np.int32),
      "labels": stream.tokens[place + 1].astype(np.int32),
      "mask": real,
      "index": np.where(index < len(last), index, -1).astype(np.int32),
    }
    if memory or stream.documents != "stream":
      parted = stream.documents != "stream"
      of = np.searchsorted(stream.starts, place, side="right") if parted else 0
      batch["documents"] = np.where(real, of, -1).astype(np.int32)
    yield batch


def by_context(
  snapshot: Snapshot,
  stream: Stream,
  bytes_of: np.ndarray,
  contexts: Sequence[int],
  positions: int | None = None,
) -> ContextLosses:
  """Return losses of the same random targets with each of the contexts that the model can read.

  `bytes_of` int [V] is the number of bytes of each token of the vocabulary.

  Raises:
    UserError: the text is too short.
  """
  place = drawn(stream, max(contexts), positions)
  return _measured(snapshot, stream, bytes_of, contexts, place, 1)


def in_rows(
  snapshot: Snapshot, stream: Stream, bytes_of: np.ndarray, contexts: Sequence[int], targets: int
) -> ContextLosses:
  """Return what `by_context` does, of about so many targets in rows of ROW, in less time.

  A window of c tokens scores its last c/16 targets, or the power of two below that, and at most
  ROW. They have at least 15/16 of c tokens before them.

  Raises:
    UserError: the text is too short.
  """
  longest = max(contexts)
  most = max(0, len(stream.tokens) - longest) // ROW
  place = drawn(stream, longest, min(-(-targets // ROW), most) or None, ROW)
  return _measured(snapshot, stream, bytes_of, contexts, place, ROW)


def _measured(
  snapshot: Snapshot,
  stream: Stream,
  bytes_of: np.ndarray,
  contexts: Sequence[int],
  last: np.ndarray,
  row: int,
) -> ContextLosses:
  """Return the losses of rows of targets, of which `last` int [N] are the places of the last."""
  doing("measuring losses by context")
  place = (last[:, None] - np.arange(row)[::-1]).reshape(-1)
  nats = {}
  for context in sorted(set(contexts)):
    if refused(snapshot, stream, context) is None:
      scored = min(row, 1 << max(0, (context // ROW).bit_length() - 1))
      ends = place[scored - 1 :: scored]
      found = losses(snapshot, stream, ends, context, scored=scored, longest=max(contexts))
      nats[context] = found.reshape(-1)
  text = hashlib.sha256(np.ascontiguousarray(stream.tokens)).hexdigest()
  return ContextLosses(text, place, bytes_of[stream.tokens[place]], nats)


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
    found, carry = state
    part = {
      name: jax.lax.dynamic_slice_in_dim(batch[name], number * segment, segment, axis=1)
      for name in ("tokens", "labels", "documents")
    }
    hidden, carry = model.hidden(part | {"fresh": jnp.zeros(rows, bool)}, carry)
    values = nll(model, hidden[:, -scored:], part["labels"][:, -scored:])
    return jax.lax.dynamic_update_slice(found, values, (0, number * scored)), carry

  count = width // segment
  empty = jnp.zeros((rows, count * scored)), model.initial_carry(rows)
  return jax.lax.fori_loop(first, count, read, empty)[0]


def nll(model: LanguageModel, hidden: Array, labels: Array) -> Array:
  """Return −log p of labels int [B,T], float32 [B,T]; only few logits are formed at a time."""
  reader = model.reader
  at_once = max(1, AT_ONCE // (len(labels) * reader.kernel.shape[1]))
  found = jax.lax.map(
    lambda token: scores(reader.logits(token[0]), token[1])[0],
    (hidden.swapaxes(0, 1), labels.T),
    batch_size=at_once,
  )
  return found.T
