"""Splits and folds by a hash of content: equal texts share a split, whatever the order or seed."""

import functools
import hashlib
import itertools
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple, TypeVar

from posexp import storage
from posexp.errors import UserError

Row = tuple[str, str]  # (text, label) or (source, target)
Rows = list[Row]  # in the order of the source
Split = Callable[[], Iterator[Row]]  # a split that may not fit in memory; each call reads it anew

SPLITS = ("train", "validation", "test")
EVALUATED = ("validation", "test")
MARKS = bytes(code for code in range(128) if not chr(code).isalnum())
HELD_OUT = 0.1  # the share of the training rows that stands in for a missing split
RECIPE = "NFC, cased, exact, no byte order mark"  # of texts as they are read and compared
FIRST = 10_000  # texts that decide by which key all of them are assigned to splits
MERGED = 0.1


def key(text: str) -> bytes:
  """Return sha256 of the letters and digits of a text, lower-cased: near duplicates share it."""
  text = composed(text.lower())
  if text.isascii():  # in a quarter of the time
    kept = text.encode().translate(None, MARKS)
  else:
    kept = re.sub(r"[\W_]+", "", text).encode()
  return hashlib.sha256(kept).digest()


def exact_key(text: str) -> bytes:
  """Return sha256 of a text, lower-cased and with single blanks: equal texts share a key."""
  return hashlib.sha256(" ".join(composed(text.lower()).split()).encode()).digest()


def cased_key(text: str) -> bytes:
  """Return sha256 of a text as tokenizers that keep case and blanks read it."""
  return hashlib.sha256(composed(text).encode()).digest()


def composed(text: str) -> str:
  """Return a text in which é is one character (Unicode's NFC)."""
  return text if text.isascii() else unicodedata.normalize("NFC", text)


def assigning_key(texts: Iterable[str]) -> Callable[[str], bytes]:
  """Return the key by which texts like these are assigned to splits.

  It is `key`, unless that merges more than `MERGED` of the texts that differ, as it does where
  symbols tell texts apart: brackets, formulas, emoji.
  """
  texts = [*texts]
  merged = len({*map(key, texts)}) < (1 - MERGED) * len({*map(exact_key, texts)})
  return exact_key if merged else key


T = TypeVar("T", str, bytes)


def within(texts: Iterable[T], size: int) -> Iterator[T]:
  """Yield texts until they have at least `size` characters or bytes together."""
  for text in texts:
    yield text
    if (size := size - len(text)) <= 0:
      return


def beginning(texts: Iterable[T]) -> Iterator[T]:
  """Yield the first texts: at most `FIRST`, and none after the first 4 MiB."""
  return within(itertools.islice(texts, FIRST), 1 << 22)


def draw(key: bytes, purpose: str) -> float:
  """Return a number in [0, 1) that is a function of `key`, independent for different purposes."""
  return int.from_bytes(hashlib.sha256(purpose.encode() + key).digest()[:7], "big") / 2**56


class Division(NamedTuple):
  """What decides to which split a training row goes."""

  exact: bool  # whether texts are compared by `exact_key`
  missing: tuple[str, ...]  # the splits that are held out
  fold: tuple[int, int] | None  # of cross-validation


def arrange(
  given: Mapping[str, Split],
  *,
  rows: str = "texts",
  texts: str = "texts",
  keep: Callable[[Row], bool] = lambda row: True,
  equal: Callable[[str], bytes] = exact_key,
  fold: tuple[int, int] | None = None,
  digest: str | None = None,
) -> tuple[dict[str, Split], list[str]]:
  """Return the splits `train`, `validation` and `test`, and notes on how they were made.

  A tenth of the training rows is held out for each split that is not given, the test split first,
  by a hash of their texts (the first of each row). With `fold`, (number, count), all given rows
  are pooled, and the test split is that fold of them.

  Args:
    given: the splits that there are, `train` among them. They are read once for the notes.
    rows: what the notes call rows.
    texts: what the notes call the first texts of rows.
    keep: training rows for which it is False are dropped.
    equal: texts that have one value of it are equal to those who read the notes.
    digest: identifies the content of `given`. The notes are cached under it, so that arranging
      again reads nothing.

  Raises:
    UserError: a split would have no rows.
  """
  if fold:
    pooled = tuple(given.values())
    given = {"train": lambda: itertools.chain.from_iterable(stream() for stream in pooled)}
  missing = tuple(name for name in ("test", "validation") if name not in given)

  def compute() -> list:
    first = beginning(row[0] for row in given["train"]() if keep(row))
    exact = bool(missing) and assigning_key(first) is exact_key
    return [exact, _notes(given, rows, texts, keep, equal, Division(exact, missing, fold))]

  parts = digest, missing, *(fold or ())
  exact, notes = storage.cached("arranged", compute, RECIPE, *parts) if digest else compute()
  division = Division(exact, missing, fold)

  def part(name: str) -> Iterator[Row]:
    chosen = (row for row in given["train"]() if keep(row))
    return (row for row in chosen if _split_of(row[0], division) == name)

  held = {name: functools.partial(part, name) for name in ("train", *missing)}
  return {name: held.get(name) or given[name] for name in SPLITS}, notes


def _notes(
  given: Mapping[str, Split],
  rows: str,
  texts: str,
  keep: Callable[[Row], bool],
  equal: Callable[[str], bytes],
  division: Division,
) -> list[str]:
  """Return the notes of `arrange`."""
  others = {
    name: Counter(equal(text) for text, _ in stream())
    for name, stream in given.items()
    if name != "train"
  }
  sizes = Counter({name: keys.total() for name, keys in others.items()})
  repeated, dropped = Counter(), 0  # rows whose text is also trained on, and training rows
  for row in given["train"]():
    if not keep(row):
      dropped += 1
      continue
    name = _split_of(row[0], division)
    sizes[name] += 1
    if name == "train" and others:
      own_key = equal(row[0])
      for other, keys in others.items():
        repeated[other] += keys.pop(own_key, 0)
  for name in ("train", "test", "validation"):
    if not sizes[name]:
      empty = f", as {dropped:,} training {rows} have an empty side" if dropped else ""
      more = "give more data, as equal texts count once,"
      raise UserError(f"the {name} split has no rows{empty}; {more} or set task.{name}")
  notes = [f"{dropped:,} training {rows} have an empty side and are dropped"] if dropped else []
  for name in division.missing:
    held = f"a tenth of the training {rows}, held out by content hash"
    if division.fold and name == "test":
      number, count = division.fold
      held = f"fold {number} of {count} over all {sizes.total():,} {rows}"
    notes.append(f"the {name} split is {held}")
  for name in EVALUATED:
    if copies := repeated[name]:
      what = f"{texts} also stand" if copies > 1 else f"{texts.removesuffix('s')} also stands"
      notes.append(f"{copies:,} {name} {what} in the training split")
  return notes


@functools.lru_cache(maxsize=1 << 17)  # each of several passes asks for the split of each text
def _split_of(text: str, division: Division) -> str:
  """Return the split that a training row with this text goes to."""
  exact, missing, fold = division
  own_key = exact_key(text) if exact and missing else key(text) if missing else b""
  for name in missing:
    if fold and name == "test":
      chosen = int(draw(own_key, "fold") * fold[1]) == fold[0]
    else:
      chosen = draw(own_key, name) < HELD_OUT
    if chosen:
      return name
  return "train"
