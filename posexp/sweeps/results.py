"""The last table of a sweep: the means of its runs, as a report has them."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence

from posexp.errors import near
from posexp.runs import read_runs
from posexp.sweeps.sweep import DONE, Member


def results(runs: Sequence[Member]) -> Iterator[str]:
  """A table for each task, with a row for each group of runs that differ in their seeds alone.

  Raises:
    UserError: no finished run can be read.
  """
  paths = [member.path for member in runs if member.state == DONE and member.finished]
  if not paths:
    return
  from posexp.reporting import results, tables, text

  for each in results.results(read_runs(paths)[0]):
    yield from ("", each.title, text.tabulated(tables.score_table(each), "plain"))
  folders = dict.fromkeys(near(path.parents[2]) for path in paths)
  yield f"more: python -m posexp.report {shlex.join(folders)}"
