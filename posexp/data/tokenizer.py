"""Tokenizers of words, characters or byte-level BPE, trained on the training split."""

import bisect
import hashlib
import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from json import loads
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from posexp import reading, storage
from posexp.data import library, writing
from posexp.errors import UserError
from posexp.status import doing

if TYPE_CHECKING:
  import tokenizers

PAD, UNK, CLS = range(3)
SPECIAL = ["[PAD]", "[UNK]", "[CLS]"]  # in the order of their ids
END = "[END]"  # the only one of language modeling
MOST = 10_000_000  # of any vocabulary, for which room is made before there are any words
# A text up to a blank that follows a letter, a digit or a mark of ASCII, where our tokenizers all
# end a word. The first alternative is quick, and enough but for blanks in a row and the like.
PART = re.compile(r" ?[^ ]*[!-~](?= )|.+?(?:(?<=[!-~])(?= )|\Z)", re.DOTALL)
# The most characters of pairs, or bytes of running text, that a BPE is trained on.
TRAINED_ON = 32 << 20
KNOWN = 2**22  # characters whose tokens are remembered, before all of them are forgotten
TOGETHER = 100  # parts of texts that are tokenized as one, in 0.6 of the time
# The smallest vocabulary of each.
KINDS = {"word": 4, "char": 4, "bpe": len(SPECIAL) + 256}


def train(
  texts: Iterable[str],
  kind: str,
  vocab_size: int,
  special: Sequence[str] = SPECIAL,
  *,
  min_count: int = 2,
  cls: bool = False,
  decodes: bool = False,
  prefix: bool = True,
) -> str:
  """Return the JSON of a tokenizer; the same texts always give the same one.

  `word` lower-cases and separates words from punctuation; `char` and `bpe`, which is byte-level,
  keep case.

  Args:
    texts: what is tokenized.
    kind: word, char or bpe.
    vocab_size: the most tokens.
    special: the first tokens, among which `word` and `char` need [UNK].
    min_count: tokens (of a BPE: merges) that are seen less often are left out.
    cls: whether [CLS] stands before a text.
    decodes: whether tokens can be decoded as text.
    prefix: whether a BPE puts a blank before a text.
  """
  from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
  from tokenizers.processors import TemplateProcessing

  doing("training the tokenizer")
  options: dict[str, Any] = {"vocab_size": vocab_size, "min_frequency": min_count}
  options |= {"special_tokens": [*special], "show_progress": False}
  trainer: Any
  if kind == "bpe":
    texts = [*texts]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = _bytes(prefix, marked=writing.has_marks(texts))
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(initial_alphabet=alphabet, **options)
  else:
    tokenizer = Tokenizer(models.WordLevel(unk_token=SPECIAL[UNK]))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    if kind == "word":
      tokenizer.normalizer = normalizers.Lowercase()
      tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    trainer = trainers.WordLevelTrainer(**options)
  tokenizer.train_from_iterator(texts, trainer)
  if cls:
    first = SPECIAL[CLS]
    tokenizer.post_processor = TemplateProcessing(f"{first} $A", special_tokens=[(first, CLS)])
  if decodes:
    tokenizer.decoder = decoders.ByteLevel() if kind == "bpe" else decoders.Fuse()
  return tokenizer.to_str()


def _bytes(prefix: bool, marked: bool) -> "tokenizers.pre_tokenizers.PreTokenizer":
  """Return the pre-tokenizer of a byte-level BPE; if `marked`, marks stay with their letters."""
  from tokenizers import Regex, pre_tokenizers

  if not marked:  # in less time
    return pre_tokenizers.ByteLevel(add_prefix_space=prefix)
  parts = pre_tokenizers.Split(Regex(writing.WORDS), "isolated")
  letters = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
  blank = pre_tokenizers.Metaspace(" ", prepend_scheme="first", split=False)
  return pre_tokenizers.Sequence([*[blank] * prefix, parts, letters])


def evenly(rows: Iterable[Sequence[str]]) -> list[Sequence[str]]:
  """Return every row, or every second, fourth, …, with at most `TRAINED_ON` characters in all."""
  taken: list[Sequence[str]] = []
  size, step = 0, 1
  for number, row in enumerate(rows):
    if number % step == 0:
      taken.append(row)
      size += sum(map(len, row))
    if size > TRAINED_ON and len(taken) > 1:
      taken, step = taken[::2], 2 * step
      size = sum(len(text) for each in taken for text in each)
  return taken


def fewer(found: int, asked: int | None, default: int | None = None) -> list[str]:
  """Return a note if a BPE has fewer tokens than `vocab_size` was set to, or none."""
  if asked in (None, default) or found >= asked:
    return []
  why = "no more pairs of tokens stand often enough within words of the training text"
  return [f"task.vocab_size={asked}: the BPE has {found:,} tokens, as {why}"]


