"""How text is written: marks that belong to letters, and words that no blanks part."""

import functools
import itertools
import re
import unicodedata
from collections.abc import Iterable, Sequence

JOINERS = "\u200c\u200d"  # zero-width: within words of Persian and Hindi
# What is written without blanks, and the characters of its words on average or a little above.
UNPARTED = (
  (re.compile("[\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]"), 2),  # Han, kana
  (re.compile("[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff]"), 5),  # Thai, Lao, Burmese, Khmer
)
# What else a tokenizer takes for a word, and lengths that no language reaches on average.
RUNS = ((re.compile(r"\w+"), 12), (re.compile(r"[^\w\s]+"), 4))
CLOSE = 1.3  # times as many words as are found: they are not parted
SAMPLE = 100_000  # characters that decide
UNKNOWN = 0.3  # of all words, from which on a note says so


@functools.cache
def marks() -> str:
  """Returns all characters that belong to the letter before them, to stand in a regex class."""
  points = map(chr, itertools.chain(range(0x300, 0x20000), range(0xE0100, 0xE01F0)))
  return "".join(each for each in points if unicodedata.category(each)[0] == "M") + JOINERS


@functools.cache
def word_pattern() -> str:
  """Returns a regex of words, with their marks, and of other characters in a row."""
  return rf"\w[\w{marks()}]*|[^\w\s]+"


@functools.cache
def bpe_words() -> re.Pattern[str]:
  """Returns a regex of what a byte-level BPE takes for words."""
  return re.compile(rf"[^\W\d_](?:[^\W\d_]|[{marks()}])*|\d+|\s+|(?:[^\w\s]|_)+")


def has_marks(texts: Sequence[str]) -> bool:
  """Returns whether marks are usual in texts: one in a thousand characters, after a letter."""
  some = texts[:: 1 + len(texts) // 1000]
  if not (others := [text for text in some if not text.isascii()]):
    return False
  marked = re.compile(rf"[^\W\d_][{marks()}]")
  return 1000 * sum(len(marked.findall(text)) for text in others) > sum(map(len, some))


def parts_words(texts: Iterable[str]) -> bool:
  """Returns whether blanks, or changes between letters and other characters, part the words.

  The texts are read up to `SAMPLE` characters. Words that stand together are noticed by their
  length: a Chinese word has two characters, and DNA none that are words.
  """
  found, expected, seen = 0, 0.0, 0
  counts = [[0, 0] for _ in RUNS]  # how many runs, and their characters
  for text in texts:
    rest = text = text[:SAMPLE]
    for letters, size in () if text.isascii() else UNPARTED:
      rest, count = letters.subn(" ", rest)
      if count:
        found += sum(letters.search(chunk) is not None for chunk in text.split())
        expected += count / size
    for (run, _), count in zip(RUNS, counts, strict=True):
      parts = run.findall(rest)
      count[0] += len(parts)
      count[1] += sum(map(len, parts))
    seen += len(text)
    if seen >= SAMPLE:
      break
  for (_, longest), (number, size) in zip(RUNS, counts, strict=True):
    found += number
    expected += max(number, size / longest)
  return expected <= CLOSE * found


def misfit(unknown: int, words: int, texts: int, parted: bool) -> list[str]:
  """Returns a note where a vocabulary of words does not suit what is validated on, or none.

  Args:
    unknown: how many of its words the vocabulary lacks.
    words: how many there are.
    texts: in how many texts.
    parted: whether blanks part them.
  """
  if parted and unknown < UNKNOWN * words:
    return []
  share = f"{unknown / words:.0%} of the words to validate on are not in the vocabulary"
  if parted:
    return [f"{share}; task.tokenizer=char or bpe reads any word"]
  each = f"a text has {words / texts:.1f} on average, and " if texts > 1 else ""
  return [f"no blanks part the words: {each}{share}; task.tokenizer=char or bpe reads such text"]
