"""Processes that train a run together: they do what one does, stop at one step, and go on."""

import json
import re
import signal
import socket

import order
import pytest
from commands import Command
from states import python

from posexp.errors import UserError
from posexp.training.processes import STOP, ProcessInfo, StopRequests, process_info

VARIABLES = ("JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID")
STEP = {"SLURM_STEP_NUM_TASKS": "2", "SLURM_PROCID": "1", "SLURM_STEP_NODELIST": "gpu[03-05,7],a1"}
STEP |= {"SLURM_JOB_ID": "4097", "SLURM_STEP_ID": "1"}
TORCH = {"WORLD_SIZE": "3", "RANK": "2"}


AT, HALF = {"JAX_COORDINATOR_ADDRESS": "a:1"}, "must all be set, or none"


@pytest.mark.parametrize(
  ("given", "found"),
  [
    ({}, (0, 1)),
    (dict(zip(VARIABLES, ("a:1", "4", "3"), strict=True)), (3, 4, "a:1")),
    (STEP, (1, 2, "gpu03:61442")),
    (STEP | AT | {"SLURM_STEP_NODELIST": "a1"}, (1, 2, "a:1")),
    (TORCH | AT, (2, 3, "a:1")),
    (TORCH, (0, 1)),  # of whom nobody knows the address
    ({"SLURM_PROCID": "0"}, (0, 1)),  # a shell in an allocation of Slurm
    ({"JAX_NUM_PROCESSES": "2"}, HALF),
    (AT | {"JAX_PROCESS_ID": "0"}, HALF),
    (dict(zip(VARIABLES, ("a:1", "two", "0"), strict=True)), HALF),
    (dict(zip(VARIABLES, ("a:1", "2", "2"), strict=True)), "must be below JAX_NUM_PROCESSES=2"),
  ],
)
def test_the_environment_says_which_process_this_is(monkeypatch, given, found):
  for name in (*VARIABLES, *STEP, *TORCH):
    monkeypatch.delenv(name, raising=False)
  for name, value in given.items():
    monkeypatch.setenv(name, value)
  if isinstance(found, tuple):
    assert process_info() == ProcessInfo(*found)
  else:
    with pytest.raises(UserError, match=found):
      process_info()


def test_one_process_alone_is_answered_at_once():
  with StopRequests() as stop:
    assert stop.asked() == 0
    signal.raise_signal(signal.SIGTERM)
    assert stop.asked() == STOP


TOGETHER = """
import os, signal, sys
from posexp.errors import UserError
from posexp.training import processes
processes.join("a run", 60)
with processes.main_process_first():
  print("in the block", flush=True)
with processes.StopRequests() as stop:
  asked = []
  for step in range(8):
    if step == 2 and not processes.is_main_process():
      signal.raise_signal(signal.SIGTERM)
    if stop.asked():
      asked.append(step)
print(asked[0])
try:
  processes.join(f"another run of {processes.is_main_process()}", 60)
except UserError as error:
  print(error, flush=True)
try:
  with processes.explained():
    for step in range(10_000_000):
      if processes._greatest(int(step == 9)) and not processes.is_main_process():
        os.kill(os.getpid(), 9)
except UserError as error:
  print(error, file=sys.stderr, flush=True)
  os._exit(2)
"""


def test_all_processes_stop_at_the_same_step_and_one_whose_partner_dies_says_so_and_ends():
  both = [python(TOGETHER, **environment) for environment in environments(2)]
  said = [each.communicate(timeout=300) for each in both]
  for out, _ in said:
    assert spoken(out).splitlines() == [
      "in the block",
      "5",  # asked at step 2, and answered without waiting for the others
      "2 processes were started together for different runs; distributed=off lets each train its "
      "own",
    ]
  assert [each.returncode for each in both] == [2, -9]
  sentence = "process 0 of 2: another one has ended; the same command goes on from what is saved\n"
  assert said[0][1] == sentence


@pytest.mark.parametrize(
  ("rank", "other"),
  [pytest.param(0, "processes 1, 2", marks=pytest.mark.slow), (1, "processes 0, 2")],
)
def test_a_process_whose_partners_never_come_says_so_and_ends(rank, other):
  code = "from posexp.training import processes\nprocesses.join('a run', 0.7)"
  alone = python(code, **environments(3)[rank])
  _, err = alone.communicate(timeout=90)
  assert f"process {rank} of 3 waited 0.7 s (distributed_timeout) for {other} at 127" in err
  assert "Check failure stack trace" not in err


@pytest.mark.slow
def test_a_mistake_ends_the_process_whatever_a_thread_still_compiles(home):
  busy = "import time, concurrent.futures as futures\n"
  busy += "futures.ThreadPoolExecutor().submit(time.sleep, 400)"
  command = Command(home, "mistaken", *RUN, "train.average=99", before=busy)
  status, _, err = command.end()
  said = [line for line in err.splitlines() if not line.endswith(" ...")]  # of a busy machine
  assert (status, len(said)) == (2, 1)
  assert said[0].startswith("posexp: error: train.average=99: of 60 steps the run is evaluated 6 ")


def environments(count):
  """What tells each of some processes which of them it is."""
  with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    address = f"127.0.0.1:{free.getsockname()[1]}"
  given = ((address, str(count), str(rank)) for rank in range(count))
  return [dict(zip(VARIABLES, each, strict=True)) for each in given]


RUN = ["encoding=rpr", "rpr.k=2", "train.steps=60", "train.evaluate_every=10"]
RUN += ["train.log_every=2", "train.warmup=10", "model.d_model=64", "train.shard=parameters"]


def pair(home, name, *options):
  """A command line typed twice, to two processes of one run."""
  return [Command(home, name, *options, variables=each) for each in environments(2)]


def last(out):
  """What is printed of the result."""
  return out[out.index("\nat step ") :]


def spoken(out):
  """Less what is said when processes connect."""
  return re.sub(r"^(\[Gloo\]|process \d of \d waits) .*\n", "", out, flags=re.MULTILINE)


def rows(home, name):
  (file,) = (home / name).glob("*/*/*/seed=0/metrics.jsonl")
  every = [order.timeless(json.loads(line)) for line in file.read_text().splitlines()]
  return [row for row in every if row.keys() > {"step"}]  # as `order.result` has them


@pytest.mark.slow
def test_two_processes_do_what_one_does_however_often_they_are_stopped(tmp_path):
  order.write(tmp_path)
  status, whole, _ = Command(tmp_path, "one", *RUN, devices=2).end()
  assert status == 0

  first, second = pair(tmp_path, "two", *RUN)
  first.until(lambda: first.rows() >= 7)
  first.process.kill()
  second.end(signal.SIGKILL)
  first.end()

  first, second = pair(tmp_path, "two", *RUN)
  seen = first.rows()
  first.until(lambda: first.rows() >= seen + 2)
  status, out, _ = second.end(signal.SIGTERM)
  assert (status, spoken(out)) == (143, "")
  status, out, _ = first.end()
  assert status == 143
  stopped = re.search(r"^stopped at step (\d+) of 60, which is saved$", out, re.M)[1]

  first, second = pair(tmp_path, "two", *RUN)
  status, out, _ = second.end()
  assert (status, spoken(out)) == (0, "")
  status, out, _ = first.end()
  assert status == 0
  assert f"going on from step {stopped}\n" in out
  assert re.search(r"^training .* on 2 cpu$", out, re.M)
  assert last(out) == last(whole)
  for one, two in zip(rows(tmp_path, "one"), rows(tmp_path, "two"), strict=True):
    assert two == pytest.approx(one, abs=1e-4)
