"""Translation: a sentence in one language for each sentence in another."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import re
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, NamedTuple

import numpy as np

from posexp import storage
from posexp.config.checks import Bound, Count, Name, at_least, at_most, check
from posexp.data import batches, tokenizer, writing
from posexp.data.batches import Batch
from posexp.data.splits import Split
from posexp.runs import bleu
from posexp.runs.metrics import Metric
from posexp.runs.predictions import TRANSLATIONS, write_predictions
from posexp.tasks.contract import Snapshot, Task
from posexp.tasks.results import (
  Outputs,
  aligned,
  metric_of,
  parts,
  perplexity,
  prefixed,
  result_table,
  rows_of,
  score_of,
  token_scores,
)
from posexp.translation.encoded import LEAST, SPECIAL, encode
from posexp.translation.parallel import ParallelData, TextPair
from posexp.translation.search import Beam, Penalty, Search

if TYPE_CHECKING:
  from posexp.translation.model import TranslatorSpec

Language = Annotated[str, Bound("a name", lambda value: value.strip() != "")]
Vocabulary = Annotated[int, at_least(LEAST), at_most(tokenizer.MOST)]
TWO = Bound("at least 2, a token and the end of the sentence", lambda value: value >= 2)
DECODED = ("bleu", "chrf", "exact_match")  # metrics of hypotheses


class Splits(NamedTuple):
  """The pairs of each split, and notes on how the splits were made."""

  pairs: dict[str, Split]  # train, validation, test, and more that are tested; perhaps with groups
  notes: list[str]
  digest: str  # of all that the pairs depend on


@dataclasses.dataclass(frozen=True)
class Translation(Task):
  """A task of a translator: its tokens, search and measures; subclasses say where pairs come from.

  configs/task explains each option.
  """

  score: ClassVar[str] = "validation/bleu"
  headline: ClassVar[tuple[str, ...]] = ("test/bleu", "test/chrf")
  metrics: ClassVar[tuple[Metric, ...]] = (Metric("accuracy", "token accuracy", percent=True),)
  followed: ClassVar[tuple[str, ...]] = ("loss", "accuracy", "bleu", "exact_match")
  prediction_columns = TRANSLATIONS
  adjustable = ("beam", "length_penalty", "bleu_pairs")
  commands = ("translate",)

  name: Name = "translation"
  source: Language = "en"
  target: Language = "de"
  vocab_size: Vocabulary = 8_000
  tokenizer: Literal["bpe", "char"] = "bpe"
  joint: bool = True
  max_length: Annotated[int, TWO] | None = 128
  beam: Beam = 4
  length_penalty: Penalty = 0.6
  bleu_pairs: Count = 500

  def __post_init__(self):
    """Raise ValueError for an option that is wrong for any data."""
    check(self)
    if self.source == self.target:
      raise ValueError(f"target must be another language than source={self.source}")

  def splits(self) -> Splits:
    """Return the pairs; they are read when they are needed.

    Raises:
      UserError: for data that is missing, broken or of no use.
    """
    raise NotImplementedError

  @property
  def search(self) -> Search:
    """The search that translates test sentences."""
    return Search(self.beam, self.length_penalty)

  def smallest_model(self, encoding, size, positions) -> TranslatorSpec:
    from posexp.translation.model import TranslatorSpec

    return TranslatorSpec(4, 4, encoding, size, positions)

  def kept_model(self, folder, encoding, size, positions) -> TranslatorSpec:
    from posexp.translation.model import TranslatorSpec

    source, target = (tokenizer.Tokenizer(text).vocab_size for text in tokenizers(self, folder))
    return TranslatorSpec(source, target, encoding, size, positions)

  def prepare(self, folder: Path) -> ParallelData:
    """Return the data, tokenized by folder/tokenizer*.json, which are trained if they are missing.

    Raises:
      UserError: for data that is missing, broken or of no use, and for another run's tokenizer.
    """
    given = self.splits()
    return _prepared(self, given.digest, tokenizers(self, folder, given))

  def translate(
    self,
    data: ParallelData,
    snapshot: Snapshot,
    split: str,
    search: Search,
    rows: np.ndarray | None = None,
  ) -> tuple[list[str], Outputs]:
    """Return hypotheses for the pairs `rows` of a split, or for all, and the search's outputs."""
    pairs, sizes = data.examples[split], data.rows_of(snapshot.batch_size)
    found = batches.evaluation(pairs, data.bucket_lengths, sizes, pairs.by_length(rows))
    decoded = decode(snapshot, found, search)
    return [data.tokenizers[1].decode(tokens) for tokens in decoded["tokens"].tolist()], decoded

  def answers(self, data: ParallelData, split: str, found: Outputs) -> Outputs:
    """Return for every pair the loss, the number of tokens, and how many are right, [N] each."""
    return found | {"answer": found["right"]}

  def scores(self, found: Outputs) -> dict[str, float]:
    """Return nats per target token given those before it, perplexity, and accuracy."""
    scores = token_scores(found, np.float64)
    return scores | {"perplexity": perplexity(scores["loss"])}

  def measure(self, data: ParallelData, snapshot: Snapshot, split: str) -> dict[str, float]:
    """Return the metrics of a split, with those of greedy translations of some of its pairs."""
    rows, references = self._followed(data, split)
    greedy = dataclasses.replace(self.search, beam=1)
    hypotheses, _ = self.translate(data, snapshot, split, greedy, rows)
    decoded = bleu.corpus(hypotheses, references, data.tokenize)
    return self.scores(self.predict(data, snapshot, split)) | decoded

  def _followed(self, data: ParallelData, split: str) -> tuple[np.ndarray, list[str]]:
    """Return the pairs that are translated during training, and their references."""
    texts = data.texts_of[split]
    # Evenly over the split, since many a corpus is in some order.
    step = max(len(texts) / self.bleu_pairs, 1)
    rows = np.unique(np.arange(0, len(texts), step).astype(int))
    return rows, [texts[row].target for row in rows]

  def without_bleu(self, data: ParallelData) -> list[str]:
    """Return the splits whose references are too short for BLEU.

    Of validation, only the pairs that are followed during training count.
    """
    references = {split: [text.target for text in texts] for split, texts in data.texts_of.items()}
    references["validation"] = self._followed(data, "validation")[1]
    return [each for each in references if not bleu.applies(references[each], data.tokenize)]

  def chosen_by(self, data):
    return "validation/chrf" if "validation" in self.without_bleu(data) else self.score

  def predicted(self, summary: Mapping[str, Any]) -> list[str]:
    return [split for split in _decoded(summary) if split != "validation"]

  def conclude(self, data: ParallelData, snapshot: Snapshot, folder: Path) -> dict[str, Any]:
    """Return the metrics of the test split and of further ones, whole and in parts."""
    every = itertools.chain.from_iterable(data.texts_of.values())
    words = writing.parts_words(text.source for text in every)
    summary: dict[str, Any] = {} if words else {"parts_of": "characters"}
    sentences, seconds = 0, 0.0
    for split, texts in data.texts_of.items():
      if split == "validation":
        continue
      begun = time.perf_counter()
      hypotheses, outputs = self.translate(data, snapshot, split, self.search)
      seconds += time.perf_counter() - begun
      sentences += len(hypotheses)
      write_hypotheses(folder, split, texts, hypotheses, outputs)
      references = [text.target for text in texts]
      measured = self.scores(self.predict(data, snapshot, split))
      measured |= bleu.corpus(hypotheses, references, data.tokenize)
      measured |= bleu.of_parts(bleu.parts(texts, words), hypotheses, references, data.tokenize)
      summary |= prefixed(split, measured)
    if any(name.endswith("/bleu") for name in summary):
      summary["bleu_signature"] = bleu.signature(data.tokenize, references)
    summary["time/sentences_per_second"] = sentences / seconds
    return summary

  def table(self, summary: Mapping[str, Any]) -> Iterator[str]:
    """Yield the best checkpoint on all splits, then the parts of those that are tested."""
    splits, names = _decoded(summary), (*DECODED, "perplexity", "accuracy", "loss")
    yield from result_table(self.metrics, summary, splits, names)
    how = f"beam search of {self.beam}" if self.beam > 1 else "greedy"
    yield f"validation: greedy, on at most {self.bleu_pairs:,} pairs; others: {how}, on all"
    for split in splits:
      yield from self._parts(summary, split)
    rate = summary["time/sentences_per_second"]
    yield ""
    yield f"{rate:,.1f} sentences/s were translated, compilation included"
    signed = summary.get("bleu_signature")
    yield f"BLEU's signature: {signed}" if signed else "BLEU does not apply to references so short"

  def _parts(self, summary: Mapping[str, Any], split: str) -> Iterator[str]:
    """Yield the metrics of each group of a split, or of each range of lengths."""
    names = parts(summary, f"{split}/examples")
    lengths = all(re.fullmatch(r"\d+-\d+", name) for name in names)
    unit = summary.get("parts_of", "words")
    rows = [[f"{split}, by {unit} of source" if lengths else split, *names]]
    rows += [["sentences", *(f"{summary[f'{split}/examples/{name}']:,}" for name in names)]]
    for name in DECODED if lengths else DECODED[1:]:  # groups may be single words, without BLEU
      metric = metric_of(self.metrics, name)
      values = [summary.get(f"{split}/{name}/{part}") for part in names]
      shown = ["-" if value is None else format(value, metric.format) for value in values]
      rows.append([metric.title, *shown])
    if names:
      yield from ("", *aligned(rows))


