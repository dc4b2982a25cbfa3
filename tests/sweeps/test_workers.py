"""Runs of a sweep in several processes: who trains what where, and what becomes of the others."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import yaml
from order import command, planned
from seed import drawn, some

from posexp.config.command_line import parse, shared
from posexp.errors import UserError
from posexp.runs import RunWriter, folder
from posexp.sweeps import supervise, workers
from posexp.sweeps.jobs import members
from posexp.sweeps.sweep import DONE, RUNNING, Sweep

TESTS = Path(__file__).parents[1]
ENTRY = """
import sys
from posexp.sweeps.launch import launch
from test_workers import slow

if __name__ == "__main__":
  sys.exit(launch(slow))
"""


# What a process gets that dies, and what is said of its run.
SENT, DEAD = drawn(
  [
    (signal.SIGKILL, r"its process died; what it said is in runs/.sweep/worker-\d.log"),
    (signal.SIGTERM, "its process was asked to end\n"),
  ],
  1,
)[0]


def train(config):
  """Stands in for training; it leaves a note of where it was."""
  path = folder(config)
  with RunWriter(path, config) as run:
    with Path("trained").open("a") as notes:
      notes.write(f"{path} {os.getpid()}\n")
    time.sleep(0.3)
    if Path("broken").exists() and config["seed"] == 1:
      if config["encoding"] == "rpr":
        os.kill(os.getpid(), SENT)
      raise ValueError("a first line\nand a second")
    run.finish({"test/accuracy": 0.5, "test/macro_f1": 0.5, "place": os.environ.get("PLACE")})


def slow(config):
  """Trains until it is told to save."""
  path = folder(config)
  with RunWriter(path, config):
    try:
      (path / "begun").touch()
      time.sleep(60)
    finally:
      (path / "saved").touch()


@pytest.fixture
def home(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  monkeypatch.setattr("posexp.train.train", train)
  monkeypatch.setattr(
    "posexp.sweeps.supervise.devices", lambda count, runs: [{"PLACE": "a"}, {"PLACE": "b"}]
  )
  return tmp_path


def trained():
  """(folder, process) of what was trained, which is forgotten."""
  notes = Path("trained").read_text().splitlines()
  Path("trained").unlink()
  return [note.split() for note in notes]


def summaries():
  return [json.loads(file.read_text()) for file in Path("runs").glob("*/*/*/*/summary.json")]


SWEEP = ["-m", "encoding=none,rpr", "rpr.k=4", "seeds=2", "workers=2"]


def test_what_fails_or_is_killed_takes_no_other_run_with_it(home):
  Path("broken").touch()
  status, out, err = command(*SWEEP)
  assert (status, len(summaries())) == (1, 2)
  names = "encoding=none seed=1; encoding=rpr seed=1"
  assert err == f"posexp: error: 2 of 4 runs failed: {names}\n"
  log = re.search(r"failed: ValueError: a first line; its traceback is in (.*)\n", out)[1]
  assert Path(log).read_text().endswith("ValueError: a first line\nand a second\n")
  assert len(re.findall(f"failed: {DEAD}", out)) == 1
  notes = trained()
  assert len(notes) == len({path for path, _ in notes}) == 4
  assert {summary["place"] for summary in summaries()} <= {"a", "b"}

  Path("broken").unlink()
  status, out, _ = command(*SWEEP, "workers=1")
  assert (status, out.count("finished already")) == (0, 2)
  assert re.search(r"\nrpr +2 +50.00 +0.00 ", out)
  assert [path[-6:] for path, _ in trained()] == ["seed=1"] * 2


@pytest.mark.slow
def test_a_worker_that_is_killed_between_two_runs_takes_none_with_it(home, caplog):
  args = parse(["-m", "encoding=rpr", "rpr.k=2,4"])
  cfg = shared(args.overrides)
  others = set(threading.enumerate())
  states = []
  for _, state, _ in filter(None, workers.train_in_workers(members(args, cfg), train, [{}], cfg)):
    states.append(state)
    if states == [RUNNING, DONE]:
      os.kill(int(Path("trained").read_text().split()[1]), signal.SIGKILL)
      wait(lambda: set(threading.enumerate()) <= others)  # none watches over the process any more
  assert states == [RUNNING, DONE] * 2
  assert len({process for _, process in trained()}) == len(summaries()) == 2
  assert [record.getMessage() for record in caplog.records] == [
    "an idle process died, and another begins; see runs/.sweep/worker-0.log"
  ]


@pytest.mark.parametrize("sent", some([signal.SIGINT, signal.SIGKILL, signal.SIGTERM], 1))
def test_a_signal_to_the_sweep_has_every_worker_save(tmp_path, sent):
  (tmp_path / "entry.py").write_text(ENTRY)
  process = subprocess.Popen(
    [sys.executable, "entry.py", "-m", "seed=0,1,2", "workers=2"],
    cwd=tmp_path,
    env=os.environ | {"PYTHONPATH": f"{TESTS.parent}:{TESTS}:{TESTS / 'sweeps'}"},
    stdout=subprocess.PIPE,
    stderr=subprocess.PIPE,
    text=True,
    preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
  )
  wait(lambda: process.poll() or len(list(tmp_path.glob("runs/*/*/*/*/begun"))) == 2)
  process.send_signal(sent)
  _, err = process.communicate(timeout=300)
  wait(lambda: len(list(tmp_path.glob("runs/*/*/*/*/saved"))) == 2)
  assert len(list(tmp_path.glob("runs/*/*/*/*"))) == 2
  if sent != signal.SIGKILL:
    assert process.returncode == 128 + sent
    assert err == "posexp: interrupted; the same command goes on from here\n"


def wait(true):
  end = time.monotonic() + 300
  while not true():
    assert time.monotonic() < end
    time.sleep(0.05)


# Devices

FAKE = """
class Device:
  platform = "{platform}"

