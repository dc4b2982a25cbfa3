"""Scripts: marks that belong to letters, and words without blanks between them."""

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence

from posexp.data import splits

# The words of a BPE where marks are usual: those of GPT-2, but marks stay with their letters.
WORDS = (
  r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}[\p{L}\p{M}\x{200c}\x{200d}]*| ?\p{N}+| ?[^\s\p{L}\p{N}]+"
  r"|\s+(?!\S)|\s+"
)
# Characters in a row that a tokenizer takes for one word, with the most characters that words have
# on average: in Chinese and Japanese; Thai, Lao, Burmese and Khmer; other scripts; and marks.
HAN, THAI = (
  "\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff",
  "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff",
)
RUNS = (
  (re.compile(f"[{HAN}]+"), 1.6),
  (re.compile(f"[{THAI}]+"), 5),
  (re.compile(rf"[^\W{HAN}{THAI}]+"), 12),
  (re.compile(rf"[^\w\s{THAI}]+"), 4),
)
CLOSE = 1.3  # times as many words as are found: they are not parted
SAMPLE = 100_000  # characters that decide
UNKNOWN = 0.3  # of all words, from which on a note says so


def words(text: str) -> list[str]:
  """Return the words of a text, with their marks, and its other characters in a row."""
  from tokenizers import pre_tokenizers

  return [word for word, _ in pre_tokenizers.Whitespace().pre_tokenize_str(text)]


def longest_word(text: str) -> int:
  """Return the characters of the longest of a text's words, as a byte-level BPE has them."""
  from tokenizers import Regex, pre_tokenizers

  parts = pre_tokenizers.Split(Regex(WORDS), "isolated").pre_tokenize_str(text)
  return max((len(word.removeprefix(" ")) for word, _ in parts), default=0)


def has_marks(texts: Sequence[str]) -> bool:
  """Return whether texts put marks on letters regularly: one in a thousand characters or more."""
  some = texts[:: 1 + len(texts) // 1000]
  counts = Counter("".join(text for text in some if not text.isascii()))
  marks = sum(
    count
    for each, count in counts.items()
    if unicodedata.category(each)[0] == "M" and not "\ufe00" <= each <= "\ufe0f"  # of emoji
  )
  return 1000 * marks > sum(map(len, some))


def parts_words(texts: Iterable[str]) -> bool:
  """Return whether blanks, or changes between letters and other characters, part the words.

  The texts are read up to `SAMPLE` characters. Where words are not parted, as in Chinese, or are
  none, as in DNA, runs of characters are much longer than the average word of their script.
  """
  sample = " ".join(splits.within((text[:SAMPLE] for text in texts), SAMPLE))
  count, expected = 0, 0.0
  for run, longest in RUNS:
    parts = run.findall(sample)
    count += len(parts)
    expected += max(len(parts), sum(map(len, parts)) / longest)
  return expected <= CLOSE * count


def misfit(unknown: int, words: int, texts: int, parted: bool) -> list[str]:
  """Return a note if a vocabulary of words does not suit the validation texts, or none.

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
