"""Parallel text that is ready for a model, and what a model makes of it."""

from __future__ import annotations

import dataclasses
import json
import math
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np

from posexp import storage
from posexp.data import batches, tokenizer
from posexp.data.batches import Batch
from posexp.data.encoded import Encoded
from posexp.errors import UserError
from posexp.tasks import bleu
from posexp.training.processes import fetch

if TYPE_CHECKING:
  from posexp.models.decoding import Search
  from posexp.models.translator import TranslatorSpec
  from posexp.tasks.translation import Translation
  from posexp.training.evaluation import Snapshot

DECODED = ("bleu", "chrf", "exact_match")  # metrics of hypotheses


class Text(NamedTuple):
  """A pair that is evaluated; a group, where it has one, is measured by itself."""

  source: str
  target: str
  group: str = ""


class Part(NamedTuple):
  """Some pairs of a split."""

  whole: Encoded
  rows: np.ndarray

  @property
  def lengths(self) -> np.ndarray:
    return self.whole.lengths[self.rows]

  def batch(self, rows: np.ndarray, length: int, size: int) -> Batch:
    """As that of the split, in which `index` is a pair's place."""
    return self.whole.batch(self.rows[rows], length, size)


@dataclasses.dataclass(frozen=True)
class Parallel:
  """Data that is ready for a model."""

  task: Translation
  tokenizers: tuple[tokenizer.Tokenizer, tokenizer.Tokenizer]
  notes: tuple[str, ...]  # what was done to the data, a sentence each
  texts_of: dict[str, list[Text]]  # of the splits that are evaluated
  examples: dict[str, Encoded]
  longest: int  # tokens in the longer side of the longest pair, [EOS] included
  bucket_lengths: np.ndarray  # of the batches, int [buckets]

  item: ClassVar[str] = "sentence"  # what the data are made of
  unit: ClassVar[str] = "tokens"  # what `batch_size` counts
  shown: ClassVar[dict[str, str]] = {  # of an evaluation, on the terminal
    "loss": "loss {:.3f}",
    "accuracy": "token accuracy {:.3f}",
    "bleu": "BLEU {:.1f}",
    "exact_match": "exact match {:.3f}",
  }

  @property
  def sizes(self) -> dict[str, int]:
    return {split: len(pairs.lengths) for split, pairs in self.examples.items()}

  @property
  def about(self) -> tuple[str, str]:
    """What the header says of the data."""
    source, target = (each.vocab_size for each in self.tokenizers)
    size = f"{source:,}" if self.task.joint else f"{source:,} and {target:,}"
    return (
      f"{self.task.source} to {self.task.target}",
      f"vocabulary {size}, longest sentence {self.longest} tokens",
    )

  @property
  def length(self) -> int:
    """Of the longest batches, in tokens."""
    return int(self.bucket_lengths[-1])

  def model(self, encoding, size, positions) -> TranslatorSpec:
    """The model for these data."""
    from posexp.models.translator import TranslatorSpec

    source, target = (each.vocab_size for each in self.tokenizers)
    return TranslatorSpec(source, target, encoding, size, positions)

  @property
  def word_counts(self) -> np.ndarray:
    """How often each token stands in the training sources, int [V]."""
    tokens = self.examples["train"].source.tokens
    return np.bincount(tokens, minlength=self.tokenizers[0].vocab_size)

  def rows_of(self, batch_size: int) -> np.ndarray:
    """How many rows the batches of each bucket have, int [buckets]."""
    return batches.rows_of(self.bucket_lengths, batch_size)

  def steps_per_epoch(self, batch_size: int) -> int:
    """Batches in an epoch; UserError if a batch does not hold the longest sentence."""
    if batch_size < self.length:
      raise UserError(
        f"train.batch_size={batch_size}: it counts tokens, and the longest batches have "
        f"{self.length} a sentence; set train.batch_size={self.length} or more, or lower "
        "task.max_length"
      )
    rows = self.rows_of(batch_size)
    return batches.steps_of(self.examples["train"].lengths, self.bucket_lengths, rows)

  def batches(self, batch_size: int, *, seed: int, start: int = 0) -> Iterator[Batch]:
    """Training batches without end from step `start` on, a pure function of (seed, step)."""
    return batches.training_by_tokens(
      self.examples["train"],
      self.bucket_lengths,
      self.rows_of(batch_size),
      seed=seed,
      start=start,
    )

  def evaluation(self, split: str, batch_size: int) -> Iterator[Batch]:
    """Every pair of a split once; `index` says which, padded rows have weight 0."""
    return batches.evaluation(self.examples[split], self.bucket_lengths, self.rows_of(batch_size))

  def texts(self, split: str, batch_size: int) -> Iterator[Batch]:
    """What the encoder reads of `evaluation`: tokens, mask and weight."""
    for batch in self.evaluation(split, batch_size):
      yield {
        "tokens": batch["source"],
        "mask": batch["source_mask"],
        "weight": batch["weight"],
      }

  def predict(
    self, snapshot: Snapshot, split: str, kept: dict[str, Any] | None = None
  ) -> dict[str, np.ndarray]:
    """Of every pair of a split its loss, tokens, and how many of them are right, [N] each."""
    found = snapshot.predict(self.evaluation(split, snapshot.batch_size), kept)
    return found | {"answer": found["right"]}

  @staticmethod
  def scores(found: dict[str, np.ndarray]) -> dict[str, float]:
    """Per token of the target: loss in nats, perplexity, and accuracy, given those before it."""
    tokens = found["tokens"].sum(dtype=np.int64)
    loss = float(found["loss"].sum(dtype=np.float64) / tokens)
    return {
      "loss": loss,
      "perplexity": math.exp(min(loss, 700)),
      "accuracy": float(found["right"].sum(dtype=np.int64) / tokens),
    }

  def measure(self, snapshot: Snapshot, split: str) -> dict[str, float]:
    """The metrics of a split, as they are followed during training: of greedy translations."""
    texts = self.texts_of[split]
    # Evenly over the split, since many a corpus is in some order.
    step = max(len(texts) / self.task.bleu_pairs, 1)
    rows = np.unique(np.arange(0, len(texts), step).astype(int))
    greedy = dataclasses.replace(self.task.search, beam=1)
    said, _ = self.translate(snapshot, split, greedy, rows)
    references = [texts[row].target for row in rows]
    return self.scores(self.predict(snapshot, split)) | bleu.corpus(
      said, references, self.task.target
    )

  def translate(
    self, snapshot: Snapshot, split: str, search: Search, rows: np.ndarray | None = None
  ) -> tuple[list[str], dict[str, np.ndarray]]:
    """Hypotheses for the pairs `rows` of a split, or for all, and what the search says of each."""
    from posexp.models.decoding import searcher
    from posexp.training.devices import shard
    from posexp.training.evaluation import gathered

    find = searcher(snapshot.program.graphdef, search)
    examples = self.examples[split] if rows is None else Part(self.examples[split], rows)
    ends = self.bucket_lengths
    given = batches.evaluation(examples, ends, self.rows_of(snapshot.batch_size))
    most = search.most(int(ends[-1]))
    params, settings = snapshot.state.params, snapshot.state.settings
    found = gathered(
      (batch, _aligned(find(params, settings, batch), most))
      for batch, _ in shard(given, snapshot.mesh)
    )
    return [self.tokenizers[1].decode(tokens) for tokens in found["tokens"].tolist()], found

  def conclude(self, snapshot: Snapshot, folder: Path) -> dict[str, Any]:
    """What a summary says of the test split and others; hypotheses go to folder/predictions."""
    summary: dict[str, Any] = {}
    sentences, seconds = 0, 0.0
    for split, texts in self.texts_of.items():
      if split == "validation":
        continue
      begun = time.perf_counter()
      said, found = self.translate(snapshot, split, self.task.search)
      seconds += time.perf_counter() - begun
      references = [text.target for text in texts]
      sentences += len(said)
      keep(folder / "predictions" / split, texts, said, found)
      measured = self.scores(self.predict(snapshot, split))
      measured |= bleu.corpus(said, references, self.task.target)
      parts = bleu.by_group([text.group for text in texts])
      for part, rows in (parts or bleu.by_length([text.source for text in texts])).items():
        one = bleu.corpus(
          [said[row] for row in rows], [references[row] for row in rows], self.task.target
        )
        measured |= {f"{name}/{part}": value for name, value in one.items()}
        measured[f"examples/{part}"] = len(rows)
      summary |= {f"{split}/{name}": value for name, value in measured.items()}
    summary["bleu_signature"] = bleu.signature(self.task.target, references)
    summary["time/sentences_per_second"] = sentences / seconds
    return summary


