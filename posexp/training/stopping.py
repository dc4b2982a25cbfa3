"""Stopping on request: SIGTERM, Ctrl-C and USR2 take effect at the end of a step.

The jobs of a cluster are asked to end by SIGTERM and killed some time later, which may make the
cluster queue them again. So they save then, and train on; their handler of SIGTERM is `save_only`.
"""

from __future__ import annotations

import logging
import signal
import sys
from typing import Any, Self

import jax

from posexp.training.processes import StopFlag, part

log = logging.getLogger("posexp")

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR2)  # clusters send USR2 before time is up
SAVE, STOP = 1, 2  # what a signal asks for


def save_only(number: int, frame: Any) -> None:
  """Handle a signal at which a run is saved and goes on; where nothing is trained, ignore it."""


class StopRequests:
  """The requests to stop or to save, by signals to any process of a run, within the context.

  After the first signal to stop, the earlier handlers are back in place. A signal that was ignored,
  as Ctrl-C is in the background jobs of a script, stays ignored.
  """

  def __init__(self):
    self._received: list[int] = []
    self._save = False
    self._before: dict[int, Any] = {}
    self._flag = StopFlag()

  def __enter__(self) -> Self:
    heard = [number for number in SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
    self._before = {number: signal.signal(number, self._receive) for number in heard}
    return self

  def __exit__(self, *raised: Any) -> None:
    for number, handler in self._before.items():
      signal.signal(number, handler)
    # A terminal's signal also ends the compiler that XLA may have started for a GPU.
    if self._received and any(isinstance(each, jax.errors.JaxRuntimeError) for each in raised):
      signal.raise_signal(self._received[0])

  def _receive(self, number: int, frame: Any) -> None:
    if self._before[number] is save_only:
      self._save = True
    else:
      self._received.append(number)
      self.__exit__()

  def asked(self) -> int:
    """Return what to do after this step, the same in all processes; call it once per step.

    That is SAVE, STOP or 0, which is nothing. A signal may come between any two lines, so keep the
    answer for the rest of the step.
    """
    save, self._save = self._save, False
    return self._flag.step(STOP if self._received else SAVE * save)

  def obey(self, step: int, steps: int) -> None:
    """End the process as the signal would have done, if any process received one."""
    if self._flag.read(STOP * bool(self._received)) < STOP:
      return
    log.info("stopped at step %d of %d, which is saved", step, steps)
    part()
    number = self._received[0] if self._received else signal.SIGTERM
    signal.raise_signal(number)
    sys.exit(128 + number)  # if the signal is ignored, as by schedulers' wrappers
