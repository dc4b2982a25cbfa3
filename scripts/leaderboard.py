"""Draws the pages of docs/leaderboard from records, and freezes a suite.

    python scripts/leaderboard.py            README.md, tables.md, heat maps, LaTeX and columns.md
    python scripts/leaderboard.py --freeze   writes what is frozen to the end of the file of the
                                             suite and of each variant: digests of test examples,
                                             and what calibration compares

README.md has what to use for each need, by the newest suite, papers.md whether orders that papers
publish hold here, by papers.yaml, and tables.md, which is written as a whole, all tables.
Published rows are docs/leaderboard/records/SUITE/*.parquet, and runs with two threads are
docs/leaderboard/1/rope@2.parquet. What stands between the comments `<!-- tables -->` and
`<!-- end -->` is written here, all else by hand.
"""

from __future__ import annotations

import argparse
import re
import statistics
from collections.abc import Sequence
from itertools import pairwise, product
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from posexp import storage
from posexp.board import page, tables
from posexp.board.standings import LEVEL, Board, Cell, Standing, boards, of_folder
from posexp.board.suite import FOLDER, SUITES, Suite, beginning_of, examples_of
from posexp.board.trust import SEEDS, config_of
from posexp.reporting.significance import Difference, holm
from posexp.reporting.text import MISSING, Section, Table, document, tabulated

HERE = Path(__file__).parents[1] / "docs" / "leaderboard"
BLOCK = re.compile(r"(<!-- tables -->\n).*?(<!-- end -->)", re.S)
ANCHORS = ("none", "rope")  # whose runs calibration compares
CAPTION = {
  "beyond": "Worth on inputs longer than all of training: 0 is a guess, and 1 is all right.",
  "within": "The same at the lengths of training. A cell is empty where nobody has trained it.",
}
GLUE = "\N{NO-BREAK SPACE}"
VERDICTS = {  # by the signs of pairs
  frozenset(">"): "holds",
  frozenset(">≈"): "holds in part",
  frozenset("≈"): "cannot be told",
  frozenset("<"): "the other way round",
  frozenset("<≈"): "the other way round, where it can be told",
  frozenset("<>"): "holds in part, and in part the other way round",
  frozenset("<>≈"): "holds in part, and in part the other way round",
}


def freeze(file: Path) -> None:
  """Write what is frozen of a suite to the end of its file."""
  suite = Suite.read(file)
  examples = {
    name: examples_of(config_of(column, "none", 0)) for name, column in suite.columns.items()
  }
  calibration = {
    name: {
      encoding: {seed: beginning_of(config_of(column, encoding, seed)) for seed in SEEDS}
      for encoding in ANCHORS
    }
    for name, column in suite.columns.items()
    if not column.control
  }
  found = {"examples": examples, "calibration": calibration}
  text = file.read_text("utf-8").partition("\nfrozen:\n")[0].rstrip("\n")
  frozen = yaml.safe_dump({"frozen": found}, sort_keys=False)
  storage.write(file, f"{text}\n\n{frozen}")
  for column in Suite.read(file).columns.values():
    print(f"{file}: {column.name} is {column.digest}")


def fill(name: str, text: str) -> None:
  """Write a text between the comments of a page."""
  file = HERE / name
  storage.write(file, BLOCK.sub(lambda m: m[1] + "\n" + text + m[2], file.read_text("utf-8")))


def seconds(rows: Sequence[Standing], column: str) -> str:
  """Return the processor seconds of a run of `rope` among some rows."""
  found = [
    value
    for row in rows
    if row.about["encoding"] == "rope"
    for (name, _), value in row.costs("time/cpu_seconds").items()
    if name == column
  ]
  return f"{statistics.median(found):.0f}" if found else MISSING


def can_tell(suite: Suite, rows: Sequence[Standing]) -> str:
  """Return the table of what each column can tell, and of what a run of it costs."""
  twice = of_folder(HERE / suite.name, suite)
  board = Board.of(suite, rows, "default")
  heads = ["column", "side", "best", "its score", "rope", "none", "worst", "SD over seeds"]
  heads += ["learned", "s, one thread", "s, two threads", "control", "why it is in"]
  table = []
  for column in suite.columns.values():
    for side in column.sides:
      cells, found = board.cells(column, side), []
      if cells:
        order, top = sorted(cells, key=lambda name: -cells[name].mean), board.best(column, side)
        best = cells[order[0]]
        shown = {n: best.score.number(c.estimate.mean) for n, c in cells.items()}
        deviations = [c.estimate.sd for c in cells.values() if c.estimate.sd is not None]
        spread = best.score.number(statistics.median(deviations)) if deviations else MISSING
        learned = sum(cell.learned for cell in cells.values())
        found = [
          tables.named(top, len(cells)),
          shown[order[0]],
          shown.get("rope", MISSING),
          shown.get("none", MISSING),
        ]
        seeds = f"{learned}/{sum(len(c.runs) for c in cells.values())}"
        gated = tables.has_gate(board, column, "beyond")
        found += [shown[order[-1]], spread, seeds if gated else MISSING]
      costs = [seconds(rows, column.name), seconds(twice, column.name)]
      found = found or [MISSING] * 7
      table.append([column.name, side, *found, *costs, column.control or MISSING, column.why])
  return document([Section(f"Suite {suite.name}", (heads, table), [])])


