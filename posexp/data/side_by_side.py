"""Calls of functions in other processes, for work that threads of one process cannot share."""

import contextlib
import itertools
import os
import pickle
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, BinaryIO, TypeVar

from posexp.machine import cores

Item = TypeVar("Item")
Result = TypeVar("Result")

# The processes of multiprocessing would run the user's script again, from its beginning.
SERVE = f"import sys; from {__name__} import serve; serve(sys.stdin.buffer, sys.stdout.buffer)"
MOST = 8  # processes: the one that reads the items cannot keep more of them busy
ALONE = 50  # items that this process does first, of a thousand pairs each for example


def mapped(
  make: Callable[..., Callable[[Item], Result]],
  arguments: tuple,
  items: Iterable[Item],
  alone: int | None = None,
) -> Iterator[Result]:
  """Yield `make(*arguments)(item)` for each item, in order, computed by one process per core.

  This process does the first `alone` items, by default `ALONE`, since others take time to start.

  `make` must be a function of a module and is called once in each process. If a process ends
  early, this process does its item.
  """
  here, items = make(*arguments), iter(items)
  yield from map(here, itertools.islice(items, ALONE if alone is None else alone))
  count = min(cores(), MOST)
  following = list(itertools.islice(items, 1))
  if count == 1 or not following:
    yield from map(here, itertools.chain(following, items))
    return
  with contextlib.ExitStack() as stack:
    workers = [stack.enter_context(_worker()) for _ in range(count)]
    for worker in workers:
      _send(worker, (make, arguments))
    # A worker has one item at a time and reads when it is written to, so that no pipe blocks.
    asked: deque[tuple[subprocess.Popen, Item]] = deque()
    for worker, item in zip(itertools.cycle(workers), itertools.chain(following, items)):
      if len(asked) == count:
        yield _answer(*asked.popleft(), here)
      _send(worker, item)
      asked.append((worker, item))
    for each in asked:
      yield _answer(*each, here)


def serve(asked: BinaryIO, answers: BinaryIO) -> None:
  """Answer requests in a worker, until there are no more or nobody listens."""
  signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which closes `asked`
  with contextlib.suppress(EOFError, BrokenPipeError):
    make, arguments = pickle.load(asked)
    function = make(*arguments)
    while True:
      pickle.dump(function(pickle.load(asked)), answers)
      answers.flush()


@contextlib.contextmanager
def _worker() -> Iterator[subprocess.Popen]:
  path = os.pathsep.join(filter(None, sys.path))
  worker = subprocess.Popen(
    [sys.executable, "-c", SERVE],
    stdin=subprocess.PIPE,
    stdout=subprocess.PIPE,
    stderr=subprocess.DEVNULL,  # errors are raised again in this process
    env=os.environ | {"PYTHONPATH": path},
  )
  try:
    yield worker
  finally:
    worker.kill()
    worker.communicate()


def _send(worker: subprocess.Popen, what: Any) -> None:
  with contextlib.suppress(BrokenPipeError):
    pickle.dump(what, worker.stdin)
    worker.stdin.flush()


def _answer(worker: subprocess.Popen, item: Item, here: Callable[[Item], Result]) -> Result:
  try:
    return pickle.load(worker.stdout)
  except (EOFError, pickle.UnpicklingError):
    return here(item)
