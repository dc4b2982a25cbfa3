"""Pairs of sentences as tokens on disk: written once in a stream, read row by row as needed."""

import contextlib
import itertools
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np

from posexp import storage
from posexp.data import store
from posexp.data.batches import Pairs, Sequences
from posexp.data.side_by_side import mapped
from posexp.data.splits import Row, Split
from posexp.data.tokenizer import Tokenizer
from posexp.errors import UserError

Chunk = tuple[list[tuple[np.ndarray, np.ndarray]], int]

CHUNK = 1_000  # pairs to tokenize at a time; with 10,000, all of it takes 1.5 times as long
SIDES = ("source", "target")


def encode(
  pairs: Split, tokenizers: tuple[str, str], *, split: str, max_length: int | None, data: str
) -> Pairs:
  """Return the pairs of a split as tokens, in cached files that are mapped into memory.

  A pair with a side of more than `max_length` tokens including [EOS] is dropped from the split
  `train` and cut in other splits.

  Args:
    pairs: rows that begin with source and target, read once, or not at all if the cache has their
      tokens.
    tokenizers: the JSON of the source's tokenizer and of the target's.
    split: the name of the split.
    max_length: the most tokens of a side that is kept whole; None for no limit.
    data: a digest of everything that the pairs depend on.

  Raises:
    UserError: every pair is dropped, or there is no room on the disk.
  """
  name = f"encoded/{storage.digest(data, tokenizers, split, max_length)}"
  most = sys.maxsize if max_length is None else max_length - 1  # [EOS] is one

  def fill(folder: Path) -> dict:
    return _write(folder, pairs, tokenizers, most, drop=split == "train")

  coded = store.opened(name, fill, _read)
  if not len(coded.lengths):
    raise UserError(
      f"all {coded.long:,} {split} pairs are longer than {max_length} tokens; raise task.max_length"
    )
  return coded


def _read(folder: Path, about: dict) -> Pairs:
  """Map the pairs of a folder into memory."""
  sides = []
  for side, kind in about["kinds"].items():
    path = folder / f"{side}.tokens"
    # An empty file cannot be mapped.
    tokens = np.memmap(path, kind, "r") if path.stat().st_size else np.zeros(0, kind)
    sides.append(Sequences(tokens, np.load(folder / f"{side}.starts.npy")))
  source, target = sides
  return Pairs(source, target, about["long"])


def _write(
  folder: Path, pairs: Split, tokenizers: tuple[str, str], most: int, *, drop: bool
) -> dict:
  """Write the tokens and the start of each sequence; a side has at most `most` tokens.

  Return the number of longer pairs, and the data type of each side's tokens.
  """
  long = 0
  kinds = ["uint16"] * len(SIDES)  # if there are no tokens
  lengths: tuple[list, list] = ([], [])  # int64 arrays, by side and chunk
  with contextlib.ExitStack() as stack:
    files = [stack.enter_context(open(folder / f"{side}.tokens", "wb")) for side in SIDES]
    stream = pairs()
    chunks = iter(lambda: list(itertools.islice(stream, CHUNK)), [])
    for sides, beyond in mapped(_encoder, (tokenizers, most, drop), chunks):
      for file, (tokens, count), counts in zip(files, sides, lengths, strict=True):
        tokens.tofile(file)
        counts.append(count)
      kinds = [tokens.dtype.name for tokens, _ in sides]
      long += beyond
  for side, counts in zip(SIDES, lengths, strict=True):
    np.save(folder / f"{side}.starts.npy", np.concatenate([[0], *counts]).cumsum())
  return {"long": long, "kinds": dict(zip(SIDES, kinds, strict=True))}


def _encoder(tokenizers: tuple[str, str], most: int, drop: bool) -> Callable[[list[Row]], Chunk]:
  """Return the function from pairs to tokens and counts by side, and the number of long pairs."""
  opened = [Tokenizer(text) for text in tokenizers]
  kinds = [np.uint16 if tokenizer.vocab_size <= 2**16 else np.uint32 for tokenizer in opened]

  def encode(chunk: list[Row]) -> Chunk:
    ids = [tokenizer.ids([row[side] for row in chunk]) for side, tokenizer in enumerate(opened)]
    counts = [np.fromiter(map(len, tokens), np.int64, len(tokens)) for tokens in ids]
    beyond = np.maximum(*counts) > most
    stays = ~beyond if drop else np.ones_like(beyond)
    sides = []
    for kind, tokens, count in zip(kinds, ids, counts, strict=True):
      cut = (each[:most] for each in itertools.compress(tokens, stays))
      flat = np.concatenate([[], *cut]).astype(kind)
      sides.append((flat, np.minimum(count[stays], most)))
    return sides, int(beyond.sum())

  return encode
