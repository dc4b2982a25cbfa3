"""Rules of the leaderboard: what a seed that has not learned, a rate at an edge, trials that tie
and an encoding that knows trained places alone are worth, and what is trained in a given time.
"""

import dataclasses
import re
from pathlib import Path
from types import SimpleNamespace

import leaderboard
import pytest
import yaml
from planted import SUITE, board, tiny, typed

from posexp.board import command, rows, tables
from posexp.board.choices import Choice
from posexp.board.standings import Board, Cell, Standing
from posexp.board.suite import Budget, Column, Side, Suite
from posexp.runs import Run
from posexp.runs.lengths import extrapolation
from posexp.runs.records import read_records

COLUMN = Column(
  "copy", "copy", ("task=copy",), 1e-3, Side("test/exact_match", 0.25, 1),
  Side("beyond/area", 0.25, 1), validation_beyond="validation/exact_match/beyond",
)  # fmt: skip
BOTH = Budget(2, (1000, 1001, 1002), doublings=3)
DEFAULT = {"mine.pace": 0.1}


def run(seed, summary, trial=None, **values):
  config = {"seed": seed, "encoding": "mine", "task": {"kind": "copy", "name": "copy"}}
  config |= {"trial": trial, "train": {"learning_rate": 1e-3}, "mine": {"pace": 0.1}} | values
  digest = f"{abs(hash(str([config['train'], config['mine']]))):012d}"[:12]
  place = Path(digest, f"seed={seed}")
  return Run(place, config, {"encoding": "mine", "task.name": "copy"}, summary)


def result(seed, within, *beyond):
  lengths = {f"beyond/exact_match/{8 * 2**i}": each for i, each in enumerate(beyond)}
  summary = {"test/exact_match": within, "test/exact_match/4": within, **lengths}
  summary["gates"] = {"beyond": {"metric": "test/exact_match", "least": 0.95}}
  return run(seed, summary | extrapolation(summary))


def trials(scores):
  """Return trials of some rates and options: {(rate, pace): (within, beyond, loss)}."""
  return [
    run(
      seed,
      {"headline": ["validation/exact_match"], "validation/exact_match": within + spread,
       "validation/exact_match/beyond": beyond + spread, "validation/loss": loss},
      "f" * 12, train={"learning_rate": rate}, mine={"pace": pace},
    )
    for (rate, pace), (within, beyond, loss) in scores.items()
    for seed, spread in zip((1000, 1001, 1002), (-0.01, 0.0, 0.01), strict=True)
  ]  # fmt: skip


def a_board(**results):
  """Return a board with a row for each list of results."""
  suite = Suite("tiny", {"copy": COLUMN}, BOTH, BOTH, {})
  found = [
    Standing(
      name, {"quick": False, "encoding": name}, "default",
      {("copy", side): Cell(COLUMN, side, {"": runs}) for side in COLUMN.sides}, {}, [], set(), [],
    )
    for name, runs in results.items()
  ]  # fmt: skip
  return Board.of(suite, found, "default")


def test_a_seed_with_94_percent_counts_with_what_it_reached_and_one_without_learning_is_told():
  near, whole = [result(0, 0.94, 0.9, 0.9)], [result(1, 1.0, 0.5, 0.5), result(2, 1.0, 0.5, 0.5)]
  found = a_board(rope=[*whole[:1], result(2, 1.0, 0.52, 0.5)], none=[*near, *whole], fire=whole)
  cell = found.cells(COLUMN, "beyond")["none"]
  assert cell.values[0] == pytest.approx(near[0].score("beyond/area"))
  assert (cell.learned, len(cell.runs)) == (2, 3)
  assert (
    cell.mean > cell.of_learned.mean == pytest.approx(found.cells(COLUMN, "beyond")["fire"].mean)
  )
  assert found.doubtful("beyond", "rope", COLUMN) == ["none"]
  text = tables.markdown([found])
  assert "whether none is better than rope depends on the seeds that did not learn" in " ".join(
    text.split()
  )
  assert "2/3" in text
  assert "fire is not told apart from rope in any column." in text
  assert "| 2 equal |" in re.sub(" +", " ", text)  # fire and rope, at the lengths of training
  heads, rows = tables.by_seed(found)
  assert (heads, rows) == (["", "runs", *(f"seed {n}" for n in range(3))], [["copy", "7", *"100"]])
  ungated = [run(seed, {"test/exact_match": 0.1, "beyond/area": 0.1}) for seed in (1, 2)]
  counted = [row["learned"] for row in tables.as_data(a_board(none=[*near, *whole], fire=ungated))]
  assert counted == [2, 2, None, None]


