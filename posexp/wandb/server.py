"""The module wandb and its server: how they are reached, and what their errors mean.

W&B takes two seconds to import, so functions import it: wandb.mode=disabled need not wait.
"""

from __future__ import annotations

import contextlib
import logging
import logging.handlers
import os
import re
import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import Any

from posexp.errors import UserError

log: Any = logging.getLogger("posexp")  # which handles records as a handler does
QUIET = {"silent": True, "quiet": True}
FINISH = {"finish_timeout": 60.0, "finish_timeout_raises": True}  # seconds, to send what is left


# Else W&B's reports on itself keep a process ten seconds if the server does not answer.
os.environ.setdefault("WANDB_ERROR_REPORTING", "false")


def _worded(record: logging.LogRecord) -> bool:
  """Put a prefix in place of the words that W&B begins its lines with; keep the record."""
  record.msg = re.sub(r"^wandb: (WARNING|ERROR) ", "W&B: ", record.msg, flags=re.M)
  return True


# Keeps the warnings and errors that W&B would have printed, to be logged or forgotten.
heard = logging.handlers.MemoryHandler(1000, logging.CRITICAL + 1, log)
heard.addFilter(_worded)
_logger = logging.Logger(log.name, logging.WARNING)
_logger.addHandler(heard)


def session(**settings: Any) -> Any:
  """Return W&B's session with these settings; `heard` gets its warnings.

  A variable of W&B's that is set but empty stands for none. W&B itself refuses some.
  """
  for name in [name for name, value in os.environ.items() if name[:6] == "WANDB_" and not value]:
    del os.environ[name]
  import wandb

  given = wandb.Settings(**QUIET, **settings)
  wandb.termsetup(given, _logger)  # else W&B prints that it reads its files
  made = wandb.setup(settings=given)
  wandb.termsetup(made.settings, _logger)
  return made


def settled() -> Any:
  """Return W&B's settings, of its files and variables: `wandb init` and `wandb offline` write some.

  Raises:
    UserError: W&B refuses one.
  """
  try:
    return session().settings
  except Exception as error:  # W&B's have no class in common
    reset()
    raise UserError(
      f"W&B refuses a setting that it has from the environment: {reason(error)}"
    ) from error


def connect(timeout: float) -> str:
  """Return the address of the server, once the user is logged in and it has answered.

  Raises:
    ConnectionError: the server does not answer within `timeout` seconds.
    Exception: an error of W&B, of any class.
  """
  import wandb

  url = session(mode="online").settings.base_url
  if not wandb.login(prompt=False, verify=False):
    raise wandb.Error("not logged in")
  reach(url, timeout)
  return url


def start(settings: Mapping[str, Any], timeout: float | None = None, **more: Any) -> Any:
  """Return a new run of W&B: on the server that answered `connect`, or on disk without a timeout.

  Args:
    settings: arguments of `wandb.init`.
    timeout: seconds for the server to open the run.
    more: arguments of `wandb.Settings`.

  Raises:
    Exception: an error of W&B, of any class.
  """
  import wandb

  if timeout is None:
    session()
  mode: Any = {"mode": "online", "resume": "allow"} if timeout else {"mode": "offline"}
  more |= {"init_timeout": timeout} if timeout else {}
  return wandb.init(**settings, **mode, settings=wandb.Settings(**QUIET, **FINISH, **more))


def reset() -> None:
  """End W&B's process, which counts a failed run as in use, or has failed itself. The error says
  why, and not the warnings before it.
  """
  import wandb

  heard.buffer.clear()
  with contextlib.suppress(Exception):
    wandb.teardown()
  wandb.run = None  # else no later login is possible


def reach(url: str, timeout: float) -> None:
  """Raise ConnectionError unless a W&B server answers within some seconds, whatever it answers."""
  try:
    with contextlib.suppress(urllib.error.HTTPError):
      urllib.request.urlopen(f"{url}/graphql", timeout=timeout).close()
  except Exception as error:
    raise ConnectionError(f"{url} does not answer") from error


def reason(error: Any) -> str:
  """Return an error of W&B in a few words."""
  text = str(error).strip().partition("\n")[0]
  if type(error).__name__ == "ValidationError":  # Pydantic's, whose first line says little
    text = "; ".join(f"{wrong['loc'][0]}: {wrong['msg']}" for wrong in error.errors())
  if re.search(r"\b401\b|verify credentials", text):
    return "W&B does not accept the API key"
  return text.partition(': {"')[0].rstrip(".") or type(error).__name__
