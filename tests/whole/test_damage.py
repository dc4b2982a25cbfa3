"""Damage of any kind, in any file of a run: an answer in one sentence, or what was lost made again.

    POSEXP_FUZZ=3600 POSEXP_SEED=1 python -m pytest tests/whole/test_damage.py -k random

goes on for so many seconds with random damage of that seed.
"""

import contextlib
import functools
import itertools
import json
import os
import random
import re
import resource
import shutil
import time
from pathlib import Path

import damage
import fuzz
import kinds
import order
import pytest
from fuzz import contents, typed
from seed import some

from posexp.runs.identity import SEAL, SEALED

TYPED = {}  # by kind of task
MAKERS = {
  "classes": order.write,
  "pairs": kinds.pairs,
  "text": kinds.text,
  "trees": kinds.sentences,
}
# To make the runs of a kind takes far longer than any of their tests.
KINDS = tuple(MAKERS) if "POSEXP_FUZZ" in os.environ else ("classes",)
OTHERS = [pytest.param(kind, marks=pytest.mark.slow) for kind in MAKERS if kind != "classes"]


# What a command may change: what it makes, and logs.
MADE = ("train.log", "figures/*", ".pid", ".lock", "wandb/*", "tokenizer.sha256", "*.tmp")


@functools.cache
def make(kind: str) -> None:
  """A finished and an unfinished run of a kind of tasks."""
  TYPED[kind] = [*MAKERS[kind](Path.cwd()), *kinds.RUN]
  for state in ("finished", "unfinished"):
    runs = Path("good", kind, state)
    with contextlib.ExitStack() as stack:
      if state == "unfinished":
        stack.enter_context(order.interrupted(5))
      typed = order.command(*TYPED[kind], f"runs=runs/{kind}/{state}")
    assert typed.status in (0, 130)
    runs.parent.mkdir(parents=True, exist_ok=True)
    os.rename(Path("runs", kind, state), runs)
  GOOD[kind] = result(order.only(f"good/{kind}/finished"))


class Case:
  """A copy of a run to be damaged."""

  def __init__(self, kind: str, state: str):
    self.kind, self.state = kind, state
    self.runs = Path("runs", kind, state)
    shutil.rmtree("runs", ignore_errors=True)
    make(kind)
    shutil.copytree(Path("good", kind, state), self.runs, symlinks=True)
    self.path = order.only(self.runs)
    self.files = sorted(
      str(file.relative_to(self.path))
      for file in self.path.rglob("*")
      if file.is_file() and file.name not in (".lock", ".pid")
    )

  @property
  def train(self) -> list[str]:
    return [*TYPED[self.kind], f"runs={self.runs}"]

  def commands(self) -> dict[str, list[str]]:
    """Every command that opens the run, by its name."""
    run, other = str(self.path), str(order.only(Path("good", self.kind, "finished")))
    return {
      "train": ["train", *self.train],
      "sweep": ["train", "-m", *self.train, "seed=0"],
      "evaluate": ["evaluate", run],
      "inspect": ["inspect", f"run={run}", "out=drawn"],
      "translate": ["translate", run, "two"],
      "generate": ["generate", run, "two", "--tokens", "3"],
      "parse": ["parse", run, "two/CD saw/VBD"],
      "compare": ["compare", run, other],
      "report": ["report", str(self.runs), "--no-files"],
      "sync": ["sync", str(self.runs), "--dry-run"],
    }


def result(path: Path) -> dict[str, str]:
  """What a run has come to, less what is measured in time or in memory."""
  rows, summary, predictions = order.result(path)
  found = {f"row {row['step']}": repr(row) for row in rows} | {"predictions": predictions}
  return found | {key: repr(value) for key, value in summary.items()}


def is_trusted(file: str, command: str, state: str) -> bool:
  """Whether other numbers in a file are taken as they are."""
  sweep = command == "sweep" and file.startswith("predictions")
  rows = file == "metrics.jsonl" and state == "unfinished"
  return sweep or rows or file.startswith("checkpoints")


GOOD = {}  # the results of runs that nothing has damaged