def test_an_encoding_that_knows_trained_places_alone_is_worth_nothing_beyond():
  guessing = [result(seed, 1.0, 0.25, 0.25) for seed in range(2)]
  lost = [result(seed, 0.25, 0.25, 0.25) for seed in range(2)]
  found = a_board(rope=guessing, none=lost)
  worth = {name: cell.mean for name, cell in found.cells(COLUMN, "beyond").items()}
  assert worth["none"] == 0
  assert 0 < worth["rope"] < 0.3  # for the length of training, with which an area begins
  assert found.cells(COLUMN, "within")["rope"].mean == 1


def test_rates_grow_on_the_side_of_the_best_until_it_is_inside():
  rising = {(rate * 1e-3, 0.1): (0.9, 0.1, 1 / rate) for rate in (0.5, 1, 2)}
  at = lambda scores, budget=BOTH: Choice.of(trials(scores), DEFAULT, COLUMN).next_rate(budget)  # noqa: E731
  assert at(rising) == 4e-3  # where scores tie, the loss decides
  assert at(rising | {(4e-3, 0.1): (0.8, 0.1, 0.1)}) is None
  assert at(rising | {(each * 1e-3, 0.1): (0.9, 0.1, 0.1 / each) for each in (4, 8)}) == 16e-3
  assert at(rising | {(each * 1e-3, 0.1): (0.9, 0.1, 0.1 / each) for each in (4, 8, 16)}) is None
  assert at(rising, Budget(2, (1000,))) is None
  falling = {(rate * 1e-3, 0.1): (0.9, 0.1, rate) for rate in (0.5, 1, 2)}
  assert at(falling) == 0.25e-3


def test_options_are_chosen_within_and_beyond_and_neither_where_trials_tie():
  grid = {(rate * 1e-3, pace): (0.5, 0.1, 1) for rate in (0.5, 2) for pace in (0.1, 0.5)}

  def chosen(**by_pace):
    values = {0.1: by_pace["default"], 0.5: by_pace["other"]}
    found = Choice.of(
      trials(grid | {(1e-3, pace): (*each, 1) for pace, each in values.items()}), DEFAULT, COLUMN
    )
    assert [p.values["train.learning_rate"] for p in found.best] == [1e-3, 1e-3]
    tracks = {
      track: [p.values["mine.pace"] for p in found.of_track(track)] for track in COLUMN.tracks
    }
    return [*tracks.values()], [p.values["mine.pace"] for p in found.results(option=True)]

  tie = [0.1, 0.5]
  assert chosen(default=(0.98, 0.1), other=(0.98, 0.9)) == ([[0.1], tie, [0.5]], tie)
  assert chosen(default=(0.98, 0.3), other=(0.975, 0.305)) == ([[0.1], tie, tie], tie)
  assert chosen(default=(0.98, 0.9), other=(0.8, 0.1)) == ([[0.1], [0.1], [0.1]], [0.1])
  assert chosen(default=(0.8, 0.9), other=(0.98, 0.1)) == ([[0.1], [0.5], [0.1]], tie)


def test_a_cell_at_an_edge_is_marked_and_not_ranked_and_another_is_bracketed(home):
  budget = SUITE["whole"] | {"doublings": 1}
  Path("suite.yaml").write_text(yaml.safe_dump(SUITE | {"whole": budget}))
  best = {"rope": 4e-3, "none": 1e-3}
  home.validation = lambda config: {
    "validation/exact_match": 0.9 - abs(config["train"]["learning_rate"] - best[config["encoding"]])
  }
  typed("encoding=rope,none", "--columns", "copy")
  found = board("rope", "none")
  cells = found.cells(tiny().columns["copy"], "beyond")
  assert {name: cell.at_edge for name, cell in cells.items()} == {"rope": True, "none": False}
  tried = {each["train"]["learning_rate"] for each in home.trained if each["encoding"] == "rope"}
  assert tried == {5e-4, 1e-3, 2e-3, 4e-3}
  assert found.best(tiny().columns["copy"], "beyond") == ["none"]
  assert "rope" not in found.overall("beyond")
  text = tables.markdown([found])
  assert "at an edge" in text
  assert "8 runs" in text  # what the trials of rope cost
  typed("--verify", "out/none.parquet")


def test_trials_that_tie_choose_nothing_and_both_are_shown(home):
  typed("encoding=mine", "plugins=mine.py", "--columns", "copy")
  (mine,) = board("mine", track="tuned within").rows
  assert mine.chosen["copy"].startswith("not chosen: mine.pace=0.1 ")
  cell = mine.cells["copy", "beyond"]
  parts = [dataclasses.replace(cell, points={"": runs}) for runs in cell.points.values()]
  assert cell.values[0] == pytest.approx(sum(each.values[0] for each in parts) / 2)
  assert "not chosen: " in tables.shown(cell)


