"""The leaderboard: what a row is made of, where it stands, and which entries are refused."""

import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import yaml

from posexp.board import page, rows, tables, trust
from posexp.board.standings import Board, of_file
from posexp.board.suite import FOLDER, Suite, beginning_of, code_digest, examples_of
from posexp.config import plugins
from posexp.errors import UserError
from posexp.leaderboard import arguments, leaderboard
from posexp.reporting import aggregates
from posexp.runs import RunWriter, folder
from posexp.runs.examples import Examples
from posexp.runs.lengths import area, extrapolation
from posexp.runs.records import read_records, write_records

LENGTHS = [2, 4, 5, 6]
OPTIONS = ["model=tiny", "task.longest=4", f"task.lengths={LENGTHS}", "task.examples=20"]
OPTIONS = [each.replace(" ", "") for each in OPTIONS]
OPTIONS += ["train.batch_size=8", "train.steps=4", "train.evaluate_every=4"]
SIDE = {"low": 0, "high": 1}
COLUMNS = {
  "copy": {"need": "copy", "options": ["task=copy", *OPTIONS], "learning_rate": 1e-3,
           "within": {"score": "test/exact_match", **SIDE},
           "beyond": {"score": "beyond/area", **SIDE}},
  "majority": {"need": "nothing", "control": "A/A", "options": ["task=majority", *OPTIONS],
               "learning_rate": 1e-3, "within": {"score": "test/exact_match", **SIDE}},
}  # fmt: skip
SUITE = {
  "suite": "tiny",
  "whole": {"seeds": 3, "trial_seeds": [1000, 1001], "rates": [0.5, 1, 2], "option": True},
  "quick": {"seeds": 2, "trial_seeds": [1000], "rates": [0.5, 1, 2], "option": False},
  "columns": COLUMNS,
}
PLUGIN = """
import dataclasses, posexp
@dataclasses.dataclass(frozen=True)
class Mine(posexp.Encoding):
  pace: float = 0.1
  alternative = ("pace", 0.5)
ENCODINGS = {"mine": Mine}
"""
GOOD = {"rope": 0.97, "none": 0.5, "mine": 0.97, "alibi": 0.75}  # exact match beyond training
ARGS = ["--suite", "suite.yaml", "--out", "out", "--records", "published", "workers=1"]


def packed(right):
  return Examples(right.astype(float), np.ones(len(right)), "all").packed()


@pytest.fixture
def home(tmp_path, monkeypatch):
  """A folder with a suite, in which runs have planted scores; `trained` are their configs."""
  monkeypatch.chdir(tmp_path)
  monkeypatch.setattr(plugins, "_found", {})
  Path("suite.yaml").write_text(yaml.safe_dump(SUITE))
  Path("mine.py").write_text(PLUGIN)
  monkeypatch.setattr("posexp.leaderboard._check", lambda *given: None)
  monkeypatch.setattr(rows, "packed_examples", lambda run: EXAMPLES.get(run.path.absolute(), {}))
  trained = []

  def train(config):
    if train.stops == len(trained):
      raise KeyboardInterrupt
    trained.append(config)
    name, rate = config["encoding"], config["train"]["learning_rate"]
    random = np.random.default_rng([config["seed"], sum(map(ord, config["task"]["name"]))])
    summary = {"headline": ["validation/exact_match"], "step": 4}
    row = {"validation/exact_match": 0.9 + 0.01 * (rate == 2e-3) - 1e-9 * config["seed"]}
    examples = {}
    if not config.get("trial"):
      for split, lengths in (("test", LENGTHS[:2]), ("beyond", LENGTHS[2:])):
        even = split == "test" or config["task"]["name"] == "majority"
        right = random.random(40) < (0.999 if even else GOOD[name] - 0.05 * random.random())
        parts = right.reshape(2, 20).mean(axis=1)
        each = zip(lengths, parts.tolist(), strict=True)
        summary |= {f"{split}/exact_match/{n}": value for n, value in each}
        summary[f"{split}/exact_match"] = float(right.mean())
        examples[split] = {"exact_match": packed(right)}
      summary["gates"] = {"beyond": {"metric": "test/exact_match", "least": 0.9}}
      summary |= extrapolation(summary)
    with RunWriter(folder(config), config) as run:
      EXAMPLES[folder(config).absolute()] = examples
      run.log(4, row | {"time/cpu_seconds": 3.0 + (name == "rope")})
      cost = {"parameters": 100, "flops_per_token": 200, "processor": "one"}
      cost["time/cpu_seconds"] = 3.0 + (name == "rope")
      run.finish(summary | row | cost)

  train.stops, train.trained = None, trained
  monkeypatch.setattr("posexp.train.train", train)
  return train


