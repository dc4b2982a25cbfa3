"""Pairs of sentences as tokens on disk: written once in a stream, read row by row as needed."""

import contextlib
import dataclasses
import hashlib
import itertools
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from posexp.data import store
from posexp.data.batches import Batch
from posexp.data.splits import Row, Stream
from posexp.data.tokenizer import BOS, EOS, PAD, Tokenizer
from posexp.errors import UserError

CHUNK = 1_000  # pairs that are tokenized at a time; ten times as many take half as long again
SIDES = ("source", "target")


@dataclasses.dataclass(frozen=True)
class Side:
  """The token ids of one language, end to end, without special tokens."""

  tokens: np.ndarray  # uint16 or uint32 [sum of lengths]
  starts: np.ndarray  # int64 [N + 1], where each text begins in `tokens`, and its end

  def lay(self, rows: np.ndarray, length: int) -> tuple[np.ndarray, np.ndarray]:
    """Ids int32 [len(rows), length], anything behind a text, and its number of tokens."""
    place = self.starts[rows, None] + np.arange(length)
    tokens = self.tokens[np.minimum(place, len(self.tokens) - 1)].astype(np.int32)
    return tokens, self.starts[rows + 1] - self.starts[rows]


@dataclasses.dataclass(frozen=True)
class Encoded:
  """A split of pairs, tokenized."""

  source: Side
  target: Side
  lengths: np.ndarray  # int64 [N], tokens of the longer side with its special token
  long: int  # pairs beyond the maximum length: dropped from train, cut in other splits

  @classmethod
  def of(cls, source: Side, target: Side, long: int = 0) -> "Encoded":
    lengths = np.maximum(np.diff(source.starts), np.diff(target.starts)) + 1
    return cls(source, target, lengths, long)

  def batch(self, rows: np.ndarray, length: int, size: int) -> Batch:
    """The pairs `rows`, padded to `length` tokens and with rows of weight 0 to `size`.

    Returns int32 [B, L]: source (its tokens, then [EOS]), target ([BOS], then its tokens) and
    labels (the target's tokens, then [EOS]); bool [B, L]: source_mask and mask, of target and
    labels; weight float32 [B], and index int32 [B], the place in the split (-1 for a padded row).
    Both masks have a True in every row, even in a padded one.
    """
    place, fill = np.arange(length), (0, size - len(rows))
    source, count = self.source.lay(rows, length)
    source_mask = place <= count[:, None]
    source[place == count[:, None]] = EOS
    labels, count = self.target.lay(rows, length)
    mask = place <= count[:, None]
    labels[place == count[:, None]] = EOS
    target = np.concatenate([np.full((len(rows), 1), BOS, np.int32), labels[:, :-1]], axis=1)
    batch = {
      name: np.pad(np.where(real, tokens, PAD), (fill, (0, 0)), constant_values=PAD)
      for name, tokens, real in (
        ("source", source, source_mask),
        ("target", target, mask),
        ("labels", labels, mask),
      )
    }
    for name, real in (("source_mask", source_mask), ("mask", mask)):
      batch[name] = np.pad(real, (fill, (0, 0)))
      batch[name][len(rows) :, 0] = True
    batch["weight"] = np.pad(np.ones(len(rows), np.float32), fill)
    batch["index"] = np.pad(rows.astype(np.int32), fill, constant_values=-1)
    return batch


def encode(
  pairs: Stream, tokenizers: tuple[str, str], *, split: str, max_length: int | None, data: str
) -> Encoded:
  """The pairs of a split, read in one pass and kept on disk from then on.

  `tokenizers` are the JSON of the source's and the target's, `data` tells contents apart: a digest
  of all that the pairs depend on. A pair with a side of more than `max_length` tokens, [EOS]
  counted, is dropped from the split `train` and cut in others.

  Raises:
    UserError: every pair is dropped, or there is no room on the disk.
  """
  asked = json.dumps([data, tokenizers, split, max_length])
  name = f"encoded/{hashlib.sha256(asked.encode()).hexdigest()[:32]}"
  folder = store.kept(
    name, lambda folder: _write(folder, pairs, tokenizers, max_length, split == "train")
  )
  counts = json.loads((folder / "counts.json").read_text())
  if not counts["kept"]:
    raise UserError(
      f"all {counts['long']:,} {split} pairs are longer than {max_length} tokens; raise "
      "task.max_length"
    )
  source, target = (
    Side(
      np.memmap(folder / f"{side}.tokens", counts["dtype"][side], "r"),
      np.load(folder / f"{side}.starts.npy"),
    )
    for side in SIDES
  )
  return Encoded.of(source, target, counts["long"])


def _write(
  folder: Path, pairs: Stream, tokenizers: tuple[str, str], max_length: int | None, drop: bool
) -> None:
  first = Tokenizer(tokenizers[0])
  opened = (first, first if tokenizers[1] == tokenizers[0] else Tokenizer(tokenizers[1]))
  kinds = ["uint16" if one.vocab_size <= 2**16 else "uint32" for one in opened]
  most = sys.maxsize if max_length is None else max_length - 1  # [EOS] is one
  counts: tuple[list, list] = ([], [])  # of tokens, by side and chunk
  kept = long = 0
  with contextlib.ExitStack() as stack:
    files = [stack.enter_context(open(folder / f"{side}.tokens", "wb")) for side in SIDES]
    for chunk in _chunks(pairs()):
      ids = [one.ids([pair[i] for pair in chunk]) for i, one in enumerate(opened)]
      number = [np.fromiter(map(len, tokens), np.int64, len(tokens)) for tokens in ids]
      beyond = np.maximum(*number) > most
      long += int(beyond.sum())
      stays = ~beyond if drop else np.ones_like(beyond)
      kept += int(stays.sum())
      for i, (tokens, kind, file) in enumerate(zip(ids, kinds, files, strict=True)):
        cut = (some[:most] for some in itertools.compress(tokens, stays))
        np.fromiter(itertools.chain.from_iterable(cut), kind).tofile(file)
        counts[i].append(np.minimum(number[i][stays], most))
  for side, lengths in zip(SIDES, counts, strict=True):
    np.save(folder / f"{side}.starts.npy", np.concatenate([[0], *lengths]).cumsum())
  summary = {"kept": kept, "long": long, "dtype": dict(zip(SIDES, kinds, strict=True))}
  (folder / "counts.json").write_text(json.dumps(summary))


def _chunks(pairs: Iterator[Row]) -> Iterator[list[Row]]:
  while chunk := list(itertools.islice(pairs, CHUNK)):
    yield chunk
