"""From a plan to rows: compiles the cases of a group, times them in rounds, goes on to the next."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

from benchmarking import programs, start
from benchmarking.cases import Case
from benchmarking.peers import Peer
from benchmarking.programs import Ready
from benchmarking.rows import Row, row
from benchmarking.timing import rounds
from posexp.errors import UserError

CEILING = "a matrix product"
STARTS = 3  # rounds of processes that start, at most


class Stopped(Exception):
  """Ctrl-C, after the rows of whole rounds."""


def measure(
  groups: list[list[Case]],
  peer: Peer | None,
  count: int,
  seconds: float,
  failed: dict[str, str] | None = None,
) -> Iterator[list[Row]]:
  """Yield the rows of each group, from `count` rounds of so many seconds for each case.

  A case that cannot be compiled or run goes to `failed`, with the reason, if that is given.

  Raises:
    UserError: the sizes do not fit an encoding.
    Stopped: Ctrl-C, after the rows of whole rounds.
  """
  with tempfile.TemporaryDirectory() as folder:
    for group in groups:
      print(group[0].title, flush=True)
      try:
        ready = all_prepared(group, Path(folder), failed)
        if peer is not None:
          ready |= peer.prepare(group)
      except KeyboardInterrupt:
        raise Stopped from None
      if not ready:
        continue
      product, flops = programs.ceiling(group[0].size.dtype)
      works = {case: found.timed for case, found in ready.items()} | {CEILING: product}
      most = STARTS if group[0].work == "start" else count
      spent, whole = rounds(works, min(count, most), seconds)
      if peer is not None:
        peer.forget()
      first = next(iter(ready))
      baseline, ceiling = (first, spent[first]), (spent[CEILING], flops)
      if spent[CEILING]:
        yield [row(case, ready[case].facts, spent[case], baseline, ceiling) for case in ready]
      if not whole:
        raise Stopped
      ready.clear()  # or the arrays of two groups would be in memory at once
      works.clear()


def all_prepared(
  group: list[Case], folder: Path, failed: dict[str, str] | None
) -> dict[Case, Ready]:
  """Return the cases of a group, less those that failed where failures are kept."""
  ready = {}
  for case in group:
    try:
      ready[case] = prepared(case, folder)
    except Exception as error:  # whatever a compiler or a device says no with
      if failed is None:
        raise
      failed[f"{case.label}: {case.title}"] = reason(error)
      print(f"  {case.label}: not measured: {reason(error)}", flush=True)
  return ready


def reason(error: Exception) -> str:
  """Return what an exception says, in a line."""
  said = next(iter(str(error).splitlines()), "")
  return said if isinstance(error, UserError | ValueError) else f"{type(error).__name__}: {said}"


def prepared(case: Case, folder: Path) -> Ready:
  """Return the case, compiled and run once; UserError if its sizes do not fit."""
  try:
    found = start.prepare(case, folder) if case.work == "start" else programs.prepare(case)
  except ValueError as error:
    raise UserError(f"{case.label}: {error}") from error
  facts = found.facts
  if "compile_s" in facts:
    memory = facts.get("temporaries_mib")
    memory = "" if memory is None else f", {memory:,.0f} MiB of temporaries"
    print(f"  {case.label}: compiled in {facts['compile_s']:.1f} s{memory}", flush=True)
  else:
    print(f"  {case.label}: {facts['first_s']:.1f} s with nothing compiled before", flush=True)
  return found
