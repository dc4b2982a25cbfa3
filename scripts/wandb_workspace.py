"""Saved workspaces for the runs that `posexp.sync` has sent, one for each task.

pip install -e '.[workspace]'
python scripts/wandb_workspace.py runs/mr --project posexp
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from posexp.config.arguments import Parser, run
from posexp.errors import UserError
from posexp.reporting import grouping, scores
from posexp.runs import Run, read_runs
from posexp.runs.metrics import declared, score
from posexp.tracking import charts, connection
from posexp.tracking.aggregates import aggregates
from posexp.tracking.wandb_run import WandbOptions

EXAMPLES = """\
It groups runs by what differs between them, encoding and rpr.k for example, and holds scores by
encoding, by k and by length, and learning curves, as bars and bands over seeds. Each call saves a
new workspace.
"""


def main(argv: Sequence[str]) -> None:
  """The command line."""
  parser = Parser("", "Saves a workspace of W&B for each task of some runs.", EXAMPLES)
  parser.prog = "python scripts/wandb_workspace.py"
  parser.add_argument("runs", metavar="RUNS", nargs="*", type=Path, help="folders; default: runs")
  parser.add_argument("--project", default=WandbOptions.project, help="default: %(default)s")
  parser.add_argument("--entity", help="user or team; default: yourself")
  args = parser.parse_args(list(argv))
  runs, _ = read_runs(args.runs or [Path("runs")])
  finished = [each for each in runs if each.summary is not None]
  if not finished:
    raise UserError("none of the runs has finished: their scores are measured at the end")
  try:
    from wandb_workspaces import workspaces
  except ImportError:
    raise UserError("wandb-workspaces is missing: pip install -e '.[workspace]'") from None
  try:
    entity = args.entity or connection.load().Api().default_entity
    charts.ensure_preset(entity)
    for task in dict.fromkeys(each.task for each in finished):
      members = [each for each in finished if each.task == task]
      made = workspace(workspaces, members, entity, args.project)
      print(f"{task}: {made.save().url}")
  except Exception as error:  # W&B's have no class in common
    raise UserError(f"W&B cannot be had: {connection.reason(error)}") from error


def workspace(workspaces: Any, runs: Sequence[Run], entity: str, project: str) -> Any:
  """The workspace of a task, not yet saved."""
  from wandb_workspaces.expr import And, Config

  task, by = runs[0].task, grouping.distinguishing(runs)
  return workspaces.Workspace(
    entity=entity,
    project=project,
    name=f"posexp: {task}",
    sections=[
      workspaces.Section(name=name, panels=panels, is_open=True)
      for name, panels in sections(runs, entity)
      if panels
    ],
    runset_settings=workspaces.RunsetSettings(
      filters=And(Config("task.name") == task), groupby=[Config(key) for key in by]
    ),
  )


def sections(runs: Sequence[Run], entity: str) -> Iterator[tuple[str, list[Any]]]:
  """The panels of a task under their headings."""
  from wandb_workspaces.reports import v2

  metric = scores.headline(runs)
  if metric is None:
    return
  table = declared(run.summary for run in runs)
  seeds = {
    "groupby": v2.Config("encoding"),
    "groupby_aggfunc": "mean",
    "groupby_rangefunc": "stddev",
  }
  drawn = {chart.name: chart for group in aggregates(runs) for chart in group.charts}

  custom = []
  for chart in drawn.values():
    preset, fields, strings = chart.panel(entity)
    query = {"summaryTable": {"tableKey": f"Custom Chart Tables/{chart.name}_table"}}
    custom.append(
      v2.CustomChart(query=query, chart_name=preset, chart_fields=fields, chart_strings=strings)
    )
  title = f"{metric.title}, mean and standard deviation of seeds"
  bars = v2.BarPlot(title=title, metrics=[metric.key], orientation="v", **seeds)
  yield "Scores", [bars, *custom]
  lines = [
    v2.LinePlot(title=score(name, table).title, x="step", y=[name], **seeds)
    for name in dict.fromkeys((f"validation/{metric.metric.name}", "validation/loss", "train/loss"))
  ]
  yield "Learning curves", lines


if __name__ == "__main__":
  run(main)
