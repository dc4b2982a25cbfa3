"""Custom charts of W&B: means over seeds, with their intervals.

W&B draws a custom chart from a preset, which is a Vega-Lite specification that an account keeps,
and from the tables of all runs that are shown. So one chart holds whatever groups are selected.
"""

from __future__ import annotations

import hashlib
import json
import re
from typing import Any, NamedTuple

CONFLICT = 409  # the HTTP status for a preset that the account has already
COLUMNS = ("x", "place", "series", "mean", "low", "high", "n")  # x stands in the order of place
Y = {"type": "quantitative", "title": "${string:yname}", "scale": {"zero": False}}
SPECIFICATION = {
  "$schema": "https://vega.github.io/schema/vega-lite/v5.json",
  "description": "Means over seeds, with 95 % intervals",
  "data": {"name": "wandb"},
  "title": "${string:title}",
  "encoding": {
    "x": {
      "field": "${field:x}",
      "title": "${string:xname}",
      "type": "ordinal",
      "sort": {"field": "${field:place}", "op": "min"},
      "axis": {"labelAngle": -40, "labelOverlap": True},
    },
    "color": {"field": "${field:series}", "type": "nominal", "legend": {"title": None}},
  },
  "layer": [
    {
      "mark": {"type": "line", "point": True, "tooltip": {"content": "data"}},
      "encoding": {"y": Y | {"field": "${field:mean}"}},
    },
    {
      "transform": [{"filter": "isValid(datum['${field:low}'])"}],
      "mark": {"type": "rule", "opacity": 0.5},
      "encoding": {"y": Y | {"field": "${field:low}"}, "y2": {"field": "${field:high}"}},
    },
  ],
}
# The preset's name changes with its specification.
PRESET = f"posexp-{hashlib.sha256(json.dumps(SPECIFICATION).encode()).hexdigest()[:8]}"


class WandbChart(NamedTuple):
  """The points that a group of runs adds to a chart, each a row of `COLUMNS`."""

  title: str
  x: str  # title of the axis
  y: str
  rows: list[list[Any]]

  @property
  def name(self) -> str:
    """Its key in W&B, which allows these characters alone."""
    return re.sub(r"[^0-9A-Za-z]+", "_", self.title)

  def panel(self, entity: str) -> tuple[str, dict[str, str], dict[str, str]]:
    """The preset that draws it, which `entity` has, and the preset's fields and strings."""
    strings = {"title": self.title, "xname": self.x, "yname": self.y}
    return f"{entity}/{PRESET}", {column: column for column in COLUMNS}, strings

  def loggable(self, entity: str | None) -> Any:
    """What `wandb.Run.log` takes: a plain table unless an `entity` has the preset."""
    import wandb

    table = wandb.Table(list(COLUMNS), self.rows)
    if entity is None:
      return table
    preset, fields, strings = self.panel(entity)
    return wandb.plot_table(preset, table, fields, strings, split_table=True)


def ensure_preset(entity: str) -> None:
  """Gives an account the preset if it lacks it; raises W&B's error if it may not have it."""
  import wandb

  try:
    wandb.Api().create_custom_chart(
      entity=entity,
      name=PRESET,
      display_name="posexp: means over seeds",
      spec_type="vega2",
      access="private",
      spec=SPECIFICATION,
    )
  except Exception as error:  # of a class that wandb does not export
    if getattr(getattr(error, "response", None), "http_status", None) != CONFLICT:
      raise
