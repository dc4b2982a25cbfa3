"""Draws the pages of docs/findings again, from the records of their runs.

    python scripts/findings.py            all pages, the overview and the table of claims
    python scripts/findings.py parsing    this one, the overview and the table of claims

A page is the README.md of a folder with `records.parquet`. What stands in it between two comments
is written here, and all else by hand. ARGUMENTS are those of `python -m posexp.report`; records
that they name are files and folders of docs/findings, and by default those of the page:

    <!-- setting ARGUMENTS -->    sizes, seeds, hours and devices of the runs
    <!-- board ARGUMENTS | METRIC; ... -->
                                  means of several metrics, a row for each group
    <!-- grid ARGUMENTS | METRIC -->
                                  means of one metric, a row for each group, a column for each task;
                                  with TITLE: MORE ARGUMENTS METRIC; ... a column for each of these
    <!-- report ARGUMENTS | TITLE of a figure; ... -->
                                  the table of a report with its tests, and figures
    <!-- figure ARGUMENTS | TITLE; ... -->
                                  figures alone
    <!-- costs ARGUMENTS -->      parameters, FLOPs, memory and steps' time of that report's groups
    <!-- tell NUMBERS -->         what the scores of these claims can show; by default of all
    <!-- verdicts NUMBERS -->     the verdicts on these claims; by default on all of the page
    <!-- end -->                  the end of each

Its claims.yaml lists `claims`, for the tables of their verdicts:

    claim, source                 texts
    effect, of                    ARGUMENTS with --metric and --baseline, and the group whose
                                  difference to the baseline the claim is about
    kind                          what the claim says of the difference: greater, less, equal,
                                  not greater, or not less
    margin                        the largest difference that does not matter: "0.5 BLEU", or
                                  "25 % of the errors" (of the baseline)
    tuned                         what was tuned for the two sides
    verdict, because              instead of the computed verdict, one by hand, and why
    was                           the verdict of the first edition

Under `families` are the numbers of the claims (from 1) whose p values are corrected together. Each
claim rests on one of the `scores`:

    score, claims                 its name, and the numbers of the claims
    floor, ceiling                "GROUP", "GROUP at METRIC", a metric of all runs, or "25 points"
    control                       "GROUP against GROUP", also at metrics: a difference that must be
                                  seen with this score before others are believed
    least                         how large it must be; by default the margin of the first claim
    from                          the claim whose report has these groups; by default the first
    again                         the claim whose baseline is compared with itself; by default the
                                  first

`labels` name groups, and `dropped` lists claims of the first edition that are no more: claim, was,
because.

All claims are in claims.csv, and the page on it has a table of their number by verdict,
`<!-- counts -->`. The overview's table, `<!-- when -->`, is that of findings_overview.py.
"""

from __future__ import annotations

import argparse
import csv
import functools
import io
import itertools
import re
import shlex
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import findings_claims
import findings_overview
from findings_claims import HEADS, TELLS, Judged, found_in, given, head, judged, runs_of, tell_rows
from tabulate import tabulate

from posexp import storage
from posexp.errors import UserError
from posexp.reporting import sentences, tables
from posexp.reporting.figures import figures, of_all
from posexp.reporting.grouping import Group
from posexp.reporting.results import Results
from posexp.reporting.significance import estimate
from posexp.reporting.text import MISSING, tabulated, wrapped
from posexp.runs import Run, scores
from posexp.runs.metrics import Score
from posexp.runs.records import NAME

BLOCK = re.compile(
  r"(<!-- (setting|board|grid|report|figure|costs|tell|verdicts|counts|when)(.*?)-->\n)"
  r".*?(<!-- end -->)",
  re.S,
)
FRONT = ("README.md", "claims.md")  # pages about all pages
ALL = "claims.csv"  # beside them
LISTED = ("page", "claim", "source", "verdict", "effect", "margin", "how sure", "was", "why")
OPTIONS = (
  "task.name",
  "model.d_model",
  "model.num_heads",
  "model.num_layers",
  "model.dropout",
  "train.batch_size",
  "train.learning_rate",
  "train.schedule",
)
COSTS = ("parameters", "FLOPs/token")


