"""A workspace and a report of W&B for each task of some runs.

pip install -e '.[workspace]'
python scripts/wandb_workspace.py runs/mr --project posexp

W&B's own bars and curves are of means over seeds, with their standard deviations. The report has
the table of posexp.report above them, with intervals and tests, which W&B does not compute.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from posexp.config.arguments import Parser, run
from posexp.errors import UserError
from posexp.reporting import sentences, tables
from posexp.reporting.charts import charts
from posexp.reporting.results import Results, results
from posexp.reporting.text import markdown, tabulated
from posexp.runs import read_runs
from posexp.wandb import server as wandb_server
from posexp.wandb.run import PROJECT

EXAMPLES = """\
Both group runs by what differs between them, encoding and rpr.k for example, and hold scores and
learning curves, as bars and bands over seeds. The workspace has a run of the baseline pinned, and
the report the table with intervals. Each call saves new ones.
"""


def main(argv: Sequence[str]) -> None:
  """Run the command line."""
  parser = Parser("", f"Saves a workspace of W&B for each task of some runs.\n\n{EXAMPLES}")
  parser.prog = "python scripts/wandb_workspace.py"
  parser.add_argument("runs", metavar="RUNS", nargs="*", type=Path, help="folders; default: runs")
  named = "default: WANDB_PROJECT, or that of wandb init, or posexp"
  parser.add_argument("--project", help=named)
  parser.add_argument("--entity", help="user or team; default: yourself")
  args = parser.parse_args(list(argv))
  tasks = results(read_runs(args.runs or [Path("runs")])[0])
  import wandb

  try:
    from wandb_workspaces import workspaces
  except ImportError:
    raise UserError("wandb-workspaces is missing: pip install -e '.[workspace]'") from None
  try:
    entity = args.entity or wandb.Api().default_entity
    project = args.project or wandb_server.settled().project or PROJECT
    for task in tasks:
      print(f"{task.task}: {workspace(workspaces, task, entity, project).save().url}")
      print(f"{task.task}, report: {report(task, entity, project).save().url}")
  except Exception as error:  # W&B's have no class in common
    raise UserError(f"W&B cannot be had: {wandb_server.reason(error)}") from error


def workspace(workspaces: Any, task: Results, entity: str, project: str) -> Any:
  """Return the workspace of a task, not yet saved."""
  from wandb_workspaces.expr import And, Config

  return workspaces.Workspace(
    entity=entity,
    project=project,
    name=f"posexp: {task.task}",
    sections=[
      workspaces.Section(name=name, panels=panels, is_open=True) for name, panels in sections(task)
    ],
    runset_settings=workspaces.RunsetSettings(
      filters=And(Config("task.name") == task.task),
      groupby=[Config(key) for key in task.by],
      baseline_run=baseline(task),
    ),
  )


def baseline(task: Results) -> str | None:
  """Return W&B's id of the baseline's first seed; None if W&B does not have it."""
  runs = task.baseline.repeats.values() if task.baseline else ()
  files = [run.path / "wandb" / "id" for run in sorted(runs, key=lambda run: run.seed)]
  return next((file.read_text().strip() for file in files if file.exists()), None)


def report(task: Results, entity: str, project: str) -> Any:
  """Return the report of a task, not yet saved: the table with intervals, its sentences, panels."""
  from wandb_workspaces import expr
  from wandb_workspaces.reports import v2

  said = [sentences.answer(task), *sentences.differences(task), sentences.method(task)]
  table = tabulated(tables.score_table(task), "pipe")
  text = "\n\n".join([table, *map(markdown, [*said, *sentences.notes(task)])])
  runs = v2.Runset(
    entity=entity,
    project=project,
    filters=[expr.Config("task.name") == task.task],
    groupby=[f"config.{key}" for key in task.by],
  )
  panels = [panel for _, each in sections(task) for panel in each]
  blocks = [v2.MarkdownBlock(text), v2.PanelGrid(runsets=[runs], panels=panels)]
  title = f"posexp: {task.title}"[:128]
  return v2.Report(project=project, entity=entity, title=title, blocks=blocks, width="fluid")


def sections(task: Results) -> Iterator[tuple[str, list[Any]]]:
  """Yield the panels of a task under their headings."""
  from wandb_workspaces.reports import v2

  seeds = {
    "groupby": v2.Config("encoding"),
    "groupby_aggfunc": "mean",
    "groupby_rangefunc": "stddev",
  }
  title = f"{task.score.title}, mean and standard deviation of seeds"
  bars = v2.BarPlot(title=title, metrics=[task.score.key], orientation="v", **seeds)
  yield "Scores", [bars]
  curves = [chart.y for chart in charts(task) if chart.kind == "steps"]
  lines = [v2.LinePlot(title=y.title, x="step", y=[y.key], **seeds) for y in curves]
  yield "Learning curves", lines


if __name__ == "__main__":
  run(main)
