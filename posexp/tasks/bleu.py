"""How good translations are, as sacrebleu measures it: BLEU, chrF, and exact match."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

WORDS = 5  # a step of source lengths
# Languages without blanks. sacrebleu's own choices for Japanese and Korean need libraries of C.
TOKENIZE = {"zh": "zh", "ja": "char", "ko": "char"}


def bleu(language: str) -> Any:
  """sacrebleu's BLEU for detokenized text in a language."""
  import sacrebleu

  return sacrebleu.BLEU(tokenize=TOKENIZE.get(language, "13a"))


def corpus(hypotheses: Sequence[str], references: Sequence[str], language: str) -> dict[str, float]:
  """`bleu` and `chrf`, both from 0 to 100, and `exact_match`, a share, of a corpus."""
  import sacrebleu

  equal = sum(map(str.__eq__, map(str.strip, hypotheses), map(str.strip, references)))
  return {
    "bleu": bleu(language).corpus_score(hypotheses, [references]).score,
    "chrf": sacrebleu.CHRF().corpus_score(hypotheses, [references]).score,
    "exact_match": equal / len(references),
  }


def signature(language: str, references: Sequence[str]) -> str:
  """What to quote beside a BLEU score: the version of sacrebleu and all its choices."""
  metric = bleu(language)
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
  groups: dict[str, list[int]], hypotheses: Sequence[str], references: Sequence[str], language: str
) -> dict[str, float]:
  """What `corpus` gives for each group, as "bleu/<group>", and its size as "examples/<group>"."""
  found: dict[str, float] = {}
  for group, rows in groups.items():
    one = corpus([hypotheses[row] for row in rows], [references[row] for row in rows], language)
    found |= {f"{name}/{group}": value for name, value in one.items()}
    found[f"examples/{group}"] = len(rows)
  return found