def _aligned(found: dict[str, Any], most: int) -> dict[str, Any]:
  """Hypotheses of a batch as wide as those of all batches."""
  found = fetch(found)
  tokens = found["tokens"]
  pad = np.pad(tokens, ((0, 0), (0, most - tokens.shape[1])), constant_values=tokenizer.PAD)
  return {"tokens": pad, "score": found["score"], "length": found["length"]}


def keep(path: Path, texts: list[Text], said: list[str], found: dict[str, np.ndarray]) -> None:
  """Writes hypotheses to path.txt, one a line, and all that is known of each to path.jsonl."""
  lines, rows = [], []
  for index, (text, hypothesis) in enumerate(zip(texts, said, strict=True)):
    lines.append(" ".join(hypothesis.split()))
    row = {"index": index, "source": text.source, "reference": text.target}
    row |= {"hypothesis": hypothesis, "score": float(found["score"][index])}
    row |= {"tokens": int(found["length"][index])} | ({"group": text.group} if text.group else {})
    rows.append(json.dumps(row, ensure_ascii=False))
  storage.write(path.with_suffix(".txt"), "".join(f"{line}\n" for line in lines))
  storage.write(path.with_suffix(".jsonl"), "".join(f"{row}\n" for row in rows))


def table(summary: dict[str, Any]) -> Iterator[str]:
  """The lines of the result: the best checkpoint on validation and test, and test in parts."""
  names = {
    "bleu": ("BLEU", ".2f"),
    "chrf": ("chrF", ".2f"),
    "exact_match": ("exact match", ".4f"),
    "perplexity": ("perplexity", ".3f"),
    "accuracy": ("token accuracy", ".4f"),
    "loss": ("loss", ".4f"),
  }
  splits = [key.removesuffix("/bleu") for key in summary if key.endswith("/bleu")]
  yield f"{'at step ' + format(summary['step'], ','):<24}" + "".join(map("{:>12}".format, splits))
  for name, (label, form) in names.items():
    values = (f"{summary[f'{split}/{name}']:{form}}" for split in splits)
    yield f"{label:<24}" + "".join(map("{:>12}".format, values))
  yield "validation: greedy, on part of the pairs; others: beam search, on all"
  for split in splits:
    prefix = f"{split}/examples/"
    parts = [key.removeprefix(prefix) for key in summary if key.startswith(prefix)]
    if not parts:
      continue
    words = all(re.fullmatch(r"\d+-\d+", part) for part in parts)
    yield ""
    yield f"{split + (', by words of source' if words else ''):<24}" + "".join(
      map("{:>9}".format, parts)
    )
    for name, (label, form) in (("examples", ("sentences", ",")), *names.items()):
      if name in ("examples", *(DECODED if words else DECODED[1:])):  # groups may be single words
        values = (f"{summary[f'{split}/{name}/{part}']:{form}}" for part in parts)
        yield f"{label:<24}" + "".join(map("{:>9}".format, values))
  rate = summary["time/sentences_per_second"]
  yield ""
  yield f"{rate:,.1f} sentences/s were translated, compilation included"
  yield f"BLEU's signature: {summary['bleu_signature']}"
