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
from posexp.data import trees
from posexp.data.encoded_trees import FIRST, TAGGED, Lexicon, kept_lexicon
from posexp.data.splits import EVALUATED, arrange
from posexp.data.trees import Tree
from posexp.errors import UserError
from posexp.runs.predictions import write_predictions
from posexp.tasks import brackets, pcfg
from posexp.tasks.contract import Outputs, Snapshot, Task, metric_of, prefixed, result_table
from posexp.tasks.treebank_data import TreebankData, parser_spec

if TYPE_CHECKING:
  from posexp.encodings.span import TermScale
  from posexp.models.parser import ParserSpec

MEASURED = ("f1", "recall", "precision", "exact_match", "unlabeled_f1")

Treebank = dict[str, list[Tree]]  # by split


@dataclasses.dataclass(frozen=True)
class Parsing(Task):
  """The task of a parser; subclasses say where the trees come from. configs/task explains each
  option."""

  score: ClassVar[str] = "validation/f1"
  headline: ClassVar[tuple[str, ...]] = ("test/f1", "test/exact_match")
  followed: ClassVar[tuple[str, ...]] = ("loss", "f1", "exact_match")

  name: Name = "parsing"
  inputs: Literal["words", "tags", "both", "characters"] = "both"
  longest: Count = 64
  loss: Literal["margin", "crf"] = "margin"
  hidden: Count = 128
  pcfg: bool = True

  def __post_init__(self):
    """Raise ValueError if an option is wrong for any data."""
    check(self)

  def treebank(self) -> tuple[Treebank, Sequence[str]]:
    """Return the trees of each split, and notes.

    Raises:
      UserError: data are missing, broken or useless.
    """
    raise NotImplementedError

  def smallest_model(self, encoding, size, positions) -> ParserSpec:
    return parser_spec(self, FIRST + 2, 2, encoding, size, positions)

  def kept_model(self, folder, encoding, size, positions) -> ParserSpec:
    lexicon = kept_lexicon(folder)
    rows, labels = lexicon.rows(self.inputs), len(lexicon.labels)
    return parser_spec(self, rows, labels, encoding, size, positions)

  def prepare(self, folder: Path) -> TreebankData:
    """Prepare the data with the lexicon in folder/tokenizer.json, which is built from the training
    trees if it is missing.

    Raises:
      UserError: data are missing, broken or useless, or the lexicon is another run's.
    """
    digest = self.data_digest()
    lexicon = kept_lexicon(folder, lambda: Lexicon.of(_kept(self, digest)[0]["train"]))
    return _prepared(self, digest, lexicon.json)

  def predict(
    self, data: TreebankData, snapshot: Snapshot, split: str, term_scale: TermScale | None = None
  ) -> Outputs:
    """For every sentence, [N,...] each: `loss`, the `spans` of its tree, and its `counts` of
    brackets; those that are right (`right`), and those of both trees (`tokens`), halved; and a
    number that tells its tree from others (`answer`)."""
    found = snapshot.predict(data.evaluation(split, snapshot.batch_size), term_scale, split)
    counts = brackets.counts(data.trees_of[split], data.parses(split, found["spans"]))
    matched, gold, predicted = counts.T[:3]
    sizes = {"right": matched, "tokens": (gold + predicted) / 2}
    answer = np.array([zlib.crc32(each.tobytes()) for each in found["spans"]])
    return found | sizes | {"answer": answer, "counts": counts}

  def scores(self, found: Outputs) -> dict[str, float]:
    """Return the mean loss of a sentence, and EVALB's scores of all."""
    loss = float(np.mean(found["loss"], dtype=np.float64))
    return {"loss": loss} | brackets.scores(found["counts"])

  def predicted(self, summary: Mapping[str, Any]) -> Sequence[str]:
    return ("test",)

  def conclude(self, data: TreebankData, snapshot: Snapshot, folder: Path) -> dict[str, Any]:
    """Return the metrics of the test split, also by length, and those of right-branching trees and
    of a PCFG; write the trees.
    """
    found = self.predict(data, snapshot, "test")
    gold = data.trees_of["test"]
    write_trees(folder, gold, data.parses("test", found["spans"]), found)
    lengths = np.array([len(tree.words) for tree in gold])
    groups = brackets.by_length(lengths, found["counts"])
    summary = prefixed("test", self.scores(found) | groups)
    for split in EVALUATED:
      blind = (data.branching(tree.words, tree.tags) for tree in data.trees_of[split])
      counts = brackets.counts(data.trees_of[split], blind)
      summary |= prefixed(f"baseline/{split}", brackets.scores(counts))
    if self.pcfg:
      see_tags = self.inputs in TAGGED
      best = pcfg.scores(data.train, gold, data.branching, see_tags=see_tags)
      summary |= prefixed("baseline/test/pcfg", best)
    return summary

  def table(self, summary: Mapping[str, Any]) -> Iterator[str]:
    """Yield the results of the best checkpoint on both splits, the baselines, and F1 by length."""
    yield from result_table(self, summary, EVALUATED, (*MEASURED, "loss"))
    for name in ("f1", "unlabeled_f1"):
      values = (summary[f"baseline/{split}/{name}"] for split in EVALUATED)
      label = f"right-branching, {metric_of(self, name).title}"
      yield f"{label:<30}" + "{:>6.4f}{:>12.4f}".format(*values)
    if "baseline/test/pcfg/f1" in summary:
      best = summary["baseline/test/pcfg/f1"]
      yield f"{'PCFG of the training trees, F1':<36}{best:>12.4f}"
      yield f"{'F1 against it, points':<36}{100 * (summary['test/f1'] - best):>+12.2f}"
    groups = [key.rpartition("/")[2] for key in summary if key.startswith("test/f1/")]
    yield ""
    yield f"{'test, words':<24}" + "".join(map("{:>9}".format, groups))
    yield f"{'sentences':<24}" + "".join(
      f"{summary[f'test/sentences/{group}']:>9,}" for group in groups
    )
    yield f"{'F1':<24}" + "".join(f"{summary[f'test/f1/{group}']:>9.4f}" for group in groups)


