"""Runs in processes of their own: stopped in every way and gone on with, on one device or eight."""

import os
import re
import select
import signal
import termios

import order
import pytest
from commands import Command
from order import command as in_this_process

from posexp.runs import read_run

RUN = [*order.STEADY, "encoding=rpr", "rpr.k=2", "train.steps=140", "train.evaluate_every=70"]
RUN += ["train.log_every=7"]


def here(home, name, *typed):
  """What a command line says in this process, which must end well, and what its run measured."""
  typed = in_this_process(*order.write(home), f"runs={name}", *typed)
  assert (typed.status, typed.err) == (0, "")
  return typed.out, order.result(order.only(home / name))


# Ctrl-C is ignored in the background jobs of a script, which the tests may be among.
HEED = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"


# Stopped in this process, tests/whole/test_train.py says the same.
@pytest.mark.slow
def test_a_run_that_is_stopped_in_a_terminal_is_bitwise_the_same(home):
  screen, end = os.openpty()
  termios.tcsetwinsize(end, (24, 100))
  seen, shown = 0, b""
  command = Command(home, "run", *RUN, before=HEED, stderr=end)
  os.close(end)
  while select.select([screen], [], [], 300)[0]:
    try:
      shown += os.read(screen, 65536)
    except OSError:  # the command has ended
      break
    if seen is not None and command.rows() > seen + 3:
      command.process.send_signal(signal.SIGINT)
      seen = None
  status, out, _ = command.end()
  os.close(screen)
  assert status == 130
  assert re.search(rb"\r *\d+%\|.*\d+/140 \[.*loss \d\.\d{3}, [\d,]+ tokens/s", shown)
  assert shown.endswith(b"posexp: interrupted; the same command goes on from here\r\n")
  assert "\r" not in out
  stopped = re.search(r"^stopped at step (\d+) of 140, which is saved$", out, re.M)[1]
  path = next((home / "run").glob("*/*/*/seed=0"))
  last = read_run(path).history[-1]
  assert last["step"] == int(stopped)

  out, measured = here(home, "run", *RUN)
  assert f"going on from step {stopped}\n" in out
  assert measured == here(home, "never-stopped", *RUN)[1]
  rows = {row["step"]: row for row in read_run(path).history}
  assert rows[140]["time/cpu_seconds"] > rows[last["step"]]["time/cpu_seconds"]  # of both sessions
  assert rows[last["step"]] == last


@pytest.mark.slow
def test_a_mistake_ends_the_process_whatever_a_thread_still_compiles(home):
  busy = "import time, concurrent.futures as futures\n"
  busy += "futures.ThreadPoolExecutor().submit(time.sleep, 400)"
  command = Command(home, "mistaken", *RUN, "train.average=99", before=busy)
  status, _, err = command.end()
  said = [line for line in err.splitlines() if not line.endswith(" ...")]  # of a busy machine
  assert (status, len(said)) == (2, 1)
  assert said[0].startswith(
    "posexp: error: train.average=99: of 140 steps the run is evaluated 2 times"
  )
