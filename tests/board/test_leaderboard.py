"""The leaderboard: what a row is made of, and where it stands."""

import csv
import dataclasses
import re
import shutil
import sys
from pathlib import Path

import hydra
import numpy as np
import order
import pytest
import yaml
from planted import ARGS, GOOD, SUITE, board, planted, publish, tiny, typed

from posexp import storage
from posexp.__main__ import run_other
from posexp.board import aggregates, page, tables, trust
from posexp.board.command import arguments, leaderboard
from posexp.board.standings import Board, of_file
from posexp.board.suite import FOLDER, SUITES, Suite, beginning_of, examples_of
from posexp.config import plugins
from posexp.errors import UserError
from posexp.reporting.text import MISSING
from posexp.runs import folder
from posexp.runs.lengths import area
from posexp.runs.records import read_records

DRAWN = page.drawn


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
  """A folder with the rows of three encodings."""
  folder = tmp_path_factory.mktemp("rows")
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(hydra, "compose", order.composed_once)
    planted(folder, patch)
    typed("encoding=rope,none,alibi")
  return folder


@pytest.fixture
def rows_there(trained, home):
  """Where these rows have been trained before."""
  shutil.copytree(trained, ".", dirs_exist_ok=True)
  return home


def test_a_row_that_is_stopped_twice_ends_as_one_that_never_was(rows_there, capsys):
  home, words = rows_there, ("encoding=mine", "plugins=mine.py", "--columns", "copy")
  for stop in (5, 11):  # in the default track, and in the tuned ones, which come after it
    home.stops = stop
    with pytest.raises(KeyboardInterrupt):
      typed(*words)
    assert ("copy" in board("mine").rows[0].incomplete) == (stop == 5)
    assert not board("mine", track="tuned within").rows  # before it is whole
  home.stops = None
  typed(*words)
  of_mine = home.trained[:]
  assert len({folder(each) for each in of_mine}) == len(of_mine) == 6 + 6
  every = read_records(Path("out/mine.parquet"), trials=True)
  assert len(every) == len(of_mine)
  assert [run.seed for run in every if run.trial] == 6 * [1000]
  (mine,) = board("mine").rows
  assert mine.incomplete == {"majority"}
  assert mine.chosen["copy"] == "mine.pace=0.1 train.learning_rate=0.002"
  out = capsys.readouterr().out
  assert "12 runs to train, and more where the best rate" in out
  assert "written: out/mine.parquet, 12 runs" in out
  typed(*words)
  assert len(home.trained) == len(of_mine)
  leaderboard(arguments(ARGS))  # the table alone
  assert "| copy" in capsys.readouterr().out.split("what to use", 1)[1]
  shown = Path("out/leaderboard.md").read_text()
  assert {"mine", "none", "rope"} <= {line.split("|")[1].strip() for line in shown.splitlines()
                                      if line.startswith("| ")}  # fmt: skip


def test_a_board_says_who_is_better_by_how_much_and_whether_it_can_tell(rows_there):
  found = board("rope", "none", "alibi")
  copy = found.suite.columns["copy"]
  assert [row.name for row in found.rows] == ["rope", "alibi", "none"]
  assert [each.name for each in found.shared("beyond")] == ["copy"]  # a control counts in no mean
  assert found.told("none") == [(copy, "beyond")]
  better = found.improvements("beyond", "rope")
  assert better["none"].value == 0.0
  assert found.ranks("beyond") == pytest.approx({"rope": 1.0, "alibi": 1 / 2, "none": 1 / 3})
  assert found.cost(found.anchor("rope"), "time/cpu_seconds") == pytest.approx(4 / 3)
  cell = found.cells(copy, "beyond")["rope"]
  assert found.overall("beyond")["rope"].value == pytest.approx(np.sort(cell.worth).mean())
  assert 0 < found.detectable(copy, "beyond") < 1
  texts = [tables.markdown([found]), page.page([found]), tables.latex(found, "beyond")]
  for text in texts:
    assert cell.score.number(cell.estimate.mean) in text
  seeds = " ".join(map(cell.score.number, cell.values.values()))
  assert f"seeds {seeds}" in texts[1]
  page.write([found], Path("out"))
  lines = csv.DictReader(Path("out/default.csv").read_text().splitlines())
  written = {(line["row"], line["column"], line["side"]): line["mean"] for line in lines}
  assert float(written["rope", "copy", "beyond"]) == cell.estimate.mean
  assert DRAWN(found, "beyond").startswith("<svg")


