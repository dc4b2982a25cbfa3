"""The guide to encodings, tasks and metrics of one's own works as it is written."""

import contextlib
import csv
import json
import re
import shlex
import subprocess
import tomllib
from pathlib import Path
from unittest import mock

import fuzz
import numpy as np
import order
import pytest
from guide import BLOCKS, FILES

from posexp.analysis import conformance, properties
from posexp.config import plugins
from posexp.errors import UserError

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
READY = "everything is ready"
SOME = (conformance.Property(properties.explicit_positions),)  # which is others' to test


def typed(line, trained=True):
  """Types a command line, in this process; returns what it prints."""
  python, flag, module, *argv = shlex.split(line)
  assert (python, flag) == ("python", "-m")
  if module == "posexp.train":
    with contextlib.nullcontext() if trained else ready():
      done = order.command(*argv, "model.num_layers=1")
    assert (done.status, done.err) == ((0, "") if trained else (2, f"posexp: error: {READY}\n"))
    return done.out
  done = fuzz.typed(module.removeprefix("posexp."), *argv)
  assert (done.status, done.err) == (0, "")
  return done.out


@contextlib.contextmanager
def ready():
  """In it a run ends where its first step would be: the data are read and the model is built."""
  end = mock.patch("posexp.training.loop.fit", side_effect=UserError(READY))
  with mock.patch("posexp.training.step.Step.begin"), end:
    yield


@pytest.fixture
def outside(home, tmp_path, monkeypatch):
  """A folder of a user's own, in which no plugin is loaded and the check is short."""
  monkeypatch.chdir(tmp_path)
  monkeypatch.setattr(plugins, "_found", {})
  monkeypatch.setattr(conformance, "PROPERTIES", SOME)
  return tmp_path


def test_the_encoding_in_the_readme_trains_and_passes_the_check(outside, monkeypatch):
  (outside / "distance.py").write_text(re.search(r"(?ms)^```python\n(.*?)^```$", README)[1])
  train, check = re.findall(r"^python -m .* plugins=distance\.py$", README, re.MULTILINE)
  quick = "task=first train.steps=1 train.evaluate_every=1 wandb.mode=disabled model=tiny"
  (outside / "first.py").write_text(FILES["first.py"])
  plugins.load(["first.py"])  # a task whose data are made at once
  assert "encoding  distance" in typed(f"{train} {quick}", trained=False)
  assert "all of it holds" in typed(check)


def test_every_block_of_the_guide_works_outside_of_the_checkout(outside, monkeypatch):
  for name, text in FILES.items():
    (outside / name).write_text(text)
  assert len([*outside.glob("*.py")]) == 13
  assert tomllib.loads((outside / "pyproject.toml").read_text())
  lines = [line for kind, _, text in BLOCKS if kind == "sh" for line in text.splitlines()]
  checks = [line for line in lines if line.startswith("python -m posexp.check")]
  assert len(checks) == 6
  assert all("all of it holds" in typed(line) for line in checks)
  lines = [line for line in lines if line not in checks]
  np.savez("words.npz", **{"stack/embed/table": np.zeros((6, 64))})
  lines.append(lines.pop(1))  # the report
  lines[0] = lines[0].replace("-m encoding=none,", "encoding=")
  # What is trained is one program: a task with a tracker, and from weights.
  said = [typed(line, trained=number > 2) for number, line in enumerate(lines)]
  words = ["encoding  distance", "rpr: k=", "last", "csv"]
  words += ["words.npz, step 0: 384 of", "mistakes"]
  assert all(word in each for word, each in zip(words, said, strict=True))
  run = next(outside.glob("runs/first/rpr/*/seed=0"))
  wrong = fuzz.typed("__main__", "wrong", run, "plugins=first.py").out.splitlines()
  assert len(wrong) == json.loads((run / "summary.json").read_text())["test/mistakes"]
  other = fuzz.typed("context", run, "--at", "8", "plugins=first.py").refusal
  assert other.endswith(
    "of first, whose commands are evaluate, wrong; context is for other tasks\n"
  )
  assert_csv(said[3])
  np.savez("words.npz", **{"stack/embed/table": np.zeros((5, 64))})
  refused = order.command(*shlex.split(lines[4])[3:]).err
  assert refused.endswith("what a run takes from another must have the same size\n")
  np.savez("words.npz", **{"stack/embd/table": np.zeros((6, 64))})
  refused = order.command(*shlex.split(lines[4])[3:]).err
  assert "none of its parameters has the name of one here: there is stack/embd" in refused
  np.savez("words.npz", **{"stack/embed/table": np.full((6, 64), np.nan)})
  refused = order.command(*shlex.split(lines[4])[3:]).err
  assert refused.endswith("words.npz: stack/embed/table has numbers that are not finite\n")


