"""The claims of a page of findings, and the scores that they rest on, judged."""

from __future__ import annotations

import functools
import re
import shlex
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import claims
import yaml

from posexp.errors import UserError
from posexp.report import arguments
from posexp.reporting import labels, results, tables
from posexp.reporting.grouping import Group, chosen
from posexp.reporting.results import Results
from posexp.reporting.significance import LEVEL, Contrast, contrast
from posexp.reporting.trials import tracks
from posexp.runs import Run
from posexp.runs.lengths import with_extrapolation
from posexp.runs.records import NAME, held, read_records
from posexp.runs.trials import tunings

CLAIMS = "claims.yaml"  # of a page's folder
HERE = Path(__file__).parent.parent / "docs" / "findings"
VERDICTS = (claims.HOLDS, "holds in part", claims.FAILS, claims.UNCLEAR)  # a hand's, too
NEEDED = ("claim", "source", "kind", "margin", "effect", "of", "tuned")
OF_SCORE = ("score", "claims", "floor", "ceiling", "control")
HEADS = ["", "claim", "verdict", "effect", "margin", "how sure"]
TELLS = ["score", "can it tell?", "floor to ceiling", "control", "resolution", "A/A"]


class Head(NamedTuple):
  """What CLAIMS says."""

  claims: list[dict[str, str]]
  families: list[list[int]]  # numbers of claims, from 1
  scores: list[dict[str, Any]]
  labels: Mapping[str, str]  # of groups
  dropped: list[dict[str, str]]  # claims of an earlier edition, and why they are here no more


def head(folder: Path) -> Head:
  """Return what CLAIMS of a page says.

  Raises:
    UserError: it says too little, or what cannot be.
  """
  return _head(folder / CLAIMS, (folder / CLAIMS).read_text(encoding="utf-8"))


@functools.cache
def _head(file: Path, text: str) -> Head:
  said = yaml.safe_load(text) or {}
  listed, families = said.get("claims"), said.get("families") or []
  if not listed:
    raise UserError(f"{file}: there are no claims in it")
  for each in listed:
    if missing := [key for key in NEEDED if key not in each]:
      raise UserError(f"{file}: a claim lacks {', '.join(missing)}")
    if each["kind"] not in claims.KINDS:
      raise UserError(f"{file}: no kind: {each['kind']}; there are {', '.join(claims.KINDS)}")
    if each.get("verdict", VERDICTS[0]) not in VERDICTS:
      raise UserError(f"{file}: no verdict: {each['verdict']}; there are {', '.join(VERDICTS)}")
    if ("verdict" in each) != ("because" in each):
      raise UserError(f"{file}: a verdict by hand needs a because, and nothing else does")
  scores = said.get("scores") or []
  for score in scores:
    if missing := [key for key in OF_SCORE if key not in score]:
      raise UserError(f"{file}: a score lacks {', '.join(missing)}")
  numbers = [*range(1, len(listed) + 1)]
  for name, parts in {"families": families, "scores": [each["claims"] for each in scores]}.items():
    if sorted(each for part in parts for each in part) != numbers:
      raise UserError(f"{file}: its {name} must have each of the {len(listed)} claims once")
  return Head(listed, families, scores, said.get("labels") or {}, said.get("dropped") or [])


@functools.cache
def read(paths: tuple[Path, ...]) -> list[Run]:
  """Return the runs in files of records, or in folders with one, as a report counts them."""
  files = [held(path) or path / NAME for path in paths]
  every = [run for file in files for run in read_records(file, trials=True)]
  return with_extrapolation(tracks(every, tunings(every)))


def given(folder: Path, argv: Sequence[str]) -> tuple[Any, list[str]]:
  """Return the arguments of a report, and its command.

  Files of records that it names are relative to the folder of all pages; by default, the page's.
  """
  args = arguments(argv)
  named = [path for path in map(str, args.runs) if path in argv] or [folder.name]
  args.runs = [HERE / name for name in named]
  left = [each for each in argv if each not in named]
  shown = [f"docs/findings/{name}" for name in named]
  return args, ["python", "-m", "posexp.report", *shown, *left]


def runs_of(folder: Path, argv: Sequence[str]) -> list[Run]:
  """Return the runs that a report is about."""
  args, _ = given(folder, argv)
  return chosen(read(tuple(args.runs)), args.where)


def found_in(
  folder: Path, argv: Sequence[str], named: Mapping[str, str], metric: str | None = None
) -> list[Results]:
  """Return what `python -m posexp.report` finds in records, of all tasks they have."""
  return _found(folder, tuple(argv), tuple(named.items()), metric)


