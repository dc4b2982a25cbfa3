"""Draws the pages of docs/findings again, from the records of their runs.

    python scripts/findings.py            all pages, and the overview
    python scripts/findings.py shaw_k     this one, and the overview

A page is the README.md of a folder with `records.parquet`. What stands in it between two comments
is written here, and all else by hand:

    <!-- setting -->              sizes, seeds, hours and devices of all runs
    <!-- report ARGUMENTS | TITLE of a figure; ... -->
                                  table and figures of `python -m posexp.report FOLDER ARGUMENTS`
    <!-- costs ARGUMENTS -->      parameters, FLOPs, memory and steps' time of that report's groups
    <!-- verdicts -->             the verdicts on the page's claims
    <!-- end -->                  the end of each

The page's head lists the claims that it is about, for the tables of their verdicts:

    claim, source                 texts
    effect, of                    arguments of a report with --metric and --baseline, and the group
                                  whose difference to the baseline the claim is about
    kind                          what the claim says of the difference: greater, less, equal,
                                  not greater, or not less
    margin                        the largest difference that does not matter: "0.5 BLEU", or
                                  "25 % of the errors" (of the baseline)
    verdict, because              instead of the computed verdict, one by hand, and why
    was                           an earlier verdict that differs, for the table of changes

Under `families`, it lists the numbers of the claims (from 1) whose p values are corrected together.
"""

from __future__ import annotations

import argparse
import csv
import functools
import re
import shlex
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import yaml
from tabulate import tabulate

from posexp import storage
from posexp.errors import UserError
from posexp.report import arguments
from posexp.reporting import claims, results, sentences, tables
from posexp.reporting.figures import figures, of_all
from posexp.reporting.grouping import Group, chosen
from posexp.reporting.results import Results
from posexp.reporting.significance import LEVEL
from posexp.reporting.text import tabulated, wrapped
from posexp.runs import Run
from posexp.runs.lengths import with_extrapolation
from posexp.runs.records import NAME, read_records

HERE = Path(__file__).parent.parent / "docs" / "findings"
BLOCK = re.compile(
  r"(<!-- (setting|report|costs|verdicts|overview|changed)(.*?)-->\n).*?(<!-- end -->)", re.S
)
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
VERDICTS = (claims.HOLDS, "holds in part", claims.FAILS, claims.UNCLEAR)  # a hand's, too
NEEDED = ("claim", "source", "kind", "margin", "effect", "of")
HEADS = ["claim", "source", "verdict", "effect", "margin", "p", "p (Holm)", "seeds"]


class Drawn(NamedTuple):
  """A page, written anew."""

  text: str
  figures: dict[str, str]  # the SVGs it shows, by the names of their files


def pages() -> list[Path]:
  """Return the folders of all pages."""
  return sorted(path.parent for path in HERE.glob(f"*/{NAME}"))


def head(folder: Path) -> tuple[list[dict[str, str]], list[list[int]]]:
  """Return the claims in a page's head, and the families of their numbers.

  Raises:
    UserError: it says too little, or what cannot be.
  """
  file = folder / "README.md"
  found = re.match(r"---\n(.*?)\n---\n", file.read_text(encoding="utf-8"), re.S)
  said = (yaml.safe_load(found[1]) or {}) if found else {}
  listed, families = said.get("claims"), said.get("families") or []
  if not listed:
    raise UserError(f"{file}: its head has no claims")
  for each in listed:
    if missing := [key for key in NEEDED if key not in each]:
      raise UserError(f"{file}: a claim lacks {', '.join(missing)}")
    if each["kind"] not in claims.KINDS:
      raise UserError(f"{file}: no kind: {each['kind']}; there are {', '.join(claims.KINDS)}")
    if each.get("verdict", VERDICTS[0]) not in VERDICTS:
      raise UserError(f"{file}: no verdict: {each['verdict']}; there are {', '.join(VERDICTS)}")
    if ("verdict" in each) != ("because" in each):
      raise UserError(f"{file}: a verdict by hand needs a because, and nothing else does")
  if sorted(each for family in families for each in family) != [*range(1, len(listed) + 1)]:
    raise UserError(f"{file}: its families must have each of the {len(listed)} claims once")
  return listed, families


