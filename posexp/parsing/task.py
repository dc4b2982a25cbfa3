"""Constituency parsing: a tree for each sentence (Kitaev & Klein 2018)."""

from __future__ import annotations

import dataclasses
import functools
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from posexp import storage
from posexp.config.checks import Count, Name, check
from posexp.data import files
from posexp.data.splits import EVALUATED, arrange
from posexp.errors import UserError
from posexp.parsing import brackets, pcfg, trees
from posexp.parsing.encoded import TAGGED, Lexicon, kept_lexicon
from posexp.parsing.treebank import TreebankData
from posexp.parsing.trees import Tree
from posexp.runs.predictions import COUNTS, TREES, write_predictions
from posexp.tasks.contract import Snapshot, Task
from posexp.tasks.results import Outputs, aligned, parts, prefixed, result_rows, rows_of

if TYPE_CHECKING:
  from posexp.encodings.span import TermScale
  from posexp.parsing.model import ParserSpec

MEASURED = ("f1", "recall", "precision", "exact_match", "unlabeled_f1")
LETTER = 64  # the width of a letter's vector (Kitaev & Klein 2018)

Treebank = dict[str, list[Tree]]  # by split


@dataclasses.dataclass(frozen=True)
class Parsing(Task):
  """The task of a parser; subclasses say where the trees come from.

  The files of configs/task explain each option.
  """

  score: ClassVar[str] = "validation/f1"
  headline: ClassVar[tuple[str, ...]] = ("test/f1", "test/exact_match")
  followed: ClassVar[tuple[str, ...]] = ("loss", "f1", "exact_match")
  smoothed: ClassVar[bool] = False
  compare_by: ClassVar[str] = "f1"
  prediction_columns = TREES
  commands = ("parse",)

  name: Name = "parsing"
  inputs: Literal["words", "tags", "both", "characters"] = "both"
  longest: Count = 64
  loss: Literal["margin", "crf"] = "margin"
  hidden: Count = 128
  pcfg: bool = True

  def __post_init__(self):
    """Raise ValueError if an option is wrong for any data."""
    check(self)

  def paths(self) -> dict[str, list[str]]:
    """Return the files of each split that is given.

    Raises:
      UserError: there are no files.
    """
    raise NotImplementedError

  def data_digest(self) -> str | None:
    numbered = {split: enumerate(found) for split, found in self.paths().items()}
    return files.digest(
      {f"{split} {i:06}": path for split, found in numbered.items() for i, path in found}
    )

  def given(self) -> Treebank:
    """Return the trees of each split that is given.

    Raises:
      UserError: a file is missing or broken.
    """
    return {split: list(trees.read(names)) for split, names in self.paths().items()}

  def treebank(self) -> tuple[Treebank, list[str]]:
    """Return the trees of all splits, and notes; a split that is not given gets a tenth of the
    training trees. Too long training trees are dropped.

    Raises:
      UserError: data are missing, broken or useless.
    """
    streams = {
      split: functools.partial(map, lambda tree: (tree.text, tree), own)
      for split, own in self.given().items()
    }
    arranged, notes = arrange(streams, rows="trees", texts="sentences")
    by_split = {split: [tree for _, tree in stream()] for split, stream in arranged.items()}
    short = [tree for tree in by_split["train"] if len(tree.words) <= self.longest]
    if not short:
      raise UserError(f"all training sentences have over {self.longest} words; raise task.longest")
    if dropped := len(by_split["train"]) - len(short):
      notes = [*notes, f"{dropped:,} train sentences of over {self.longest} words are dropped"]
    return by_split | {"train": short}, notes

  def model(self, lexicon: Lexicon, encoding, size, positions) -> ParserSpec:
    """Return the specification of a parser for a treebank with this lexicon."""
    from posexp.parsing.model import ParserSpec

    return ParserSpec(
      vocab_size=lexicon.rows(self.inputs),
      num_labels=len(lexicon.labels),
      encoding=encoding,
      size=size,
      loss=self.loss,
      hidden=self.hidden,
      positions=positions,
      characters=LETTER if self.inputs == "characters" else None,
    )

  def smallest_model(self, encoding, size, positions) -> ParserSpec:
    return self.model(Lexicon({"a": (1, "X")}, ("X",), ("", "X"), "X"), encoding, size, positions)

  def kept_model(self, folder, encoding, size, positions) -> ParserSpec:
    return self.model(kept_lexicon(folder), encoding, size, positions)

  def prepare(self, folder: Path) -> TreebankData:
    """Prepare the data with the lexicon in folder/tokenizer.json, which is built from the training
    trees if it is missing.

    Raises:
      UserError: data are missing, broken or useless, or the lexicon is another run's.
    """
    digest = self.data_digest()
    lexicon = kept_lexicon(folder, lambda: Lexicon.of(_treebank(self, digest)[0]["train"]))
    return _prepared(self, digest, lexicon.json)

  def predict(
    self, data: TreebankData, snapshot: Snapshot, split: str, term_scale: TermScale | None = None
  ) -> Outputs:
    """Return arrays [N,...] over all sentences: `loss`; `spans`, the predicted tree; `counts` of
    brackets; `right`, the brackets that agree; `tokens`, half of the brackets of both trees; and
    `answer`, a checksum of the predicted tree.
    """
    outputs = snapshot.predict(data.evaluation(split, snapshot.batch_size), term_scale, split)
    counts = brackets.counts(data.trees_of[split], data.parses(split, outputs["spans"]))
    matched, gold, predicted = counts.T[:3]
    sizes = {"right": matched, "tokens": (gold + predicted) / 2}
    answer = np.array([zlib.crc32(spans.tobytes()) for spans in outputs["spans"]])
    return outputs | sizes | {"answer": answer, "counts": counts}

  def scores(self, found: Outputs) -> dict[str, float]:
    """Return the mean loss of a sentence, and EVALB's scores of all sentences."""
    loss = float(np.mean(found["loss"], dtype=np.float64))
    return {"loss": loss} | brackets.scores(found["counts"])

  def predicted(self, summary: Mapping[str, Any]) -> Sequence[str]:
    return ("test",)

  def conclude(self, data: TreebankData, snapshot: Snapshot, folder: Path) -> dict[str, Any]:
    """Write the trees, and return test metrics, also by length, and those of the baselines."""
    outputs = self.predict(data, snapshot, "test")
    gold = data.trees_of["test"]
    write_trees(folder, gold, data.parses("test", outputs["spans"]), outputs)
    lengths = np.array([len(tree.words) for tree in gold])
    groups = brackets.by_length(lengths, outputs["counts"])
    summary = prefixed("test", self.scores(outputs) | groups)
    for split in EVALUATED:
      counts = brackets.counts(data.trees_of[split], map(data.branching, data.trees_of[split]))
      summary |= prefixed(f"baseline/{split}", brackets.scores(counts))
    if self.pcfg:
      see_tags = self.inputs in TAGGED
      best = pcfg.scores(data.trees_of["train"], gold, data.branching, see_tags=see_tags)
      summary |= prefixed("baseline/test/pcfg", best)
    return summary

  def table(self, summary: Mapping[str, Any]) -> Iterator[str]:
    """Yield the results of the best checkpoint on both splits, the baselines, and F1 by length."""
    rows = [*result_rows(self.metrics, summary, EVALUATED, (*MEASURED, "loss"))]
    blind = result_rows(self.metrics, summary, EVALUATED, ("f1", "unlabeled_f1"), "baseline/")
    rows += [[f"right-branching, {title}", *values] for title, *values in blind]
    if (best := summary.get("baseline/test/pcfg/f1")) is not None:
      rows.append(["PCFG of the training trees, F1", "", f"{best:.4f}"])
      rows.append(["F1 against it, points", "", f"{100 * (summary['test/f1'] - best):+.2f}"])
    yield from aligned(rows)
    yield ""
    groups = parts(summary, "test/f1")
    sizes = (f"{summary[f'test/sentences/{group}']:,}" for group in groups)
    values = (f"{summary[f'test/f1/{group}']:.4f}" for group in groups)
    yield from aligned([["test, words", *groups], ["sentences", *sizes], ["F1", *values]])


