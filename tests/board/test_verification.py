"""Which entries of the leaderboard are refused, and that each is told why."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml
from planted import GOOD, PLUGIN, typed

from posexp.board import rows, verification
from posexp.board.command import PUBLISHED
from posexp.board.standings import about_row
from posexp.board.suite import FOLDER, Column, Suite
from posexp.config import plugins
from posexp.errors import UserError
from posexp.runs.records import read_records, write_records


class Entry:
  """What the file of an entry holds, which tests edit, with its first trial and first result."""

  def __init__(self):
    file = Path("out/mine.parquet")
    self.name, self.about = file.stem, rows.about_row(file)
    self.runs = read_records(file, trials=True)
    self.trials = [run for run in self.runs if run.trial]
    self.results = [run for run in self.runs if not run.trial]
    self.trial, self.final = self.trials[0], self.results[0]

  def write(self, folder="planted"):
    """Write the entry, and return its file."""
    path = Path(folder) / f"{self.name}.parquet"
    path.parent.mkdir(exist_ok=True)
    write_records(path, self.runs, lambda run: run.examples, self.about)
    return path

  def replace(self, old, new):
    """Put a run in the place of another."""
    self.runs[next(i for i, run in enumerate(self.runs) if run is old)] = new


def about(**change):
  return lambda entry: entry.about.update(change)


def posing(entry):
  """Take the name of an encoding of posexp."""
  entry.name = entry.about["name"] = "rope"


def rival(entry):
  """Take the name of a published row, which has other options."""
  entry.about["options"] = ["mine.pace=0.3"]
  entry.write("published")
  entry.about["options"] = []


def easier(entry):
  """Train a result on shorter texts than the suite asks for."""
  entry.final.config["task"] = entry.final.config["task"] | {"longest": 3}


def slower(entry):
  """Have another rate than the suite's in a trial."""
  entry.trial.config["train"] = entry.trial.config["train"] | {"learning_rate": 9e-4}


def worse(entry):
  """Have lower validation scores in all trials, which choose as before."""
  for run in entry.trials:
    run.summary[run.summary["headline"][0]] -= 0.01


REFUSED = {
  "a result on an easier task": (easier, "has task.longest=3, not 4"),
  "a trial at another rate": (slower, "has train.learning_rate=0.0009, not of"),
  "a trial that is missing": (lambda e: e.runs.remove(e.trial), "it has 5 trials and 6 results"),
  "a result that is missing": (lambda e: e.runs.remove(e.final), "6 trials and 5 results"),
  "a seed twice": (lambda e: e.replace(e.results[1], e.final), "in each track, each once"),
  "damaged examples": (lambda e: e.final.examples.update(test=3), "scores of examples are damaged"),
  "a result without its score": (
    lambda e: [run.summary.pop("test/exact_match") for run in e.results],
    "it has no test/exact_match",
  ),
  "trials that end worse": (worse, "is 0.[0-9]+, and trained again 0.[0-9]+"),
  "a trial that was tested": (
    lambda e: e.trial.summary.update({"test/exact_match": 0.5}), "is a trial, and has a test score"
  ),
  "a task of another file": (
    lambda e: e.runs[0].config.update(
      plugins={"task": {"name": "last", "path": "last.py", "sha256": "0"}}
    ),
    "name that file, with plugins=last.py",
  ),
  "an option of the task": (
    lambda e: (setattr(e, "name", "x"), e.about.update(name="x", options=["task.longest=3"])),
    "task.longest=3: the suite says what is trained",
  ),
  "another name": (about(name="other"), "is named other, so its file has to be other.parquet"),
  "the name of another encoding": (posing, "this is the row of the encoding rope"),
  "the name of a published row": (rival, "is published with encoding=mine mine.pace=0.3"),
  "another suite": (about(suite="1-large"), "is of the suite 1-large: type --suite 1-large"),
  "another column": (about(columns={"copy": "0"}), "copy: it was trained in 0, and the column of"),
  "code of another file": (about(code=None), "used posexp's own code: leave plugins=mine.py out"),
  "metadata of another kind": (about(columns="x"), "metadata is damaged: columns is 'x'"),
}  # fmt: skip


# Training settles the tokenizer of texts, and parameters of fire decay in another way.
@pytest.mark.parametrize(("name", "column"), [("none", "who_acts"), ("fire", "tally")])
def test_a_published_row_has_the_options_of_its_suite(monkeypatch, name, column):
  monkeypatch.setattr(Column, "check_examples", lambda *_: None)  # tested elsewhere
  file = PUBLISHED / "2" / f"{name}.parquet"
  runs = [run for run in read_records(file, trials=True) if run.task == column]
  verification._check_column(Suite.read(FOLDER / "2.yaml"), column, about_row(file), runs)
  runs[0].settings["train.batch_size"] = 8
  with pytest.raises(UserError, match=r"has train\.batch_size=8, not 32"):
    verification._check_column(Suite.read(FOLDER / "2.yaml"), column, about_row(file), runs)


