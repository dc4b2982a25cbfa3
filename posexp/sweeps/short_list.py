"""`encoding=short_list`: the six encodings that one should try first for a kind of task.

They are what the leaderboard's page has as the best for some need, or as not told apart from it, at
the least cost, with no positions as the floor.
"""

from __future__ import annotations

from collections.abc import Sequence

from hydra.core.override_parser.types import Override

from posexp.config import command_line
from posexp.config.overrides import read
from posexp.errors import UserError

NAME = "short_list"
BOTH_SIDES = ("none", "sinusoidal", "learned", "rpr", "rope", "deberta")
CAUSAL = ("none", "rope", "alibi", "fire", "rpr", "fox")
# Kinds of tasks whose models read a text from both sides.
READERS = ("text_classification", "who_acts", "translation", "numbers", "parsing", "grammar")


def listed(typed: Sequence[Override], multirun: bool) -> list[Override]:
  """Return overrides with the names of encodings in the place of `encoding=short_list`.

  Raises:
    UserError: it is typed of one run, or what is typed beside it cannot be composed.
  """
  place = [at for at, each in enumerate(typed) if each.input_line == f"encoding={NAME}"]
  if not place:
    return list(typed)
  if not multirun:
    raise UserError(f"encoding={NAME} stands for six encodings: add -m for a sweep")
  rest = [each for at, each in enumerate(typed) if at not in place]
  task = command_line.shared(rest).task
  reads = task.get("kind") in READERS or task.get("form") == "encoder"
  names = ",".join(BOTH_SIDES if reads else CAUSAL)
  return [*rest[: place[0]], *read([f"encoding={names}"]), *rest[place[0] :]]