EXAMPLES = {}


def typed(*words):
  leaderboard(arguments([*words, *ARGS]))


def publish(*names):
  Path("published").mkdir(exist_ok=True)
  for name in names:
    shutil.copy(f"out/{name}.parquet", "published")


def tiny():
  return Suite.read(Path("suite.yaml"))


def board(*names, track="default"):
  every = [each for name in names for each in of_file(Path(f"out/{name}.parquet"), tiny())]
  return Board.of(tiny(), every, track)


def test_a_row_that_is_stopped_twice_ends_as_one_that_never_was(home, capsys):
  typed("encoding=rope,none")
  publish("rope", "none")
  before = len(home.trained)
  for stop, complete in ((before + 5, 0), (before + 26, 1)):
    home.stops = stop
    with pytest.raises(KeyboardInterrupt):
      typed("encoding=mine", "plugins=mine.py")
    shown = tables.markdown([Board.of(tiny(), of_file(Path("out/mine.parquet"), tiny()), "tuned")])
    assert ("(n = 2)" in shown) == complete
  home.stops = None
  typed("encoding=mine", "plugins=mine.py")
  of_mine = home.trained[before:]
  assert len({folder(each) for each in of_mine}) == len(of_mine) == 2 * (12 + 3)
  every = read_records(Path("out/mine.parquet"), trials=True)
  assert len(every) == len(of_mine)
  assert {run.seed for run in every if run.trial} == {1000, 1001}
  (mine,) = board("mine").rows
  assert mine.chosen["copy"] == "mine.pace=0.1 train.learning_rate=0.002"
  out = capsys.readouterr().out
  assert "up to 36 runs to train" in out
  assert "written: out/mine.parquet, 30 runs" in out
  typed("encoding=mine", "plugins=mine.py")
  assert len(home.trained) - before == len(of_mine)
  leaderboard(arguments(ARGS[:-1]))  # the table alone
  shown = capsys.readouterr().out
  assert "mine is not told apart from rope in any column." in shown
  assert {"mine", "none", "rope"} <= {line.split("|")[1].strip() for line in shown.splitlines()
                                      if line.startswith("| ")}  # fmt: skip


def test_a_board_says_who_is_better_by_how_much_and_whether_it_can_tell(home):
  typed("encoding=rope,none,alibi")
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
  assert page.drawn(found, "beyond").startswith("<svg")


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


def edited(about=None, trial=None, final=None, drop=0):
  """Write an entry with other numbers; `trial` and `final` change the summary of the first one."""
  file = Path("out/mine.parquet")
  every, said = read_records(file, trials=True), rows.about_row(file)
  for kind, change in ((True, trial), (False, final)):
    first = next(run for run in every if bool(run.trial) is kind)
    first.summary.update(change or {})
  about = said | (about or {})
  write_records(Path("planted.parquet"), every[drop:], lambda run: run.examples, about)


REFUSED = {
  "a trial with a test score": ({"trial": {"test/exact_match": 0.5}}, "is a trial and has"),
  "a number that its examples do not have": (
    {"final": {"beyond/exact_match": 0.999}}, r"beyond/exact_match is 0.999, and by its examples"
  ),
  "a length that its examples do not have": (
    {"final": {"beyond/exact_match/5": 0.999}}, "beyond/exact_match/5 is 0.999, and by its examples"
  ),
  "an area that its lengths do not have": (
    {"final": {"beyond/area": 0.999}}, "beyond/area is 0.999, and by its scores by length"
  ),
  "a choice by other scores": (
    {"final": {"validation/exact_match": 0.999}}, "by the rows of training"
  ),
  "a trial that is missing": ({"drop": 1}, r"12 trials, of which 1 are missing|of 3 results"),
  "another suite": ({"about": {"suite": "0" * 12}}, "is of suite 000000000000, not"),
  "code of another file": ({"about": {"code": None}}, "it is of posexp's own mine"),
}  # fmt: skip