class Drawn(NamedTuple):
  """A page, written anew."""

  text: str
  figures: dict[str, str]  # the SVGs it shows, by the names of their files


def pages() -> list[Path]:
  """Return the folders of all pages."""
  return sorted(path.parent for path in findings_claims.HERE.glob(f"*/{NAME}"))


def drawn(folder: Path) -> Drawn:
  """Return a page with its tables and figures, made of its records.

  Raises:
    UserError: the records cannot be read, or what is asked of them is not there.
  """
  shown: dict[str, str] = {}

  def block(found: re.Match) -> str:
    opening, kind, asked, end = found.groups()
    argv, _, rest = asked.partition("|")
    words = [each.strip() for each in rest.split(";") if each.strip()]
    parts = BLOCKS[kind](folder, shlex.split(argv), words, shown)
    return f"{opening}\n" + "\n\n".join(parts) + f"\n\n{end}"

  text = (folder / "README.md").read_text(encoding="utf-8")
  return Drawn(BLOCK.sub(block, text), shown)


def _tasks(folder: Path, argv: Sequence[str], metric: str | None = None) -> list[Results]:
  return found_in(folder, argv, head(folder).labels, metric)


def reported(
  folder: Path, argv: Sequence[str], titles: Sequence[str], shown: dict[str, str]
) -> Iterator[str]:
  """Yield the parts of a report on a page; its figures go to `shown`."""
  yield f"```\n{shlex.join(given(folder, argv)[1])}\n```"
  for each in _tasks(folder, argv):
    yield wrapped(sentences.answer(each))
    yield tabulated(tables.score_table(each), "pipe")
    yield wrapped(sentences.method(each))
    if notes := list(sentences.notes(each)):
      yield "\n".join(wrapped(f"Note: {note}", "- ") for note in notes)
  yield from pictured(folder, argv, titles, shown)


def pictured(
  folder: Path, argv: Sequence[str], titles: Sequence[str], shown: dict[str, str]
) -> Iterator[str]:
  """Yield the figures of a report with these titles; their content goes to `shown`."""
  tasks = _tasks(folder, argv) if titles else []
  drawings = {figure.title: figure for task in tasks for figure in figures(task)}
  drawings |= {figure.title: figure for figure in of_all(tasks)}
  for title in titles:
    if title not in drawings:
      raise UserError(f"{folder}: no figure {title!r}; there are {', '.join(drawings)}")
    file = f"{re.sub(r'[^0-9A-Za-z]+', '-', title)}-{len(shown)}.svg"
    shown[file] = drawings[title].drawn()
    yield f"![{title}]({file})"
    yield wrapped(drawings[title].says)


def board(
  folder: Path, argv: Sequence[str], metrics: Sequence[str], _: dict[str, str]
) -> Iterator[str]:
  """Yield the command of the first metric, and a table of all, the best of the first on top."""
  yield f"```\n{shlex.join([*given(folder, argv)[1], '--metric', metrics[0]])}\n```"
  for one in _tasks(folder, argv, metrics[0]):
    table = scores.measured(one.runs)
    titles = [table[key].title for key in metrics if key in table]
    rows = [
      [group.label, _seeds(group, one.score), *(_cell(group, key, table) for key in metrics)]
      for group in one.groups
    ]
    heads = [one.task, "seeds", *titles]
    yield tabulated((heads, rows), "pipe")


def _seeds(group: Group, of: Score) -> str:
  learned, every = len(group.learned(of)), len(group.repeats)
  return str(every) if learned == every else f"{every}, {learned} learned"


def _cell(group: Group, key: str, table: Mapping) -> str:
  values = [run.score(key) for run in group.repeats.values() if run.score(key) is not None]
  if not values:
    return MISSING
  score = table[key]
  found = estimate(values, score.most)
  text = score.number(found.mean)
  ends = "" if found.half is None else map(score.number, (found.low, found.high))
  return f"{text} ({' to '.join(ends)})" if ends else text


