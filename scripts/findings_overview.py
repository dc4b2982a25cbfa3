"""The overview's table of what to use when, whose numbers are filled from records.

docs/findings/overview.yaml has its `rows`, and under `below` the sentence after it:

    want, use, much, sure    texts; {0:.1f} in `much` is the first of the `numbers`
    numbers                  lists: a page, ARGUMENTS of a report, and "GROUP", or "GROUP against
                             GROUP" for the size of their difference, also at metrics; or
                             leaderboard, "SUITE COLUMN SIDE TRACK", and a row, or "ROW, OPTION"
"""

from __future__ import annotations

import dataclasses
import functools
import shlex
import statistics
from collections.abc import Mapping

import yaml
from findings_claims import HERE, found_in, head, values_of
from tabulate import tabulate

from posexp.board.standings import Board, of_folder
from posexp.board.suite import FOLDER, Suite
from posexp.reporting.text import wrapped


def when() -> str:
  """Return what to use when, as a table, with a sentence below it."""
  said = yaml.safe_load((HERE / "overview.yaml").read_text(encoding="utf-8"))
  rows = [[each["want"], each["use"], filled(each), each["sure"]] for each in said["rows"]]
  table = tabulate(rows, ["you want to", "use", "by how much", "how sure"], "pipe")
  return f"{table}\n\n{wrapped(filled(said['below']))}"


def filled(said: Mapping) -> str:
  """Return the text of a row with its numbers, as their reports show them."""
  return said["much"].format(*(_number(*each) for each in said["numbers"]))


def _number(page: str, argv: str, text: str) -> float:
  if page == "leaderboard":
    suite, column, side, track = argv.split(maxsplit=3)
    name, _, option = text.partition(", ")
    cell = board(suite, track).anchor(name).cells[column, side]
    points = {
      typed: runs for typed, runs in cell.points.items() if not option or option in typed.split()
    }
    cell = dataclasses.replace(cell, points=points)
    return cell.estimate.mean * cell.score.factor
  folder, words = HERE / page, shlex.split(argv)
  named = head(folder).labels
  (one,) = found_in(folder, words, named)
  sides = [values_of(folder, words, named, each) for each in text.split(" against ")]
  means = [statistics.fmean(each.values()) * one.score.factor for each in sides]
  return means[0] if len(means) == 1 else abs(means[0] - means[1])


@functools.cache
def board(name: str, track: str) -> Board:
  """Return the rows of a suite of the leaderboard in one of its tracks."""
  suite, records = Suite.read(FOLDER / f"{name}.yaml"), HERE.parent / "leaderboard" / "records"
  return Board.of(suite, of_folder(records / name, suite), track)
