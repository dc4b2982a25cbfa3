"""A corpus as tokens: the exact text of each split, and one stream of tokens for it.

The stream of a split is END d1 END d2 … END dn for its documents d1 … dn, so that every byte of
the text is to be predicted exactly once.
"""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from posexp import storage
from posexp.data import (
  documents,
  files,
  side_by_side,
  sources,
  store,
  tokenizer,
  vocabulary,
  writing,
)
from posexp.data.documents import Documents
from posexp.data.side_by_side import mapped
from posexp.data.vocabulary import END, Vocabulary
from posexp.errors import UserError

_opened = functools.lru_cache(1)(Vocabulary.opened)  # it remembers the words of other splits
Batch = tuple[int, list[bool], list[bytes]]  # the bytes before it, and what `_pieces` gives

SEPARATOR = np.array([END])
BATCH = 1 << 18  # bytes that are tokenized at a time
ALONE = 128  # batches at first: each further process would meet the words of a text anew
LARGE = 1 << 22  # bytes of a text that another process trains a vocabulary on, for a second or more
CHECKED = 1 << 20  # bytes of the training text that are decoded again; of other splits, all


@dataclasses.dataclass(frozen=True)
class Text:
  """A split of a corpus: its tokens, and counts of its exact text, which holds no separators."""

  tokens: np.ndarray  # uint16 or uint32 [N], mapped into memory; END before each document
  source: Documents
  unspelled: int = 0  # bytes of words that are not in the vocabulary, which no token stands for

  @property
  def bytes(self) -> int:
    return len(self.source.content)

  @property
  def chars(self) -> int:
    return self.source.chars

  @property
  def words(self) -> int:
    """What stands between blanks, and one for each end of a line."""
    return self.source.words

  @property
  def beginning(self) -> str:
    return self.source.content[: writing.SAMPLE].tobytes().decode(errors="ignore")


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


def data_digest(task) -> str | None:
  """sha256 of the user's own files; None where the options alone pin the data.

  Raises:
    UserError: a file is missing or empty.
  """
  return None if task.package or task.hub else files.digest(sources.given(task))


def prepare(task, folder: Path) -> tuple[dict[str, Text], Vocabulary, list[str]]:
  """Return the splits, their vocabulary, and notes on how they were made.

  The vocabulary is that of folder/tokenizer.json, which is trained if it is missing.

  Args:
    task: the options of a `LanguageModeling`, or an object that has those that name its data.
    folder: that of the run.

  Raises:
    UserError: for data that are missing, broken or of no use, and for another run's tokenizer.
  """
  found, notes, digest = documents.read(task)

  def trained(_: int) -> str:
    source, kind, size = found["train"], task.tokenizer, task.vocab_size
    if kind == "byte":
      return vocabulary.trained(kind, (), size)
    train = functools.partial(_trained, found, kind, size)
    if len(source.content) > LARGE:
      train = functools.partial(side_by_side.elsewhere, _trained, found, kind, size)
    return storage.cached("vocabularies", train, digest, kind, size)

  (text,) = tokenizer.kept(folder, ["tokenizer"], trained, Vocabulary.opened)
  opened = _opened(text)
  texts, abouts = {}, {}
  for split, source in found.items():
    tokens, abouts[split] = store.opened(
      f"tokens/{storage.digest(digest, split, text)}",
      functools.partial(_write, split=split, source=source, text=text),
      functools.partial(_read, dtype=_dtype(opened)),
    )
    texts[split] = Text(tokens, source, abouts[split]["unspelled"])
  if task.tokenizer == "bpe":
    notes += tokenizer.fewer(opened.size, task.vocab_size)
  return texts, opened, [*notes, *_losses(opened, texts, abouts)]


def kept_vocabulary(folder: Path) -> Vocabulary:
  """Open the corpus of a run from its folder alone.

  Raises:
    UserError: it is missing, damaged or another run's.
  """
  (text,) = tokenizer.kept(folder, ["tokenizer"], opened=Vocabulary.opened)
  return Vocabulary.opened(text)


