"""`encoding=short_list`: the six encodings that one should try first for a kind of task.

Where a text is read forward, they are encodings that the leaderboard has as the best for some need,
or as not told apart from it; where it is read from both sides, those of the findings on
classification and translation. No positions are the floor of both.
"""

from __future__ import annotations

from collections.abc import Sequence

from hydra.core.override_parser.types import Override

from posexp.config import command_line, resolve
from posexp.config.overrides import read
from posexp.errors import Unsuited, UserError

NAME = "short_list"
BOTH_SIDES = ("none", "sinusoidal", "learned", "rpr", "rope", "deberta")
CAUSAL = ("none", "rope", "alibi", "fire", "rpr", "fox")


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
  from posexp.training.setup import Setup  # slow to import

  names = CAUSAL
  try:  # an encoding that is defined for one direction alone
    Setup.of(resolve(command_line.shared([*rest, *read(["encoding=fire"])]))).least_parameters()
  except Unsuited:
    names = BOTH_SIDES
  return [*rest[: place[0]], *read([f"encoding={','.join(names)}"]), *rest[place[0] :]]