def test_an_entry_is_verified_or_refused_with_the_reason(home, capsys, monkeypatch):
  typed("encoding=mine", "plugins=mine.py")
  verify = ("--verify", "out/mine.parquet", "plugins=mine.py")
  typed(*verify)
  said = capsys.readouterr().out
  assert said.count("again     ") >= 3
  assert "to the digit" in said
  for what, (change, why) in REFUSED.items():
    edited(**change)
    try:
      typed("--verify", "planted.parquet", "plugins=mine.py")
      why_not = "nothing"
    except UserError as error:
      why_not = str(error)
    assert re.search(why, why_not), (what, why_not)
  GOOD["mine"] = 0.6  # what an edit of all numbers together cannot hide
  shutil.rmtree("out/runs/verified")
  monkeypatch.setattr(trust, "AGAIN", 99)  # all of them
  with pytest.raises(UserError, match="and trained again"):
    typed(*verify)
  GOOD["mine"] = 0.97
  Path("mine.py").write_text(PLUGIN + "# edited\n")
  with pytest.raises(UserError, match="is not the code that was trained"):
    typed(*verify)


def test_a_machine_that_differs_is_stopped(home):
  typed("encoding=rope,none")
  publish("rope", "none")
  config = trust.config_of(tiny().columns["copy"], "rope", 0)
  begin = beginning_of(config)
  frozen = {"calibration": {"copy": {"rope": {0: begin}}}}
  assert begin == beginning_of(config)
  assert examples_of(config) == examples_of(trust.config_of(tiny().columns["copy"], "none", 1))
  digest = tiny().digest

  def calibrate(**other):
    found = {"calibration": {"copy": {"rope": {0: begin | other}}}} if other else frozen
    Path("suite.yaml").write_text(yaml.safe_dump(SUITE | {"frozen": found}))
    shutil.rmtree("calibrated", ignore_errors=True)
    base = board("rope").rows
    return [*trust.calibrate(tiny(), base, Path("calibrated"), ["workers=1"], home)]

  assert tiny().digest == digest
  assert "2 runs end among the published ones" in calibrate()[0]
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
}


@pytest.mark.parametrize("words", MISTAKES)
def test_a_mistake_gets_one_sentence(home, words):
  with pytest.raises(UserError, match=MISTAKES[words]):
    typed(*words.split())
  assert not home.trained


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


def test_a_variant_ranks_rows_beside_its_suite(home):
  typed("encoding=rope,none,alibi,mine", "plugins=mine.py", "--columns", "copy")
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
  assert within[:4] == ["wide", "copy", "within", "3"]
  assert beyond[4].startswith("-1.00")
  assert beyond[5].startswith("rope")
  assert beyond[6].startswith("none")


def test_the_suite_is_complete_and_fits_its_budget():
  suite = Suite.read(FOLDER / "1.yaml")
  assert len(suite.columns) >= 8
  whole = len(suite.whole.rates) * 2 * len(suite.whole.trial_seeds) + 2 * suite.whole.seeds
  quick = len(suite.quick.rates) * len(suite.quick.trial_seeds) + suite.quick.seeds
  seconds = sum(each.seconds for each in suite.columns.values())
  assert whole * seconds / 2 <= 3 * 3600  # on two cores
  assert quick * seconds / 2 <= 45 * 60
  assert all(each.why for each in suite.columns.values())


def test_an_area_is_worth_nothing_where_a_model_guesses_beyond_training():
  suite = Suite.read(FOLDER / "1.yaml")
  areas = [c for c in suite.columns.values() if c.beyond and c.beyond.score == "beyond/area"]
  assert len(areas) >= 6
  for column in areas:
    task = trust.config_of(column, "none", 0)["task"]
    guesses = {n: column.within.low for n in task["lengths"] if n > task["longest"]}
    assert column.beyond.low == pytest.approx(area({task["longest"]: 1, **guesses}), abs=1e-4)


def test_the_suites_accept_this_code():
  """Else `python scripts/leaderboard.py --freeze` adds it, where no number has changed."""
  for file in FOLDER.glob("*.yaml"):
    Suite.read(file).check_code()


def test_the_digest_of_code_heeds_code_alone(monkeypatch, tmp_path):
  for change, same in {
    "# a comment": True,
    '"""Return another word."""': True,
    "import os": True,
    "return 1": False,
  }.items():
    (tmp_path / "data").mkdir(exist_ok=True)
    found = []
    for line in ("", change):
      (tmp_path / "data/one.py").write_text(f"def f():\n  {line}\n  x = '# no comment'  # one\n")
      monkeypatch.setattr("posexp.__file__", str(tmp_path / "__init__.py"))
      found.append(code_digest())
    assert (found[0] == found[1]) is same, change
