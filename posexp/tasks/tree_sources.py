"""The sources of trees: the user's files, the release of CRAFT, or a grammar in the package."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

from posexp import storage
from posexp.config.checks import Count, Name, Whole, at_least, at_most
from posexp.data import best_trees, files, grammar, trees
from posexp.data.encoded_trees import TAGGED
from posexp.data.splits import SPLITS
from posexp.errors import UserError
from posexp.tasks import brackets
from posexp.tasks.contract import Snapshot, prefixed
from posexp.tasks.parsing import Parsing, held_out
from posexp.tasks.treebank_data import TreebankData

Names = str | tuple[str, ...] | None  # of files, or globs


@dataclasses.dataclass(frozen=True)
class FromFiles(Parsing):
  """Trees of the user's files; subclasses say which files."""

  def paths(self) -> dict[str, list[str]]:
    """Return the files of each split that is given.

    Raises:
      UserError: there are no files.
    """
    raise NotImplementedError

  def data_digest(self) -> str:
    return files.digest(
      {
        f"{split} {number:06}": path
        for split, found in self.paths().items()
        for number, path in enumerate(found)
      }
    )

  def treebank(self):
    return held_out({split: list(trees.read(names)) for split, names in self.paths().items()})


@dataclasses.dataclass(frozen=True)
class Files(FromFiles):
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
class Craft(FromFiles):
  """The articles of CRAFT in the `folder` of its release, in the splits that come with it."""

  name: Name = "craft"
  folder: str = "CRAFT"
  pcfg: bool = False

  def paths(self):
    release = Path(self.folder).expanduser()
    penn = release / "structural-annotation" / "treebank" / "penn"
    found = {}
    for split, name in zip(SPLITS, ("train", "dev", "test"), strict=True):
      listed = storage.read(release / "articles" / "ids" / f"craft-ids-{name}.txt")
      if listed is None:
        raise UserError(
          f"task.folder={self.folder}: there is no articles/ids/craft-ids-{name}.txt; give the "
          "folder of a release of CRAFT (github.com/UCDenver-ccp/CRAFT)"
        )
      found[split] = [str(penn / f"{article}.tree") for article in listed.decode().split()]
    return found


@dataclasses.dataclass(frozen=True)
class Grammar(Parsing):
  """Sentences drawn from the grammar of English in the package, which is ambiguous."""

  name: Name = "grammar"
  longest: Count = grammar.LONGEST
  examples: Annotated[int, at_least(100), at_most(100_000)] = 6_000
  data_seed: Whole = 0

  def treebank(self):
    return held_out({"train": grammar.draw(self.examples, self.data_seed)})

  def conclude(self, data: TreebankData, snapshot: Snapshot, folder: Path) -> dict[str, Any]:
    """Conclude as for any treebank, and add the grammar's own scores on the test split."""
    return super().conclude(data, snapshot, folder) | prefixed("ceiling/test", _ceiling(data))

  def table(self, summary: Mapping[str, Any]) -> Iterator[str]:
    yield from super().table(summary)
    yield ""
    yield (
      f"the most probable trees under the grammar itself: F1 {summary['ceiling/test/f1']:.4f}, "
      f"exact match {summary['ceiling/test/exact_match']:.4f}"
    )


def _ceiling(data: TreebankData) -> dict[str, float]:
  """Return the scores of the most probable trees given the inputs, cached by content."""
  gold = data.trees_of["test"]
  given = list(map(trees.brackets, gold))
  see = {"see_words": data.inputs != "tags", "see_tags": data.inputs in TAGGED}

  def compute() -> dict[str, float]:
    best = (best_trees.best(tree.words, tree.tags, **see)[0] for tree in gold)
    return brackets.scores(brackets.counts(gold, best))

  return storage.cached("baseline", compute, grammar.RULES, grammar.WORDS, see, given)