def answer(case: Case, command: str, harmed: str) -> str:
  """What is wrong with the answer of a command to damage of a file of a run; "" if nothing."""
  before, begun = contents(case.path, MADE), time.process_time()
  found = typed(*case.commands()[command])
  seconds = time.process_time() - begun
  if "Traceback" in found.err or found.status not in (0, 1, 2):
    return f"a traceback:\n{found.err}"
  errors = [line for line in found.err.splitlines() if "error: " in line]
  if len(errors) != (found.status != 0) and command != "sync":
    return f"status {found.status} with {found.err!r}"
  if seconds > 20:
    return f"{seconds:.0f} seconds of work"
  after = contents(case.path, MADE)
  changed = {name for name in before if after.get(name) != before[name]} - {harmed}
  if harmed in SEALED and command in ("train", "sweep"):
    changed -= {SEAL}  # what was harmed is made again, and sealed
  trains = case.state == "unfinished" and command in ("train", "sweep")
  if changed and (not trains or found.status != 0):
    return f"status {found.status}, changed {changed}: {found.err}"
  again = (
    found.status == 0
    and command in ("train", "sweep")
    and not is_trusted(harmed, command, case.state)
  )
  if again and result(case.path) != GOOD[case.kind]:
    differs = sorted(set(result(case.path).items()) ^ set(GOOD[case.kind].items()))
    return f"ends as another run: {differs}: {found.out[-500:]}"
  return ""


@pytest.mark.parametrize("kind", ["classes", *OTHERS])
def test_what_a_finished_run_has_lost_is_made_again(home, kind):
  case = Case(kind, "finished")
  summary = (case.path / "summary.json").read_bytes()
  lost = ["summary.json", "config.yaml", *(file for file in case.files if "jsonl" in file)]
  lost.remove("metrics.jsonl")
  for file, harm in zip(lost, itertools.cycle([damage.missing, damage.cut]), strict=False):
    good = (case.path / file).read_bytes()
    harm(case.path / file, random.Random(1))
    assert typed(*case.commands()["train"])[::2] == (0, "")
    if file != "summary.json":
      assert (case.path / file).read_bytes() == good
      assert (case.path / "summary.json").read_bytes() == summary
    assert result(case.path) == GOOD[kind]
    summary = (case.path / "summary.json").read_bytes()
  assert not list(case.path.rglob(".*tmp"))


def test_a_run_goes_on_where_the_rows_after_its_checkpoint_are_lost(home):
  case = Case("classes", "unfinished")  # at step 4, the row of which is the last
  rows = case.path / "metrics.jsonl"
  with rows.open("a") as file:
    file.write('{"step": 5, "train/loss": 1.0}\n{"st\n{"step": 6}\n')
  (case.path / f".summary.json.{os.uname().nodename}.1234567.tmp").touch()
  assert typed(*case.commands()["train"])[::2] == (0, "")
  assert result(case.path) == GOOD["classes"]
  assert not list(case.path.rglob(".*tmp"))


@pytest.mark.parametrize(("state", "place", "step"), [("unfinished", 2, 3), ("finished", -1, 6)])
def test_a_row_before_the_checkpoint_is_missed(home, state, place, step):
  case = Case("classes", state)
  for name in ("summary.json", "run.sha256"):  # the latter as of an earlier version
    (case.path / name).unlink(missing_ok=True)
  rows = case.path / "metrics.jsonl"
  lines = rows.read_text().splitlines(keepends=True)
  del lines[place]
  rows.write_text("".join(lines))
  before = contents(case.path, MADE)
  found = typed(*case.commands()["train"])
  assert found.status == 2
  assert f"{rows}: the row of step {step} is lost; put the file back" in found.err
  assert contents(case.path, MADE) == before


def edited(file, *values):
  """Changes a value of a file, as with an editor."""
  before, after = values
  found, count = re.subn(before, after, file.read_text())
  assert count
  file.write_text(found)


CHANGED = {  # a file of a finished run, its edit, and the commands that read it
  "summary.json": (
    [r'("test/accuracy": )[\d.]+', r"\g<1>0.125"],
    ("evaluate", "compare", "report", "sync"),
  ),
  "config.yaml": ([r"d_ff: \d+", "d_ff: 64"], ("inspect", "report")),
  "predictions/test.jsonl": ([r'("prediction": )"\w"', r'\1"c"'], ("compare",)),
  "metrics.jsonl": ([r'("validation/accuracy": )[\d.]+', r"\g<1>0.125"], ("sync",)),
}


@pytest.mark.parametrize("file", [*CHANGED, "last row"])
def test_what_was_changed_in_a_finished_run_is_never_its_result(home, file):
  edit, commands = CHANGED.get(file, ([r".*\n$", ""], ("report",)))
  file = "metrics.jsonl" if file == "last row" else file
  case = Case("classes", "finished")
  edited(case.path / file, *edit)
  before = contents(case.path, MADE)
  for command in commands:
    found = typed(*case.commands()[command])
    assert found.status == 2, (command, found)
    assert str(case.path) in found.err
    assert file in found.err
  again = [typed(*case.commands()[command]) for command in ("sweep", "train")]
  if file == "metrics.jsonl":  # which nothing can make again
    assert [found.status for found in again] == [1, 2]
    assert f"{case.path / file}: not the rows of run.sha256" in again[1].err
    assert contents(case.path, MADE) == before
  else:
    assert again[1][::2] == (0, "")
    assert "12.50" not in again[0].out
    assert result(case.path) == GOOD["classes"]
    assert typed(*case.commands()["compare"])[::2] == (0, "")