def write_trees(folder: Path, gold: Sequence[Tree], parses: Sequence[Tree], found: Outputs) -> None:
  """Write predictions of the test split, and the trees of the treebank and of the parser, one per
  line for EVALB.
  """
  rows = []
  for name, side in (("gold", gold), ("parsed", parses)):
    lines = "".join(f"{trees.brackets(tree)}\n" for tree in side)
    storage.write(folder / "predictions" / f"test.{name}.mrg", lines)
  counts = found["counts"].tolist()
  for index, (tree, parse, counted) in enumerate(zip(gold, parses, counts, strict=True)):
    matched, wanted, predicted, *_ = counted
    row = {"index": index, "text": tree.text, "words": len(tree.words)}
    row |= {"tree": trees.brackets(tree), "parse": trees.brackets(parse)}
    row |= {"matched": matched, "gold": wanted, "predicted": predicted}
    rows.append(row | {"loss": float(found["loss"][index])})
  write_predictions(folder, "test", rows)


def held_out(given: Mapping[str, Sequence[Tree]]) -> tuple[Treebank, list[str]]:
  """Return all splits, and notes; a split that is not given gets a tenth of the training trees.

  Raises:
    UserError: a split would have no trees.
  """
  streams = {
    split: functools.partial(map, lambda tree: (tree.text, tree), found)
    for split, found in given.items()
  }
  arranged, notes = arrange(streams, rows="trees", texts="sentences")
  return {split: [tree for _, tree in stream()] for split, stream in arranged.items()}, notes


@functools.lru_cache(maxsize=2)
def _kept(task: Parsing, digest: str | None) -> tuple[Treebank, tuple[str, ...]]:
  """Return the trees of each split, without too long training trees, and notes. `digest` is only
  for the cache: files with other contents are read again.
  """
  treebank, notes = task.treebank()
  short = [tree for tree in treebank["train"] if len(tree.words) <= task.longest]
  if not short:
    raise UserError(f"all training sentences have over {task.longest} words; raise task.longest")
  if dropped := len(treebank["train"]) - len(short):
    notes = [*notes, f"{dropped:,} train sentences of over {task.longest} words are dropped"]
  return treebank | {"train": short}, tuple(notes)


@functools.lru_cache(maxsize=2)
def _prepared(task: Parsing, digest: str | None, text: str) -> TreebankData:
  given, notes = _kept(task, digest)
  options = {name: getattr(task, name) for name in ("inputs", "loss", "hidden")}
  return TreebankData.of(given, Lexicon.opened(text), notes, **options)
