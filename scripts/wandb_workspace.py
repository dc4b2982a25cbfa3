"""Saved workspaces for the runs that `posexp.sync` has sent, one for each task.

pip install -e '.[workspace]'
python scripts/wandb_workspace.py runs/mr --project posexp

Its custom charts hold means over seeds, with their intervals. W&B draws a custom chart from a
preset, which is a Vega-Lite specification that an account keeps, and from the tables of all runs
that are shown. So one chart holds whatever groups are selected.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from posexp.config.arguments import Parser, run
from posexp.errors import UserError
from posexp.reporting.charts import Chart, charts
from posexp.reporting.results import Results, results
from posexp.runs import read_runs
from posexp.tracking import connection
from posexp.tracking.aggregates import COLUMNS, table_name
from posexp.tracking.wandb_run import PROJECT

EXAMPLES = """\
It groups runs by what differs between them, encoding and rpr.k for example, and holds scores by
group, by k and by length, and learning curves, as bars and bands over seeds. Each call saves a new
workspace.
"""
CONFLICT = 409  # the HTTP status for a preset that the account has already
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


def main(argv: Sequence[str]) -> None:
  """Run the command line."""
  parser = Parser("", "Saves a workspace of W&B for each task of some runs.", EXAMPLES)
  parser.prog = "python scripts/wandb_workspace.py"
  parser.add_argument("runs", metavar="RUNS", nargs="*", type=Path, help="folders; default: runs")
  parser.add_argument(
    "--project", default=os.environ.get("WANDB_PROJECT") or PROJECT, help="default: %(default)s"
  )
  parser.add_argument("--entity", help="user or team; default: yourself")
  args = parser.parse_args(list(argv))
  tasks = results(read_runs(args.runs or [Path("runs")])[0])
  try:
    from wandb_workspaces import workspaces
  except ImportError:
    raise UserError("wandb-workspaces is missing: pip install -e '.[workspace]'") from None
  try:
    entity = args.entity or connection.load().Api().default_entity
    ensure_preset(entity)
    for each in tasks:
      print(f"{each.task}: {workspace(workspaces, each, entity, args.project).save().url}")
  except Exception as error:  # W&B's have no class in common
    raise UserError(f"W&B cannot be had: {connection.reason(error)}") from error


def ensure_preset(entity: str) -> None:
  """Give an account the preset if it lacks it; raises W&B's error if it may not have it."""
  try:
    connection.load().Api().create_custom_chart(
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


def workspace(workspaces: Any, task: Results, entity: str, project: str) -> Any:
  """Return the workspace of a task, not yet saved."""
  from wandb_workspaces.expr import And, Config

  return workspaces.Workspace(
    entity=entity,
    project=project,
    name=f"posexp: {task.task}",
    sections=[
      workspaces.Section(name=name, panels=panels, is_open=True)
      for name, panels in sections(task, entity)
    ],
    runset_settings=workspaces.RunsetSettings(
      filters=And(Config("task.name") == task.task), groupby=[Config(key) for key in task.by]
    ),
  )


def sections(task: Results, entity: str) -> Iterator[tuple[str, list[Any]]]:
  """Yield the panels of a task under their headings."""
  from wandb_workspaces.reports import v2

  seeds = {
    "groupby": v2.Config("encoding"),
    "groupby_aggfunc": "mean",
    "groupby_rangefunc": "stddev",
  }
  drawn = list(charts(task))
  title = f"{task.score.title}, mean and standard deviation of seeds"
  bars = v2.BarPlot(title=title, metrics=[task.score.key], orientation="v", **seeds)
  yield "Scores", [bars, *(custom(chart, task.task, entity) for chart in drawn)]
  curves = [chart.y for chart in drawn if chart.kind == "steps"]
  lines = [v2.LinePlot(title=y.title, x="step", y=[y.key], **seeds) for y in curves]
  yield "Learning curves", lines


def custom(chart: Chart, task: str, entity: str) -> Any:
  """Return the panel of a chart, which draws the tables that `posexp.sync` has sent."""
  from wandb_workspaces.reports import v2

  return v2.CustomChart(
    query={"summaryTable": {"tableKey": table_name(task, chart)}},
    chart_name=f"{entity}/{PRESET}",
    chart_fields={column: column for column in COLUMNS},
    chart_strings={"title": f"{task}: {chart.title}", "xname": chart.x, "yname": chart.y.title},
  )


if __name__ == "__main__":
  run(main)
