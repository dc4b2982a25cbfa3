"""Runs and sweeps that are killed at any moment, again and again: what they come to is the same.

    POSEXP_FUZZ=1200 POSEXP_SEED=1 python -m pytest tests/whole/test_kills.py -m slow -s

goes on for so many seconds with moments of that seed, and says how many kills that were.
"""

import contextlib
import os
import signal
import time
from pathlib import Path

import fuzz
import jax
import kinds
import order
import pytest
from commands import Command

from posexp.training.processes import StopRequests

RUN = [*order.MODEL, "wandb.mode=disabled", "encoding=rpr", "rpr.k=2", "train.steps=60"]
RUN += ["train.evaluate_every=4", "train.log_every=3"]
RUN += ["train.warmup=2", "train.learning_rate=1e-2", "model.dropout=0.2"]
SWEEP = ["-m", "seed=0,1,2"]


@pytest.fixture(scope="module")
def typed(tmp_path_factory):
  """The folder of the data, and what is typed for each kind of run."""
  home = tmp_path_factory.mktemp("home")
  classes = [*order.write(home), *RUN]
  return home, {
    "classification": classes,
    "language model": [*RUN, *kinds.text(home)],
    "workers": [*classes, *SWEEP, "workers=2"],
  }


def results(runs: Path) -> dict:
  return {path.name: order.result(path) for path in runs.glob("*/*/*/seed=*")}


def workers(process: int) -> list[int]:
  """What a process has started, less a helper of Python's that sees to locks."""
  found = Path(f"/proc/{process}/task/{process}/children").read_text().split()
  lines = {int(child): Path(f"/proc/{child}/cmdline").read_text() for child in found}
  return [child for child, line in lines.items() if "resource_tracker" not in line]


def killed(command: Command, rng) -> bool:
  """Whether the command, all of it or a worker was killed before it came to its end."""
  if rng.random() < 0.7:
    while not any(command.runs.rglob("metrics.jsonl")) and command.process.poll() is None:
      time.sleep(0.01)
  end = time.monotonic() + rng.uniform(0, 8)
  while time.monotonic() < end and command.process.poll() is None:
    time.sleep(0.001)
  if command.process.poll() is not None:
    return False
  whom = rng.choice(["all", "command", "worker"])
  with contextlib.suppress(ProcessLookupError, FileNotFoundError):
    if whom == "all":
      os.killpg(command.process.pid, signal.SIGKILL)
    elif whom == "worker" and (born := workers(command.process.pid)):
      os.kill(rng.choice(born), signal.SIGKILL)
    else:
      command.process.kill()
  return True


def ended(command: Command) -> tuple[int, str, str]:
  """How a command and all that it has started came to an end, without the names of long steps."""
  status, out, err = command.end()
  lines = (line for line in err.splitlines(True) if not line.endswith(" ...\n"))
  found = status, out, "".join(lines)
  deadline = time.monotonic() + 60
  with contextlib.suppress(ProcessLookupError):
    while time.monotonic() < deadline:
      os.killpg(command.process.pid, 0)
      time.sleep(0.02)
    pytest.fail(f"a process of it is left: {found}")
  return found


@pytest.mark.slow
def test_however_often_it_is_killed_it_comes_to_the_same(typed):
  home, lines = typed
  good, kills = {}, 0
  for number, rng in enumerate(fuzz.rounds(4)):
    kind = rng.choice(list(lines))

    def again(name, kind=kind):
      return Command(home, name, task=lines[kind], start_new_session=True)

    if kind not in good:
      assert ended(again(f"never/{kind.replace(' ', '-')}"))[::2] == (0, "")
      good[kind] = results(home / "never" / kind.replace(" ", "-"))
    for _ in range(rng.randint(1, 4)):
      command = again(f"killed/{number}")
      kills += killed(command, rng)
      _, out, err = ended(command)
      assert "Traceback" not in out + err, (kind, out, err)
    status, out, err = ended(again(f"killed/{number}"))
    assert (status, err) == (0, ""), (kind, out)
    assert results(home / "killed" / str(number)) == good[kind], kind
    left = list((home / "killed" / str(number)).rglob("*tmp*"))
    assert not left, (kind, left)
    print(f"{kind}: {kills} kills so far", flush=True)


@pytest.mark.parametrize(
  ("signals", "ends"), [([signal.SIGINT], KeyboardInterrupt), ([], jax.errors.JaxRuntimeError)]
)
def test_a_compiler_that_a_signal_ends_counts_as_the_signal(signals, ends):
  def step():
    for number in signals:
      signal.raise_signal(number)
    raise jax.errors.JaxRuntimeError("INTERNAL: ptxas exited with non-zero error code 2")

  before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a script's job ignores it
  try:
    with pytest.raises(ends), StopRequests():
      step()
  finally:
    signal.signal(signal.SIGINT, before)
