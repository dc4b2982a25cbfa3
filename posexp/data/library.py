"""The library `tokenizers`. All calls that involve somebody else's file go through `call`.

A file may have a pattern that searches for ever, or on which the library panics: that is an
exception that no `except Exception` sees, and lines of Rust on standard error. It may also ask for
texts to be padded to a length that no memory can hold.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from posexp import reading
from posexp.errors import UserError

if TYPE_CHECKING:
  import tokenizers

T = TypeVar("T")
PATIENCE, RATE = 10.0, 20_000  # seconds that any call may take, and characters a second beyond
LONGEST = 1_000  # characters that a step may write for each one that it finds


def call(what: str, function: Callable[..., T], *args: Any, size: int = 0, **options: Any) -> T:
  """Call the tokenizers library on `size` characters; `what` is the tokenizer, in messages.

  Raises:
    UserError: it fails, panics, or takes far longer than any tokenizer that works.
  """
  result: list[T] = []
  failed: list[BaseException] = []

  def called() -> None:
    try:
      result.append(function(*args, **options))
    except BaseException as error:  # a panic is none of the exceptions
      failed.append(error)

  limit = PATIENCE + size / RATE
  thread = threading.Thread(target=called, daemon=True)  # the library cannot be interrupted
  with _unheard() as said:
    thread.start()
    thread.join(limit)
  if result:
    for text in said:
      os.write(2, text)
    return result[0]
  why = f"takes more than {limit:.0f} s for {size:,} characters, as its patterns search on and on"
  if failed:
    why = f"fails here ({str(failed[0]) or type(failed[0]).__name__:.100})"
  raise UserError(f"{what} {why}; take the tokenizer.json from where the model was released")


@contextlib.contextmanager
def _unheard() -> Iterator[list[bytes]]:
  """Hide the library's standard error; the yielded list has at the end what was written there."""
  said: list[bytes] = []
  try:
    sys.stderr.flush()
    before = os.dup(2)
  except (OSError, ValueError, AttributeError):  # there is no standard error
    yield said
    return
  with tempfile.TemporaryFile() as file:
    os.dup2(file.fileno(), 2)
    try:
      yield said
    finally:
      os.dup2(before, 2)
      os.close(before)
    file.seek(0)
    said.append(file.read())


def opened(text: str, what: str = "the tokenizer") -> tokenizers.Tokenizer:
  """Return a tokenizer from its JSON; it neither cuts texts nor pads them, whatever it asks for.

  Raises:
    UserError: it is no tokenizer, or one that fills the memory.
  """
  from tokenizers import Tokenizer

  library = call(what, Tokenizer.from_str, text, size=len(text))
  library.no_truncation()
  library.no_padding()
  content = reading.parse(text.encode())
  for part in ("normalizer", "decoder"):
    for step in _steps(content.get(part)):
      if any(len(str(step.get(key) or "")) > LONGEST for key in ("content", "prepend")):
        raise UserError(
          f"{what} writes more than {LONGEST:,} characters in place of one ({step.get('type')}), "
          "which fills the memory; take it from where the model was released"
        )
  return library


def check_numbers(texts: Iterable[Sequence[int]], size: int) -> None:
  """Raise UserError if a text has a token that a model of `size` tokens does not know."""
  most = max((max(ids, default=0) for ids in texts), default=0)
  if most >= size:
    raise UserError(
      f"the tokenizer gives the token {most:,}, and the model has {size:,} tokens, from 0: "
      "take the tokenizer that the model was trained with"
    )


def _steps(part: Any) -> Iterator[dict[str, Any]]:
  """Yield the steps of a normalizer or a decoder, which may be sequences of others."""
  if isinstance(part, dict):
    yield part
    for inner in (*(part.get("normalizers") or ()), *(part.get("decoders") or ())):
      yield from _steps(inner)


def spelling(library: tokenizers.Tokenizer, text: str) -> Callable[[int], bytes]:
  """Return the function that gives the bytes of a token, by the decoder in a tokenizer's JSON.

  Special tokens, and numbers that are no tokens, have no bytes. Tokens that were added to those of
  the model are found in texts as they are written, so they stand for their own UTF-8.
  """
  content = reading.parse(text.encode())
  added = {each: token.content for each, token in library.get_added_tokens_decoder().items()}
  model = {*library.get_vocab(with_added_tokens=False).values()}
  special = {each for each, token in library.get_added_tokens_decoder().items() if token.special}
  steps = [*_steps(content.get("decoder"))]
  kinds = {step.get("type") for step in steps}
  fallback = "ByteFallback" in kinds or bool((content.get("model") or {}).get("byte_fallback"))
  if not steps and (content.get("model") or {}).get("type") == "WordLevel":
    kinds, steps = {"WordPiece"}, [{"type": "WordPiece"}]
  apart = "WordPiece" in kinds  # words, before each of which stands a blank
  spelled = _spelled(steps)

  def bytes_of(number: int) -> bytes:
    name = library.id_to_token(number)
    if name is None:
      return b""
    if fallback and re.fullmatch("<0x[0-9A-Fa-f]{2}>", name):
      return bytes([int(name[3:5], 16)])
    if number in special:
      return b""
    if number in added and number not in model:
      return (" " * apart + added[number]).encode()
    return spelled(name)

  return bytes_of


def _spelled(steps: list[dict[str, Any]]) -> Callable[[str], bytes]:
  """Return the function from the name of a model's token to its bytes, by the decoder's steps."""
  by_kind = {step.get("type"): step for step in steps}
  if "ByteLevel" in by_kind:
    letters = byte_letters()
    bytes_of_letter = {letter: bytes([value]) for value, letter in enumerate(letters)}
    return lambda name: b"".join(bytes_of_letter.get(letter, letter.encode()) for letter in name)
  if step := by_kind.get("WordPiece"):
    prefix = step.get("prefix") or "##"
    return lambda name: (
      name.removeprefix(prefix) if name.startswith(prefix) else f" {name}"
    ).encode()
  joined = by_kind.keys() == {"Fuse"}  # as characters that posexp exports: none is a blank's
  blanks = [] if joined else [("\u2581", " ")]
  for step in steps:
    if step.get("type") == "Metaspace" and step.get("replacement"):
      blanks.append((step["replacement"], " "))
    elif step.get("type") == "Replace" and isinstance(step.get("pattern"), dict):
      blanks.append((step["pattern"].get("String") or "", step.get("content") or ""))
  suffix = (by_kind.get("BPEDecoder") or {}).get("suffix") or ""

  def spelled(name: str) -> bytes:
    if suffix and name.endswith(suffix):
      name = name.removesuffix(suffix) + " "
    for old, written in blanks:
      name = name.replace(old, written) if old else name
    return name.encode()

  return spelled


def byte_letters() -> list[str]:
  """Return the letter by which a byte-level BPE writes each byte (Radford et al. 2019).

  It is the byte's own in Latin-1 where that can be seen; the others follow from U+0100 on.
  """
  seen = {*range(33, 127), *range(161, 173), *range(174, 256)}
  others = iter(range(256, 512))
  return [chr(value if value in seen else next(others)) for value in range(256)]