class Judged(NamedTuple):
  """A claim with its verdict and what that rests on."""

  said: dict[str, str]
  results: Results
  group: Group
  found: claims.Verdict

  @property
  def verdict(self) -> str:
    return self.said.get("verdict", self.found.verdict)

  def row(self) -> list[str]:
    """Return the cells of the tables of verdicts, but for the claim itself."""
    one, against = self.results, self.group.difference
    unit = "points of " if one.score.metric.percent else ""
    size = f"{one.shown(against.estimate, '+')} {unit}{one.score.title}"
    effect = f"{size}, {_pair(self.group.label, one.baseline.label)}"
    test = against.contrast
    n = f"{test.n[0]} pairs" if test.paired else f"{test.n[0]} and {test.n[1]}"
    by_hand = f" (by hand: {self.said['because']})" if "because" in self.said else ""
    margin = f"{self.said['kind']}, {self.said['margin']}"
    p = [tables.p_number(each) for each in (self.found.p, self.found.holm)]
    return [self.said["source"], self.verdict + by_hand, effect, margin, *p, n]

  def why(self) -> str:
    """Return why the verdict is what it is."""
    if "because" in self.said:
      return self.said["because"]
    words = {"equal": "a difference within the margin"}
    kinds = [words.get(each, f"a {each} score") for each in self.found.left]
    text = f"the interval leaves {' or '.join(kinds)}, of the margin {self.said['margin']}"
    if self.found.verdict == claims.UNCLEAR and self.found.p < LEVEL:
      text += f"; p = {self.found.p:.3f}, corrected for its family {self.found.holm:.3f}"
    return text


def judged(folder: Path, runs: Sequence[Run]) -> list[Judged]:
  """Return the claims of a page with their verdicts.

  Raises:
    UserError: its head or its records do not say them.
  """
  listed, families = head(folder)
  sides = []
  for said in listed:
    (one,) = found_in(folder, runs, shlex.split(said["effect"]))
    group = next((each for each in one.ranked if each.label == said["of"]), None)
    if group is None or group.difference.contrast is None:
      raise UserError(f"{folder}: no difference of {said['of']!r} to {one.baseline.label}")
    try:
      margin = claims.margin(said["margin"], one.score, one.baseline.estimate.mean)
    except ValueError as error:
      raise UserError(f"{folder}: {error}") from error
    sides.append((one, group, claims.Claim(group.difference.contrast, said["kind"], margin)))
  found = {}
  for family in families:
    together = claims.verdicts([sides[number - 1][2] for number in family])
    found |= dict(zip(family, together, strict=True))
  return [Judged(said, *sides[at][:2], found[at + 1]) for at, said in enumerate(listed)]


def drawn(folder: Path) -> Drawn:
  """Return a page with its tables and figures, made of its records.

  Raises:
    UserError: the records cannot be read, or what is asked of them is not there.
  """
  runs, shown = read_records(folder / NAME), {}

  def block(found: re.Match) -> str:
    opening, kind, asked, end = found.groups()
    if kind == "setting":
      return f"{opening}\n{setting(runs)}\n\n{end}"
    if kind == "verdicts":
      rows = [[each.said["claim"], *each.row()] for each in judged(folder, runs)]
      return f"{opening}\n{tabulate(rows, HEADS, 'pipe', disable_numparse=True)}\n\n{end}"
    argv, _, titles = asked.partition("|")
    if kind == "costs":
      (one,) = found_in(folder, runs, shlex.split(argv))
      return f"{opening}\n{costs(one)}\n\n{end}"
    wanted = [title.strip() for title in titles.split(";") if title.strip()]
    parts = list(reported(folder, runs, shlex.split(argv), wanted, shown))
    return f"{opening}\n" + "\n\n".join(parts) + f"\n\n{end}"

  text = (folder / "README.md").read_text(encoding="utf-8")
  return Drawn(BLOCK.sub(block, text), shown)


def found_in(folder: Path, runs: Sequence[Run], argv: Sequence[str]) -> list[Results]:
  """Return what `python -m posexp.report` finds in records, of all tasks they have."""
  args = arguments([str(folder), *argv])
  runs = chosen(with_extrapolation(runs), args.where)
  return results.results(runs, args.by, args.metric, args.baseline, args.aa)


def reported(
  folder: Path,
  runs: Sequence[Run],
  argv: Sequence[str],
  titles: Sequence[str],
  shown: dict[str, str],
) -> Iterator[str]:
  """Yield the parts of a report on a page; its figures go to `shown`."""
  command = shlex.join(["python", "-m", "posexp.report", f"docs/findings/{folder.name}", *argv])
  yield f"```\n{command}\n```"
  tasks = found_in(folder, runs, argv)
  drawings = {figure.title: figure for each in tasks for figure in figures(each)}
  drawings |= {figure.title: figure for figure in of_all(tasks)}
  for each in tasks:
    yield wrapped(sentences.answer(each))
    yield tabulated(tables.score_table(each), "pipe")
    if unclear := [text for text in sentences.differences(each) if "cannot be told" in text]:
      yield "\n".join(wrapped(text, "- ") for text in unclear)
    yield wrapped(sentences.method(each))
    if notes := list(sentences.notes(each)):
      yield "\n".join(wrapped(f"Note: {note}", "- ") for note in notes)
  for title in titles:
    if title not in drawings:
      raise UserError(f"{folder}: no figure {title!r}; there are {', '.join(drawings)}")
    file = f"{re.sub(r'[^0-9A-Za-z]+', '-', title)}-{len(shown)}.svg"
    shown[file] = drawings[title].drawn()
    yield f"![{title}]({file})"
    yield wrapped(drawings[title].says)


