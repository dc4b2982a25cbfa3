"""The sources of trees: the user's files, the release of CRAFT, or a grammar in the package."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from posexp import reading, storage
from posexp.config.checks import Count, Name, Whole, at_least, at_most
from posexp.data.splits import SPLITS
from posexp.errors import UserError
from posexp.parsing import brackets, grammar, trees
from posexp.parsing.encoded import TAGGED
from posexp.parsing.task import Parsing
from posexp.parsing.treebank import TreebankData
from posexp.parsing.trees import Tree
from posexp.tasks.contract import Snapshot
from posexp.tasks.results import prefixed

Names = str | tuple[str, ...] | None  # of files, or globs


@dataclasses.dataclass(frozen=True)
class Files(Parsing):
  """Trees of the files `train`, `validation` and `test`: names, globs, or lists of these."""

  train: Names = None
  validation: Names = None
  test: Names = None

  def __post_init__(self):
    super().__post_init__()
    if not self.train:
      raise ValueError("train must name a file of training trees")

  def paths(self):
    given = {split: getattr(self, split) for split in SPLITS}
    return {split: trees.paths(each) for split, each in given.items() if each}


@dataclasses.dataclass(frozen=True)
class Craft(Parsing):
  """The articles of CRAFT in the `folder` of its release, in the splits that come with it."""

  name: Name = "craft"
  folder: str = "CRAFT"
  pcfg: bool = False

  def paths(self):
    release = Path(self.folder).expanduser()
    penn = release / "structural-annotation" / "treebank" / "penn"
    files = {}
    for split, name in zip(SPLITS, ("train", "dev", "test"), strict=True):
      listed = reading.read(release / "articles" / "ids" / f"craft-ids-{name}.txt")
      if listed is None:
        raise UserError(
          f"task.folder={self.folder}: there is no articles/ids/craft-ids-{name}.txt; give the "
          "folder of a release of CRAFT (github.com/UCDenver-ccp/CRAFT)"
        )
      files[split] = [str(penn / f"{article}.tree") for article in listed.decode().split()]
    return files


@dataclasses.dataclass(frozen=True)
class Grammar(Parsing):
  """Sentences drawn from the grammar of English in the package, which is ambiguous."""

  name: Name = "grammar"
  longest: Count = grammar.LONGEST
  examples: Annotated[int, at_least(100), at_most(100_000)] = 6_000
  data_seed: Whole = 0

  def data_digest(self):
    return None

  def given(self):
    return {"train": grammar.draw(self.examples, self.data_seed)}

  def conclude(self, data: TreebankData, snapshot: Snapshot, folder: Path) -> dict[str, Any]:
    """Conclude as for any treebank, and add the grammar's own scores on the test split."""
    ceiling = self.ceiling(data.trees_of["test"])
    return super().conclude(data, snapshot, folder) | prefixed("ceiling/test", ceiling)

  def ceiling(self, gold: Sequence[Tree]) -> dict[str, float]:
    """Return the scores of the most probable trees given the inputs, cached by content."""
    see = {"see_words": self.inputs != "tags", "see_tags": self.inputs in TAGGED}

    def compute() -> dict[str, float]:
      return brackets.scores(brackets.counts(gold, (grammar.best(tree, **see)[0] for tree in gold)))

    given = [*map(trees.brackets, gold)]
    return storage.cached("baseline", compute, grammar.RULES, grammar.WORDS, see, given)

  def table(self, summary: Mapping[str, Any]) -> Iterator[str]:
    yield from super().table(summary)
    yield ""
    yield (
      f"the most probable trees under the grammar itself: F1 {summary['ceiling/test/f1']:.4f}, "
      f"exact match {summary['ceiling/test/exact_match']:.4f}"
    )
