"""The module wandb and its server: how they are reached, and what their errors mean.

W&B takes two seconds to import, which wandb.mode=disabled need not: `load` imports it.
"""

from __future__ import annotations

import contextlib
import logging
import logging.handlers
import os
import re
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import Any

log = logging.getLogger("posexp")
QUIET = {"silent": True, "quiet": True, "console": "off"}
FINISH = {"finish_timeout": 60.0, "finish_timeout_raises": True}  # seconds, to send what is left


def load() -> Any:
  """Return the module wandb."""
  # Else W&B's reports on itself keep a process ten seconds if the server does not answer.
  os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
  import wandb

  return wandb


class Heard(logging.handlers.MemoryHandler):
  """Keeps the warnings and errors that W&B would have printed, to be logged or forgotten."""

  def __init__(self):
    super().__init__(capacity=1000, flushLevel=logging.CRITICAL + 1)
    self.target: Any = log  # which handles records as a handler does
    self.logger = logging.Logger(log.name, logging.WARNING)
    self.logger.addHandler(self)

  def handle(self, record: logging.LogRecord) -> bool:
    """Keep a message, in place of the words that W&B begins its lines with."""
    record.msg = re.sub(r"^wandb: (WARNING|ERROR) ", "W&B: ", record.msg, flags=re.M)
    return super().handle(record)


heard = Heard()


def session(**settings: Any) -> Any:
  """W&B's session with these settings, whose warnings go to `heard`."""
  wandb = load()
  found = wandb.setup(settings=wandb.Settings(**QUIET, **settings))
  wandb.termsetup(found.settings, heard.logger)
  return found


def server_url() -> str:
  """Return where W&B is, by its settings."""
  return session().settings.base_url


def connect(deadline: float) -> Any:
  """Return the module wandb, once the user is logged in and the server has answered.

  Raises:
    ConnectionError: the server does not answer before the deadline, by `time.monotonic`.
    Exception: an error of W&B, of any class.
  """
  wandb, url = load(), session(mode="online").settings.base_url
  if not wandb.login(prompt=False, verify=False):
    raise wandb.Error("not logged in")
  reach(url, deadline)
  return wandb


def open_online(settings: Mapping[str, Any], deadline: float, **more: Any) -> Any:
  """Return a run of W&B on the server, from arguments of `wandb.init` and `wandb.Settings`; raises
  as `connect` does.
  """
  wandb = connect(deadline)
  options = wandb.Settings(**QUIET, **FINISH, **more, init_timeout=_left(deadline))
  return wandb.init(**settings, mode="online", resume="allow", settings=options)


def open_offline(settings: Mapping[str, Any]) -> Any:
  """Return a run of W&B on disk, from arguments of `wandb.init`."""
  wandb = load()
  session()
  return wandb.init(**settings, mode="offline", settings=wandb.Settings(**QUIET, **FINISH))


def reset() -> None:
  """End W&B's process, which counts a failed run as in use, or has failed itself. The error, and
  not the warnings before it, say why.
  """
  import wandb

  heard.buffer.clear()
  with contextlib.suppress(Exception):
    wandb.teardown()
  wandb.run = None  # else no later login is possible


def reach(url: str, deadline: float) -> None:
  """Raise ConnectionError unless a W&B server answers before the deadline, whatever it answers."""
  try:
    urllib.request.urlopen(f"{url}/graphql", timeout=_left(deadline)).close()
  except urllib.error.HTTPError:
    pass
  except Exception as error:
    raise ConnectionError(f"{url} does not answer") from error


def reason(error: Exception) -> str:
  """Return an error of W&B in a few words."""
  text = str(error).strip().partition("\n")[0]
  if re.search(r"\b401\b|verify credentials", text):
    return "W&B does not accept the API key"
  return text.partition(': {"')[0].rstrip(".") or type(error).__name__


def _left(deadline: float) -> float:
  """Return seconds until the deadline, one at least."""
  return max(deadline - time.monotonic(), 1.0)
