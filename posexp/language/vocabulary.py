"""Vocabularies of language models: bytes, characters, words, or byte-level BPE, kept as JSON.

END stands before each document and is token 0 of all of them; no text holds it.
"""

from __future__ import annotations

import functools
import itertools
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, ClassVar

import numpy as np

from posexp.data import library, splits, tokenizer
from posexp.data.files import utf8
from posexp.data.library import byte_letters
from posexp.data.tokenizer import MOST
from posexp.errors import UserError
from posexp.language.parts import PIECE, TOGETHER, around, overlapping, pieces

END = 0
NEWLINE, UNKNOWN = 1, 2  # tokens of words
LEAST = {"word": 4, "bpe": 257}  # the smallest vocabulary that an option may ask for
MERGES = 4_096  # tokens of a BPE unless an option asks for another number
CODE_POINTS = 0x110000


class Vocabulary:
  """A set of tokens, and the bytes that each of them stands for."""

  units: ClassVar[str] = "tokens"  # what is unknown, if anything is
  stops: Iterable[int] = (END,)  # tokens after which a text goes on no further
  end: int = END  # what END was called where the vocabulary comes from
  exact: bool = True  # whether `decode(encode(text))` is the text, whatever it is
  unknown_token: int | None = None  # None: `unknown` alone can tell
  reading: ClassVar[tuple[str, ...]] = ()  # how texts are tokenized, where it was once otherwise

  def __init__(self, table: list[bytes]):
    """Take the bytes of each token; END has none."""
    self._table = table
    self.size: int = len(table)

  @functools.cached_property
  def bytes_of(self) -> np.ndarray:
    """The number of bytes that each token stands for, int [V]."""
    return np.array([*map(len, self._table)])

  @functools.cached_property
  def chars_of(self) -> np.ndarray:
    """The number of characters of UTF-8 that begin in each token, int [V]."""
    return np.array([sum(byte & 0xC0 != 0x80 for byte in part) for part in self._table])

  @staticmethod
  def opened(text: str) -> Vocabulary:
    """Return the vocabulary of the JSON that `trained` gave.

    Raises:
      ValueError, KeyError or another error of the library: it is no such JSON.
    """
    content = json.loads(text)
    opened = {"byte": Bytes, "char": Characters, "word": Words, "bpe": Merges, "given": Given}
    return opened[content.pop("kind")](**content)

  def tokens(self, pieces: Sequence[bytes]) -> list[np.ndarray]:
    """Return the tokens of pieces of text in UTF-8, an int array [its tokens] each.

    Raises:
      UserError: a piece has a character that the vocabulary lacks.
    """
    raise NotImplementedError

  def unknown(self, pieces: Iterable[bytes]) -> list[bytes]:
    """Return unknown words or characters of pieces of text, but no word that is written <unk>."""
    return []

  def encode(self, text: str) -> list[int]:
    """Return the tokens of a text.

    Raises:
      UserError: it has a character that the vocabulary lacks, or half a surrogate pair.
    """
    return np.concatenate(self.tokens([*self.pieces(utf8(text, "the text")), b""])).tolist()

  def pieces(self, document: bytes | memoryview) -> Iterator[bytes]:
    """Yield a document in pieces that can be tokenized on their own."""
    yield from pieces(document)

  def decode(self, ids: Iterable[int]) -> bytes:
    """Return the bytes of tokens, which need not be whole characters; END has none."""
    return b"".join(map(self._table.__getitem__, ids))

  def as_library(self) -> str | None:
    """Return the JSON of a `tokenizers.Tokenizer` that encodes and decodes likewise, or None."""
    return None


class Bytes(Vocabulary):
  """The bytes themselves: byte b is token b + 1."""

  def __init__(self):
    super().__init__([b"", *(bytes([value]) for value in range(256))])

  def tokens(self, pieces):
    return [np.frombuffer(piece, np.uint8).astype(np.uint16) + 1 for piece in pieces]

  def as_library(self):
    from tokenizers import pre_tokenizers

    made = _of_letters(byte_letters(), "ByteLevel")
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return made.to_str()


