"""The memory of a process that trains, which keeps what it has freed."""

from __future__ import annotations

import ctypes
import functools
import mmap
import os
import threading

# mallopt(3): one arena (M_ARENA_MAX), no mmap (M_MMAP_MAX), no trimming (M_TRIM_THRESHOLD).
KEEP_FREED = ((-8, 1), (-4, 0), (-1, -1))
HUGE = 2**21  # bytes of a huge page
SOON = 2**27  # bytes that every run uses before its first step
POPULATE = 23  # MADV_POPULATE_WRITE, of Linux 5.14


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