def _decoded(summary: Mapping[str, Any]) -> list[str]:
  """Return the splits that were translated."""
  return [key.removesuffix("/chrf") for key in summary if key.endswith("/chrf")]


def decode(snapshot: Snapshot, batches: Iterator[Batch], search: Search) -> Outputs:
  """Return the best hypotheses for rows of batches: `tokens` [N,T], `length` and `score` [N]."""
  from posexp.translation.decoding import searcher

  find = searcher(snapshot.graphdef, search)

  def by_row(*args: Any) -> dict[str, Any]:
    hypotheses = find(*args)
    return {name: hypotheses[name] for name in ("tokens", "score", "length")}

  return snapshot.map(by_row, batches)


def write_hypotheses(
  folder: Path, split: str, texts: list[TextPair], hypotheses: list[str], found: Outputs
) -> None:
  """Write hypotheses, one a line, and predictions: each with its source, reference and score."""
  sources, references, groups = zip(*texts, strict=True)
  columns: dict[str, Any] = {"source": sources, "reference": references}
  columns["hypothesis"] = hypotheses
  columns |= {"score": found["score"], "tokens": found["length"]}
  columns |= {"group": groups} if all(groups) else {}
  lines = "".join(f"{' '.join(hypothesis.split())}\n" for hypothesis in hypotheses)
  storage.write(folder / "predictions" / f"{split}.txt", lines)
  write_predictions(folder, split, rows_of(columns))


