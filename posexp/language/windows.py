"""The context that a language model needs: losses of the same targets by their context.

The context of a target is the number of tokens that the model reads before it. Windows begin that
many tokens before, wherever segments and documents begin; earlier tokens are not read.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence

import numpy as np

from posexp.data.batches import Batch
from posexp.errors import UserError
from posexp.language.streams import Stream
from posexp.language.vocabulary import END
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
  rows = (len(stream.tokens) - longest) // row
  if rows < (count or 1):
    asked = f", and {count:,} are asked for; choose fewer positions, or" if count else "; choose"
    raise UserError(
      f"a context of {longest:,} tokens: only {max(rows, 0):,} of the {stream.targets:,} targets "
      f"have as many before them{asked} shorter contexts"
    )
  count = count or min(POSITIONS, rows)
  random = np.random.default_rng([0, longest])
  return longest + row - 1 + row * np.sort(random.choice(rows, count, replace=False))


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
  from posexp.language.window_losses import window_losses  # loads JAX

  memory = snapshot.model().stack.size.memory
  width = -(-(longest or context) // stream.segment) * stream.segment if memory else context
  scored_at_once = min(scored, stream.segment) if memory else scored
  read = window_losses(snapshot.graphdef, stream.segment, scored_at_once)
  outputs = snapshot.map(read, _batches(stream, last, context, width, snapshot.batch_size, memory))
  return outputs["nll"][:, -scored:]


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
  targets: int | None = None,
  row: int = 1,
) -> ContextLosses:
  """Return losses of the same random targets with each of the contexts that the model can read.

  `bytes_of` int [V] is the number of bytes of each token of the vocabulary. About `targets` targets
  are drawn, one by one or, which takes less time, in rows of ROW neighbors, where `row` is ROW.
  Then a window of c tokens scores its last c/16 targets, rounded down to a power of two from 1 to
  ROW, so that each has at least 15/16 of c tokens before it.

  Raises:
    UserError: the text is too short.
  """
  longest = max(contexts)
  if row > 1:
    most = max(0, len(stream.tokens) - longest) // row
    targets = min(-(-(targets or TARGETS) // row), most) or None
  last = drawn(stream, longest, targets, row)
  doing("measuring losses by context")
  place = (last[:, None] - np.arange(row)[::-1]).reshape(-1)
  nats = {}
  for context in sorted(set(contexts)):
    if refused(snapshot, stream, context) is None:
      scored = min(row, 1 << max(0, (context // ROW).bit_length() - 1))
      ends = place[scored - 1 :: scored]
      losses_of = losses(snapshot, stream, ends, context, scored=scored, longest=longest)
      nats[context] = losses_of.reshape(-1)
  text = hashlib.sha256(np.ascontiguousarray(stream.tokens)).hexdigest()
  return ContextLosses(text, place, bytes_of[stream.tokens[place]], nats)