def write_trees(folder: Path, gold: Sequence[Tree], parses: Sequence[Tree], found: Outputs) -> None:
  """Write the predictions of the test split, and the treebank's and parser's trees for EVALB."""
  lines = {"gold": [*map(trees.brackets, gold)], "parsed": [*map(trees.brackets, parses)]}
  for name, side in lines.items():
    text = "".join(f"{line}\n" for line in side)
    storage.write(folder / "predictions" / f"test.{name}.mrg", text)
  columns = {"text": [tree.text for tree in gold], "words": [len(tree.words) for tree in gold]}
  columns |= {"tree": lines["gold"], "parse": lines["parsed"]}
  columns |= dict(zip(COUNTS, found["counts"].T, strict=False)) | {"loss": found["loss"]}
  write_predictions(folder, "test", rows_of(columns))


@functools.lru_cache(maxsize=2)
def _treebank(task: Parsing, _: str | None) -> tuple[Treebank, list[str]]:
  """Return `Parsing.treebank`, cached until the digest of the files changes."""
  return task.treebank()


@functools.lru_cache(maxsize=2)
def _prepared(task: Parsing, digest: str | None, text: str) -> TreebankData:
  given, notes = _treebank(task, digest)
  return TreebankData.of(task, given, Lexicon.opened(text), notes)