def _losses(opened: Vocabulary, texts: dict[str, Text], abouts: dict[str, dict]) -> Iterator[str]:
  """Yield sentences on what the tokens do not give back of the text."""
  counts = {split: about["unknown"] for split, about in abouts.items()}
  if unknown := [f"{count:,} of {split}" for split, count in counts.items() if count]:
    yield (
      f"{opened.units} that are not in the vocabulary are <unk> "
      f"({', '.join(unknown)}); bits per byte of test count 8 bits for each of their bytes, and "
      "those of validation leave them out"
    )
  if opened.units != "words":
    return
  validation = texts["validation"]
  yield from writing.misfit(
    counts["validation"], max(1, validation.words), 1, writing.parts_words([validation.beginning])
  )
  inexact = [split for split, about in abouts.items() if not about["exact"]]
  if inexact:
    yield (
      f"the words of {', '.join(inexact)} do not give back the exact text, by whose bytes bits per "
      "byte divide"
    )


def _dtype(opened: Vocabulary) -> str:
  return "uint16" if opened.size <= 2**16 else "uint32"


def _read(folder: Path, dtype: str) -> tuple[np.ndarray, dict]:
  """Tokens, and what is said of them; an error of some class if they are damaged."""
  about = json.loads((folder / "about.json").read_text())
  tokens = np.memmap(folder / "tokens", dtype, "r")
  if len(tokens) != about["tokens"] or not {"unknown", "unspelled", "exact"} <= about.keys():
    raise ValueError("other counts than tokens")
  return tokens, about


def _trained(found: dict[str, Documents], kind: str, size: int | None) -> str:
  others = (text for split, each in found.items() if split != "train" for text in each.texts())
  return vocabulary.trained(kind, found["train"].texts(), size, others)


def _write(folder: Path, split: str, source: Documents, text: str) -> None:
  """Write the tokens of a split by the JSON of a vocabulary, and check that they stand for its
  text.
  """
  checked = CHECKED if split == "train" else len(source.content)
  opened = _opened(text)
  count = unknown = unspelled = 0
  exact = True
  with open(folder / "tokens", "wb") as file:
    for part in mapped(_tokenizing, (text, checked), _batches(source), alone=ALONE):
      part.tokens.tofile(file)
      count += len(part.tokens)
      unknown += part.unknown
      unspelled += part.unspelled
      exact &= part.exact
  if opened.exact and not exact:
    raise UserError(f"the tokenizer of the run does not give back the text of the {split} split")
  about = {"tokens": count, "unknown": unknown, "unspelled": unspelled, "exact": exact}
  (folder / "about.json").write_text(json.dumps(about))


class Part(NamedTuple):
  """The tokens of a batch of pieces, and counts of it."""

  tokens: np.ndarray
  unknown: int
  unspelled: int
  exact: bool  # as far as it was checked


def _tokenizing(text: str, checked: int) -> Callable[[Batch], Part]:
  """Return the function from batches, of which those that begin before `checked` bytes are decoded
  again, to their tokens.
  """
  opened = _opened(text)

  def tokenized(batch: Batch) -> Part:
    start, begins, pieces = batch
    found = opened.tokens(pieces)
    exact = start >= checked or all(
      opened.decode(ids.tolist()) == piece for ids, piece in zip(found, pieces, strict=True)
    )
    separated = [
      part
      for first, ids in zip(begins, found, strict=True)
      for part in ((SEPARATOR, ids) if first else (ids,))
    ]
    tokens = np.concatenate(separated).astype(_dtype(opened))
    lost = opened.unknown(pieces)
    return Part(tokens, len(lost), sum(map(len, lost)), exact)

  return tokenized


def _batches(source: Documents) -> Iterator[Batch]:
  """Yield the text in batches of pieces."""
  start = size = 0
  begins, pieces = [], []
  for begin, piece in _pieces(source):
    begins.append(begin)
    pieces.append(piece)
    size += len(piece)
    if size >= BATCH:
      yield start, begins, pieces
      start, size, begins, pieces = start + size, 0, [], []
  if pieces:
    yield start, begins, pieces


def _pieces(source: Documents) -> Iterator[tuple[bool, bytes]]:
  """Yield the text in pieces, and whether a document begins with each."""
  for document in source.texts():
    for number, piece in enumerate(vocabulary.pieces(document)):
      yield not number, piece
