"""Stopping on request: SIGTERM, Ctrl-C and USR2 take effect at the end of a step."""

from __future__ import annotations

import logging
import signal
import sys
from typing import Any, Self

from posexp.training.processes import StopFlag

log = logging.getLogger("posexp")

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR2)  # clusters send USR2 before time is up


class StopRequests:
  """The requests to stop, by signals to any process of a run, within the context.

  After the first signal, the earlier handlers are back in place. A signal that was ignored, as
  Ctrl-C is in the background jobs of a script, stays ignored.
  """

  def __init__(self):
    self._received: list[int] = []
    self._before: dict[int, Any] = {}
    self._flag = StopFlag()

  def __enter__(self) -> Self:
    heard = [number for number in SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
    self._before = {number: signal.signal(number, self._receive) for number in heard}
    return self

  def __exit__(self, *error: Any) -> None:
    for number, handler in self._before.items():
      signal.signal(number, handler)

  def _receive(self, number: int, frame: Any) -> None:
    self._received.append(number)
    self.__exit__()

  def asked(self) -> bool:
    """Return whether to stop after this step, the same in all processes; call it once per step.

    A signal may come between any two lines, so keep the answer for the rest of the step.
    """
    return self._flag.step(bool(self._received))

  def obey(self, step: int, steps: int) -> None:
    """End the process as the signal would have done, if any process received one."""
    if not self._flag.read(bool(self._received)):
      return
    log.info("stopped at step %d of %d, which is saved", step, steps)
    number = self._received[0] if self._received else signal.SIGTERM
    signal.raise_signal(number)
    sys.exit(128 + number)  # if the signal is ignored, as by schedulers' wrappers