class Pair(NamedTuple):
  """Two rows of a column of which a paper has the first in front."""

  better: str
  worse: str
  difference: Difference
  more_is_better: bool

  @property
  def sign(self) -> str:
    """Whether the first is in front here, too; ≈ where the two cannot be told apart."""
    found = self.difference
    if found.holm is None or found.holm >= LEVEL:
      return "≈"
    return ">" if (found.estimate.mean > 0) == self.more_is_better else "<"


def pairs_of(order: Sequence[str | list[str]], cells: dict[str, Cell]) -> list[Pair]:
  """Return the neighbors in an order that a paper has; of rows in a list, each is behind the first.

  Raises:
    KeyError: a row has no cell in the column.
  """
  names = [each if isinstance(each, list) else [each] for each in order]
  pairs = [pair for one, other in pairwise(names) for pair in product(one, other)]
  score = next(iter(cells.values())).score
  return [
    Pair(
      a,
      b,
      Difference.of(cells[a].values, cells[b].values, score.most),
      score.metric.higher_is_better,
    )
    for a, b in pairs
  ]


def published(boards: Sequence[Board], claims: Sequence[dict[str, Any]]) -> Table:
  """Return what becomes of published orders beyond the lengths of training, in the suite that each
  names; p by Holm over all of their pairs.
  """
  cells = {
    (board.suite.name, column.name): board.cells(column, "beyond")
    for board in boards
    for column, side in board.columns
    if side == "beyond"
  }
  places = [(f"{claim['suite']}", claim["column"]) for claim in claims]
  orders = [
    pairs_of(claim["order"], cells[place]) for claim, place in zip(claims, places, strict=True)
  ]
  every = [pair.difference for pairs in orders for pair in pairs]
  for each, p in zip(every, holm([each.p for each in every]), strict=True):
    each.holm = p
  heads = ["paper", "says", "there", "suite", "column", "here", "verdict", "why"]
  rows = []
  for each, place, pairs in zip(claims, places, orders, strict=True):
    text = {}
    for name, cell in cells[place].items():
      digits = 0 if cell.score.factor > 1 else 2
      text[name] = f"{name}{GLUE}{cell.score.factor * cell.estimate.mean:.{digits}f}"
    before = pairs[0].better
    shown = text[before]
    for pair in pairs:
      shown += "," * (pair.better != before) + f" {pair.sign}{GLUE}{text[pair.worse]}"
      before = pair.worse
    verdict = VERDICTS[frozenset(pair.sign for pair in pairs)]
    rows.append([each["paper"], each["says"], each["there"], *place, shown, verdict, each["why"]])
  return heads, rows


def main() -> None:
  """Draw the pages, or freeze the suite."""
  parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
  parser.add_argument("--freeze", action="store_true", help="write what is frozen of the suites")
  if parser.parse_args().freeze:
    for file in sorted(FOLDER.glob("*.yaml")):
      freeze(file)
    return
  pages, columns, default = [], [], []
  for suite in (Suite.read(FOLDER / f"{name}.yaml") for name in SUITES):
    rows = of_folder(HERE / "records" / suite.name, suite)
    columns.append(can_tell(suite, rows))
    tracks, out = boards(suite, rows), HERE / suite.name
    page.write(tracks, out)
    (out / "leaderboard.md").unlink()  # which stands in tables.md
    (out / "leaderboard.html").unlink()  # which is made whenever the site is
    pages += [f"# Suite {suite.name}\n\n{pictures(tracks[0])}{tables.markdown(tracks)}"]
    default.append(tracks[0])
    variants = [Suite.read(each) for each in sorted(FOLDER.glob(f"{suite.name}-*.yaml"))]
    others = [Board.of(v, of_folder(HERE / "records" / v.name, v), "default") for v in variants]
    default += others
    if any(other.rows for other in others):
      pages.append(document([tables.agreement(tracks[0], others)]))
  storage.write(HERE / "tables.md", "\n".join(pages).rstrip() + "\n")
  fill("columns.md", "\n".join(columns))
  newest = default[0]
  answers = tabulated(tables.answers(newest), "pipe", "left")
  fill("README.md", f"{answers}\n\n{pictures(newest)}")
  claims = yaml.safe_load((HERE / "papers.yaml").read_text("utf-8"))
  fill("papers.md", tabulated(published(default, claims), "pipe", "left") + "\n\n")


def pictures(board: Board) -> str:
  """Return the heat maps of a track, as Markdown, each with its caption."""
  shown = [
    f"![{caption}]({board.suite.name}/default-{side}.svg)\n\n{caption}\n\n"
    for side, caption in CAPTION.items()
    if any(each == side for _, each in board.columns)
  ]
  return "".join(shown)


if __name__ == "__main__":
  main()
