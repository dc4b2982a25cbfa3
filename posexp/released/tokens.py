"""The tokens of a released model: its tokenizer, and which of them begin and end a text."""

from __future__ import annotations

import functools
import operator
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from posexp import reading
from posexp.data import library
from posexp.errors import UserError
from posexp.released.folder import Folder

TOKENIZER = "tokenizer.json"
NUMBERS = "config.json", "generation_config.json"  # which have bos_token_id and eos_token_id
NAMES = "tokenizer_config.json", "special_tokens_map.json"  # which have bos_token and eos_token
# What begins and what ends a text where no file says so.
KNOWN = {
  "bos": ("<s>", "<bos>", "<|begin_of_text|>", "<|startoftext|>", "<|bos|>", "[BOS]"),
  "eos": ("</s>", "<eos>", "<|endoftext|>", "<|end_of_text|>", "<|eos|>", "[EOS]", "[END]"),
}


class Ends(NamedTuple):
  """The token before a text, and those after which it goes on no further."""

  begin: int
  ends: tuple[int, ...]


def text_of(folder: Folder) -> str | None:
  """Return the JSON of a folder's tokenizer; None if it has none."""
  path = folder.path / TOKENIZER
  if not path.is_file():
    return None
  try:
    return (reading.read(path) or b"").decode()
  except ValueError as error:
    raise damaged(folder, error) from None


def opened(folder: Folder) -> Any:
  """Return a folder's tokenizer, a `tokenizers.Tokenizer`; None if it has none.

  Raises:
    UserError: its tokenizer.json cannot be read.
  """
  if (text := text_of(folder)) is None:
    return None
  try:
    return library.opened(text, f"{folder.name}: its {TOKENIZER}")
  except ValueError as error:
    raise damaged(folder, error) from None


def damaged(folder: Folder, error: Exception) -> UserError:
  """Return the error for a tokenizer that cannot be read."""
  why = f"cannot be read ({error!s:.100}); copy or download it again"
  return UserError(f"{folder.name}: its {TOKENIZER} {why}")


def check_rows(folder: Folder, rows: int) -> None:
  """Raise UserError if a folder's tokenizer has tokens for which its weights have no row."""
  if (text := text_of(folder)) is None:
    return
  count, last = _counted(folder, text)
  if count > rows:
    raise UserError(
      f"{folder.name}: its {TOKENIZER} has {count:,} tokens (the last is {last!r:.60}), and its "
      f"weights have rows for {rows:,}; save both again after "
      f"model.resize_token_embeddings({count}), or the tokenizer without those that were added"
    )


@functools.lru_cache(4)
def _tokens(name: str, text: str) -> tuple[int, str]:
  opened = library.opened(text, name)
  around = library.call(name, opened.encode, "a")  # with what stands before and behind each text
  tokens = [*opened.get_vocab(with_added_tokens=True).items()]
  tokens += zip(around.tokens, around.ids, strict=True)
  last, number = max(tokens, key=operator.itemgetter(1), default=("", -1))
  return number + 1, last


def _counted(folder: Folder, text: str) -> tuple[int, str]:
  """Return the number of tokens of a tokenizer, and the name of the last one."""
  try:
    return _tokens(f"{folder.name}: its {TOKENIZER}", text)
  except ValueError as error:
    raise damaged(folder, error) from None


def ends_of(folder: Folder, config: Mapping[str, Any], found: Any, rows: int) -> Ends:
  """Return the token before a text of a decoder, and those that end it.

  The first is what the tokenizer puts before a text; or else the beginning that a file names, or
  the end, but never padding. All files are asked for ends.

  Args:
    folder: the model.
    config: that of the part which writes texts.
    found: its tokenizer.
    rows: the tokens of its weights.

  Raises:
    UserError: a token is none of the model's, or nothing begins a text.
  """
  files = [(file, _object(folder, file)) for file in (*NUMBERS, *NAMES)]
  files.insert(0, (NUMBERS[0], config))
  begins, ends, padding = (
    [*dict.fromkeys(_given(folder, files, kind, found, rows))] for kind in ("bos", "eos", "pad")
  )
  known = {kind: [*_named(found, names)] for kind, names in KNOWN.items()}
  before = _before(folder, found)
  unused = {*padding} - {*before, *ends}  # padding often has the number of another token
  for each in (*before, *begins, *ends, *known["bos"], *known["eos"]):
    name = (found.id_to_token(each) or "").replace("_", " ")
    if each not in unused and not re.search(r"\bpad(ding)?\b", name, re.I):
      return Ends(each, tuple(ends or known["eos"][:1]))
  raise UserError(
    f"{folder.name}: no file in it says with which token a text begins; put its bos_token_id, or "
    "its eos_token_id, into config.json"
  )


def _object(folder: Folder, file: str) -> Mapping[str, Any]:
  return folder.json(file) if (folder.path / file).exists() else {}


def _given(
  folder: Folder, files: Sequence[tuple[str, Mapping[str, Any]]], kind: str, found: Any, rows: int
) -> Iterator[int]:
  """Yield the tokens that files name as the beginning ("bos"), the end or padding of a text."""
  for file, content in files:
    name = content.get(f"{kind}_token")
    name = name.get("content") if isinstance(name, Mapping) else name
    if file in NAMES and isinstance(name, str):
      number = found.token_to_id(name)
      yield from () if number is None else (number,)
    key = f"{kind}_token_id"
    given = content.get(key) if file in NUMBERS else None
    for each in given if isinstance(given, list) else [given]:
      if each is None:
        continue
      if type(each) is not int:
        raise UserError(f"{folder.name}: its {file} has {key}={each!r:.60}, which is no token")
      if kind != "pad" and not 0 <= each < rows:
        raise UserError(
          f"{folder.name}: its {file} has {key}={each}, and its weights have rows for {rows:,} "
          "tokens, from 0; put the number there that its tokenizer has"
        )
      yield each


def _before(folder: Folder, found: Any) -> list[int]:
  """Return the special tokens that a tokenizer puts before a text."""
  text = library.call(f"{folder.name}: its {TOKENIZER}", found.encode, "a")
  count = next((i for i, special in enumerate(text.special_tokens_mask) if not special), 0)
  return text.ids[:count]


def _named(found: Any, names: Sequence[str]) -> Iterator[int]:
  for name in names:
    if (number := found.token_to_id(name)) is not None:
      yield number
