"""Pairs of sentences as tokens on disk: written once in a stream, read row by row as needed."""

import contextlib
import itertools
import json
import sys
from pathlib import Path

import numpy as np

from posexp import storage
from posexp.data import store
from posexp.data.examples import Pairs, Sequences
from posexp.data.splits import Stream
from posexp.data.tokenizer import Tokenizer
from posexp.errors import UserError

CHUNK = 1_000  # pairs that are tokenized at a time; ten times as many take half as long again
SIDES = ("source", "target")


def encode(
  pairs: Stream, tokenizers: tuple[str, str], *, split: str, max_length: int | None, data: str
) -> Pairs:
  """The pairs of a split as tokens, in files that are mapped into memory and cached.

  A pair with a side of more than `max_length` tokens, [EOS] counted, is dropped from the split
  `train` and cut in others.

  Args:
    pairs: read once, and not at all where the cache has its tokens.
    tokenizers: the JSON of the source's and of the target's.
    split: the name of the split.
    max_length: tokens of the longest side that is kept whole; None for no limit.
    data: a digest of all that the pairs depend on.

  Raises:
    UserError: every pair is dropped, or there is no room on the disk.
  """
  name = f"encoded/{storage.digest(data, tokenizers, split, max_length)}"
  most = sys.maxsize if max_length is None else max_length - 1  # [EOS] is one

  def fill(folder: Path) -> None:
    _write(folder, pairs, tokenizers, most, drop=split == "train")

  found = store.opened(name, fill, _read)
  if not len(found.lengths):
    raise UserError(
      f"all {found.long:,} {split} pairs are longer than {max_length} tokens; raise task.max_length"
    )
  return found


def _read(folder: Path) -> Pairs:
  """The pairs in a folder, mapped into memory; an error of some class if it is damaged."""
  counts = json.loads((folder / "counts.json").read_text())
  sides = []
  for side in SIDES:
    starts = np.load(folder / f"{side}.starts.npy")
    tokens = np.zeros(0, int)  # an empty file cannot be mapped
    if counts["kept"]:
      tokens = np.memmap(folder / f"{side}.tokens", counts["dtype"][side], "r")
    if starts.shape != (counts["kept"] + 1,) or (starts[0], starts[-1]) != (0, len(tokens)):
      raise ValueError("other counts than tokens")
    sides.append(Sequences(tokens, starts))
  return Pairs(*sides, counts["long"])


def _write(
  folder: Path, pairs: Stream, tokenizers: tuple[str, str], most: int, *, drop: bool
) -> None:
  """Writes tokens, where each sequence starts, and counts; a side has at most `most` tokens."""
  opened = [Tokenizer(text) for text in tokenizers]
  kinds = ["uint16" if each.vocab_size <= 2**16 else "uint32" for each in opened]
  lengths: tuple[list, list] = ([], [])  # int64 arrays, by side and chunk
  kept = long = 0
  with contextlib.ExitStack() as stack:
    files = [stack.enter_context(open(folder / f"{side}.tokens", "wb")) for side in SIDES]
    stream = pairs()
    while chunk := list(itertools.islice(stream, CHUNK)):
      ids = [each.ids(texts) for each, texts in zip(opened, zip(*chunk, strict=True), strict=True)]
      counts = [np.fromiter(map(len, tokens), np.int64, len(tokens)) for tokens in ids]
      beyond = np.maximum(*counts) > most
      stays = ~beyond if drop else np.ones_like(beyond)
      long += int(beyond.sum())
      kept += int(stays.sum())
      for i, tokens in enumerate(ids):
        cut = (each[:most] for each in itertools.compress(tokens, stays))
        np.fromiter(itertools.chain.from_iterable(cut), kinds[i]).tofile(files[i])
        lengths[i].append(np.minimum(counts[i][stays], most))
  for side, counts in zip(SIDES, lengths, strict=True):
    np.save(folder / f"{side}.starts.npy", np.concatenate([[0], *counts]).cumsum())
  summary = {"kept": kept, "long": long, "dtype": dict(zip(SIDES, kinds, strict=True))}
  (folder / "counts.json").write_text(json.dumps(summary))