def test_an_entry_is_verified_or_refused_with_the_reason(home, capsys, monkeypatch):
  typed("encoding=mine", "plugins=mine.py", "--columns", "copy")
  home.checked.clear()
  monkeypatch.setattr("posexp.board.suite.FOLDER", Path())  # as if posexp brought the suite
  verify = ("--verify", "out/mine.parquet", "plugins=mine.py")
  with monkeypatch.context() as patch:  # a plugin could change how its entry is read
    patch.setattr(plugins, "load", lambda files: pytest.fail("the plugin is loaded"))
    typed(*verify)
  said = capsys.readouterr().out
  assert said.count("again     ") >= 3
  assert "to the digit" in said
  assert "mine.py was executed: a person has to read it" in said
  assert home.checked == [("mine", [], [Path("mine.py")])]
  for what, (edit, why) in REFUSED.items():
    entry = Entry()
    edit(entry)
    with pytest.raises(UserError) as error:
      typed("--verify", str(entry.write()), "plugins=mine.py")
    assert re.search(why, str(error.value)), (what, str(error.value))
    shutil.rmtree("published", ignore_errors=True)
  GOOD["mine"] = 0.6  # what an edit of all numbers together cannot hide
  shutil.rmtree("out/runs/verified")
  with pytest.raises(UserError, match="and trained again"):
    typed(*verify)
  GOOD["mine"] = 0.97
  with pytest.raises(UserError, match="--verify takes what was trained from the file"):
    typed(*verify, "workers=2")
  with pytest.raises(UserError, match=r"is of the file mine.py; name it, with plugins=mine.py"):
    typed(*verify[:2])
  Path("mine.py").write_text(PLUGIN + "# edited\n")
  with pytest.raises(UserError, match="is not the code that was trained"):
    typed(*verify)


def test_a_plugin_may_have_the_tasks_of_a_suite_of_ones_own(home, capsys):
  typed("encoding=rope", "--columns", "copy")
  typed("--verify", "out/rope.parquet", "plugins=mine.py")
  assert "out/rope.parquet is in order" in capsys.readouterr().out
  assert not home.checked


WORKFLOW = Path(__file__).parents[2] / ".github/workflows/entries.yml"
NAMES = {"2/mine": True, "1-small/p rope": True, "2/-v": True, "mine": False}
NAMES |= {'2/a"b': False, "2/a\nb": False, "2/ü": False}


@pytest.mark.skipif(not WORKFLOW.exists(), reason="an sdist has no workflows")
@pytest.mark.parametrize("name", NAMES)
def test_the_workflow_verifies_every_record_or_fails(tmp_path, name):
  def git(*words):
    subprocess.run(["git", *words], cwd=repo, check=True, capture_output=True)

  (script,) = [
    s["run"] for s in yaml.safe_load(WORKFLOW.read_text())["jobs"]["verify"]["steps"][-1:]
  ]
  repo, calls = tmp_path / "repo", tmp_path / "calls"
  row = repo / f"docs/leaderboard/records/{name}.parquet"
  row.parent.mkdir(parents=True)
  (tmp_path / "bin").mkdir()
  (tmp_path / "bin/python").write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" >> {calls}\n')
  (tmp_path / "bin/python").chmod(0o755)
  git("init", "--quiet")
  for number, add in enumerate((lambda: None, lambda: row.write_text("records"))):
    add()
    git("add", "--all")
    who = ("-c", "user.name=a", "-c", "user.email=a")
    git(*who, "commit", "--quiet", "--allow-empty", "--message", str(number))
    git("update-ref", "refs/remotes/origin/main", "HEAD~1" if number else "HEAD")
  env = os.environ | {"BASE": "main", "RUNNER_TEMP": str(tmp_path)}
  env["PATH"] = f"{tmp_path / 'bin'}:{env['PATH']}"
  done = subprocess.run(["bash", "-e", "-c", script], cwd=repo, env=env, capture_output=True)
  assert (done.returncode == 0) == NAMES[name], done
  assert calls.exists() == NAMES[name]
  if NAMES[name]:
    assert f"docs/leaderboard/records/{name}.parquet" in calls.read_text().split("\n")
  else:
    assert b"a row is SUITE/NAME.parquet" in done.stderr