def setting(runs: Sequence[Run]) -> str:
  """Return what was trained and how, as a table: options, seeds, minutes and devices."""
  runs = list({run.path: run for run in runs}.values())  # once, however often it was measured

  def values(found: Iterable[object]) -> str:
    return ", ".join(sorted({str(each) for each in found if each is not None}))

  rows = [[f"`{key}`", values(run.settings.get(key) for run in runs)] for key in OPTIONS]
  seconds = sum(run.score("time/seconds") for run in runs)
  rows += [
    ["steps", values(f"{run.score('stopped_at'):,.0f}" for run in runs)],
    ["runs", f"{len(runs)}, seeds {values(run.seed for run in runs)}"],
    ["time", f"{seconds / 60:,.0f} minutes of training in all, on {values(map(device, runs))}"],
  ]
  return tabulate(rows, ["", ""], "pipe", disable_numparse=True)


def costs(results: Results) -> str:
  """Return what the groups cost by any machine's count, the best first, as a table.

  Groups that are encodings have the time of a step beside it, as the benchmark has measured it.
  """
  heads, timed = ["", *COSTS, "temporaries MiB"], steps()
  rows = [
    [group.label, *(f"{group.costs[each]:,.0f}" for each in COSTS), temporaries(group)]
    for group in results.ranked
  ]
  if any(group.label in timed for group in results.ranked):
    heads.append("step × none")
    rows = [[*row, f"{timed[row[0]]:.2f}" if row[0] in timed else "—"] for row in rows]
  return tabulated((heads, rows), "pipe")


def temporaries(group: Group) -> str:
  """Return the memory of a step beside that of the state, by the compiler's count."""
  found = [run.score("memory/temporary_bytes") for run in group.counted.values()]
  return f"{sum(found) / len(found) / 2**20:,.1f}"


@functools.cache
def steps() -> dict[str, float]:
  """Return how long a step of training takes with each encoding that was measured, over that of
  `none`.
  """
  with (HERE.parent / "benchmarks" / "steps" / "benchmark.csv").open(encoding="utf-8") as file:
    return {row["encoding"]: float(row["ratio"]) for row in csv.DictReader(file)}


def device(run: Run) -> str:
  """Return what a run was trained on."""
  return run.summary["devices"]


def _pair(name: str, other: str) -> str:
  """One group against another, with what both have in common said once."""
  parts = [name.split(), other.split()]
  both = [word for word in parts[0] if word in parts[1] and ("=" in word or word == parts[0][0])]
  own = [" ".join(word for word in part if word not in both) for part in parts]
  if not both or not all(own):
    return f"{name} against {other}"
  return f"{' '.join(both).removesuffix(':')}: {own[0]} against {own[1]}"


def overview(found: Mapping[Path, Sequence[Judged]]) -> str:
  """Return all claims with their verdicts, effects, p values and seeds, as a table."""
  rows = [
    [f"[{each.said['claim']}]({folder.name}/README.md)", *each.row()]
    for folder, judged in found.items()
    for each in judged
  ]
  return tabulate(rows, HEADS, "pipe", disable_numparse=True)


def changed(found: Mapping[Path, Sequence[Judged]]) -> str:
  """Return the claims of which the verdict is another than it was, and why, as a table."""
  rows = [
    [f"[{each.said['claim']}]({folder.name}/README.md)", each.said["was"], each.verdict, each.why()]
    for folder, judged in found.items()
    for each in judged
    if "was" in each.said
  ]
  return tabulate(rows, ["claim", "was", "is", "why"], "pipe", disable_numparse=True)


def front(text: str, folders: Sequence[Path]) -> str:
  """Return the page in front of all pages with its tables of verdicts.

  Raises:
    UserError: a page's head or records do not say them.
  """
  found = {folder: judged(folder, read_records(folder / NAME)) for folder in folders}
  tables = {"overview": overview, "changed": changed}
  return BLOCK.sub(lambda part: f"{part[1]}\n{tables[part[2]](found)}\n\n{part[4]}", text)


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
  file = HERE / "README.md"
  storage.write(file, front(file.read_text("utf-8"), folders))


if __name__ == "__main__":
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawTextHelpFormatter
  )
  parser.add_argument("names", nargs="*", metavar="NAME")
  try:
    main(parser.parse_args().names)
  except UserError as error:
    sys.exit(f"findings: {error}")
