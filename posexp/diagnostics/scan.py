"""SCAN: commands that are longer than those of training, or composed in new ways.

Commands come from a small grammar, and mean actions (Lake & Baroni 2018).

    phrase    walk | walk left | walk opposite left | walk around left | turn left | …
    sentence  phrase | phrase twice | phrase thrice
    command   sentence | sentence and sentence | sentence after sentence

There are 34 phrases, 102 sentences and 20,910 commands, each with one meaning.
"""

from __future__ import annotations

import dataclasses
import functools
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, ClassVar, Literal

import numpy as np

from posexp.config.checks import Name, between, check
from posexp.data import files
from posexp.data.splits import draw, key
from posexp.diagnostics.answering import Answering, Answers, Example
from posexp.errors import UserError

VERBS = {"walk": "I_WALK", "look": "I_LOOK", "run": "I_RUN", "jump": "I_JUMP"}
SIDES = {"left": "I_TURN_LEFT", "right": "I_TURN_RIGHT"}
ACTIONS = (*VERBS.values(), *SIDES.values())
WORDS = ("and", "after", "twice", "thrice", "opposite", "around", "turn", *SIDES, *VERBS)
SYMBOLS = {symbol: i for i, symbol in enumerate((*WORDS, *ACTIONS))}
ALIASES = {action.removeprefix("I_"): action for action in ACTIONS}
ALIASES |= {"LTURN": "I_TURN_LEFT", "RTURN": "I_TURN_RIGHT"}  # as the paper prints them
TESTED = 0.2  # the share of commands that the split `simple` tests
HELD_OUT = 0.05  # of training commands, for validation and, except with `simple`, for the test

Split = Literal["simple", "length", "add_jump", "add_turn_left"]
Pair = tuple[str, str]  # "jump twice", "I_JUMP I_JUMP"


@functools.cache
def commands() -> dict[str, str]:
  """Return the actions of all commands."""
  phrases = dict(VERBS)
  for side, turn in SIDES.items():
    for verb, action in {**VERBS, "turn": ""}.items():
      step = f"{turn} {action}".strip()
      phrases[f"{verb} {side}"] = step
      phrases[f"{verb} opposite {side}"] = f"{turn} {step}"
      phrases[f"{verb} around {side}"] = " ".join([step] * 4)
  sentences = {
    f"{phrase}{often}": " ".join([actions] * times)
    for phrase, actions in phrases.items()
    for often, times in (("", 1), (" twice", 2), (" thrice", 3))
  }
  meanings = dict(sentences)
  for first, actions in sentences.items():
    for second, others in sentences.items():
      meanings[f"{first} and {second}"] = f"{actions} {others}"
      meanings[f"{first} after {second}"] = f"{others} {actions}"
  return meanings


