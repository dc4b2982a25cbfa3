"""Scores of a user's text by a language model: bits per byte, and the loss of each token."""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from tabulate import tabulate

from posexp.data import files
from posexp.data.batches import Batch
from posexp.data.lines import standard_input
from posexp.errors import UserError, printable
from posexp.language.streams import LEAST, Plan, Stream
from posexp.language.vocabulary import END, Vocabulary
from posexp.tasks.results import perplexity
from posexp.training.restore import TrainedModel, with_options


class TokenLosses(NamedTuple):
  """The losses of a text by token, [N] each."""

  how: str  # the way in which the text was read
  tokens: np.ndarray  # int
  nats: np.ndarray  # −ln p, float32
  context: np.ndarray  # int: tokens before each, including END, that attention could see

  @property
  def total(self) -> float:
    """The loss of all tokens, in nats."""
    return float(self.nats.sum(dtype=np.float64))


def read_text(path: str) -> str:
  """Read a text file, byte for byte; - is standard input.

  Raises:
    UserError: the text cannot be read, is empty or blank, or is not UTF-8.
  """
  if path != "-":
    return b"".join(files.blocks(path)).decode()
  text = standard_input()
  if not text.strip():
    raise UserError("standard input: there is no text; give some")
  return text


def reading(trained: TrainedModel, segment: int, memory: int | None = None) -> TrainedModel:
  """Return a language model that reads segments of this length, perhaps with another memory.

  Raises:
    UserError: the segment is too long for any model, or the encoding allows no memory, or has too
      few positions for both.
  """
  if memory is not None:
    trained = with_options(trained, {"model.memory": memory})
  try:
    dataclasses.replace(trained.setup.task, segment=segment)
    trained.spec.check(segment)
  except ValueError as error:
    raise UserError(f"segments of {segment}: {error}") from None
  return trained


def token_losses(trained: TrainedModel, tokens: np.ndarray, segment: int) -> TokenLosses:
  """Return the losses of a text, tokens int [N], as one document.

  With a memory the text is read in segments, in lanes like the test split. Without one it is read
  in windows of a segment each, half a window apart, and each counts only the targets that the
  window before it does not.
  """
  memory = trained.spec.size.memory
  stream = Stream(np.concatenate([[END], tokens]), segment)
  if memory:
    how, total = f"memory of {memory}, segments of {segment}", stream.segments
    batches = stream.evaluation(_rows(trained, total // LEAST))
  else:
    stride = segment // 2
    how = f"windows of {segment}, {stride} apart"
    total = 1 + max(0, -(-(stream.targets - segment) // stride))
    batches = windows(stream, stride, _rows(trained, total))
  seen = np.zeros((total, segment), np.int32)  # 0: does not count
  outputs = trained.snapshot.predict(_noted(batches, memory, seen))
  if trained.spec.size.same_length:
    seen = np.minimum(seen, memory)
  counts = seen > 0
  return TokenLosses(how, np.asarray(tokens), outputs["nll"][counts], seen[counts])


def _rows(trained: TrainedModel, useful: int) -> int:
  """Return the rows of a batch: a power of two, to compile few programs, or as in the run."""
  return min(trained.snapshot.batch_size, 1 << max(0, useful - 1).bit_length())


def windows(stream: Stream, stride: int, rows: int) -> Iterator[Batch]:
  """Yield windows of a segment, `stride` apart; each counts only targets new to it."""
  size = stream.segment
  start = np.arange(0, max(1, stream.targets - size + stride), stride)
  plan = Plan(start, np.minimum(stream.targets - start, size), np.ones(len(start), bool))
  for first in range(0, len(start), rows):
    batch = stream.batch(plan, np.arange(first, first + rows), True)
    new = (batch["index"] == 0)[:, None] | (np.arange(size) >= size - stride)
    yield batch | {"mask": batch["mask"] & new}


def _noted(batches: Iterable[Batch], memory: int, seen: np.ndarray) -> Iterator[Batch]:
  """Yield the batches, and note in `seen` how many tokens each target that counts can see."""
  before = 0
  for batch in batches:
    mask, index = batch["mask"], batch["index"]
    before = np.where(batch["fresh"], 0, before)
    real = index >= 0
    context = before[:, None] + 1 + np.arange(mask.shape[1])
    seen[index[real]] = np.where(mask, context, 0)[real]
    yield batch
    before = np.minimum(before + mask.shape[1], memory)


def table(text: str, scores: Sequence[TokenLosses], unspelled: int = 0) -> str:
  """Format a row for each way in which a text was read.

  Each byte without a token (`unspelled`) adds 8 bits.
  """
  size, chars = len(text.encode()), len(text)
  rows = []
  for score in scores:
    bits, nats = score.total / math.log(2) + 8 * unspelled, score.total / len(score.tokens)
    row = [score.how, bits / size, bits / chars, perplexity(nats), nats, score.context.mean()]
    rows.append(row)
  heads = ("", "bits/byte", "bits/char", "perplexity", "nats/token", "mean context")
  formats = ("", ".4f", ".4f", ".3f", ".4f", ".1f")
  counts = f"{size:,} bytes, {chars:,} characters, {len(scores[0].tokens):,} tokens"
  return f"{counts}\n{tabulate(rows, heads, 'plain', floatfmt=formats)}"


def lines(vocabulary: Vocabulary, costs: TokenLosses) -> Iterator[str]:
  """Yield lines of columns with tabs between: nats, bits, context and the token as JSON.

  Bytes that are not a whole character appear as hexadecimal escapes.
  """
  yield "nats\tbits\tcontext\ttoken"
  columns = (column.tolist() for column in (costs.tokens, costs.nats, costs.context))
  for token, nats, context in zip(*columns, strict=True):
    part = vocabulary.decode([token]).decode(errors="backslashreplace")
    shown = printable(json.dumps(part, ensure_ascii=False))
    yield f"{nats:.4f}\t{nats / math.log(2):.4f}\t{context}\t{shown}"


def score(args: argparse.Namespace, trained: TrainedModel) -> list[TokenLosses]:
  """Carry out `posexp.score`: print the result.

  Returns:
    The losses, for each way in which the text was read.

  Raises:
    UserError: the text cannot be read, or the model cannot read it in this way.
  """
  text = read_text(args.file)
  vocabulary = trained.setup.task.vocabulary(trained.run.path)
  tokens = np.array(vocabulary.encode(text))
  segment = args.segment or trained.setup.task.segment
  results = []
  for memory in args.memory or [None]:
    model = reading(trained, segment, memory)
    results.append(token_losses(model, tokens, segment))
  lost = vocabulary.unknown([text.encode()])
  about = table(text, results, sum(map(len, lost)))
  if lost:
    what = f"{len(lost):,} {vocabulary.units}"
    about += f"\n{what} are not in the vocabulary; each of their bytes counts 8 bits"
  elif vocabulary.decode(tokens.tolist()) != text.encode():
    about += "\nthe tokens do not give back the text; bits divide by its own bytes and characters"
  if args.per_token:
    print(*lines(vocabulary, results[0]), sep="\n")
  print(about, file=sys.stderr if args.per_token else sys.stdout)
  return results