def test_a_quick_row_is_provisional_and_never_in_the_tuned_track(home):
  typed("encoding=rope", "--quick", "--columns", "copy")
  assert len(home.trained) == 3 + 2
  assert board("rope", track="tuned").rows == []
  assert "rope is provisional" in tables.markdown([board("rope")])
  typed("encoding=rope")  # whole, which goes on from it
  assert "rope is" not in tables.markdown([board("rope")])
  with pytest.raises(UserError, match=r"out/rope.parquet is a whole row: leave --quick out"):
    typed("encoding=rope", "--quick")


def test_a_row_has_the_columns_that_are_published_unless_others_are_named(home, capsys):
  typed("encoding=rope", "--quick", "--columns", "copy")
  publish("rope")
  typed("encoding=alibi", "--quick")
  assert {each["task"]["name"] for each in home.trained} == {"copy"}
  advice = re.search("no row is published in majority yet: (--.*) trains", capsys.readouterr().out)
  typed("encoding=alibi", "--quick", *advice[1].split())
  assert home.trained[-1]["task"]["name"] == "majority"
  assert "no row is published" not in capsys.readouterr().out


def test_a_machine_that_differs_is_stopped(rows_there):
  publish("rope", "none")
  config = trust.config_of(tiny().columns["copy"], "rope", 0)
  begin = beginning_of(config)
  frozen = {"calibration": {"copy": {"rope": {0: begin}}}}
  assert begin == beginning_of(config)
  assert examples_of(config) == examples_of(trust.config_of(tiny().columns["copy"], "none", 1))

  def calibrate(**other):
    found = {"calibration": {"copy": {"rope": {0: begin | other}}}} if other else frozen
    Path("suite.yaml").write_text(yaml.safe_dump(SUITE | {"frozen": found}))
    shutil.rmtree(storage.cache_folder() / "calibration", ignore_errors=True)
    shutil.rmtree("calibrated", ignore_errors=True)
    (each,) = trust.calibrations(tiny(), board("rope").rows, tiny().columns.values())
    assert each.seconds == 120
    said = trust.calibrate(each, Path("calibrated"), ["workers=1"], rows_there)
    assert each.seconds == 0
    return said

  assert "2 runs end among the published ones" in calibrate()
  with pytest.raises(UserError, match="the batches of training are others"):
    calibrate(batches="0" * 12)
  with pytest.raises(UserError, match="the first loss is"):
    calibrate(loss=begin["loss"] * (1 + 1e-4))
  GOOD["rope"] = 0.3
  with pytest.raises(UserError, match=r"beyond/area is 0\.\d+, and published runs have"):
    calibrate()
  GOOD["rope"] = 0.97


MISTAKES = {
  "encoding=rope task.longest=3": "task.longest=3: the suite says what is trained",
  "encoding=rope rope.base=500": "a row with options needs a name",
  "encoding=rope --columns cpoy": "--columns cpoy: suite tiny has copy, majority",
  "encoding=ropee": "encoding=ropee",
  "encoding=rope rope.p=0.5,0.75 --name both": "rope.p=0.5,0.75: a row has one value",
  "encoding=alibi alibi.learned=true --name steep": "the tuned track of alibi tries this value",
  "encoding=alibi --name rope": "--name rope: this is the row of the encoding rope",
  "encoding=rope,none --name both": "--name: several encodings have no options and no name",
  "--quick": "name what is to be trained",
  "--verify suite.yaml": "is no row of a leaderboard",
  "--verify gone.parquet": "gone.parquet: there is no such file",
  "--verify gone.parquet encoding=rope": "encoding=rope: --verify takes what was trained from",
  "--verify gone.parquet --columns copy": "--columns: --verify takes",
  "--verify gone.parquet --quick": "--quick: --verify takes",
  "--verify gone.parquet --name rope": "--name: --verify takes",
}


