"""Which entries of the leaderboard are refused, and that each is told why."""

import dataclasses
import functools
import re
import shutil
from pathlib import Path

import pytest
from planted import GOOD, PLUGIN, planted, tiny, typed

from posexp.board import rows, verification
from posexp.board.suite import FOLDER, Suite
from posexp.errors import UserError
from posexp.runs.records import read_records, write_records


@pytest.fixture
def home(tmp_path, monkeypatch):
  return planted(tmp_path, monkeypatch)


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


def summary(which, **change):
  """Return an edit of the summary of the first trial or result; "__" stands for a slash."""
  change = {key.replace("__", "/"): value for key, value in change.items()}
  return lambda entry: getattr(entry, which).summary.update(change)


def about(**change):
  return lambda entry: entry.about.update(change)


def copied(entry):
  """Give seed 1 all results of seed 0, under its own config."""
  kept = {name: getattr(entry.final, name) for name in ("summary", "rows", "examples")}
  entry.replace(entry.results[1], dataclasses.replace(entry.results[1], **kept))


def free(entry):
  entry.final.summary["time/cpu_seconds"] = 0
  entry.final.history[-1]["time/cpu_seconds"] = 0


def raised(entry):
  """Raise the scores of all trials alike, wherever they stand, so that nothing contradicts them."""
  for run in entry.trials:
    for said in (run.summary, run.history[-1]):
      said["validation/exact_match"] += 0.01


def posing(entry):
  """Take the name of an encoding of posexp."""
  entry.name = entry.about["name"] = "rope"


def rival(entry):
  """Take the name of a published row, which has other options."""
  entry.about["options"] = ["mine.pace=0.3"]
  entry.write("published")
  entry.about["options"] = []


def longer(entry):
  entry.final.summary["beyond/exact_match/9"] = 1.0


def planned_in(plan, row, column):
  """Return the plan of a row, which takes the most time, and is the same for all edits."""
  return plan(row, tiny(), tiny().columns[column], False, Path("none"))


BY_EXAMPLES = "by its examples it is"
REFUSED = {
  "a trial with a test score": (summary("trial", test__exact_match=0.5), "is a trial and has"),
  "a number that its examples do not have": (
    summary("final", beyond__exact_match=0.999), f"beyond/exact_match is 0.999, and {BY_EXAMPLES}"
  ),
  "a length that its examples do not have": (
    summary("final", beyond__exact_match__5=0.999), f"exact_match/5 is 0.999, and {BY_EXAMPLES}"
  ),
  "a length that nobody tests": (longer, "beyond/exact_match/9, a length that the task does not"),
  "an area that its lengths do not have": (
    summary("final", beyond__area=0.999), "beyond/area is 0.999, and by its scores by length"
  ),
  "no examples beyond": (lambda e: e.final.examples.pop("beyond"), "examples has none of beyond"),
  "damaged examples": (lambda e: e.final.examples.update(test=3), "scores of examples are damaged"),
  "a choice by other scores": (
    summary("final", validation__exact_match=0.999), "by its rows of metrics it is 0.9"
  ),
  "a trial chosen by other scores": (
    summary("trial", validation__exact_match=0.999), "by its rows of metrics it is 0.9"
  ),
  "a trial with another metric": (
    summary("trial", headline=["validation/loss"]), "headline is .'validation/loss'., and by its"
  ),
  "a step without a row": (summary("trial", step=3), "no row of metrics of its step 3"),
  "a result without rows": (lambda e: e.final.history.clear(), "no row of metrics of its step 4"),
  "trials that were never trained": (raised, "of this trial is 0.9.*, and trained again 0"),
  "a trial that is missing": (lambda e: e.runs.remove(e.trial), "12 trials, of which 1 are"),
  "a result that is missing": (lambda e: e.runs.remove(e.final), "2 of 3 results, without that of"),
  "a seed twice": (lambda e: e.replace(e.results[1], e.final), "seed=0 is in it more than once"),
  "a seed that is a copy": (copied, "seed=1 is a copy of mine/.* seed=0: their rows"),
  "no gate": (summary("final", gates={}), "gates is {}, and by its task it is {'beyond'"),
  "a lower gate": (
    summary("final", gates={"beyond": {"metric": "test/exact_match", "least": 0.5}}), "gates is "
  ),
  "no default": (about(default={}), "the default in its metadata is {}, and that of its"),
  "fewer parameters": (summary("final", parameters=9), "parameters is 9, and by its config it is"),
  "fewer FLOPs": (summary("trial", flops_per_token=9.0), "flops_per_token is 9.0, and by its"),
  "less time": (summary("final", time__cpu_seconds=0.1), "cpu_seconds is 0.1, and by its rows"),
  "no time": (free, "its time/cpu_seconds is no time"),
  "another name": (about(name="other"), "is named other, so its file has to be other.parquet"),
  "the name of another encoding": (posing, "this is the row of the encoding rope"),
  "the name of a published row": (rival, "is published as the row of encoding=mine mine.pace=0.3"),
  "another suite": (about(suite="0" * 12), "is of suite 000000000000, not"),
  "another suite of posexp": (
    about(suite=Suite.read(FOLDER / "1-large.yaml").digest), "is of suite 1-large.* --suite 1-large"
  ),
  "code of another file": (about(code=None), "it is of posexp's own mine"),
  "code that is text": (about(code="x"), "metadata is damaged: code is 'x'"),
  "code without a file": (about(code={"sha256": "0"}), "metadata is damaged: code is {'sha256'"),
  "a name that is a number": (about(name=5), "metadata is damaged: name is 5"),
  "no options": (about(options=None), "metadata is damaged: options is None"),
}  # fmt: skip