def published(split: Split, longest: int) -> tuple[list[Pair], list[Pair]]:
  """Return the training commands and the test commands of a split of the paper.

  `length` trains on up to `longest` actions, 22 in the paper. `add_jump` and `add_turn_left` train
  on that phrase only by itself, repeated to a tenth of all examples. `simple` tests a fifth of all
  commands, chosen by a hash; the paper chose at random.
  """
  phrase = split.removeprefix("add_").replace("_", " ")

  def is_tested(command: str, actions: str) -> bool:
    if split == "length":
      return len(actions.split()) > longest
    if split == "simple":
      return draw(key(command), "test") < TESTED and len(actions.split()) > 1
    return phrase in command and command != phrase

  parts: tuple[list[Pair], list[Pair]] = [], []
  for pair in commands().items():
    parts[is_tested(*pair)].append(pair)
  if split.startswith("add"):
    alone = (phrase, commands()[phrase])
    parts[0].extend([alone] * ((len(parts[0]) - 1) // 9 - 1))
  return parts


def hold_out(pairs: list[Pair], *splits: str) -> dict[str, list[Pair]]:
  """Divide training commands among `train` and other splits, by a hash of the command.

  Single actions, from which words are learned, stay in training.
  """
  by_split: dict[str, list[Pair]] = {split: [] for split in ("train", *splits)}
  for command, actions in pairs:
    drawn = draw(key(command), "held out") if " " in actions else 1.0
    place = int(drawn / HELD_OUT)
    by_split[splits[place] if place < len(splits) else "train"].append((command, actions))
  return by_split


def read(path: str) -> list[Pair]:
  """Read the commands of a file, one a line: `IN: jump twice OUT: I_JUMP I_JUMP`, or `JUMP JUMP`.

  Raises:
    UserError: a line is not such a command; the message names the file and the line.
  """
  with files.opened(path) as file:
    return [*_parsed(path, files.lines(path, file))]


def _parsed(path: str, lines: Iterator[str]) -> Iterator[Pair]:
  for number, line in enumerate(lines, start=1):
    if not line.strip():
      continue
    mark, _, rest = line.partition("IN:")
    command, out, actions = (part.split() for part in rest.partition("OUT:"))
    if mark.strip() or not (command and out and actions):
      raise UserError(f"{path}, line {number}: not of the form IN: jump twice OUT: I_JUMP I_JUMP")
    actions = [ALIASES.get(action, action) for action in actions]
    for given, known in ((command, WORDS), (actions, ACTIONS)):
      if unknown := [each for each in given if each not in known]:
        raise UserError(
          f"{path}, line {number}: SCAN has no {unknown[0]!r}, but {', '.join(known)}"
        )
    yield " ".join(command), " ".join(actions)


@dataclasses.dataclass(frozen=True)
class Listed(Answers):
  """Examples of a fixed set, from which steps draw; the length of an example is its answer's."""

  examples: dict[str, list[Example]]  # of each split
  blind: dict[int, float]
  notes: tuple[str, ...]

  source: ClassVar[str] = "drawn with replacement"

  @property
  def epoch(self) -> int:
    return len(self.examples["train"])

  @functools.cached_property
  def lengths(self):
    return {split: tuple(sorted({len(y) for _, y in own})) for split, own in self.examples.items()}

  def training(self, random, rows):
    train = self.examples["train"]
    return [train[i] for i in random.integers(len(train), size=rows).tolist()]

  def widest(self, length):
    alike = (pair for own in self.examples.values() for pair in own if len(pair[1]) == length)
    return max(alike, key=lambda each: len(each[0]))

  @functools.cached_property
  def splits(self):
    return {
      split: (np.array([len(y) for _, y in own]), own)
      for split, own in self.examples.items()
      if split != "train"
    }


@dataclasses.dataclass(frozen=True)
class Scan(Answering):
  """The actions that a command means; its length is their number (Lake & Baroni 2018).

  The commands are those of a `split` of the paper, or of the files `train` and `test`. The paper's
  test commands are the split `beyond`, or `test` if they are like those of training (`simple`); the
  other splits are held out of training.
  """

  form: ClassVar[str] = "decoder"
  symbol_names: ClassVar[tuple[str, ...]] = tuple(SYMBOLS)
  symbols: ClassVar[int] = len(SYMBOLS)

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

  def prepare(self, folder: Path) -> Listed:
    pairs = self.pairs()

    def numbers(text: str) -> np.ndarray:
      return np.array([SYMBOLS[word] for word in text.split()])

    examples = {split: [(numbers(x), numbers(y)) for x, y in pairs[split]] for split in pairs}
    chance = blind({pair for rows in pairs.values() for pair in rows})
    held = "validation" if self.split == "simple" else "validation, and one for the test"
    notes = (f"a twentieth of the training commands is held out for {held}",)
    return Listed(self, examples=examples, blind=chance, notes=notes)

  def pairs(self) -> dict[str, list[Pair]]:
    """Return the commands of each split, with their actions.

    Raises:
      UserError: a file is missing or broken, or has too few commands to hold some out.
    """
    if self.train and self.test:
      train, tested = read(self.train), read(self.test)
    else:
      train, tested = published(self.split, self.longest)
    if self.split == "simple":
      by_split = hold_out(train, "validation") | {"test": tested}
    else:
      by_split = hold_out(train, "validation", "test") | {"beyond": tested}
    if empty := [split for split, each in by_split.items() if not each]:
      where = self.train or f"split={self.split} with longest={self.longest}"
      raise UserError(f"{where}: too few commands, as the {empty[0]} split would have none")
    return by_split


def blind(pairs: Iterable[Pair]) -> dict[int, float]:
  """Return the exact match of the best guess from a command's bag of words, by number of actions.

  The guess is the most frequent meaning among commands of the same words and length.
  """
  meanings: dict[tuple[int, tuple[str, ...]], Counter] = {}
  for command, actions in pairs:
    bag = len(actions.split()), tuple(sorted(command.split()))
    meanings.setdefault(bag, Counter())[actions] += 1
  right, total = Counter(), Counter()
  for (length, _), counts in meanings.items():
    right[length] += max(counts.values())
    total[length] += counts.total()
  return {length: right[length] / total[length] for length in total}