@pytest.mark.parametrize("words", MISTAKES)
def test_a_mistake_gets_one_sentence(home, words):
  with pytest.raises(UserError, match=MISTAKES[words]):
    typed(*words.split())
  assert not home.trained


def test_a_plugin_of_an_entry_is_not_loaded_however_the_command_is_typed(home, monkeypatch, capsys):
  monkeypatch.setattr(plugins, "load", lambda files: pytest.fail("the plugin is loaded"))
  monkeypatch.setattr(sys, "argv", ["posexp"])
  with pytest.raises(SystemExit):
    run_other(["plugins=mine.py", "leaderboard", "--verify", "gone.parquet"])
  assert "gone.parquet: there is no such file" in capsys.readouterr().err


def test_the_means_are_those_of_their_definitions():
  values = np.array([0.0, 1, 2, 3, 4, 5, 6, 100])
  assert aggregates.interquartile_mean(values) == 3.5
  low, high = [np.array([0.1, 0.2, 0.3])] * 4, [np.array([0.7, 0.8, 0.9])] * 4
  assert aggregates.overall(low).value == pytest.approx(0.2)
  same = aggregates.improvement(low, low)
  assert (same.value, same.p) == (0.5, 1.0)
  better = aggregates.improvement(high, low)
  assert better.value == 1.0
  assert better.p < 0.01
  one = aggregates.improvement(high[:1], low[:1])
  assert one.p == pytest.approx(0.1, abs=0.02)  # 2 of the 20 ways to deal six seeds
  rising = [np.array([value, value + 0.5]) for value in range(5)]
  assert aggregates.rank_correlation(rising, rising)[:3] == pytest.approx([1, 1, 1])
  falling = aggregates.rank_correlation(rising, rising[::-1])
  assert falling.value == pytest.approx(-1)
  wide = [np.array([value - 3.0, value + 3]) for value in range(5)]
  noisy = aggregates.rank_correlation(rising, wide)
  assert noisy.value == pytest.approx(1)
  assert noisy.low < 0.5 < noisy.high
  assert aggregates.rank_correlation(rising, [np.ones(2)] * 5) is None
  ranks = aggregates.reciprocal_ranks(np.array([[3.0, 1], [2, 2], [1, 2]]))
  np.testing.assert_allclose(ranks, [(1 + 1 / 3) / 2, (1 / 2 + 1) / 2, (1 / 3 + 1) / 2])


def test_a_variant_ranks_rows_beside_its_suite(rows_there):
  home = rows_there
  typed("encoding=mine", "plugins=mine.py", "--columns", "copy")
  variant = {"suite": "wide", "of": "suite", "columns": ["copy"], "slower": 2}
  variant |= {"options": ["model.d_model=16"], "whole": SUITE["quick"], "quick": SUITE["quick"]}
  Path("wide.yaml").write_text(yaml.safe_dump(variant))
  wide = Suite.read(Path("wide.yaml"))
  with pytest.raises(UserError, match=r"out/rope.parquet is a row of another suite"):
    leaderboard(arguments(["encoding=rope", "--suite", "wide.yaml", "--out", "out"]))
  before = len(home.trained)
  swapped = {"rope": GOOD["none"], "none": GOOD["rope"]}
  for name in ("rope", "none", "alibi"):
    GOOD[name], kept = swapped.get(name, GOOD[name]), GOOD[name]
    words = [f"encoding={name}", "--suite", "wide.yaml", "--out", "wide", "--records", "none"]
    leaderboard(arguments([*words, "workers=1"]))
    GOOD[name] = kept
  assert {each["model"]["d_model"] for each in home.trained[before:]} == {16}
  files = sorted(Path("wide").glob("*.parquet"))
  other = Board.of(wide, [row for file in files for row in of_file(file, wide)], "default")
  section = tables.agreement(board("rope", "none", "alibi", "mine"), [other])
  (within, beyond) = section.table[1]
  assert within[:5] == ["wide", "copy", "within", "3", MISSING]  # all are right
  assert beyond[4].startswith("-1.00")
  assert beyond[5].startswith("rope")
  assert beyond[6].startswith("none")


