"""The results as tables: the ranked groups and their costs to be read, groups and runs as data."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pandas as pd

from posexp.errors import pasted
from posexp.reporting import sentences
from posexp.reporting.contexts import context_table, of_little_gain
from posexp.reporting.grouping import Group
from posexp.reporting.results import Results
from posexp.reporting.text import MISSING, Table, cell, markdown, p_number, tabulated, wrapped
from posexp.runs.metrics import declared, score


def score_table(results: Results) -> Table:
  """Return a row for each group, the best first."""
  base = results.baseline.label if results.baseline else "baseline"
  spread = ["learned", "mean", "seeds", "95 % interval"]
  spread = spread if results.gated else ["n", "mean", "sd", "95 % interval"]
  spread += ["of those that learned"] * _unlearned(results)
  corrected = "p (corrected)" if results.looked_at else "p (Holm)"
  heads = ["", *spread, f"against {base}", "p", corrected]
  groups = [*results.groups, *filter(None, [results.same])]
  rows = [_score_row(group, results) for group in groups]
  return heads, rows


def _unlearned(results: Results) -> bool:
  """Return whether some seeds have not learned the task."""
  return any(len(group.learned(results.score)) < len(group.repeats) for group in results.groups)


def _score_row(group: Group, results: Results) -> list[str]:
  shown, own, against = results.score.number, group.estimate, group.difference
  difference = results.shown(against.estimate, "+") if against.estimate.n else MISSING
  none = "mixed" if group.mixed else MISSING
  values = sorted((run.score(results.score.key) for run in group.repeats.values()), reverse=True)
  seeds = " ".join(map(shown, values)) or MISSING
  return [
    group.label,
    sentences.learned(group, results) if results.gated else str(own.n),
    none if own.mean is None else shown(own.mean),
    seeds if results.gated else _cell(own.sd, shown),
    _cell(own.low, lambda low: f"{shown(low)} to {shown(own.high)}"),
    *([_cell(results.of_learned(group).mean, shown)] if _unlearned(results) else []),
    "baseline" if group is results.baseline else difference,
    p_number(against.p),
    p_number(against.holm),
  ]


def cost_table(results: Results) -> Table:
  """Return a table of the groups' costs, as far as they are known."""
  groups = [group for group in results.groups if group.costs]
  names = list(dict.fromkeys(name for group in groups for name in group.costs))

  def shown(value: float) -> str:
    if value >= 100:
      return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}" if value >= 0.005 else "0"

  rows = [
    [group.label, *(_cell(group.costs.get(name), shown) for name in names)] for group in groups
  ]
  return ["", *names], rows


def family_table(results: Results) -> Table:
  """Return a row for each group of runs that started from the weights of others, their parents.

  It has three means of the validation split: the parent's best; the child before its first step,
  which is the same unless an option changes the model; and the child's best.
  """
  key = f"validation/{results.score.metric.name}"
  parents = {
    f"{run.encoding}/{run.digest}": group.label for group in results.groups for run in group.runs
  }
  rows, unit = [], score(key, declared(run.summary for run in results.runs))
  for group in results.groups:
    begun = [run for run in group.repeats.values() if "parent" in run.summary and run.history]
    own = [(run.summary["parent"]["validation"], run.history[0], run.summary) for run in begun]
    if own and all(key in row for row in own[0]):
      name, _, seed = str(begun[0].settings["init"]).partition("/seed=")
      whose = parents.get(name, name) + (f", seed {seed}" if seed else "")
      means = [statistics.fmean(row[key] for row in column) for column in zip(*own, strict=True)]
      rows.append([group.label, whose, *map(unit.number, means)])
  return ["", "starts from", f"its {unit.title}", "at step 0", "at the best step"], rows


def _cell(value: float | None, show: Callable[[float], str]) -> str:
  return MISSING if value is None else show(value)


def document(tasks: Sequence[Results], notes: Sequence[str]) -> str:
  """Return all results in Markdown of 100 columns, which a terminal shows as well."""
  parts = [part for results in tasks for part in _section(results)]
  parts.append("\n".join(wrapped(markdown(f"Note: {note}"), "- ") for note in notes))
  return "\n\n".join(part for part in parts if part) + "\n"


def _section(results: Results) -> Iterator[str]:
  yield f"## {markdown(results.title)}"
  yield wrapped(markdown(sentences.answer(results)))
  yield tabulated(score_table(results), "pipe")
  yield "\n".join(wrapped(markdown(each), "- ") for each in sentences.differences(results))
  if (contexts := context_table(results))[1]:
    yield tabulated(contexts, "pipe")
  costs = cost_table(results)
  yield (
    tabulated(costs, "pipe") if costs[1] else wrapped(markdown(sentences.missing(results, "costs")))
  )
  if (families := family_table(results))[1]:
    yield tabulated(families, "pipe")
  yield wrapped(markdown(sentences.method(results)))
  said = [*sentences.notes(results), *of_little_gain(results)]
  yield "\n".join(wrapped(markdown(f"Note: {line}"), "- ") for line in said)


def means(tasks: Sequence[Results]) -> Iterator[str]:
  """Yield the lines of a table of means for each task, and which command reports more."""
  for task in tasks:
    yield from ("", task.title, tabulated(score_table(task), "plain"))
    if said := sentences.training(task):
      yield said
  folders = dict.fromkeys(pasted(run.path.parents[2]) for results in tasks for run in results.runs)
  yield f"more: python -m posexp.report {' '.join(folders)}"


def group_data(tasks: Sequence[Results]) -> pd.DataFrame:
  """Return a row for each group. Scores are as summary.json has them, shares from 0 to 1."""
  rows = []
  for results in tasks:
    base = results.baseline and results.baseline.label
    for group in results.groups:
      own, against = group.estimate, group.difference
      row = {"task": results.task, "metric": results.score.key, "group": group.label}
      row |= group.values | own._asdict() | {"mixed": bool(group.mixed), "baseline": base}
      row |= {"unequal": ", ".join(results.unequal) or None}
      if results.gated:
        row |= {"learned": len(group.learned(results.score)), "seeds": len(group.repeats)}
      else:
        theirs = results.baseline.repeats if results.baseline else {}
        row["shared_seeds"] = len(group.repeats.keys() & theirs.keys())
      row |= {"difference": against.estimate.mean}
      row |= {"difference_low": against.estimate.low, "difference_high": against.estimate.high}
      row |= {"p": against.p, "p_holm": against.holm, "detectable": results.detectable(group)}
      wider = results.over_examples.get(group.label)
      row |= {"over_examples_low": wider and wider.low, "over_examples_high": wider and wider.high}
      rows.append(row | group.costs)
  return sheet(rows)


def as_data(results: Results) -> dict[str, Any]:
  """Return the results of a task as `--json` keeps them."""
  rows = group_data([results]).to_dict("records")
  return {
    "task": results.task,
    "metric": results.score.key,
    "baseline": results.baseline and results.baseline.label,
    "answer": sentences.answer(results),
    "differences": sentences.differences(results),
    "method": sentences.method(results),
    "groups": [{key: None if pd.isna(v) else v for key, v in row.items()} for row in rows],
  }


def sheet(rows: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
  """Return rows as a table for a CSV file, in which no text is a formula."""
  frame = pd.DataFrame(rows)
  for name in frame.select_dtypes(exclude="number"):
    frame[name] = frame[name].map(cell)
  return frame.convert_dtypes().rename(columns=cell)
