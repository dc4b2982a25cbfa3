"""What a comparison of two runs says on the terminal."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping
from typing import Any

from posexp.config import show
from posexp.reporting.significance import LEVEL

WIDTH = 100
NAME = 24  # letters that the name of a run may have
LABELS = {"bleu": "BLEU", "chrf": "chrF", "exact_match": "exact match", "accuracy": "accuracy"}
UNITS = {
  "bleu": "BLEU",
  "chrf": "chrF",
  "exact_match": "points of exact match",
  "accuracy": "points of accuracy",
}
ITEMS = {"translation": "sentences", "classification": "texts"}


def names(
  a: Mapping[str, Any], b: Mapping[str, Any], differences: Mapping[str, Mapping[str, Any]]
) -> tuple[str, str]:
  """Short names for two configs: the encodings, or else the one thing that differs."""
  encodings = a["encoding"], b["encoding"]
  if encodings[0] != encodings[1]:
    return encodings
  found = [f"{encodings[0]} {side}" for side in "AB"]
  if not differences and a["seed"] != b["seed"]:
    found = [f"{encodings[0]} seed={each['seed']}" for each in (a, b)]
  elif len(differences) == 1:
    ((key, values),) = differences.items()
    given = [f"{key}={show(values[side])}" if side in values else f"no {key}" for side in "ab"]
    if max(map(len, given)) <= NAME:
      found = given
  return found[0], found[1]


def sentence(result: Mapping[str, Any], metric: str) -> str:
  """Which of two runs is the better one, by how much, and how sure that is."""
  found = result["metrics"][metric]
  seeds, of_seeds = len(result["seeds"]), found.get("over_seeds")
  better, worse, sign = result["a"]["name"], result["b"]["name"], 1
  if found["difference"]["value"] < 0:
    better, worse, sign = worse, better, -1
  by = f"{abs(found['difference']['value']):.2f} {UNITS[metric]}"
  these = f"these {result['examples']:,} {ITEMS[result['task']]}"
  sure = f"95 % {_between(found['difference'], sign)}"
  mean = f" in the mean of {seeds} seeds" if of_seeds else ""
  if not differs(found["difference"], found["p"]):
    return (
      f"{better} and {worse} cannot be told apart on {these}: {by} for {better}{mean} ({sure}), "
      f"{_p(found['p'])}."
    )
  if not of_seeds:
    return f"{better} is better than {worse} by {by} ({sure}), {_p(found['p'])}."
  if of_seeds["p"] is None:
    return (
      f"{better} is better than {worse} by {by}{mean}: over {these} {sure}, {_p(found['p'])}; the "
      f"{seeds} seeds give the same difference, so that it cannot be said how much seeds matter."
    )
  seeded = f"over seeds 95 % {_between(of_seeds, sign)}, {_p(of_seeds['p'])}"
  if differs(of_seeds, of_seeds["p"]):
    return (
      f"{better} is better than {worse} by {by}{mean}: over {these} {sure}, {_p(found['p'])}; "
      f"{seeded}."
    )
  return (
    f"With these {seeds} seeds {better} is better than {worse} by {by} in the mean ({sure} over "
    f"{these}, {_p(found['p'])}), but by no more than the luck of seeds can bring: {seeded}."
  )


def differs(interval: Mapping[str, float], p: float) -> bool:
  """Whether a difference is more than chance, by its interval and by its p alike."""
  return p < LEVEL and not interval["low"] <= 0 <= interval["high"]


def report(result: Mapping[str, Any]) -> Iterator[str]:
  """The lines of a comparison, at most 100 columns wide but for paths and values of options."""
  seeds, names = result["seeds"], [result[side]["name"] for side in "ab"]
  for side in "ab":
    yield f"{side.upper()}  {result[side]['name']:<{NAME + 2}}{result[side]['run']}"
  given = ", ".join(dict.fromkeys(str(seed) for pair in seeds for seed in pair))
  what = f"{result['examples']:,} {result['split']} {ITEMS[result['task']]}"
  yield f"{what}; seed{'s' if ',' in given else ''} {given}"
  yield from result["notes"]
  yield ""
  yield from _differences(result)
  yield ""
  yield f"{'':<13}" + "".join(f"{name:<26}" for name in names) + f"{'difference':<27}p"
  for metric, found in result["metrics"].items():
    sides = (_estimate(found[side]) for side in "ab")
    yield (
      f"{LABELS[metric]:<13}"
      + "".join(f"{side:<26}" for side in sides)
      # The sign says that it is a difference.
      + f"{_estimate(found['difference'], '+'):<27}{_p(found['p'], '')}"
    )
  if len(seeds) > 1:
    yield from _seeds(result)
  yield ""
  yield from textwrap.wrap(result["verdict"], WIDTH)
  for note in _remarks(result):
    yield from textwrap.wrap(note, WIDTH)
  if result["shown"]:
    yield ""
    shown = _sentences if result["task"] == "translation" else _answers
    yield from shown(result, names)


def _differences(result: Mapping[str, Any]) -> Iterator[str]:
  rows = [
    (key, *(show(values[side]) if side in values else "—" for side in "ab"))
    for key, values in result["config"].items()
  ]
  for key, values in result["facts"].items():
    shown = (values.get(side, "—") for side in "ab")
    rows.append(
      (key, *(f"{each:,.0f}" if isinstance(each, int | float) else each for each in shown))
    )
  if not result["config"]:
    same = all(a == b for a, b in result["seeds"])
    yield f"the two configs do not differ{'' if same else ' but for the seed'}"
  if not rows:
    return
  rows.insert(0, ("differs", "A", "B"))
  widths = [max(map(len, column)) + 2 for column in zip(*rows, strict=True)]
  for key, a, b in rows:
    if sum(widths) <= WIDTH + 2:
      yield f"{key:<{widths[0]}}{a:<{widths[1]}}{b}"
    else:  # a path or a list
      yield from (f"{key:<{widths[0]}}{a}", f"{'':<{widths[0]}}{b}")


def _seeds(result: Mapping[str, Any]) -> Iterator[str]:
  yield ""
  yield f"{'over seeds':<13}{'mean difference':<26}{'p':<10}difference with each seed"
  for metric, found in result["metrics"].items():
    over = found["over_seeds"]
    each = "  ".join(f"{a - b:+z.2f}" for a, b in zip(over["a"], over["b"], strict=True))
    value = {"value": over["difference"], "low": over["low"], "high": over["high"]}
    p = "—" if over["p"] is None else _p(over["p"], "")
    start = f"{LABELS[metric]:<13}{_estimate(value, '+'):<26}{p:<10}"
    yield from textwrap.wrap(
      start + each, WIDTH, subsequent_indent=" " * len(start), drop_whitespace=False
    )


def _remarks(result: Mapping[str, Any]) -> Iterator[str]:
  seeds, (a, b) = len(result["seeds"]), (result[side]["name"] for side in "ab")
  items = ITEMS[result["task"]]
  if seeds == 1:
    yield "One seed each: what another seed would give is not in this test."
  else:
    yield f"Over seeds: paired t test and interval, n = {seeds}."
  drawn = [LABELS[m] for m, found in result["metrics"].items() if found["test"] != "McNemar"]
  also = f"; so is p of {', '.join(drawn)}, two-sided" if drawn else ""
  yield f"Intervals (95 %): paired bootstrap over {items}, {result['samples']:,} samples{also}."
  for metric, found in result["metrics"].items():
    if "mcnemar" in found:
      alone = found["mcnemar"]
      yield (
        f"{LABELS[metric].capitalize()}: p is that of McNemar's exact test; {items} right with {a} "
        f"alone: {alone['a_alone']:,}, with {b} alone: {alone['b_alone']:,}."
      )
  theirs = [
    f"{LABELS[metric]} {_p(found['p_sacrebleu'], '')}"
    for metric, found in result["metrics"].items()
    if "p_sacrebleu" in found
  ]
  if theirs:
    yield (
      f"sacrebleu gives p of the same samples as {', '.join(theirs)}: it is one-sided in effect, "
      "and small too where two systems are equal."
    )


def _sentences(result: Mapping[str, Any], names: list[str]) -> Iterator[str]:
  one = f", seed {result['seeds'][0][0]}" if len(result["seeds"]) > 1 else ""
  yield f"where they differ most, by chrF of a sentence{one}"
  labels = ("source", "reference", *names)
  width = max(map(len, labels)) + 2
  for row in result["shown"]:
    ahead = names[0] if row["chrf"] > 0 else names[1]
    yield ""
    yield f"example {row['index']}, {abs(row['chrf']):.1f} chrF for {ahead}"
    for label, key in zip(labels, ("source", "reference", "a", "b"), strict=True):
      yield from textwrap.wrap(
        readable(row[key]),
        WIDTH,
        initial_indent=f"  {label:<{width}}",
        subsequent_indent=" " * (width + 2),
        break_on_hyphens=False,
      )


def _answers(result: Mapping[str, Any], names: list[str]) -> Iterator[str]:
  one = f", seed {result['seeds'][0][0]}" if len(result["seeds"]) > 1 else ""
  yield f"right with one alone, those whose loss differs most{one}; right answers have a *"
  header = ("example", "label", *names)
  rows = [
    (
      str(row["index"]),
      readable(row["reference"]),
      *(readable(row[s]) + (" *" if row[s] == row["reference"] else "") for s in "ab"),
    )
    for row in result["shown"]
  ]
  columns = list(zip(header, *rows, strict=True))
  widths = [min(max(map(len, column)) + 2, NAME + 4) for column in columns]
  for row in (header, *rows):
    cells = (
      textwrap.shorten(cell, width - 2, placeholder="…") if len(cell) > width - 2 else cell
      for cell, width in zip(row, widths, strict=True)
    )
    yield "".join(map("{:<{}}".format, cells, widths)).rstrip()


def readable(text: str) -> str:
  """A text on one line, in which whatever could upset a terminal is a blank or a mark."""
  shown = "".join(each if each.isprintable() else "�" for each in " ".join(text.split()))
  return shown or "(nothing)"


def _estimate(found: Mapping[str, float | None], sign: str = "") -> str:
  value = f"{found['value']:{sign}z.2f}"
  return value if found["low"] is None else f"{value} ({_between(found, 1, sign)})"


def _between(interval: Mapping[str, float], factor: int, sign: str = "") -> str:
  low, high = sorted((factor * interval["low"], factor * interval["high"]))
  return f"{low:{sign}z.2f} to {high:{sign}z.2f}"


def _p(p: float, name: str = "p = ") -> str:
  return f"{name}{p:.3f}" if p >= 0.001 else f"{name.replace('=', '<') or '< '}0.001"
