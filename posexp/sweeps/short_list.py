"""`encoding=short_list`: the six encodings that one should try first for a kind of task.

Where a text is read forward, they are encodings that the leaderboard has as the best for some need,
or as not told apart from it; where it is read from both sides, those of the findings on
classification and translation. No positions are the floor of both.
"""

from __future__ import annotations

import itertools
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
  lines = (each.input_line.partition("=") for each in typed)
  chosen = {at: value.split(",") for at, (key, _, value) in enumerate(lines) if key == "encoding"}
  place = [at for at, names in chosen.items() if NAME in names]
  if not place:
    return list(typed)
  if not multirun:
    raise UserError(f"encoding={NAME} stands for six encodings: add -m for a sweep")
  rest = [each for at, each in enumerate(typed) if at not in place]
  decisive = ("task", "task.form")  # by which a text is read in one direction or in both
  tasks = [each for each in rest if each.is_sweep_override() and each.key_or_group in decisive]
  every = itertools.product(*([*each.sweep_string_iterator()] for each in tasks))
  lists = {
    _suited(
      [*rest, *read(f"{o.key_or_group}={value}" for o, value in zip(tasks, values, strict=True))]
    )
    for values in every
  }
  if len(lists) > 1:
    swept = " ".join(each.input_line for each in tasks)
    raise UserError(
      f"encoding={NAME} stands for other encodings in parts of {swept}: sweep each alone"
    )
  (suited,) = lists
  names = dict.fromkeys(
    name for each in chosen[place[0]] for name in (suited if each == NAME else [each])
  )
  return [*rest[: place[0]], *read([f"encoding={','.join(names)}"]), *rest[place[0] :]]


def _suited(typed: Sequence[Override]) -> tuple[str, ...]:
  """Return the list for a task, by an encoding that is defined for one direction alone."""
  from posexp.training.setup import Setup  # slow to import

  try:
    Setup.of(resolve(command_line.shared([*typed, *read(["encoding=fire"])]))).least_parameters()
  except Unsuited:
    return BOTH_SIDES
  return CAUSAL