def tokenizers(task: Translation, folder: Path, given: Splits | None = None) -> tuple[str, str]:
  """Return the JSON of the source's and of the target's tokenizer, trained if it is missing.

  Raises:
    UserError: there is none and no data is given, or it is not the one that was trained here.
  """
  names = ["tokenizer"] if task.joint else ["tokenizer.source", "tokenizer.target"]

  def trained(side: int) -> str:
    return _trained(task, given, None if task.joint else side)

  texts = tokenizer.kept(folder, names, trained if given else None)
  return texts[0], texts[-1]


def _trained(task: Translation, given: Splits, side: int | None) -> str:
  def train() -> str:
    pairs = given.pairs["train"]()
    sides = slice(2) if side is None else slice(side, side + 1)
    rows = tokenizer.evenly(pair[sides] for pair in pairs)
    texts, special = itertools.chain.from_iterable(rows), SPECIAL[task.tokenizer]
    return tokenizer.train(texts, task.tokenizer, task.vocab_size, special, decodes=True)

  # A minute's work on millions of pairs, which runs that differ elsewhere share.
  parts = given.digest, task.tokenizer, writing.WORDS, task.vocab_size, side, tokenizer.TRAINED_ON
  return storage.cached("tokenizers", train, *parts)


@functools.lru_cache(maxsize=2)
def _prepared(task: Translation, digest: str, texts: tuple[str, str]) -> ParallelData:
  given = task.splits()
  first = tokenizer.Tokenizer(texts[0])
  opened = (first, first if task.joint else tokenizer.Tokenizer(texts[1]))
  examples = {
    split: encode(found, texts, split=split, max_length=task.max_length, data=f"{digest}/{split}")
    for split, found in given.pairs.items()
  }
  notes = list(given.notes)
  if task.tokenizer == "bpe":
    smaller = min(each.vocab_size for each in opened)
    notes += tokenizer.fewer(smaller, task.vocab_size, type(task).vocab_size)
  for split, pairs in examples.items():
    if pairs.long:
      what = "dropped" if split == "train" else "cut for the model"
      notes.append(f"{pairs.long:,} {split} pairs of over {task.max_length} tokens are {what}")
  texts_of = {
    split: [TextPair(*pair) for pair in found()]
    for split, found in given.pairs.items()
    if split != "train"
  }
  data = ParallelData(
    languages=(task.source, task.target),
    tokenizers=opened,
    notes=tuple(notes),
    texts_of=texts_of,
    examples=examples,
  )
  if short := task.without_bleu(data):
    note = f"BLEU does not apply to {', '.join(short)}: no reference has {bleu.ORDER} tokens"
    chosen = score_of(task.metrics, task.chosen_by(data)).title
    note += f"; {chosen} chooses the checkpoint" if task.chosen_by(data) != task.score else ""
    data = dataclasses.replace(data, notes=(*notes, note))
  return data
