"""Checkpoints that nothing needs are removed, and no others."""

import json

import order
import pytest
from filelock import FileLock
from run_folders import write

from posexp import clean
from posexp.errors import UserError


def held(path, *steps):
  """Gives a run checkpoints of 1,000 bytes at these steps."""
  for step in steps:
    folder = path / "checkpoints" / str(step) / "default"
    folder.mkdir(parents=True)
    (folder / "d").write_bytes(b"x" * 1000)
  return path


def steps(path):
  return sorted(int(entry.name) for entry in (path / "checkpoints").iterdir())


@pytest.fixture
def runs(tmp_path):
  """A run whose best checkpoint is not its last, one that averaged two, and an unfinished one."""
  root = tmp_path / "my [runs]"
  best = held(write(root, "rpr", 0, 0.8, step=10), 10, 20)
  mean = held(write(root, "rpr", 1, 0.8, step=20, averaged=[15, 20]), 10, 15, 20)
  going = held(write(root, "rpr", 2), 10, 20)
  return root, best, mean, going


def test_what_is_held_is_said_and_nothing_removed_until_it_is_asked_for(runs, capsys):
  root, best, mean, going = runs
  assert order.work(clean, root) == 0
  out = capsys.readouterr().out.splitlines()
  assert out[1].split() == ["toy", "3", "1", "0.0", "MB", "0.0", "MB"]
  assert out[2:] == [
    f"python -m posexp.clean '{root}' --keep best   # frees 0.0 MB",
    f"python -m posexp.clean '{root}' --keep none   # frees 0.0 MB",
  ]
  assert (steps(best), steps(mean), steps(going)) == ([10, 20], [10, 15, 20], [10, 20])


def test_the_best_checkpoints_stay_or_none_of_a_finished_run(runs):
  root, best, mean, going = runs
  assert order.work(clean, root, "--keep", "best") == 2000
  assert (steps(best), steps(mean), steps(going)) == ([10], [15, 20], [10, 20])
  assert order.work(clean, root, "--keep", "best") == 0
  assert order.work(clean, root, "--keep", "none") == 3000
  assert (steps(best), steps(mean), steps(going)) == ([], [], [10, 20])
  assert json.loads((best / "summary.json").read_text())["test/accuracy"] == 0.8


def test_a_run_that_another_process_has_open_is_left_alone(runs):
  root, best, *_ = runs
  with FileLock(best / ".lock"), pytest.raises(UserError, match="by another process"):
    order.work(clean, root, "--keep", "best")
  assert steps(best) == [10, 20]
