"""How good translations are, as sacrebleu measures it: BLEU, chrF, and exact match."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

WORDS = 5  # a step of source lengths
ORDER = 4  # BLEU counts runs of up to four tokens, so that a reference must have as many
# How Unicode's names begin for letters that make words without blanks, and for Korean ones.
UNSPACED = (
  "CJK",
  "HIRAGANA",
  "KATAKANA",
  "HALFWIDTH KATAKANA",
  "BOPOMOFO",
  "HANGUL",
  "YI ",
  "THAI",
)
UNSPACED += ("LAO", "KHMER", "MYANMAR", "TIBETAN", "TAI ", "NEW TAI", "JAVANESE", "BALINESE", "VAI")
JAPANESE = re.compile(r"(ja|jpn?|japanese)(?![a-z])", re.IGNORECASE)


def tokenizer(references: Iterable[str], language: str = "") -> str:
  """Returns the name of sacrebleu's tokenizer for the script of the references.

  It is `zh` for Chinese characters, `char` for other scripts without blanks between words and for
  Korean, and `13a` where most words are written otherwise. (sacrebleu's own choices for Japanese
  and Korean need C libraries.) `language` matters only for Japanese without kana, which is `char`.
  """
  text = " ".join(references)
  letters = Counter(text)
  unspaced = {
    each: count
    for each, count in letters.items()
    if each.isalpha() and unicodedata.name(each, "").startswith(UNSPACED)
  }
  total = sum(unspaced.values())
  rest = text.translate(dict.fromkeys(map(ord, unspaced), " "))
  if total <= sum(1 for _ in re.finditer(r"[^\W\d_]+", rest)):
    return "13a"
  # The tokenizer `zh` knows the characters of the first plane of Unicode alone.
  others = sum(
    count
    for each, count in unspaced.items()
    if each > "\uffff" or not unicodedata.name(each).startswith("CJK")
  )
  return "char" if 10 * others > total or JAPANESE.match(language) else "zh"


def bleu(tokenize: str) -> Any:
  """Returns sacrebleu's BLEU for detokenized text."""
  import sacrebleu

  return sacrebleu.BLEU(tokenize=tokenize)


def applies(references: Iterable[str], tokenize: str) -> bool:
  """Returns whether BLEU says anything: it is 0 even for copies of references that are shorter."""
  split = bleu(tokenize).tokenizer
  return any(len(split(each).split()) >= ORDER for each in references)


def corpus(hypotheses: Sequence[str], references: Sequence[str], tokenize: str) -> dict[str, float]:
  """Returns `bleu` where it applies, `chrf`, both from 0 to 100, and `exact_match`, a share."""
  import sacrebleu

  found = {}
  if applies(references, tokenize):
    found["bleu"] = bleu(tokenize).corpus_score(hypotheses, [references]).score
  equal = sum(map(str.__eq__, map(str.strip, hypotheses), map(str.strip, references)))
  return found | {
    "chrf": sacrebleu.CHRF().corpus_score(hypotheses, [references]).score,
    "exact_match": equal / len(references),
  }


def signature(tokenize: str, references: Sequence[str]) -> str:
  """Returns what to quote beside a BLEU score: the version of sacrebleu and all its choices."""
  metric = bleu(tokenize)
  metric.corpus_score(references, [references])
  return str(metric.get_signature())


def by_length(sources: Sequence[str]) -> dict[str, list[int]]:
  """Indices of sources by their number of words: "1-5", "6-10" and so on, where there are any."""
  found: dict[int, list[int]] = {}
  for index, source in enumerate(sources):
    found.setdefault((max(len(source.split()), 1) - 1) // WORDS, []).append(index)
  return {f"{WORDS * i + 1}-{WORDS * (i + 1)}": found[i] for i in sorted(found)}


def by_group(groups: Sequence[str]) -> dict[str, list[int]]:
  """Indices by the name of their group, in the order in which groups first come."""
  found: dict[str, list[int]] = {}
  for index, group in enumerate(groups):
    if group:
      found.setdefault(group, []).append(index)
  return found


def of_groups(
  groups: dict[str, list[int]], hypotheses: Sequence[str], references: Sequence[str], tokenize: str
) -> dict[str, float]:
  """What `corpus` gives for each group, as "bleu/<group>", and its size as "examples/<group>"."""
  found: dict[str, float] = {}
  for group, rows in groups.items():
    one = corpus([hypotheses[row] for row in rows], [references[row] for row in rows], tokenize)
    found |= {f"{name}/{group}": value for name, value in one.items()}
    found[f"examples/{group}"] = len(rows)
  return found