class Characters(Vocabulary):
  """The characters of the training text, in the order of their code points from token 1 on.

  Where other splits have more of them, a last token stands for any `unknown` one, and is decoded
  as U+FFFD.
  """

  units = "characters"

  def __init__(self, characters: str, unknown: bool = False):
    super().__init__([b"", *(each.encode() for each in characters + "\ufffd" * unknown)])
    self.exact = not unknown
    self._characters, self._lost = characters, 1 + len(characters) if unknown else 0
    self._ids = np.full(CODE_POINTS, self._lost, np.int32)
    self._ids[_code_points(characters)] = 1 + np.arange(len(characters))

  def tokens(self, pieces):
    points = [_code_points(piece.decode()) for piece in pieces]
    numbers = [self._ids[each] for each in points]
    for each, ids in zip(points, numbers, strict=True):
      if not ids.all():
        point = int(each[np.argmin(ids)])
        raise UserError(
          f"the character {chr(point)!r} (U+{point:04X}) is none of the {self.size - 1:,} of the "
          "training text; task.tokenizer=byte or bpe reads any text"
        )
    return numbers

  def unknown(self, pieces):
    points = _code_points(b"".join(pieces).decode())
    return [chr(each).encode() for each in points[self._ids[points] == self._lost].tolist()]

  def as_library(self):
    return _of_letters(self._characters, "Fuse").to_str() if self.exact else None


class Words(Vocabulary):
  """Words between blanks, and the ends of lines, as WikiText and PTB are tokenized.

  Words that the training text lacks, or has too rarely, are <unk>. A word is decoded with a blank
  before it and the end of a line with one, too, which gives back the lines of these two exactly.
  """

  units = "words"
  exact = False

  def __init__(self, words: list[str]):
    names = ["<unk>", *words]
    super().__init__([b"", b" \n", *(f" {name}".encode() for name in names)])
    self._ids = {name.encode(): id for id, name in enumerate(names, start=UNKNOWN)}

  def tokens(self, pieces):
    numbers = []
    for piece in pieces:
      ids: list[int] = []
      for number, line in enumerate(piece.split(b"\n")):
        if number:
          ids.append(NEWLINE)
        ids.extend(map(self._ids.get, line.split(), itertools.repeat(UNKNOWN)))
      numbers.append(np.array(ids, np.int32))
    return numbers

  def unknown(self, pieces):
    return [word for piece in pieces for word in piece.split() if word not in self._ids]


class Merges(Vocabulary):
  """A byte-level BPE, which keeps each byte."""

  def __init__(self, bpe: str):
    self._bpe, self._tokenizer = bpe, tokenizer.Tokenizer(bpe)
    bytes_of = {letter: bytes([value]) for value, letter in enumerate(byte_letters())}
    names = self._tokenizer.words[1:]
    super().__init__([b"", *(b"".join(map(bytes_of.__getitem__, name)) for name in names)])

  def tokens(self, pieces):
    return self._tokenizer.ids([piece.decode() for piece in pieces])

  def as_library(self):
    from tokenizers import Tokenizer, decoders

    made = Tokenizer.from_str(self._bpe)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens([tokenizer.END])
    return made.to_str()