def elsewhere(entry, trial, value):
  """Return what is said of a trial that has another score when another processor trains it."""
  own = {"validation/exact_match": value, "processor": "another"}
  now = dataclasses.replace(trial, summary=trial.summary | own)
  suite = tiny()
  (said,) = verification.trial_again(
    trial, now, suite.columns["copy"], suite, entry.about, entry.runs
  )
  return said


def test_an_entry_is_verified_or_refused_with_the_reason(home, capsys, monkeypatch):
  typed("encoding=mine", "plugins=mine.py", "--columns", "copy")
  home.checked.clear()
  verify = ("--verify", "out/mine.parquet", "plugins=mine.py")
  typed(*verify)
  said = capsys.readouterr().out
  assert said.count("again     ") >= 3
  assert said.count("(trial)") == 1
  assert "to the digit" in said
  assert home.checked == [("mine", [])]
  plan = functools.cache(functools.partial(planned_in, rows.Row.planned))
  monkeypatch.setattr(rows.Row, "planned", lambda row, _, column, *rest: plan(row, column.name))
  for what, (edit, why) in REFUSED.items():
    entry = Entry()
    edit(entry)
    with pytest.raises(UserError) as error:
      typed("--verify", str(entry.write()), "plugins=mine.py")
    assert re.search(why, str(error.value)), (what, str(error.value))
    shutil.rmtree("published", ignore_errors=True)
  entry = Entry()  # of which another processor trains trials again
  best = next(trial for trial in entry.trials if trial.digest == entry.final.digest)
  other = next(trial for trial in entry.trials if trial.digest != entry.final.digest)
  for trial, value in ((best, 0.915), (other, 0.2)):
    assert "leaves the choice as it is" in elsewhere(entry, trial, value)
  for trial, value, why in ((best, 0.2, "unlike its"), (other, 0.99, "should have chosen it")):
    with pytest.raises(UserError, match=f"trained again {value}.*{why}"):
      elsewhere(entry, trial, value)
  GOOD["mine"] = 0.6  # what an edit of all numbers together cannot hide
  shutil.rmtree("out/runs/verified")
  monkeypatch.setattr(verification, "AGAIN", 99)  # all of them
  with pytest.raises(UserError, match="and trained again"):
    typed(*verify)
  GOOD["mine"] = 0.97
  Path("mine.py").write_text(PLUGIN + "# edited\n")
  with pytest.raises(UserError, match="is not the code that was trained"):
    typed(*verify)