def local_devices():
  return [Device()] * {count}
"""


@pytest.mark.parametrize(
  ("jax", "visible", "asked", "found"),
  [
    (("gpu", 4), None, "auto", ["0", "1", "2", "3"]),
    (("gpu", 9), None, "auto", ["0", "1", "2", "3", "4"]),  # as many as there are runs
    (("gpu", 2), "5,GPU-7", 2, ["5", "GPU-7"]),
    (("gpu", 2), None, 4, ["0", "1", "0", "1"]),  # who share the memory
    (("cpu", 8), None, "auto", [None]),
    (("cpu", 8), None, 3, [None] * 3),
    ("raise RuntimeError('no driver')", None, 2, "RuntimeError: no driver"),
    ("import os; os.kill(os.getpid(), 9)", None, 2, "asked for them, it ended with -9"),
  ],
)
def test_every_worker_has_a_device_of_its_own(tmp_path, monkeypatch, jax, visible, asked, found):
  fake = jax if isinstance(jax, str) else FAKE.format(platform=jax[0], count=jax[1])
  (tmp_path / "jax.py").write_text(fake)
  monkeypatch.setenv("PYTHONPATH", str(tmp_path))
  for name in (*workers.VISIBLE.values(), "XLA_PYTHON_CLIENT_MEM_FRACTION"):
    monkeypatch.delenv(name, raising=False)
  if visible:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
  if isinstance(found, str):
    with pytest.raises(UserError, match=f"JAX finds no device: {found}"):
      workers.devices(asked, 5)
    return
  share = {"XLA_PYTHON_CLIENT_MEM_FRACTION": "0.450"} if len(found) > len({*found}) else {}
  expected = [{"CUDA_VISIBLE_DEVICES": each} | share if each else {} for each in found]
  assert workers.devices(asked, 5) == expected


# The table of states


def test_a_terminal_keeps_the_table_of_a_sweep_below_what_is_said(home, monkeypatch, capsys):
  shown = []
  monkeypatch.setattr("posexp.status.show", shown.append)
  monkeypatch.setattr("posexp.status.terminal", lambda: True)
  monkeypatch.setattr(sys.stdout, "isatty", lambda: True)

  def trainer(runs):
    for first in runs[:1]:
      yield first, RUNNING, ""
      first.path.mkdir(parents=True)
      (first.path / "config.yaml").write_text(yaml.safe_dump(first.config))
      (first.path / "metrics.jsonl").write_text('{"step": 20}\n{"step": 30}\n')
      yield None

  sweep = Sweep(planned("-m", "encoding=none,rpr", "seed=0,1"))
  supervise.supervise(sweep, trainer, True, lambda folders: ())
  first, last = (table.splitlines() for table in shown)
  assert first[1] == "  encoding=none  running (seed 0), waiting (seed 1)"
  assert last == [
    "sweep     4 runs: 1 running, 3 waiting",
    "  encoding=none  running (seed 0 at 30), waiting (seed 1)",
    "  encoding=rpr   waiting (seed 0, 1)",
  ]
  assert capsys.readouterr().out.splitlines() == last