class Given(Vocabulary):
  """The tokens of a tokenizer that was trained elsewhere, such as a released model's.

  Its token `end` stands before documents and swaps numbers with token 0, since END is 0 here. A
  text ends at any of `stops`. `length` is how many tokens its model reads; nothing here depends on
  it.
  """

  units = "parts of the text"
  exact = False
  reading = ("whole", "unknown")

  def __init__(
    self, tokenizer: str, size: int, end: int, stops: Sequence[int] = (), length: int = 0
  ):
    if not 0 < size <= MOST or not 0 <= end < size:
      raise UserError(
        f"a tokenizer has 1 to {MOST:,} tokens, and begins texts with one of them; this one has "
        f"{size}, and begins with number {end}"
      )
    text = self._library = library.opened(tokenizer)
    text.encode_special_tokens = True  # a "<s>" in a text is three characters
    table = [*map(library.spelling(text, tokenizer), range(size))]
    table[end], table[END] = table[END], b""
    super().__init__(table)
    self.end = end
    self.stops = {self._swapped(np.array(stop)).item() for stop in stops} | {END}
    model = json.loads(tokenizer)["model"]
    own = text.token_to_id(model.get("unk_token") or "")
    self._own_unknown = model.get("unk_id") if own is None else own
    if self._own_unknown is not None:
      self.unknown_token = self._swapped(np.array(self._own_unknown)).item()

  def _swapped(self, ids: np.ndarray) -> np.ndarray:
    return np.where(ids == self.end, END, np.where(ids == END, self.end, ids))

  def pieces(self, document):
    if document:  # whole, as a tokenizer may put something before each text
      yield bytes(document)

  def tokens(self, pieces):
    encoded = self._encoded([piece.decode() for piece in pieces if len(piece) <= PIECE])
    short = iter([ids for ids, _ in encoded])
    return [
      self._swapped(next(short) if len(piece) <= PIECE else self._long(piece)) for piece in pieces
    ]

  def unknown(self, documents):
    if self._own_unknown is None:
      return []
    texts = [piece.decode() for document in documents for piece in pieces(document, PIECE)]
    return [
      text[start:end].encode()
      for text, found in zip(texts, self._encodings(texts), strict=True)
      for id, (start, end) in zip(found.ids, found.offsets, strict=True)
      if id == self._own_unknown
    ]

  def _long(self, document: bytes) -> np.ndarray:
    """Return the tokens of a whole text, tokenized in parts that overlap.

    Where two parts disagree on the text that both have, as within a run of equal letters, larger
    parts are taken until they agree.
    """
    size = PIECE
    while (tokens := self._joined(document, size)) is None:
      size *= 8
    return tokens

  def _joined(self, document: bytes, size: int) -> np.ndarray | None:
    """Return the tokens of a text from parts of `size` bytes, or None where two do not agree."""
    kept, left, parts = [], None, overlapping(document, size)
    while group := [*itertools.islice(parts, TOGETHER)]:
      encoded = self._encoded([part.text for part in group])
      for part, (ids, starts) in zip(group, encoded, strict=True):
        first, end = part.first, part.end
        right = around(ids, starts, first, len(part.text))
        if kept and not (left and right and all(map(np.array_equal, left, right))):
          return None
        kept.append(ids[(starts >= first) & (starts < end)])
        left = around(ids, starts, end, len(part.text))
    return np.concatenate(kept)

  def _encoded(self, texts: list[str]) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return the tokens of each text, and the characters at which they start."""
    encoded = self._encodings(texts)
    library.check_numbers((encoding.ids for encoding in encoded), self.size)
    return [
      (np.array(each.ids, np.int32), np.array([start for start, _ in each.offsets], np.int32))
      for each in encoded
    ]

  def _encodings(self, texts: list[str]) -> list[Any]:
    encode, size = self._library.encode_batch, sum(map(len, texts))
    return library.call("the tokenizer", encode, texts, add_special_tokens=False, size=size)


def _of_letters(letters: Iterable[str], decoder: str) -> Any:
  """Return a `tokenizers.Tokenizer` with END and a token for each letter."""
  from tokenizers import Tokenizer, decoders, models

  numbered = {name: number for number, name in enumerate([tokenizer.END, *letters])}
  made = Tokenizer(models.BPE(numbered, []))
  made.decoder = getattr(decoders, decoder)()
  made.add_special_tokens([tokenizer.END])
  return made


def trained(
  kind: str,
  documents: Iterable[bytes | memoryview],
  vocab_size: int | None,
  others: Iterable[bytes | memoryview] = (),
) -> str:
  """Return the JSON of a vocabulary, trained on the documents of the training text.

  Args:
    kind: byte, char, word or bpe. A BPE is trained on the first `tokenizer.TRAINED_ON` bytes alone;
      characters and words are counted over all of the text.
    documents: read once, and not at all for bytes.
    vocab_size: for `bpe` the number of tokens, END included (None: `MERGES`); for `word` the most
      tokens that are kept, those of the most frequent words (None: all words).
    others: documents of other splits. Where they have more characters, these become one token.
  """
  content: dict[str, object] = {"kind": kind}
  parts = itertools.chain.from_iterable(map(pieces, documents))
  if kind == "char":
    characters: set[str] = set()
    for part in parts:
      characters.update(part.decode())
    content["characters"] = "".join(sorted(characters))
    if any(not characters.issuperset(part.decode()) for other in others for part in pieces(other)):
      content["unknown"] = True
  elif kind == "word":
    counts: Counter[bytes] = Counter()
    for part in parts:
      counts.update(part.split())
    del counts[b"<unk>"]  # WikiText and PTB write it themselves
    most = None if vocab_size is None else vocab_size - 1 - UNKNOWN
    names = sorted(counts, key=lambda word: (-counts[word], word))[:most]
    content["words"] = [name.decode() for name in names]
  elif kind == "bpe":
    start = (part.decode() for part in splits.within(parts, tokenizer.TRAINED_ON))
    # Without a blank before a text, tokens have its bytes and no others.
    content["bpe"] = tokenizer.train(
      start, "bpe", vocab_size or MERGES, [tokenizer.END], prefix=False
    )
  return json.dumps(content, ensure_ascii=False)


def _code_points(text: str) -> np.ndarray:
  return np.frombuffer(text.encode("utf-32-le"), np.uint32)