def test_a_suite_gets_a_column_and_no_row_is_trained_again(rows_there):
  column = SUITE["columns"]["copy"] | {"options": ["task=tally", "task.longest=4"]}
  Path("more.yaml").write_text(yaml.safe_dump({"of": "suite", "columns": {"tally": column}}))
  more = Suite.read(Path("more.yaml"))
  assert [*more.columns] == [*SUITE["columns"], "tally"]
  before = of_file(Path("out/rope.parquet"), Suite.read(Path("suite.yaml")))
  after = of_file(Path("out/rope.parquet"), more)
  assert [each.cells.keys() for each in after] == [each.cells.keys() for each in before] != []


def test_the_suite_is_complete_and_fits_its_budget():
  suite = Suite.read(FOLDER / f"{SUITES[0]}.yaml")
  assert len(suite.columns) >= 8
  whole = len(suite.whole.rates) * 2 * len(suite.whole.trial_seeds) + 2 * suite.whole.seeds
  quick = len(suite.quick.rates) * len(suite.quick.trial_seeds) + suite.quick.seeds
  seconds = sum(column.seconds for column in suite.columns.values())
  assert whole * seconds / 2 <= 3 * 3600  # on two cores
  assert quick * seconds / 2 <= 45 * 60
  assert all(column.why for column in suite.columns.values())


def test_an_area_is_worth_nothing_where_a_model_guesses():
  suite = Suite.read(FOLDER / "1.yaml")
  areas = [c for c in suite.columns.values() if c.beyond and c.beyond.score == "beyond/area"]
  assert len(areas) >= 6
  for column in areas:
    task = trust.config_of(column, "none", 0)["task"]
    guesses = {n: column.within.low for n in task["lengths"] if n > task["longest"]}
    assert column.beyond.low == pytest.approx(area({task["longest"]: 1, **guesses}), abs=1e-4)
    assert column.beyond.worth(area({task["longest"]: column.within.low, **guesses})) == 0


def test_examples_are_those_that_were_frozen():
  for name in ("copy", "majority"):
    column = Suite.read(FOLDER / "1.yaml").columns[name]
    column.check_examples(trust.config_of(column, "none", 0))
    other = dataclasses.replace(column, examples="0" * 12)
    with pytest.raises(UserError, match=f"{name}: its test examples are others here"):
      other.check_examples(trust.config_of(column, "none", 0))


def test_a_column_is_added_or_changed_without_training_the_others_again(rows_there):
  more = {**SUITE["columns"], "more": SUITE["columns"]["copy"]}
  Path("suite.yaml").write_text(yaml.safe_dump(SUITE | {"columns": more}))
  assert {name for name, _ in board("rope").rows[0].cells} == {"copy", "majority"}
  typed("encoding=rope")
  assert {each["task"]["name"] for each in rows_there.trained} == {"more"}
  assert {name for name, _ in board("rope").rows[0].cells} == {"copy", "majority", "more"}
  changed = {**more, "copy": more["copy"] | {"options": [*more["copy"]["options"], "seed=0"]}}
  Path("suite.yaml").write_text(yaml.safe_dump(SUITE | {"columns": changed}))
  left = board("rope")
  assert {name for name, _ in left.rows[0].cells} == {"majority", "more"}
  assert "rope has no cell in copy: the column has other options" in tables.markdown([left])
