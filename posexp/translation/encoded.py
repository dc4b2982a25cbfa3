"""Pairs of sentences as tokens: in batches, and on disk, where a stream writes them once."""

import contextlib
import dataclasses
import functools
import itertools
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np

from posexp import storage
from posexp.data import store
from posexp.data.batches import Batch, Sequences, numbered
from posexp.data.side_by_side import mapped
from posexp.data.splits import Row, Split
from posexp.data.tokenizer import PAD, Tokenizer
from posexp.errors import UserError

Chunk = tuple[list[tuple[np.ndarray, np.ndarray]], int]

CHUNK = 1_000  # pairs to tokenize at a time; with 10,000, all of it takes 1.5 times as long
SIDES = ("source", "target")
BOS, EOS = 1, 2
# The first tokens of each tokenizer, in the order of their ids; bytes need no [UNK].
SPECIAL = {"bpe": ["[PAD]", "[BOS]", "[EOS]"], "char": ["[PAD]", "[BOS]", "[EOS]", "[UNK]"]}
LEAST = len(SPECIAL["bpe"]) + 256  # the smallest vocabulary


@dataclasses.dataclass(frozen=True)
class Pairs:
  """A tokenized split of pairs of sentences, without special tokens."""

  source: Sequences
  target: Sequences
  long: int = 0  # pairs beyond the maximum length: dropped from train, cut in other splits

  @functools.cached_property
  def lengths(self) -> np.ndarray:
    """The tokens of each pair's longer side, with its special token, int64 [N]."""
    return np.maximum(self.source.lengths, self.target.lengths) + 1

  def by_length(self, only: np.ndarray | None = None) -> np.ndarray:
    """Return the places of all pairs, or those of `only`, in order of the pairs' lengths.

    A search continues until the last row of a batch is finished, so its rows should end together.
    """
    order = np.arange(len(self.lengths)) if only is None else only
    return order[np.argsort(self.lengths[order], kind="stable")]

  def batch(self, rows: np.ndarray, length: int, size: int) -> Batch:
    """Return the pairs `rows`, padded to `length` tokens, and to `size` rows with weight 0.

    The batch has int32 [B, L]: source (its tokens, then [EOS]), target ([BOS], then its tokens) and
    labels (the target's tokens, then [EOS]); bool [B, L]: source_mask and mask, of target and
    labels; weight float32 [B], and index int32 [B], the place in the split (-1 for a padded row).
    """
    source, source_mask = _ended(self.source, rows, length, size)
    labels, mask = _ended(self.target, rows, length, size)
    target = np.where(mask, np.roll(labels, 1, axis=1), PAD)
    target[: len(rows), 0] = BOS
    batch = {"source": source, "target": target, "labels": labels}
    return batch | {"source_mask": source_mask, "mask": mask} | numbered(rows, size)


def _ended(
  side: Sequences, rows: np.ndarray, length: int, size: int
) -> tuple[np.ndarray, np.ndarray]:
  """Return what `Sequences.padded` does, each sequence with [EOS] after it."""
  tokens, mask = side.padded(rows, length, size)
  place, count = np.arange(length), side.lengths[rows, None]
  tokens[: len(rows)][place == count] = EOS
  mask[: len(rows)] = place <= count
  return tokens, mask


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
