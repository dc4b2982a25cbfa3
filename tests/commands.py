"""Command lines typed in processes of their own, to be watched and stopped."""

import os
import subprocess
import sys
import time
from pathlib import Path

import order
import pytest


def simulated(devices: int) -> str:
  """Flags of XLA for a process that has as many devices, beside those of the tests."""
  return f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={devices}"


class Command:
  """A command line, typed in a folder of its own beside the data."""

  def __init__(self, home, name, *typed, before="", devices=1, variables=(), task=(), **kwargs):
    self.runs = home / name
    env = os.environ | {
      "XDG_CACHE_HOME": str(home / "cache"),
      "PYTHONPATH": str(Path(__file__).parents[1]),
      "JAX_PLATFORMS": "cpu",
      "XLA_FLAGS": simulated(devices),
      **dict(variables),
    }
    code = f"{before}\nfrom posexp.train import main\nmain()"
    argv = [*(task or order.write(home)), f"runs={name}", *typed]
    self.process = subprocess.Popen(
      [sys.executable, "-c", code, *argv],
      cwd=home,
      env=env,
      text=True,
      **{"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **kwargs},
    )

  def until(self, happened):
    """Waits for something that must happen before the command ends."""
    while not happened():
      if self.process.poll() is not None:
        pytest.fail("\n".join(("it ended too soon", *self.process.communicate())))
      time.sleep(0.005)

  def rows(self, seed=0):
    """How many rows the run of a seed has logged."""
    files = self.runs.glob(f"*/*/*/seed={seed}/metrics.jsonl")
    return sum(file.read_bytes().count(b"\n") for file in files)

  def end(self, number=None):
    """Sends a signal, and returns the exit status, stdout and stderr."""
    if number is not None:
      self.process.send_signal(number)
    out, err = self.process.communicate(timeout=300)
    return self.process.returncode, out, err
