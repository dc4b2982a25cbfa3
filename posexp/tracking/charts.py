"""Charts of W&B that the project defines itself: means over seeds, with their intervals.

W&B draws a custom chart from a preset, a Vega-Lite specification that an account keeps, and from
the tables of all runs that are shown. So one chart holds whatever groups are selected.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable
from typing import Any, NamedTuple

from posexp.reporting.significance import Estimate

CONFLICT = 409  # the HTTP status for a preset that the account has already
NAMES = {
  "type": "ordinal",
  "sort": {"field": "${field:place}", "op": "min"},
  "axis": {"labelAngle": -40},
}
X = {
  "numbers": {"type": "quantitative", "scale": {"type": "symlog"}},
  "names": NAMES,  # each of one group
  "parts": NAMES,  # each of all groups, side by side
  "steps": {"type": "quantitative"},
}


class Chart(NamedTuple):
  """What a group adds to a chart: a row of `COLUMNS` for each point."""

  kind: str  # of X
  task: str
  x: str  # what is on the axes
  y: str
  rows: list[list[Any]]

  @property
  def title(self) -> str:
    return f"{self.task}: {self.y} by {self.x}"

  @property
  def name(self) -> str:
    """Its key in W&B, which wants names of these characters alone."""
    return re.sub(r"[^0-9A-Za-z]+", "_", self.title)


COLUMNS = ("x", "place", "series", "mean", "low", "high", "n")


def row(x: Any, series: str, found: Estimate, place: int = 0) -> list[Any]:
  """A point of a chart; names stand in the order of their places."""
  return [x, place, series, found.mean, found.low, found.high, found.n]


def specification(kind: str) -> dict[str, Any]:
  """The Vega-Lite specification of a kind of chart."""
  x = {"field": "${field:x}", "title": "${string:xname}"} | X[kind]
  y = {"type": "quantitative", "title": "${string:yname}", "scale": {"zero": False}}
  between = {"y": y | {"field": "${field:low}"}, "y2": {"field": "${field:high}"}}
  color = {"field": "${field:series}", "type": "nominal"}
  legend = {"title": None, "symbolOpacity": 1}
  steps, lines = kind == "steps", X[kind] is not NAMES
  points = {"type": "line", "point": not steps} if lines else {"type": "point", "filled": True}
  return {
    "$schema": "https://vega.github.io/schema/vega-lite/v5.json",
    "description": "Means over seeds, with 95 % intervals",
    "data": {"name": "wandb"},
    "title": "${string:title}",
    "encoding": {"x": x, "color": color | {"legend": legend}}
    | ({"xOffset": color} if kind == "parts" else {}),
    "layer": [
      {
        "mark": points | {"tooltip": {"content": "data"}},
        "encoding": {"y": y | {"field": "${field:mean}"}},
      },
      {
        "transform": [{"filter": "isValid(datum['${field:low}'])"}],
        "mark": {"type": "area", "opacity": 0.2} if steps else {"type": "rule"},
        "encoding": between,
      },
    ],
  }


def preset(kind: str) -> str:
  """The name of a kind's preset, another for every other specification."""
  text = json.dumps(specification(kind), sort_keys=True)
  return f"posexp-{kind}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


def keep_presets(entity: str) -> None:
  """Sees to it that an account has the presets; raises W&B's error if it cannot have them."""
  import wandb
  from wandb.sdk.lib.service.service_connection import WandbApiFailedError

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
    except WandbApiFailedError as error:
      if error.response is None or error.response.http_status != CONFLICT:
        raise


class Panel(NamedTuple):
  """A chart as W&B is told of it."""

  preset: str
  table: str  # under which name W&B keeps the table
  fields: dict[str, str]
  strings: dict[str, str]


def panel(chart: Chart, entity: str) -> Panel:
  """What draws a chart; `entity` has the presets."""
  return Panel(
    f"{entity}/{preset(chart.kind)}",
    f"Custom Chart Tables/{chart.name}_table",
    {column: column for column in COLUMNS},
    {"title": chart.title, "xname": chart.x, "yname": chart.y},
  )


def drawn(charts: Iterable[Chart], entity: str | None) -> dict[str, Any]:
  """What is logged for charts, by their names: tables alone where no `entity` has the presets."""
  import wandb

  found = {}
  for chart in charts:
    table = wandb.Table(list(COLUMNS), chart.rows)
    if entity is None:
      found[chart.name] = table
    else:
      told = panel(chart, entity)
      found[chart.name] = wandb.plot_table(
        told.preset, table, told.fields, told.strings, split_table=True
      )
  return found