def grid(
  folder: Path, argv: Sequence[str], parts: Sequence[str], _: dict[str, str]
) -> Iterator[str]:
  """Yield the means of groups as one table, with a column for each task, or each report."""
  columns: dict[str, dict[str, str]] = {}
  for part in parts:
    title, _, rest = part.rpartition(": ")
    *more, metric = shlex.split(rest)
    if not title:
      yield f"```\n{shlex.join([*given(folder, argv)[1], '--metric', metric])}\n```"
    for one in _tasks(folder, [*argv, *more], metric):
      table = scores.measured(one.runs)
      cells = {group.label: _cell(group, metric, table) for group in one.groups}
      if title:  # many columns leave no room for intervals
        cells = {label: text.partition(" (")[0] for label, text in cells.items()}
      columns[title or one.task] = cells
  labels = dict.fromkeys(itertools.chain(*columns.values()))
  rows = [[label, *(column.get(label, MISSING) for column in columns.values())] for label in labels]
  yield tabulated((["", *columns], rows), "pipe")


def setting(folder: Path, argv: Sequence[str], *_: object) -> list[str]:
  """Return what was trained and how, as a table: options, seeds, minutes and devices."""
  runs = list({run.path: run for run in runs_of(folder, argv)}.values())  # however often measured

  def values(found: Iterable[object]) -> str:
    return ", ".join(sorted({str(each) for each in found if each is not None}))

  said = {key: values(run.settings.get(key) for run in runs) for key in OPTIONS}
  rows = [[f"`{key}`", text] for key, text in said.items() if text]  # tuned options have none
  seconds = sum(run.score("time/seconds") or 0 for run in runs)
  rows += [
    ["steps", values(f"{run.score('stopped_at'):,.0f}" for run in runs)],
    ["runs", f"{len(runs)}, seeds {values(run.seed for run in runs)}"],
    ["time", f"{seconds / 60:,.0f} minutes of training in all, on {values(map(device, runs))}"],
  ]
  return [tabulate(rows, ["", ""], "pipe", disable_numparse=True)]


def costs(folder: Path, argv: Sequence[str], *_: object) -> list[str]:
  """Return what the groups cost by any machine's count, the best first, as a table.

  Groups that are encodings have the time of a step beside it, as the benchmark has measured it.
  """
  (one,) = _tasks(folder, argv)
  heads, timed = ["", *COSTS, "temporaries MiB"], steps()
  rows = [
    [group.label, *(f"{group.costs[each]:,.0f}" for each in COSTS), temporaries(group)]
    for group in one.ranked
  ]
  if any(group.label in timed for group in one.ranked):
    heads.append("step × none")
    rows = [[*row, f"{timed[row[0]]:.2f}" if row[0] in timed else "—"] for row in rows]
  return [tabulated((heads, rows), "pipe")]


def temporaries(group: Group) -> str:
  """Return the memory of a step beside that of the state, by the compiler's count."""
  found = [run.score("memory/temporary_bytes") for run in group.repeats.values()]
  return f"{sum(found) / len(found) / 2**20:,.1f}"


@functools.cache
def steps() -> dict[str, float]:
  """Return how long a step of training takes with each encoding that was measured, over that of
  `none`.
  """
  file = findings_claims.HERE.parent / "benchmarks" / "steps" / "benchmark.csv"
  with file.open(encoding="utf-8") as rows:
    return {row["encoding"]: float(row["ratio"]) for row in csv.DictReader(rows)}


def device(run: Run) -> str:
  """Return what a run was trained on."""
  return run.summary["devices"]


def tell(folder: Path, numbers: Sequence[str], *_: object) -> list[str]:
  """Return what the scores of a page can show, as a table."""
  every, tells = judged(folder)
  asked = [each for each in tells if not numbers or {*map(int, numbers)} & {*each.said["claims"]}]
  table = tabulate(tell_rows(every, asked), TELLS, "pipe", disable_numparse=True)
  return ["[How to read these tables](../README.md#how-to-read-a-verdict).", table]


