"""Tables for other programs: a row for each group, and one for each run, as CSV and Parquet."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from posexp.reporting import scores
from posexp.reporting.results import Section, costs


def groups(sections: Sequence[Section]) -> list[dict[str, Any]]:
  """A row for each group. Scores are as summary.json has them, shares from 0 to 1."""
  found = []
  for section in sections:
    for row in section.rows:
      score, against = row.score, row.against
      line: dict[str, Any] = {
        "task": section.task,
        "metric": section.metric.key,
        "group": row.label,
      }
      line |= dict(row.group.values)
      line |= {"n": score.n if score else 0, "mixed": bool(row.group.mixed)}
      for name in ("mean", "sd", "low", "high"):
        line[name] = getattr(score, name, None)
      line["baseline"] = section.baseline.label if section.baseline else None
      line["shared_seeds"] = against.n if against else None
      for name, field in (("difference", "mean"), ("difference_low", "low")):
        line[name] = getattr(against, field, None)
      line["difference_high"] = getattr(against, "high", None)
      line |= {"p": getattr(against, "p", None), "p_holm": getattr(against, "holm", None)}
      line["seeds_needed"] = getattr(against, "needed", None)
      found.append(line | row.costs)
  return _even(found)


def runs(sections: Sequence[Section]) -> list[dict[str, Any]]:
  """A row for each run, with all its scores, whether it counts and what it cost."""
  found = []
  for section in sections:
    names = scores.measured(section.runs)
    for row in section.rows:
      counted = {run.path for run in row.group.counted.values()}
      for run in row.group.runs:
        line = {"task": section.task, "group": row.label, "path": str(run.path)}
        line |= {"seed": run.seed, "state": run.state, "counted": run.path in counted}
        line |= dict(row.group.values) | {name: run.score(name) for name in names}
        found.append(line | costs(run))
  return _even(found)


def _even(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
  """The same columns in all rows."""
  columns = dict.fromkeys(key for row in rows for key in row)
  return [{key: row.get(key) for key in columns} for row in rows]


def as_csv(rows: list[dict[str, Any]]) -> str:
  """CSV with a header; what is not known is empty."""
  out = io.StringIO()
  writer = csv.DictWriter(out, list(rows[0]), lineterminator="\n")
  writer.writeheader()
  writer.writerows(rows)
  return out.getvalue()


def write_parquet(rows: list[dict[str, Any]], file: Path) -> None:
  """The same as Parquet."""
  import pyarrow
  from pyarrow import parquet

  parquet.write_table(pyarrow.Table.from_pylist(rows), file)
