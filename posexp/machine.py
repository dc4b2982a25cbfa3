"""The machine, as a process sets it up before JAX uses it.

XLA is told how to sum on a CPU, and how many devices a CPU is; a process that trains keeps the
memory that it has freed.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib.metadata
import mmap
import os
import re
import sys
import threading
import warnings

# XLA's flag for what the library YNNPACK computes on a CPU, and the value that keeps sums from it.
FLAG = "--xla_cpu_experimental_ynn_fusion_type"
SET = f"{FLAG}=-reduce"
# Versions of jaxlib that need it, from the first on and below the second. XLA ends a process that
# gives it a flag it does not know, which later versions may not.
WRONG = (0, 10, 2), (0, 11, 1)
HOST_DEVICES = "xla_force_host_platform_device_count"
# mallopt(3): one arena (M_ARENA_MAX), no mmap (M_MMAP_MAX), no trimming (M_TRIM_THRESHOLD).
KEEP_FREED = ((-8, 1), (-4, 0), (-1, -1))
HUGE = 2**21  # bytes of a huge page
SOON = 2**27  # bytes that every run uses before its first step
POPULATE = 23  # MADV_POPULATE_WRITE, of Linux 5.14


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


@functools.cache
def keep_freed() -> bool:
  """Make glibc's malloc keep freed memory, and return whether this is glibc.

  Call it before the process starts a thread: an earlier thread has an arena of its own, which
  returns freed memory in spite of this and which later threads may share. The temporaries of a step
  are one block of hundreds of MB, and to get its pages back from the system takes an eighth of each
  step, or more. With memory kept, the tokenizer's threads wait for each other and take 1.7 times as
  long as one, so it uses one.
  """
  if "CS_GNU_LIBC_VERSION" not in os.confstr_names or not os.confstr("CS_GNU_LIBC_VERSION"):
    return False
  os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
  for option, value in KEEP_FREED:
    ctypes.CDLL(None).mallopt(option, value)
  return True


@functools.cache  # once per process: later runs of a sweep use the same memory
def in_huge_pages() -> None:
  """Keep freed memory, in huge pages if the system has them.

  This advises huge pages for half of the machine's memory, without allocating it yet. A thread
  touches the part that every run uses, since a virtual machine may need 3 ms for each MB.
  """
  if not keep_freed():
    return
  libc = ctypes.CDLL(None)
  libc.malloc.restype = ctypes.c_void_p
  size = os.sysconf("SC_PHYS_PAGES") * mmap.PAGESIZE // 2
  if heap := libc.malloc(ctypes.c_size_t(size)):
    start = -(-heap // HUGE) * HUGE
    libc.madvise(ctypes.c_void_p(start), ctypes.c_size_t(size - HUGE), mmap.MADV_HUGEPAGE)
    libc.free(ctypes.c_void_p(heap))

    def take() -> None:  # page by page, since other threads also ask for memory
      for page in range(start, start + min(SOON, size - HUGE), HUGE):
        libc.madvise(ctypes.c_void_p(page), ctypes.c_size_t(HUGE), POPULATE)

    threading.Thread(target=take, name="memory", daemon=True).start()
