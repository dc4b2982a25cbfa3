"""Scores of translations by sacrebleu: BLEU, chrF, and exact match."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

STEP = 5  # of source lengths
ORDER = 4  # BLEU counts runs of up to four tokens, so that a reference must have as many
# Chinese characters that sacrebleu's `zh` parts, and letters of other scripts that make words
# without blanks, or with few, as Korean ones do.
HAN = re.compile("[\u2e80-\u2fdf\u3400-\u9fff\uf900-\ufaff]")
UNSPACED = re.compile(
  "[\u0e00-\u109f\u1100-\u11ff\u1780-\u17ff\u1950-\u19df\u1a20-\u1aaf\u1b00-\u1b7f\u3040-\u31ff"
  "\ua000-\ua63f\ua980-\ua9ff\uaa60-\uaadf\uac00-\ud7ff\uff66-\uffdc\U00020000-\U0003ffff]"
)
JAPANESE = re.compile(r"(ja|jpn?|japanese)(?![a-z])", re.IGNORECASE)


def tokenizer(references: Iterable[str], language: str = "") -> str:
  """Return the name of sacrebleu's tokenizer for the script of the references.

  It is `zh` for Chinese characters, and `char` for Korean and for other scripts without blanks
  between words. It is `13a`, which needs blanks, if at most a tenth of the references are in any of
  these. (sacrebleu's own choices for Japanese and Korean need C libraries.) `language` matters only
  for Japanese without kana, which is `char`.
  """
  counts = Counter(_tokenizer(reference, language) for reference in references)
  blanks = counts.pop("13a", 0)
  return max(counts, key=counts.get) if 9 * counts.total() > blanks else "13a"


def _tokenizer(reference: str, language: str) -> str:
  rest, han = HAN.subn(" ", reference)
  rest, others = UNSPACED.subn(" ", rest)
  if han + others <= sum(1 for _ in re.finditer(r"[^\W\d_]+", rest)):
    return "13a"
  return "char" if 10 * others > han + others or JAPANESE.match(language) else "zh"


def bleu(tokenize: str) -> Any:
  """Return sacrebleu's BLEU for detokenized text."""
  import sacrebleu

  return sacrebleu.BLEU(tokenize=tokenize)


def applies(references: Iterable[str], tokenize: str) -> bool:
  """Return whether BLEU is meaningful; if references are short, it is 0 even for exact copies."""
  split = bleu(tokenize).tokenizer
  return any(len(split(reference).split()) >= ORDER for reference in references)


def corpus(hypotheses: Sequence[str], references: Sequence[str], tokenize: str) -> dict[str, float]:
  """Return `bleu` where it applies, `chrf`, both from 0 to 100, and `exact_match`, a share.

  `tokenize` is one of sacrebleu's tokenizers, or else a language, as `tokenizer` takes it.
  """
  import sacrebleu

  if tokenize not in sacrebleu.BLEU.TOKENIZERS:
    tokenize = tokenizer(references, tokenize)
  scores = {}
  if applies(references, tokenize):
    scores["bleu"] = bleu(tokenize).corpus_score(hypotheses, [references]).score
  equal = sum(map(str.__eq__, map(str.strip, hypotheses), map(str.strip, references)))
  return scores | {
    "chrf": sacrebleu.CHRF().corpus_score(hypotheses, [references]).score,
    "exact_match": equal / len(references),
  }


def signature(tokenize: str, references: Sequence[str]) -> str:
  """Return the signature of a BLEU score: the version of sacrebleu and all its choices."""
  metric = bleu(tokenize)
  metric.corpus_score(references, [references])
  return str(metric.get_signature())


def parts(texts: Sequence[Any], words: bool = True) -> dict[str, list[int]]:
  """Return the indices of pairs by group, in order of appearance; without groups, by the length
  of the source in words, or else in characters but for blanks: "1-5", "6-10" and so on.
  """
  groups: dict[Any, list[int]] = {}
  for index, text in enumerate(texts):
    parted = text.source.split()
    step = (max(len(parted if words else "".join(parted)), 1) - 1) // STEP
    groups.setdefault(text.group or step, []).append(index)
  if all(text.group for text in texts):
    return groups
  return {f"{STEP * i + 1}-{STEP * (i + 1)}": groups[i] for i in sorted(groups)}


def of_parts(
  parts: dict[str, list[int]], hypotheses: Sequence[str], references: Sequence[str], tokenize: str
) -> dict[str, float]:
  """Return each part's `corpus` score, as "bleu/<part>", and its size, as "examples/<part>"."""
  scores: dict[str, float] = {}
  for part, rows in parts.items():
    one = corpus([hypotheses[row] for row in rows], [references[row] for row in rows], tokenize)
    scores |= {f"{name}/{part}": value for name, value in one.items()}
    scores[f"examples/{part}"] = len(rows)
  return scores
