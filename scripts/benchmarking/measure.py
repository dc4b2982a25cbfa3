"""From a plan to rows: compiles a group, times it in rounds, goes on to the next."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarking import programs, rows, start, tables
from benchmarking.cases import Case
from benchmarking.programs import Ready
from benchmarking.rows import Row
from benchmarking.timing import rounds
from posexp.errors import UserError

if TYPE_CHECKING:
  from benchmarking.peers import Peer

CEILING = "a product of matrices"
STARTS = 3  # rounds of processes that start, at most


class Stopped(Exception):
  """Ctrl-C, after what was measured was told."""


def measure(
  groups: list[list[Case]],
  peer: Peer | None,
  count: int,
  seconds: float,
  tell: Callable[[str], None],
) -> Iterator[list[Row]]:
  """The rows of each group, as it is done.

  Raises:
    UserError: the sizes do not suit an encoding.
    Stopped: Ctrl-C, after the rows of whole rounds.
  """
  with tempfile.TemporaryDirectory() as folder:
    for group in groups:
      tell(tables.title(group[0]))
      try:
        ready = {case: prepared(case, Path(folder), tell) for case in group}
        if peer is not None:
          ready |= peer.prepare(group, tell)
      except KeyboardInterrupt:
        raise Stopped from None
      product, flops = programs.ceiling(group[0].size.dtype)
      works = {case: found.timed for case, found in ready.items()} | {CEILING: product}
      starts = group[0].work == "start"
      spent, whole = rounds(works, min(count, STARTS) if starts else count, seconds)
      if peer is not None:
        peer.forget()
      against, peaks = (group[0], spent[group[0]]), (spent[CEILING], flops)
      if peaks[0]:
        yield [
          rows.row(case, found.facts, spent[case], against, peaks) for case, found in ready.items()
        ]
      if not whole:
        raise Stopped
      ready.clear()  # or the arrays of two groups would be held at once
      works.clear()


def prepared(case: Case, folder: Path, tell: Callable[[str], None]) -> Ready:
  """The case, compiled and done once."""
  try:
    found = start.prepare(case, folder) if case.work == "start" else programs.prepare(case)
  except ValueError as error:
    raise UserError(f"{case.label}: {error}") from error
  facts = found.facts
  if "compile_s" in facts:
    memory = facts["temporaries_mib"]
    shown = "" if memory is None else f", {memory:,.0f} MiB of temporaries"
    tell(f"  {case.label}: compiled in {facts['compile_s']:.1f} s{shown}")
  else:
    tell(f"  {case.label}: {facts['first_s']:.1f} s with nothing compiled before")
  return found
