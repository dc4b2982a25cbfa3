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
NAMES = {
  "type": "ordinal",
  "sort": {"field": "${field:place}", "op": "min"},
  "axis": {"labelAngle": -40},
}
X = {  # the x axis of each kind of chart
  "numbers": {"type": "quantitative", "scale": {"type": "symlog"}},
  "names": NAMES,  # of groups
  "parts": NAMES,  # of a split, with all groups side by side
  "steps": {"type": "quantitative"},
}
COLUMNS = ("x", "place", "series", "mean", "low", "high", "n")  # names stand in order of place


class WandbChart(NamedTuple):
  """The points that a group of runs adds to a chart, each a row of `COLUMNS`."""

  kind: str  # a key of X
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
    return f"{entity}/{preset(self.kind)}", {column: column for column in COLUMNS}, strings

  def loggable(self, entity: str | None) -> Any:
    """What `wandb.Run.log` takes: a plain table unless an `entity` has the presets."""
    import wandb

    table = wandb.Table(list(COLUMNS), self.rows)
    if entity is None:
      return table
    preset, fields, strings = self.panel(entity)
    return wandb.plot_table(preset, table, fields, strings, split_table=True)


def specification(kind: str) -> dict[str, Any]:
  """The Vega-Lite specification of a kind of chart."""
  x = {"field": "${field:x}", "title": "${string:xname}"} | X[kind]
  y = {"type": "quantitative", "title": "${string:yname}", "scale": {"zero": False}}
  between = {"y": y | {"field": "${field:low}"}, "y2": {"field": "${field:high}"}}
  color = {"field": "${field:series}", "type": "nominal"}
  encoding = {"x": x, "color": color | {"legend": {"title": None, "symbolOpacity": 1}}}
  means = {"type": "point", "filled": True} if X[kind] is NAMES else {"type": "line", "point": True}
  return {
    "$schema": "https://vega.github.io/schema/vega-lite/v5.json",
    "description": "Means over seeds, with 95 % intervals",
    "data": {"name": "wandb"},
    "title": "${string:title}",
    "encoding": encoding | ({"xOffset": color} if kind == "parts" else {}),
    "layer": [
      {
        "mark": means | {"tooltip": {"content": "data"}},
        "encoding": {"y": y | {"field": "${field:mean}"}},
      },
      {
        "transform": [{"filter": "isValid(datum['${field:low}'])"}],
        "mark": {"type": "area", "opacity": 0.2} if kind == "steps" else {"type": "rule"},
        "encoding": between,
      },
    ],
  }


def preset(kind: str) -> str:
  """The name of a kind's preset, which changes with its specification."""
  text = json.dumps(specification(kind), sort_keys=True)
  return f"posexp-{kind}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


def ensure_presets(entity: str) -> None:
  """Gives an account the presets that it lacks; raises W&B's error if it may not have them."""
  import wandb

  api = wandb.Api()
  for kind in X:
    try:
      api.create_custom_chart(
        entity=entity,
        name=preset(kind),
        display_name=f"posexp: means over seeds, {kind}",
        spec_type="vega2",
        access="private",
        spec=specification(kind),
      )
    except Exception as error:  # of a class that wandb does not export
      if getattr(getattr(error, "response", None), "http_status", None) != CONFLICT:
        raise
