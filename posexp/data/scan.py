"""SCAN: commands of a small grammar, and the actions that they stand for (Lake & Baroni 2018).

    phrase    walk | walk left | walk opposite left | walk around left | turn left | …
    sentence  phrase | phrase twice | phrase thrice
    command   sentence | sentence and sentence | sentence after sentence

There are 34 phrases, 102 sentences and 20,910 commands, each with one meaning.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Literal

from posexp.data import files
from posexp.data.splits import draw, key
from posexp.errors import UserError

VERBS = {"walk": "I_WALK", "look": "I_LOOK", "run": "I_RUN", "jump": "I_JUMP"}
SIDES = {"left": "I_TURN_LEFT", "right": "I_TURN_RIGHT"}
ACTIONS = (*VERBS.values(), *SIDES.values())
WORDS = ("and", "after", "twice", "thrice", "opposite", "around", "turn", *SIDES, *VERBS)
ALIASES = {action.removeprefix("I_"): action for action in ACTIONS}
ALIASES |= {"LTURN": "I_TURN_LEFT", "RTURN": "I_TURN_RIGHT"}  # as the paper prints them
TESTED = 0.2  # the share of commands that the split `simple` tests
HELD_OUT = 0.05  # of training commands, for validation and, but with `simple`, for the test

Split = Literal["simple", "length", "add_jump", "add_turn_left"]
Pair = tuple[str, str]  # "jump twice", "I_JUMP I_JUMP"


@functools.cache
def commands() -> dict[str, str]:
  """The actions of all commands."""
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
  found = dict(sentences)
  for first, actions in sentences.items():
    for second, others in sentences.items():
      found[f"{first} and {second}"] = f"{actions} {others}"
      found[f"{first} after {second}"] = f"{others} {actions}"
  return found


def published(split: Split, longest: int) -> tuple[list[Pair], list[Pair]]:
  """The commands of a split of the paper that are trained on, and those that are tested.

  `length` trains on up to `longest` actions, 22 in the paper. `add_jump` and `add_turn_left` train
  on no command with that phrase but the phrase itself, which is a tenth of all examples. `simple`
  tests a fifth of all, chosen by a hash: the paper's own choice was random.
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
  """Training commands, and what is held out of them for other splits by a hash of the command.

  Single actions, by which words are learned, stay in training.
  """
  found: dict[str, list[Pair]] = {split: [] for split in ("train", *splits)}
  for command, actions in pairs:
    drawn = draw(key(command), "held out") if " " in actions else 1.0
    place = int(drawn / HELD_OUT)
    found[splits[place] if place < len(splits) else "train"].append((command, actions))
  return found


def read(path: str) -> list[Pair]:
  """The commands of a file, one a line: `IN: jump twice OUT: I_JUMP I_JUMP`, or `JUMP JUMP`.

  Raises:
    UserError: naming the file and the line of what is no such command.
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
