"""What follows runs from outside: TensorBoard, Weights & Biases, and trackers of one's own."""

from collections.abc import Mapping
from typing import Any

from posexp.config import build, look_up, plugins
from posexp.tracking.tensorboard import TensorBoard
from posexp.tracking.tracker import TrackedRun, Tracker, Trackers, repeat

TRACKERS: dict[str, type[Tracker]] = {"tensorboard": TensorBoard}


def chosen(config: Mapping[str, Any]) -> dict[str, Tracker]:
  """Return the trackers that a run's config asks for, by their names.

  Raises:
    UserError: there is no such tracker, or an option of one is wrong.
  """
  table, trackers = plugins.table("tracker", TRACKERS), {}
  for name, options in (config.get("tracker") or {}).items():
    cls = look_up(table, name, "tracker")
    trackers[name] = build(cls, options, cls.section or f"tracker.{name}")
  return trackers
