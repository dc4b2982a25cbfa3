"""The last table of a sweep: what its runs measured, as means over seeds."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator, Sequence
from typing import Any

from posexp.errors import near
from posexp.runs.metrics import score
from posexp.sweeps.sweep import DONE, Member, grouped

MAIN = {  # metrics of the table, by task.kind; other kinds have that which chooses checkpoints
  "text_classification": ("test/accuracy", "test/macro_f1"),
  "translation": ("test/bleu", "test/chrf"),
  "numbers": ("test/exact_match", "beyond/exact_match"),
}


def results(runs: Sequence[Member]) -> Iterator[str]:
  """A table for the tasks that are measured in one way, with a row for each group of seeds.

  Cells are means over the seeds, ± their standard deviation.
  """
  tables: dict[tuple[str, ...], list[list[Member]]] = {}
  for group in grouped([member for member in runs if member.config]):
    if any(member.state == DONE and member.finished for member in group):
      tables.setdefault(_metrics(group[0].config), []).append(group)
  for metrics, groups in tables.items():
    yield ""
    yield from _table(metrics, groups)
  folders = dict.fromkeys(
    near(group[0].path.parents[2]) for groups in tables.values() for group in groups
  )
  if folders:
    yield f"intervals and tests: python -m posexp.report {' '.join(folders)}"


def _table(metrics: Sequence[str], groups: Sequence[Sequence[Member]]) -> Iterator[str]:
  width = max(len(group[0].group) for group in groups)
  yield (
    f"{'':<{width}}" + "".join(f"{score(metric).title:>22}" for metric in metrics) + f"{'n':>10}"
  )
  for group in groups:
    done = [member for member in group if member.state == DONE and member.finished]
    summaries = [json.loads((member.path / "summary.json").read_text("utf-8")) for member in done]
    cells = "".join(f"{_cell(summaries, metric):>22}" for metric in metrics)
    count = f"{len(done)}" + (f" of {len(group)}" if len(done) < len(group) else "")
    yield f"{group[0].group:<{width}}{cells}{count:>10}"


def _cell(summaries: Sequence[dict[str, Any]], metric: str) -> str:
  values = [summary[metric] for summary in summaries if metric in summary]
  if not values:
    return "—"
  number = score(metric).number
  mean = number(statistics.fmean(values))
  return f"{mean} ± {number(statistics.stdev(values))}" if len(values) > 1 else mean


def _metrics(config: dict[str, Any]) -> tuple[str, ...]:
  from posexp.tasks import make_task

  kind = config["task"]["kind"]
  return MAIN.get(kind) or (f"test/{make_task(config).score.partition('/')[2]}",)