def test_the_job_of_a_launcher_in_a_file_trains_its_run(outside, monkeypatch):
  for name in ("queued.py", "first.py"):
    (outside / name).write_text(FILES[name])
  words = ["plugins=[queued.py,first.py]", "task=first", "model=tiny", "tracker=none"]
  sweep = ["-m", "hydra/launcher=queued", "encoding=none,rpr", *words]

  run = subprocess.run

  def started(argv, env=None, **more):
    """What a job's process would do."""
    if env is None:
      return run(argv, **more)
    plugins._found.clear()
    monkeypatch.setenv("QUEUED_JOB", env["QUEUED_JOB"])
    with ready():
      done = order.command(*sweep)
    return subprocess.CompletedProcess(argv, done.status, done.out, done.err)

  monkeypatch.setattr(subprocess, "run", started)
  done = order.command(*sweep)
  assert done.out.count(READY) == 2  # why each job has failed
  assert done.err.startswith("posexp: error: 2 of 2 runs failed: ")


FALLING = """
@dataclasses.dataclass(frozen=True)
class Falling(posexp.Encoding):
  first: float = 0.5

  def layers(self, count):
    return [posexp.Layer(Distance(self.first / (i + 1))) for i in range(count)]


class Short(Falling):
  def layers(self, count):
    return super().layers(count)[1:]


ENCODINGS |= {"falling": Falling, "short": Short}
"""


def test_each_layer_may_have_a_value_of_its_own(outside, monkeypatch):
  (outside / "falling.py").write_text(FILES["distance.py"] + FALLING)
  (outside / "first.py").write_text(FILES["first.py"])
  own = "task=first plugins=[falling.py,first.py] train.steps=1 train.evaluate_every=1 model=tiny"
  own = [*own.split(), "tracker=none"]
  for layers in (1, 3):
    with ready():
      done = order.command("encoding=falling", f"model.num_layers={layers}", *own)
    assert done.err == f"posexp: error: {READY}\n"
  monkeypatch.setattr(properties, "Stack", built := mock.Mock(wraps=properties.Stack))
  said = typed("python -m posexp.check encoding=falling plugins=falling.py")
  assert "all of it holds" in said
  assert max(each.args[2].num_layers for each in built.call_args_list) == 2
  said = order.command("encoding=short", "model.num_layers=3", *own).err
  assert "must return 3 times posexp.Layer, not 2 times Layer" in said


def assert_csv(said):
  """The tracker of the guide names its file, whose rows are those of metrics.jsonl."""
  line = next(line for line in said.splitlines() if line.startswith("csv"))
  file = Path(line.removeprefix("csv       rows in "))
  with file.open() as opened:
    rows = [(int(row["step"]), float(row["train/loss"])) for row in csv.DictReader(opened)]
  metrics = file.with_name("metrics.jsonl").read_text().splitlines()
  assert rows == [(row["step"], row["train/loss"]) for row in map(json.loads, metrics)]
  assert not file.with_name("wandb").exists()
