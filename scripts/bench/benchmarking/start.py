"""A process from its start to its first update step: `python -m benchmarking.start FILE`."""

from __future__ import annotations

import os
import pickle
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import jax

from benchmarking.cases import Case
from benchmarking.programs import Ready, started
from benchmarking.timing import Spent
from posexp.errors import UserError
from posexp.training import devices

SCRIPTS = str(Path(__file__).parents[1])  # from which this package is imported


def prepare(case: Case, folder: Path) -> Ready:
  """Return new processes, of which all but the first find the compiled programs in a cache."""
  cache = tempfile.mkdtemp(dir=folder)
  file = Path(cache) / "case.pickle"
  file.write_bytes(pickle.dumps(case))
  command = [sys.executable, "-m", "benchmarking.start", str(file)]
  path = os.pathsep.join([SCRIPTS, os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
  environment = os.environ | {"JAX_COMPILATION_CACHE_DIR": cache, "PYTHONPATH": path}

  def timed(calls: int) -> Spent:
    wall, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    for _ in range(calls):
      done = subprocess.run(command, env=environment, capture_output=True, text=True)
      if done.returncode:
        raise UserError(f"{case.label} does not start: {done.stderr.strip().splitlines()[-1]}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Spent(time.perf_counter() - wall, cpu)

  return Ready(timed, {"first_s": timed(1).wall})


def main() -> None:
  """Return what the new process does, up to the end of its first step."""
  devices.prepare()
  with open(sys.argv[1], "rb") as file:
    program, batch, key = started(pickle.load(file))
  jax.block_until_ready(program.update(program.init(0), batch, key))


if __name__ == "__main__":
  main()
