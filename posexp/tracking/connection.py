"""The module wandb and its server: how they are reached, and what their errors mean.

W&B takes two seconds to import, which wandb.mode=disabled need not: `load` imports it.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import Any

QUIET = {"silent": True, "quiet": True, "console": "off"}
FINISH = {"finish_timeout": 60.0, "finish_timeout_raises": True}  # seconds, to send what is left


def load() -> Any:
  """The module wandb."""
  # Else W&B's reports on itself keep a process ten seconds if the server does not answer.
  os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
  import wandb

  return wandb


def server_url() -> str:
  """Where W&B is, by its settings."""
  wandb = load()
  return wandb.setup(settings=wandb.Settings(**QUIET)).settings.base_url


def connect(deadline: float) -> Any:
  """The module wandb, once the user is logged in and the server has answered.

  Raises:
    ConnectionError: the server does not answer before the deadline, by `time.monotonic`.
    Exception: an error of W&B, of any class.
  """
  wandb = load()
  session = wandb.setup(settings=wandb.Settings(**QUIET, mode="online"))
  if not wandb.login(prompt=False, verify=False):
    raise wandb.Error("not logged in")
  reach(session.settings.base_url, deadline)
  return wandb


def open_online(settings: Mapping[str, Any], deadline: float) -> Any:
  """A run of W&B on the server, from arguments of `wandb.init`; raises as `connect` does."""
  wandb = connect(deadline)
  options = wandb.Settings(**QUIET, **FINISH, init_timeout=_left(deadline))
  return wandb.init(**settings, mode="online", resume="allow", settings=options)


def open_offline(settings: Mapping[str, Any]) -> Any:
  """A run of W&B on disk, from arguments of `wandb.init`."""
  wandb = load()
  wandb.setup(settings=wandb.Settings(**QUIET))
  return wandb.init(**settings, mode="offline", settings=wandb.Settings(**QUIET, **FINISH))


def reset() -> None:
  """Ends W&B's process, which counts a failed run as in use, or has failed itself."""
  import wandb

  with contextlib.suppress(Exception):
    wandb.teardown()
  wandb.run = None  # else no later login is possible


def reach(url: str, deadline: float) -> None:
  """Raises ConnectionError unless a W&B server answers before the deadline, whatever it answers."""
  try:
    urllib.request.urlopen(f"{url}/graphql", timeout=_left(deadline)).close()
  except urllib.error.HTTPError:
    pass
  except Exception as error:
    raise ConnectionError(f"{url} does not answer") from error


def reason(error: Exception) -> str:
  """An error of W&B in a few words."""
  text = str(error).strip().partition("\n")[0]
  if re.search(r"\b401\b|verify credentials", text):
    return "W&B does not accept the API key"
  return text.partition(': {"')[0].rstrip(".") or type(error).__name__


def _left(deadline: float) -> float:
  """Seconds until the deadline, one at least."""
  return max(deadline - time.monotonic(), 1.0)
