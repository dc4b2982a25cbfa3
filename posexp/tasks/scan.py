"""SCAN: commands to be carried out that are longer than any, or composed as none, of training."""

from __future__ import annotations

import dataclasses
import functools
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, ClassVar

import numpy as np

from posexp.config.checks import Name, between, check
from posexp.data import files, scan
from posexp.data.drawn import FIRST, Example, Listed
from posexp.data.scan import ACTIONS, WORDS, Pair, Split
from posexp.errors import UserError
from posexp.tasks.diagnostic import Answering, DrawnData

SYMBOLS = {symbol: i for i, symbol in enumerate((*WORDS, *ACTIONS))}


@dataclasses.dataclass(frozen=True)
class Scan(Answering):
  """The actions of a command, whose number is its length (Lake & Baroni 2018).

  The commands are those of a `split` of the paper, or of the files `train` and `test`. What the
  paper tests is the split `beyond`, but where it is like what is trained on (`simple`); the others
  are held out of training.
  """

  form: ClassVar[str] = "decoder"

  name: Name = "scan"
  split: Split = "length"
  longest: Annotated[int, between(1, 47)] = 22
  train: str | None = None
  test: str | None = None

  def __post_init__(self):
    check(self)
    if (self.train is None) != (self.test is None):
      raise ValueError("train and test must be set together, or neither for those of split")
    if self.longest != 22 and (self.train or self.split != "length"):
      raise ValueError("longest has no effect without split=length; leave it at 22")
    if self.train and self.split != "length":
      raise ValueError("split has no effect with train and test; leave it at length")

  def data_digest(self) -> str | None:
    return files.digest({"train": self.train, "test": self.test}) if self.train else None

  def prepare(self, folder: Path) -> DrawnData:
    return _prepared(self, self.data_digest())

  def pairs(self) -> dict[str, list[Pair]]:
    """The commands of each split, with their actions.

    Raises:
      UserError: a file is missing or broken, or has too few commands to hold some out.
    """
    if self.train and self.test:
      train, tested = scan.read(self.train), scan.read(self.test)
    else:
      train, tested = scan.published(self.split, self.longest)
    if self.split == "simple":
      found = scan.hold_out(train, "validation") | {"test": tested}
    else:
      found = scan.hold_out(train, "validation", "test") | {"beyond": tested}
    if empty := [split for split, each in found.items() if not each]:
      where = self.train or f"split={self.split} with longest={self.longest}"
      raise UserError(f"{where}: too few commands, as the {empty[0]} split would have none")
    return found


@functools.lru_cache(maxsize=2)
def _prepared(task: Scan, digest: str | None) -> DrawnData:
  """The data. `digest` is only for the cache: with other contents of the files, they are read
  again."""
  pairs = task.pairs()
  examples = {split: [_example(*pair) for pair in each] for split, each in pairs.items()}
  everything = {pair for each in pairs.values() for pair in each}
  size = len(SYMBOLS)
  held = "validation" if task.split == "simple" else "validation, and one for the test"
  notes = (f"a twentieth of the training commands is held out for {held}",)
  words = tuple(SYMBOLS)
  return DrawnData(Listed(examples), FIRST + size, size, blind(everything), words, notes)


def _example(command: str, actions: str) -> Example:
  return tuple(np.array([SYMBOLS[each] for each in text.split()]) for text in (command, actions))


def blind(pairs: Iterable[Pair]) -> dict[int, float]:
  """By the number of actions, the exact match of the best guess from the bag of a command's words.

  Of commands of the same words, the guess is what most of them mean.
  """
  meanings: dict[tuple[int, tuple[str, ...]], Counter] = {}
  for command, actions in pairs:
    bag = len(actions.split()), tuple(sorted(command.split()))
    meanings.setdefault(bag, Counter())[actions] += 1
  right, total = Counter(), Counter()
  for (length, _), found in meanings.items():
    right[length] += max(found.values())
    total[length] += found.total()
  return {length: right[length] / total[length] for length in total}