def _verdict_row(each: Judged) -> list[str]:
  return [f"{each.said['claim']} ({each.said['source']})", *each.row()]


def verdicts(folder: Path, numbers: Sequence[str], *_: object) -> list[str]:
  """Return the verdicts on the claims of a page, as a table."""
  every = [each for each in judged(folder)[0] if not numbers or str(each.number) in numbers]
  rows = [[str(each.number), *_verdict_row(each)] for each in every]
  parts = [tabulate(rows, HEADS, "pipe", disable_numparse=True)]
  by_hand: dict[str, list[str]] = {}
  for each in every:
    if "because" in each.said:
      by_hand.setdefault(each.said["because"], []).append(str(each.number))
  parts += [wrapped(f"By hand: {', '.join(of)}, since {why}.") for why, of in by_hand.items()]
  return parts


BLOCKS = {
  "setting": setting,
  "board": board,
  "grid": grid,
  "report": reported,
  "figure": pictured,
  "costs": costs,
  "tell": tell,
  "verdicts": verdicts,
}


def listed(found: Mapping[Path, Sequence[Judged]]) -> str:
  """Return all claims with their verdicts and what these rest on, as CSV."""
  rows = []
  for folder, every in found.items():
    for each in every:
      _, *cells = each.row()
      known = [folder.name, each.said["claim"], each.said["source"], each.verdict, *cells]
      rows.append([*known, each.said.get("was", ""), each.why()])
    for each in head(folder).dropped:
      rows.append(
        [folder.name, each["claim"], "", "dropped", "", "", "", each["was"], each["because"]]
      )
  out = io.StringIO()
  csv.writer(out, lineterminator="\n").writerows([LISTED, *rows])
  return out.getvalue()


def counted(found: Mapping[Path, Sequence[Judged]]) -> str:
  """Return how many claims of each page have which verdict, as a table."""
  known = {each.verdict for every in found.values() for each in every}
  kinds = [kind for kind in findings_claims.VERDICTS if kind in known]
  rows = []
  for folder, every in found.items():
    verdicts = [each.verdict for each in every]
    rows.append([f"[{title(folder)}]({folder.name}/README.md)", *map(verdicts.count, kinds)])
  rows.append(["**all**", *(sum(column) for column in list(zip(*rows, strict=True))[1:])])
  return tabulate(rows, ["page", *kinds], "pipe")


def title(folder: Path) -> str:
  """Return the title of a page."""
  text = (folder / "README.md").read_text(encoding="utf-8")
  return re.search(r"^# (.*)$", text, re.M)[1]


def front(text: str, folders: Sequence[Path]) -> str:
  """Return a page about all pages with its tables of verdicts.

  Raises:
    UserError: a page's claims or records do not say them.
  """
  found = {folder: judged(folder)[0] for folder in folders}
  tables = {"counts": lambda: counted(found), "when": findings_overview.when}
  return BLOCK.sub(lambda part: f"{part[1]}\n{tables[part[2]]()}\n\n{part[4]}", text)


def main(names: Sequence[str]) -> None:
  """Write the pages.

  Raises:
    UserError: as `drawn` does, or there is no such page.
  """
  folders = pages()
  if missing := set(names) - {folder.name for folder in folders}:
    raise UserError(f"no such page: {', '.join(missing)}")
  for folder in folders:
    if not names or folder.name in names:
      page = drawn(folder)
      for old in set(folder.glob("*.svg")) - {folder / name for name in page.figures}:
        old.unlink()
      for name, text in page.figures.items():
        storage.write(folder / name, text)
      storage.write(folder / "README.md", page.text)
  for name in FRONT:
    file = findings_claims.HERE / name
    storage.write(file, front(file.read_text("utf-8"), folders))
  found = {folder: judged(folder)[0] for folder in folders}
  storage.write(findings_claims.HERE / ALL, listed(found))


if __name__ == "__main__":
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawTextHelpFormatter
  )
  parser.add_argument("names", nargs="*", metavar="NAME")
  try:
    main(parser.parse_args().names)
  except UserError as error:
    sys.exit(f"findings: {error}")