@functools.cache
def _found(
  folder: Path, argv: tuple[str, ...], named: tuple[tuple[str, str], ...], metric: str | None
) -> list[Results]:
  args, _ = given(folder, argv)
  runs = chosen(read(tuple(args.runs)), args.where)
  found = results.results(runs, args.by, metric or args.metric, args.baseline, args.aa)
  there = {name for each in found for name in (each.task, *(group.label for group in each.groups))}
  labels.rename(found, {name: label for name, label in named if name in there})
  return found


class Tell(NamedTuple):
  """A score of a page: what it can show."""

  said: dict[str, Any]
  results: Results
  column: claims.Column
  floor: str  # in words, as what follows
  ceiling: str
  control: str


class Judged(NamedTuple):
  """A claim with its verdict and what that rests on."""

  number: int
  family: list[int]
  said: dict[str, str]
  results: Results
  group: Group
  found: claims.Verdict
  finds: float  # the smallest difference that its seeds detect, corrected for its family
  blind: str  # why its score cannot tell it

  @property
  def verdict(self) -> str:
    computed = claims.UNCLEAR if self.blind else self.found.verdict
    return self.said.get("verdict", computed)

  def row(self) -> list[str]:
    """Return the cells of the tables of verdicts, but for the claim itself."""
    one, against = self.results, self.group.difference
    unit = "points" if one.score.metric.percent else one.score.metric.title
    size = f"{one.shown(against.estimate, '+')} {unit}"
    effect = f"{size}, {_pair(self.group.label, one.baseline.label)}"
    test = against.contrast
    n = f"{test.n[0]} pairs" if test.paired else f"{test.n[0]} and {test.n[1]}"
    margin = f"{self.said['kind']}, {self.said['margin']}"
    p = f"p {tables.p_number(self.found.p)}"
    if (count := len(self.family)) > 1:
      p += f", {tables.p_number(self.found.holm)} in a family of {count}"
    sure = f"{p}; seeds: {n}, which find {one.score.number(self.finds)}"
    sure += f"; tuned: {self.said['tuned']}"
    reason = f" ({self.blind})" if self.blind else ""
    reason = " (by hand)" if "because" in self.said else reason
    return [f"**{self.verdict}**{reason}", effect, margin, sure]

  def why(self) -> str:
    """Return why the verdict is what it is."""
    if "because" in self.said:
      return self.said["because"]
    if self.blind:
      return f"the set-up cannot tell: {self.blind}"
    words = {"equal": "a difference within the margin", "less": "a lower score"}
    kinds = [words.get(each, "a higher score") for each in self.found.left]
    text = f"the interval leaves {' or '.join(kinds)}, of the margin {self.said['margin']}"
    if self.found.verdict == claims.UNCLEAR and self.found.p < LEVEL:
      text += f"; p = {self.found.p:.3f}, corrected for its family {self.found.holm:.3f}"
    return text


def judged(folder: Path) -> tuple[list[Judged], list[Tell]]:
  """Return the claims of a page with their verdicts, and its scores.

  Raises:
    UserError: its claims or its records do not say them.
  """
  return _judged(folder, (folder / CLAIMS).read_text(encoding="utf-8"))


@functools.cache
def _judged(folder: Path, text: str) -> tuple[list[Judged], list[Tell]]:
  said = _head(folder / CLAIMS, text)
  sides = [_side(folder, each, said.labels) for each in said.claims]
  found, families = {}, {}
  for family in said.families:
    together = claims.verdicts([sides[number - 1][2] for number in family])
    found |= dict(zip(family, together, strict=True))
    families |= dict.fromkeys(family, family)
  tells = [_tell(folder, score, said, sides) for score in said.scores]
  columns = {number: tell.column for tell in tells for number in tell.said["claims"]}
  every = []
  for number, (one, group, claim) in enumerate(sides, 1):
    test = claim.contrast
    finds = test.detectable(LEVEL / len(families[number])) if test.error else 0.0
    blind = columns[number].blind(claim, one.baseline.estimate.mean, finds)
    known = (number, families[number], said.claims[number - 1])
    every.append(Judged(*known, one, group, found[number], finds, blind))
  return every, tells


def _side(
  folder: Path, said: dict[str, str], named: Mapping[str, str]
) -> tuple[Results, Group, claims.Claim]:
  (one,) = found_in(folder, shlex.split(said["effect"]), named)
  name = named.get(said["of"], said["of"])
  group = next((each for each in one.ranked if each.label == name), None)
  if group is None or group.difference.contrast is None:
    raise UserError(f"{folder}: no difference of {said['of']!r} to {one.baseline.label}")
  try:
    margin = claims.margin(said["margin"], one.score, one.baseline.estimate.mean)
  except ValueError as error:
    raise UserError(f"{folder}: {error}") from error
  return one, group, claims.Claim(group.difference.contrast, said["kind"], margin)