def test_moved_data_are_read_where_they_are_if_they_are_the_same(home):
  case = Case("classes", "finished")
  run, moved, other = case.path, Path("moved.jsonl"), Path("other.jsonl")
  os.rename("train.jsonl", moved)
  other.write_text(moved.read_text().replace("red", "blue"))
  for words, message in (
    ([], "where the data have moved, task.train=... task.validation=... task.test=... says"),
    ([f"task.train={other}"], f"task.train={other} are not those that the run was trained on"),
    ([f"task.train={moved}", "seed=1"], "seed: a run of none can be measured with other options"),
    ([f"task.train={moved}", "task.min_count=2"], "task.min_count: a run of none can be measured"),
  ):
    found = typed("evaluate", run, *words)
    assert found.status == 2, found
    assert message in found.err
  found = typed("evaluate", run, f"task.train={moved}")
  shutil.copytree(run, "renamed")
  unknown = typed("evaluate", "renamed", f"task.train={moved}")
  os.rename(moved, "train.jsonl")
  assert found == typed("evaluate", run)
  assert found[::2] == (0, "")
  assert unknown.status == 2
  assert "renamed is not in a folder named by its digest" in unknown.err


def test_two_words_of_a_tokenizer_that_are_swapped_are_noticed(home):
  case = Case("classes", "unfinished")
  file = case.path / "tokenizer.json"
  vocabulary = json.loads(file.read_text())
  words = vocabulary["model"]["vocab"]
  first, second = list(words)[-2:]
  words[first], words[second] = words[second], words[first]
  file.write_text(json.dumps(vocabulary))
  for command in ("evaluate", "inspect", "train"):
    found = typed(*case.commands()[command])
    assert found.status == 2
    assert "tokenizer.json: this is not the tokenizer that the run was trained with" in found.err


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # orbax's threads
@pytest.mark.parametrize("amount", some((0, 1, 2, 4, 8), 1))
@pytest.mark.parametrize("limit", ["RLIMIT_FSIZE", "RLIMIT_NOFILE"])
def test_a_run_that_was_refused_space_or_files_goes_on(home, limit, amount):
  """Limits of the system, as a full disk, of so many KiB a file or so many more open files."""
  case = Case("classes", "unfinished")
  before, argv = contents(case.path / "checkpoints", MADE), case.commands()["train"]
  kind = getattr(resource, limit)
  limits = resource.getrlimit(kind)
  with contextlib.ExitStack() as stack:
    # Below the last of these, no number is free.
    held = [os.open(os.devnull, os.O_RDONLY) for _ in range(200)]
    files = kind == resource.RLIMIT_NOFILE
    resource.setrlimit(kind, (held[-1] + 1 if files else 1024 * amount, limits[1]))
    stack.callback(lambda: [os.close(each) for each in held])
    stack.callback(resource.setrlimit, kind, limits)
    for _ in range(amount):
      os.close(held.pop())
    found = typed(*argv)
  assert found.status == 2
  assert found.err.count("\n") == 1, found.err
  assert "Too many open files" in found.err or "File too large" in found.err
  after = contents(case.path / "checkpoints", MADE)
  assert {name: after.get(name) for name in before} == before
  assert typed(*argv)[::2] == (0, "")
  assert result(case.path) == GOOD["classes"]


def test_random_damage_is_one_sentence(home):
  wrong = []
  for cases, rng in enumerate(fuzz.rounds(8)):
    case = Case(rng.choice(KINDS), rng.choice(["finished", "unfinished"]))
    file, harm = rng.choice(case.files), rng.choice(damage.DAMAGE)
    command = rng.choice([*case.commands()])
    if "checkpoints" in file and rng.random() < 0.7:
      file = rng.choice([each for each in case.files if "checkpoints" not in each])
    harm(case.path / file, rng)
    named = f"{cases}: {case.kind}, {case.state}: {file} {harm.__name__}, {command}"
    if found := answer(case, command, file):
      wrong.append(f"{named}: {found}")
  print(cases + 1, "cases")
  assert not wrong, "\n".join([f"{len(wrong)} of {cases + 1}", *wrong[:5]])