def test_where_all_trials_of_the_default_diverge_the_alternative_is_tried(home):
  home.validation = lambda config: (
    {} if config["mine"]["pace"] == 0.5 else {"validation/exact_match": None}
  )
  typed("encoding=mine", "plugins=mine.py", "--columns", "copy")
  assert board("mine").rows == []
  (mine,) = board("mine", track="tuned within").rows
  assert mine.chosen["copy"].startswith("mine.pace=0.5 ")
  assert len(mine.cells["copy", "beyond"].values) == SUITE["whole"]["seeds"]


def test_what_fits_the_time_is_trained_column_by_column_and_tuned_tracks_later(home, monkeypatch):
  rows_of = {"rows": {"rope": "rope", "none": "none"}}
  Path("suite.yaml").write_text(yaml.safe_dump(SUITE | rows_of))
  now = [0.0]
  clock = SimpleNamespace(monotonic=lambda: now[0])
  monkeypatch.setattr(rows, "time", clock)
  monkeypatch.setattr(command, "time", clock)

  def lasting(config):
    now[0] += pace[0]
    return {"time/seconds": 30.0}

  home.validation, pace = lasting, [60]
  for encoding in ("none", "rope"):  # a trial each, which chooses nothing
    now = [0.0]
    typed(f"encoding={encoding}", "--for", "60s")
  assert len(home.trained) == 2
  now, pace = [0.0], [30]
  typed("--for", "480s")
  assert now[0] <= 480
  assert len(home.trained) == 18
  order = [(each["task"]["name"], each["encoding"]) for each in home.trained]
  assert [*dict.fromkeys(order)] == [("copy", "none"), ("copy", "rope"), ("majority", "none")]
  before = 0
  while before < (before := len(home.trained)):
    typed("--for", "9m")
  assert before == 24 + 18
  is_tuned = [each["rope"]["base"] != 10000 for each in home.trained if "rope" in each]
  assert any(is_tuned)
  assert is_tuned == sorted(is_tuned)  # other options come last
  assert len({str(each) for each in home.trained}) == len(home.trained)
  every = read_records(Path("out/rope.parquet"), trials=True)
  assert {run.task for run in every} == {"copy", "majority"}
  Path("out").rename("published")
  typed("--for", "60m")
  assert len(home.trained) == before  # what the files of this folder lack is published


def test_a_published_order_holds_is_turned_around_or_cannot_be_told():
  metric = SimpleNamespace(higher_is_better=True)

  def cell(*values):
    score = SimpleNamespace(factor=100, most=None, metric=metric)
    mean = SimpleNamespace(mean=sum(values) / len(values) / 100)
    return SimpleNamespace(values=dict(enumerate(values)), score=score, estimate=mean)

  rows = {"a": cell(90, 92, 91), "b": cell(50, 51, 52), "c": cell(49, 52, 52), "d": cell(9, 7, 8)}
  column = SimpleNamespace(name="copy")
  suite = SimpleNamespace(name="1")
  board = SimpleNamespace(suite=suite, columns=[(column, "beyond")], cells=lambda *_: rows)
  orders = [["a", "b", "d"], ["b", "c"], ["d", "a"], ["a", ["b", "d"]], ["a", "c", "b"]]
  said = dict.fromkeys(("paper", "says", "there", "why"), "") | {"suite": 1, "column": "copy"}
  claims = [said | {"order": order} for order in orders]
  _, found = leaderboard.published([board], claims)
  assert [(row[5].replace(leaderboard.GLUE, " "), row[6]) for row in found] == [
    ("a 91 > b 51 > d 8", "holds"),
    ("b 51 ≈ c 51", "cannot be told"),
    ("d 8 < a 91", "the other way round"),
    ("a 91 > b 51, > d 8", "holds"),
    ("a 91 > c 51 ≈ b 51", "holds in part"),
  ]
  metric.higher_is_better = False  # as bits per byte
  _, found = leaderboard.published([board], claims)
  turned = ["the other way round", "cannot be told", "holds", "the other way round"]
  assert [row[6] for row in found] == [*turned, "the other way round, where it can be told"]


def test_papers_name_rows_and_columns_that_are_there():
  said = yaml.safe_load((Path(leaderboard.HERE) / "papers.yaml").read_text(encoding="utf-8"))
  for each in said:
    suite = Suite.read(Path(rows.__file__).parent / "suites" / f"{each['suite']}.yaml")
    names = [name for part in each["order"] for name in ([part] if isinstance(part, str) else part)]
    files = leaderboard.HERE.glob(f"records/{suite.name}/*.parquet")
    assert {*names} <= {file.stem for file in files}
    assert each["column"] in suite.columns
