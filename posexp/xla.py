"""What XLA is told before JAX uses a CPU: how to sum, and how many devices it is."""

import contextlib
import importlib.metadata
import os
import re
import sys
import warnings

FLAG = "--xla_cpu_experimental_ynn_fusion_type"
SET = f"{FLAG}=-reduce"
# Versions of jaxlib that need it, from the first on and below the second. XLA ends a process that
# gives it a flag it does not know, which later versions may not.
WRONG = (0, 10, 2), (0, 11, 1)
HOST_DEVICES = "xla_force_host_platform_device_count"


def sum_rightly() -> None:
  """Have JAX sum by XLA's own code on a CPU, in this process and those that it starts.

  Without the flag, a sum of (m·row)² over 32,769 rows of three numbers is 0.8 % off. A value of
  the flag that the user has set stays. It warns if JAX has begun without the flag.
  """
  flags = os.environ.get("XLA_FLAGS", "").strip()
  version = importlib.metadata.version("jaxlib")
  if FLAG in flags or not WRONG[0] <= tuple(map(int, re.findall(r"\d+", version)[:3])) < WRONG[1]:
    return
  begun = sys.modules.get("jax._src.xla_bridge")
  if flags and not flags.startswith("-"):  # the name of a file, which XLA reads instead
    try:
      with open(flags, encoding="utf-8") as file:
        if FLAG in file.read():
          return
    except (OSError, UnicodeDecodeError):  # of which XLA says more
      return
    _warn(version, f"add {SET} to the file {flags}, which XLA_FLAGS names")
    return
  os.environ["XLA_FLAGS"] = f"{flags} {SET}".strip()
  if begun is not None and begun.backends_are_initialized():
    _warn(version, f"import posexp before JAX is used, or set XLA_FLAGS={SET}")


def _warn(version: str, way_out: str) -> None:
  warnings.warn(f"jaxlib {version} gets some sums wrong on a CPU: {way_out}", stacklevel=4)


def cores() -> int:
  """Count the cores that this process may use."""
  return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def a_device_for_each_core() -> None:
  """Have JAX take a CPU as one device for each core, or NPROC, unless XLA_FLAGS says how many."""
  import jax

  count = os.environ.get("NPROC", f"{cores()}")
  if HOST_DEVICES not in os.environ.get("XLA_FLAGS", "") and count.isdecimal() and int(count):
    with contextlib.suppress(RuntimeError):  # JAX has begun to use them
      jax.config.update("jax_num_cpu_devices", int(count))