def kept(
  folder: Path,
  names: Sequence[str],
  trained: Callable[[int], str] | None = None,
  opened: Callable[[str], object] | None = None,
) -> list[str]:
  """Return the JSON of the tokenizers in a run's folder. `trained` makes a missing one, by its
  number, and `opened` (`Tokenizer` unless given) raises an error for an invalid one.

  A digest is kept beside them, by which one that is damaged or another run's is noticed.

  Raises:
    UserError: one is missing and cannot be trained, or they are not those of the run.
  """
  paths, seal = [folder / f"{name}.json" for name in names], folder / "tokenizer.sha256"
  texts = [reading.read(path) for path in paths]
  if missing := [number for number, data in enumerate(texts) if data is None]:
    if trained is None:
      name = paths[missing[0]].name
      raise UserError(f"{folder}: {name} is missing; the run cannot be read without it")
    for number in missing:
      texts[number] = trained(number).encode()
  sealed, digest = reading.read(seal), hashlib.sha256(b"".join(texts)).hexdigest()
  if sealed is not None and re.fullmatch(b"[0-9a-f]{64}", sealed):
    if sealed.decode() != digest:
      raise UserError(
        f"{paths[0]}: this is not the tokenizer that the run was trained with, by its sha256; put "
        "that one back, or rerun=true trains the run afresh"
      )
  else:  # a new run, or one whose digest is lost
    for path, data in zip(paths, texts, strict=True):
      try:
        (opened or Tokenizer)(data.decode())
      except Exception:  # which is all that the library says
        raise UserError(
          f"{path} is damaged; put back the one that the run was trained with, or remove it to "
          "have it trained again"
        ) from None
  for number in missing:
    storage.write(paths[number], texts[number].decode())
  if sealed != digest.encode():
    storage.write(seal, digest)
  return [data.decode() for data in texts]


class Tokenizer:
  """A trained tokenizer, opened from its JSON.

  Texts repeat their words: what stands between two blanks is tokenized once, in half of the time
  that 30 MB of reviews take otherwise. It is cut only where all of our tokenizers cut, before a
  blank that follows a letter, a digit or a mark of ASCII.
  """

  def __init__(self, json: str):
    self.library = library.opened(json)
    self.library.encode_special_tokens = True  # a "[PAD]" in a text is five characters
    self.vocab_size: int = self.library.get_vocab_size()
    first = library.call("the tokenizer", self.library.encode, "").ids  # [CLS] or nothing
    self._first = np.array(first, np.uint32)
    self._known: dict[str, bytes] = {}  # uint32 ids, which are quickly joined as bytes
    self._room = KNOWN

  @property
  def words(self) -> list[str]:
    """The tokens in their order."""
    return [self.library.id_to_token(number) for number in range(self.vocab_size)]

  def encode(
    self, texts: list[str], max_length: int | None = None
  ) -> tuple[list[np.ndarray], int, int]:
    """Return token ids by text, how many texts were empty and how many were cut to `max_length`.

    An empty text becomes one [UNK], so that every text has a token.
    """
    tokens = self.ids(texts)
    empty = sum(len(ids) == len(self._first) for ids in tokens)
    unknown = np.append(self._first, np.uint32(UNK))
    tokens = [ids if len(ids) > len(self._first) else unknown for ids in tokens]
    long = sum(len(ids) > max_length for ids in tokens) if max_length else 0
    return [ids[:max_length] for ids in tokens], empty, long

  def ids(self, texts: Sequence[str]) -> list[np.ndarray]:
    """Return the token ids of each text, uint32, after [CLS] if the tokenizer has it."""
    parted = [PART.findall(text) or [text] for text in texts]
    if self._room < 0:
      self._known, self._room = {}, KNOWN
    every = itertools.chain.from_iterable(parted)
    if new := [*{*itertools.filterfalse(self._known.__contains__, every)}]:
      self._known.update(self._tokenized(new))
      self._room -= sum(map(len, new))
    first = self._first.tobytes()
    return [
      np.frombuffer(b"".join([first, *map(self._known.__getitem__, parts)]), np.uint32)
      for parts in parted
    ]

  def _tokenized(self, parts: list[str]) -> Iterator[tuple[str, bytes]]:
    """Yield each part with its ids; those from within a text are put end to end again."""
    within, others = [], []
    for part in parts:
      (within if part[:1] == " " and "!" <= part[-1] <= "~" else others).append(part)
    groups = [within[start : start + TOGETHER] for start in range(0, len(within), TOGETHER)]
    groups += [[part] for part in others]
    encoded = self._batch([*map("".join, groups)], add_special_tokens=False)
    for group, tokens in zip(groups, encoded, strict=True):
      ids, starts = np.array(tokens.ids, np.uint32), [start for start, _ in tokens.offsets]
      ends = itertools.accumulate(map(len, group))
      cuts = [0, *(bisect.bisect_left(starts, end) for end in ends)]
      for part, cut in zip(group, itertools.pairwise(cuts), strict=True):
        yield part, ids[slice(*cut)].tobytes()

  def decode(self, ids: Iterable[int]) -> str:
    """Return the text of token ids, without special tokens and the blank before the first word."""
    decode = self.library.decode
    text = library.call("the tokenizer", decode, list(ids), skip_special_tokens=True)
    return text.removeprefix(" ")

  def _batch(self, texts: list[str], **options: Any) -> list[Any]:
    size = sum(map(len, texts))
    return library.call("the tokenizer", self.library.encode_batch, texts, size=size, **options)


class Given(Tokenizer):
  """A tokenizer that was trained elsewhere, with the special tokens that it puts around a text."""

  def __init__(self, json: str):
    content = loads(json)
    super().__init__(content["tokenizer"])
    self.vocab_size = content["size"]  # of the model, which may have room for more

  def encode(
    self, texts: list[str], max_length: int | None = None
  ) -> tuple[list[np.ndarray], int, int]:
    """Return the same as `Tokenizer.encode`; texts that are cut keep their special tokens."""
    encoded = self._batch(texts)
    sizes = [len(encoding.ids) for encoding in encoded]
    library.check_numbers((encoding.ids for encoding in encoded), self.vocab_size)
    if max_length:
      self.library.enable_truncation(max_length)
      encoded = self._batch(texts)
      self.library.no_truncation()
    ids = [np.array(encoding.ids or [UNK], np.uint32) for encoding in encoded]
    long = sum(size > max_length for size in sizes) if max_length else 0
    return ids, sum(size == len(self._first) for size in sizes), long
