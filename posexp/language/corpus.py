"""A corpus as tokens: the exact text of each split, and one stream of tokens for it.

The stream of a split is END d1 END d2 … END dn for its documents d1 … dn, so that every byte of
the text is to be predicted exactly once.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from posexp import storage
from posexp.data import files, sources, splits, store, tokenizer, writing
from posexp.data.side_by_side import mapped
from posexp.data.splits import EVALUATED
from posexp.errors import UserError
from posexp.language import documents, vocabulary
from posexp.language.documents import Documents
from posexp.language.streams import Stream
from posexp.language.vocabulary import END, Vocabulary

_opened = functools.lru_cache(1)(Vocabulary.opened)  # it remembers the words of other splits
Batch = tuple[int, list[bytes]]  # the bytes before it, and its pieces

SEPARATOR = np.array([END])
BATCH = 1 << 18  # bytes that are tokenized at a time
ALONE = 128  # batches at first: each further process would meet the words of a text anew
CHECKED = 1 << 20  # bytes of the training text that are decoded again; of other splits, all


@dataclasses.dataclass(frozen=True, kw_only=True)
class Text(Stream):
  """A split of a corpus: its tokens, mapped into memory, and its exact text without separators."""

  source: Documents
  unspelled: int  # bytes of words that are not in the vocabulary, which no token stands for


def check_options(task) -> None:
  """Raise ValueError for options of a `LanguageModeling` that are wrong for any data."""
  sources.check(task, "training text")
  given = sources.given(task).items()
  tables = [split for split, path in given if task.hub or files.is_table(path)]
  if tables and not task.text:
    raise ValueError(f"text must name the column of the text, as {tables[0]} is a table")
  if task.text and not tables:
    raise ValueError("text must be null: only a table has columns")
  if task.vocab_size is None:
    return
  least = vocabulary.LEAST.get(task.tokenizer)
  if least is None:
    raise ValueError(f"vocab_size must be null for tokenizer={task.tokenizer}, which has its own")
  if not least <= task.vocab_size <= tokenizer.MOST:
    raise ValueError(
      f"vocab_size must be from {least} to {tokenizer.MOST:,} for {task.tokenizer}, not "
      f"{task.vocab_size}"
    )


def prepare(task, folder: Path) -> tuple[dict[str, Text], Vocabulary, list[str]]:
  """Return the splits, their vocabulary, and notes on how they were made.

  The vocabulary is that of folder/tokenizer.json, which is trained if it is missing.

  Args:
    task: the options of a `LanguageModeling`.
    folder: that of the run.

  Raises:
    UserError: for data that are missing, broken or of no use, and for another run's tokenizer.
  """
  found, notes, digest = documents.read(task)
  kind, size = task.tokenizer, task.vocab_size

  def trained(_: int) -> str:
    if kind == "given":
      raise UserError(
        "task.tokenizer=given is the tokenizer of a released model; it needs init=hf:FOLDER"
      )
    others = (text for split in EVALUATED for text in found[split].texts())
    train = functools.partial(vocabulary.trained, kind, found["train"].texts(), size, others)
    return storage.cached("vocabularies", train, digest, kind, size)

  (text,) = tokenizer.kept(folder, ["tokenizer"], trained, Vocabulary.opened)
  opened = _opened(text)
  texts, abouts = {}, {}
  for split, source in found.items():
    tokens, abouts[split] = store.opened(
      f"tokens/{storage.digest(digest, split, text, *opened.reading)}",
      functools.partial(_write, split=split, source=source, text=text),
      lambda folder, about: (np.memmap(folder / "tokens", _dtype(opened), "r"), about),
    )
    lost = abouts[split]["unspelled"]
    texts[split] = Text(tokens, task.segment, task.documents, source=source, unspelled=lost)
  if task.tokenizer == "bpe":
    notes += tokenizer.fewer(opened.size, task.vocab_size)
  return texts, opened, [*notes, *_losses(opened, texts, abouts)]


def _losses(opened: Vocabulary, texts: dict[str, Text], abouts: dict[str, dict]) -> Iterator[str]:
  """Yield sentences on what the tokens lose: unknown words or characters, or the exact text."""
  counts = {split: about["unknown"] for split, about in abouts.items()}
  if unknown := [f"{count:,} of {split}" for split, count in counts.items() if count]:
    yield (
      f"{opened.units} that are not in the vocabulary are <unk> "
      f"({', '.join(unknown)}); bits per byte of test count 8 bits for each of their bytes, and "
      "those of validation leave them out"
    )
  if opened.units != "words":
    return
  source = texts["validation"].source
  parted = writing.parts_words([source.beginning])
  yield from writing.misfit(counts["validation"], max(1, source.words), 1, parted)
  inexact = [split for split, about in abouts.items() if not about["exact"]]
  if inexact:
    yield (
      f"the words of {', '.join(inexact)} do not give back the exact text; bits per byte divide by "
      "the bytes of the exact text"
    )


def _dtype(opened: Vocabulary) -> str:
  return "uint16" if opened.size <= 2**16 else "uint32"


def _write(folder: Path, split: str, source: Documents, text: str) -> dict:
  """Write the tokens of a split, and check that they stand for its text; return counts.

  `text` is the JSON of the vocabulary.
  """
  checked = CHECKED if split == "train" else len(source.content)
  opened = _opened(text)
  unknown = unspelled = 0
  exact = True
  with open(folder / "tokens", "wb") as file:
    for part in mapped(_tokenizing, (text, checked), _batches(source, opened), alone=ALONE):
      part.tokens.tofile(file)
      unknown += part.unknown
      unspelled += part.unspelled
      exact &= part.exact
  if opened.exact and not exact:
    raise UserError(f"the tokenizer of the run does not give back the text of the {split} split")
  return {"unknown": unknown, "unspelled": unspelled, "exact": exact}


class Part(NamedTuple):
  """The tokens of a batch of pieces, and counts of it."""

  tokens: np.ndarray
  unknown: int
  unspelled: int
  exact: bool  # as far as it was checked


def _tokenizing(text: str, checked: int) -> Callable[[Batch], Part]:
  """Return a function that tokenizes batches, and decodes those in the first `checked` bytes."""
  opened = _opened(text)

  def tokenized(batch: Batch) -> Part:
    start, pieces = batch
    encoded = opened.tokens(pieces)
    exact = start >= checked or all(
      opened.decode(ids.tolist()) == piece for ids, piece in zip(encoded, pieces, strict=True)
    )
    parts = [ids if piece else SEPARATOR for ids, piece in zip(encoded, pieces, strict=True)]
    tokens = np.concatenate(parts).astype(_dtype(opened))
    sure = opened.unknown_token is not None and opened.unknown_token not in tokens
    lost = [] if sure else opened.unknown(pieces)
    return Part(tokens, len(lost), sum(map(len, lost)), exact)

  return tokenized


def _batches(source: Documents, opened: Vocabulary) -> Iterator[Batch]:
  """Yield the text in batches of pieces; an empty one, b"", stands before each document."""
  parts = (itertools.chain([b""], opened.pieces(document)) for document in source.texts())
  pieces, start = itertools.chain.from_iterable(parts), 0
  while batch := [*splits.within(pieces, BATCH)]:
    yield start, batch
    start += sum(map(len, batch))