def values_of(
  folder: Path, argv: Sequence[str], named: Mapping[str, str], text: str
) -> dict[Any, float]:
  """Return the scores by seed of "GROUP", "GROUP at METRIC" or "METRIC" of all runs, in a report.

  Raises:
    UserError: it has no such group.
  """
  name, _, metric = text.partition(" at ")
  (found,) = found_in(folder, argv, named, metric or None)
  if "/" in name:
    return {"all": statistics.fmean(run.score(name) for run in found.runs if run.score(name))}
  name = named.get(name, name)
  group = next((each for each in found.ranked if each.label == name), None)
  if group is None:
    raise UserError(
      f"{folder}: no group {name!r}; there are {', '.join(each.label for each in found.ranked)}"
    )
  return {key: run.score(found.score.key) for key, run in group.repeats.items()}


def _tell(folder: Path, said: dict[str, Any], head: Head, sides: Sequence[tuple]) -> Tell:
  """Return a score of a page, with its floor, ceiling and control."""
  one, _, claim = sides[said["claims"][0] - 1]
  argv = shlex.split(head.claims[said.get("from", said["claims"][0]) - 1]["effect"])
  values = functools.partial(values_of, folder, argv, head.labels)

  def value(text: str) -> float:
    if match := re.fullmatch(r"(\d+(?:\.\d+)?) (.+)", text):
      if match[2] != one.score.unit:
        raise UserError(f"{folder}: {text!r} is not in {one.score.unit}")
      return float(match[1]) / one.score.factor
    return statistics.fmean(values(text).values())

  floor, ceiling = value(said["floor"]), value(said["ceiling"])
  a, _, b = said["control"].partition(" against ")
  test = contrast(values(a), values(b), one.score.most)
  least = claims.margin(said["least"], one.score, 0.0) if "least" in said else claim.margin
  words = f"{_difference(test, one)} {one.score.unit}: {_named(a, head)} against {_named(b, head)}"
  ends = [_named(_source(said[end]), head) for end in ("floor", "ceiling")]
  return Tell(said, one, claims.Column(floor, ceiling, test, least), *ends, words)


def _named(text: str, head: Head) -> str:
  name, at, metric = text.partition(" at ")
  return head.labels.get(name, name) + at + (f"`{metric}`" if metric else "")


def _difference(test: Contrast, one: Results) -> str:
  low, high = test.ends() if test.error else (test.mean, test.mean)
  number = one.score.number
  return f"{number(test.mean, '+')} ({number(low, '+')} to {number(high, '+')})"


def tell_rows(every: Sequence[Judged], tells: Sequence[Tell]) -> list[list[str]]:
  """Return the rows of the table of what the scores of a page can show."""
  rows = []
  for tell in tells:
    own = [one for one in every if one.number in tell.said["claims"]]
    number, again = tell.results.score.number, tell.said.get("again")
    sizes = sorted({number(one.finds) for one in own}, key=float)
    blind = [str(one.number) for one in own if one.blind]
    need = number(tell.column.least)
    said = "yes"
    if not tell.column.seen:
      said = f"**no**: the control is not surely {need} or more"
    elif blind:
      said = f"**not claim {', '.join(blind)}**: too near the end of the scale"
    rows.append(
      [
        f"{tell.said['score']}; claims {', '.join(map(str, tell.said['claims']))}",
        said,
        f"{number(tell.column.floor)} ({tell.floor}) to "
        f"{number(tell.column.ceiling)} ({tell.ceiling})",
        tell.control,
        " to ".join(dict.fromkeys((sizes[0], sizes[-1]))),
        _again(own[0].results if again is None else every[again - 1].results),
      ]
    )
  return rows


def _source(text: str) -> str:
  return {"0": "the least", "100": "the most"}.get(text.partition(" ")[0], text)


def _again(one: Results) -> str:
  """Return what a baseline differs from itself by."""
  same = results.against_itself(one)
  found = same and same.difference.contrast
  if not found:
    return "—"
  which = "a second set of runs" if "run twice" in same.label else "every other seed"
  return f"{_difference(found, one)}, p = {tables.p_number(found.p())} ({which})"


def _pair(name: str, other: str) -> str:
  """One group against another, with what both have in common said once."""
  parts = [name.split(), other.split()]
  both = [word for word in parts[0] if word in parts[1] and ("=" in word or word == parts[0][0])]
  own = [" ".join(word for word in part if word not in both) for part in parts]
  if not all(own) or not all("=" in each for each in (name, other)) or not both:
    return f"{name} against {other}"
  return f"{' '.join(both).removesuffix(':')}: {own[0]} against {own[1]}"
