"""The door to trackers, which follow runs from outside, as Weights & Biases and TensorBoard do."""

import os
import re
from collections.abc import Mapping
from typing import Any

from posexp.config import build, look_up, plugins
from posexp.config.checks import brief
from posexp.config.composed import tracker_variables
from posexp.errors import UserError
from posexp.tracking.tracker import TrackedRun, Tracker, Trackers, repeat


def chosen(config: Mapping[str, Any]) -> dict[str, Tracker]:
  """Return the trackers that a run's config asks for, by their names.

  Raises:
    UserError: there is no such tracker, or an option of one is wrong; if an environment variable
      has given it, the message begins with that.
  """
  table, trackers = plugins.table("tracker", {}), {}
  for name, options in (config.get("tracker") or {}).items():
    cls = look_up(table, name, "tracker")
    if not issubclass(cls, Tracker):
      raise UserError(f"tracker {name}: the class {cls.__name__} must inherit posexp.Tracker")
    section = cls.section or f"tracker.{name}"
    try:
      trackers[name] = build(cls, options, section)
    except UserError as error:
      for option, variable in tracker_variables().get(section, {}).items():
        value = os.environ.get(variable)
        named = re.match(rf"{section}\.{option}\b", str(error))
        if named and value is not None and value == options.get(option):
          raise UserError(f"{variable}={brief(value)}: {error}") from error
      raise
  return trackers
