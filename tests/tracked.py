"""Runs of three numbers that are logged to W&B as training logs them."""

import shlex
import subprocess
import sys
from pathlib import Path

from posexp.runs import RunWriter, folder
from posexp.tracking import Trackers
from posexp.wandb import command as sync
from posexp.wandb.run import Wandb

CONFIG = {
  "encoding": "rpr",
  "rpr": {"k": 4, "keys": True},
  "task": {"kind": "text_classification", "name": "mr", "folds": None},
  "model": {"d_model": 128},
  "seed": 1,
  "runs": "runs",
  "rerun": False,
  "tracker": {"wandb": {"mode": "auto", "project": "posexp"}},
}
FACTS = {"parameters": 1234, "devices": "1 cpu"}


def train(steps, *, error=None, during=None, config=CONFIG, rerun=False, samples=None, **options):
  """Logs a row for each step as the training loop does; the tracker's line."""
  with RunWriter(folder(config), config | {"rerun": rerun}) as run:
    with Trackers({"wandb": Wandb(**options)}, run, config, FACTS) as opened:
      for step in steps:
        row = {"validation/accuracy": step / 100, "time/seconds": float(step)}
        run.log(step, row)
        opened.log(step, row)
      if during is not None:
        during()
      if error is not None:
        raise error
      summary = {"validation/accuracy": 0.75, "test/accuracy": 0.5, **FACTS}
      opened.summarize(summary)
      opened.samples(samples or {})
    run.finish(summary)
  return opened.lines["wandb"]


def steps_of(logged):
  return [row["_step"] for row in logged.history]


def wandb_sync(path):
  """Sends an offline run as W&B itself does."""
  command = [str(Path(sys.executable).with_name("wandb")), "sync", str(path)]
  done = subprocess.run(command, capture_output=True, text=True)
  assert done.returncode == 0, done.stderr


def send(line):
  """Does what the command at the end of a line does."""
  *command, path = shlex.split(line[line.index("python -m posexp.sync") :])
  assert command == ["python", "-m", "posexp.sync"]
  assert sync.sync(sync.arguments([path]))["not sent"] == 0


def said_by_posexp(caplog):
  return [record.getMessage() for record in caplog.records if record.name == "posexp"]
