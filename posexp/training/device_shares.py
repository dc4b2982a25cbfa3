"""The devices of a machine, shared out among processes that each train a run."""

from __future__ import annotations

import json
import os
import subprocess
import sys

from posexp.errors import UserError

ASK = """
import json, jax
devices = jax.local_devices()
platform = devices[0].platform
chips = {tuple(device.coords) for device in devices} if platform == "tpu" else devices
print(json.dumps([platform, len(chips)]))
"""
VISIBLE = {"gpu": "CUDA_VISIBLE_DEVICES", "tpu": "TPU_VISIBLE_CHIPS"}
ALONE = {"TPU_CHIPS_PER_PROCESS_BOUNDS": "1,1,1", "TPU_PROCESS_BOUNDS": "1,1,1"}
SHARE = 0.9  # of a GPU's memory, for the workers on it together


def devices(workers: int | str, runs: int) -> list[dict[str, str]]:
  """Return for each worker the environment variables that bind it to its device.

  Raises:
    UserError: JAX finds no device.
  """
  env = os.environ | {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
  asked = subprocess.run([sys.executable, "-c", ASK], capture_output=True, text=True, env=env)
  if asked.returncode:
    said = asked.stderr.strip() or f"asked for them, it ended with {asked.returncode}"
    raise UserError(f"JAX finds no device: {said.splitlines()[-1]}")
  platform, count = json.loads(asked.stdout.splitlines()[-1])
  several = count if platform in VISIBLE else 1  # processors are not divided
  processes = min(several if isinstance(workers, str) else workers, runs)
  if platform not in VISIBLE:
    return [{}] * processes
  seen = os.environ.get(VISIBLE[platform])
  names = seen.split(",") if seen else [str(number) for number in range(count)]
  on_each = -(-processes // count)
  common = ALONE if platform == "tpu" else {}
  if on_each > 1 and platform == "gpu":
    common = {"XLA_PYTHON_CLIENT_MEM_FRACTION": f"{SHARE / on_each:.3f}"}
  return [common | {VISIBLE[platform]: names[number % count]} for number in range(processes)]
