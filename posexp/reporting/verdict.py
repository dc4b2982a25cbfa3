"""What a comparison of two runs says on the terminal."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping
from typing import Any

from posexp.config import show
from posexp.reporting.comparison import NAME
from posexp.reporting.significance import LEVEL
from posexp.reporting.text import WIDTH, aligned, one_line, p_number, p_value, short, wrapped
from posexp.runs.metrics import METRICS

Result = Mapping[str, Any]  # as `comparison.compare` returns it


def verdict(result: Result) -> str:
  """Which of two runs is the better one, by how much, and how sure that is."""
  metric = METRICS[result["metric"]]
  found = result["metrics"][metric.name]
  seeds, of_seeds = len(result["seeds"]), found.get("over_seeds")
  better, worse, sign = result["a"]["name"], result["b"]["name"], 1
  if found["difference"]["value"] < 0:
    better, worse, sign = worse, better, -1
  unit = f"points of {metric.title}" if metric.percent else metric.title
  by = f"{abs(found['difference']['value']):.2f} {unit}"
  these = f"these {result['examples']:,} {result['items']}"
  sure = f"95 % {_range(found['difference'], sign)}"
  p = p_value(found["p"])
  mean = f" in the mean of {seeds} seeds" if of_seeds else ""
  is_better = f"{better} is better than {worse} by {by}"
  if not differs(found["difference"], found["p"]):
    on = f"on {these}: {by} for {better}{mean} ({sure})"
    return f"{better} and {worse} cannot be told apart {on}, {p}."
  if not of_seeds:
    return f"{is_better} ({sure}), {p}."
  if of_seeds["p"] is None:
    return (
      f"{is_better}{mean}: over {these} {sure}, {p}; the {seeds} seeds give the same difference, "
      "so that it cannot be said how much seeds matter."
    )
  over = f"over seeds 95 % {_range(of_seeds, sign)}, {p_value(of_seeds['p'])}"
  if differs(of_seeds, of_seeds["p"]):
    return f"{is_better}{mean}: over {these} {sure}, {p}; {over}."
  return (
    f"With these {seeds} seeds {is_better} in the mean ({sure} over {these}, {p}), but by no more "
    f"than the luck of seeds can bring: {over}."
  )


def differs(interval: Mapping[str, float], p: float) -> bool:
  """Whether a difference is more than chance, by its interval and by its p alike."""
  return p < LEVEL and not interval["low"] <= 0 <= interval["high"]


def report(result: Result) -> Iterator[str]:
  """The lines of a comparison, at most 100 columns wide but for paths and values of options."""
  seeds, names = result["seeds"], [result[side]["name"] for side in "ab"]
  for side in "ab":
    yield f"{side.upper()}  {result[side]['name']:<{NAME + 2}}{result[side]['run']}"
  given = ", ".join(dict.fromkeys(str(seed) for pair in seeds for seed in pair))
  what = f"{result['examples']:,} {result['split']} {result['items']}"
  yield f"{what}; seed{'s' if ',' in given else ''} {given}"
  yield from result["notes"]
  yield ""
  yield from _options(result)
  yield ""
  yield f"{'':<13}" + "".join(f"{name:<26}" for name in names) + f"{'difference':<27}p"
  for name, found in result["metrics"].items():
    a, b = (f"{_interval(found[side]):<26}" for side in "ab")
    difference = _interval(found["difference"], "+")  # the sign says that it is a difference
    yield f"{METRICS[name].title:<13}{a}{b}{difference:<27}{p_number(found['p'])}"
  if len(seeds) > 1:
    yield from _over_seeds(result)
  yield ""
  for sentence in (result["verdict"], *_remarks(result)):
    yield from wrapped(sentence)
  if result["shown"]:
    yield ""
    yield from (_sentences if "chrf" in result["shown"][0] else _answers)(result, names)


def _options(result: Result) -> Iterator[str]:
  """The options and facts in which the runs differ."""
  rows = [
    [key, *(show(values[side]) if side in values else "—" for side in "ab")]
    for key, values in result["config"].items()
  ]
  for key, values in result["facts"].items():
    shown = (values.get(side, "—") for side in "ab")
    rows.append([key, *(f"{v:,.0f}" if isinstance(v, int | float) else v for v in shown)])
  if not result["config"]:
    same = all(a == b for a, b in result["seeds"])
    yield f"the two configs do not differ{'' if same else ' but for the seed'}"
  if rows:
    cells = [[one_line(cell) for cell in row] for row in rows]
    yield from aligned((["differs", "A", "B"], cells), "left")


def _over_seeds(result: Result) -> Iterator[str]:
  yield ""
  yield f"{'over seeds':<13}{'mean difference':<26}{'p':<10}difference with each seed"
  for name, found in result["metrics"].items():
    over = found["over_seeds"]
    each = "  ".join(f"{a - b:+z.2f}" for a, b in zip(over["a"], over["b"], strict=True))
    p = "—" if over["p"] is None else p_number(over["p"])
    mean = _interval(over | {"value": over["difference"]}, "+")
    start = f"{METRICS[name].title:<13}{mean:<26}{p:<10}"
    yield from textwrap.wrap(
      start + each, WIDTH, subsequent_indent=" " * len(start), drop_whitespace=False
    )


def _remarks(result: Result) -> Iterator[str]:
  """How the numbers come about, and what they do not say."""
  seeds, (a, b) = len(result["seeds"]), (result[side]["name"] for side in "ab")
  items, metrics = result["items"], result["metrics"]
  if seeds == 1:
    yield "One seed each: what another seed would give is not in this test."
  else:
    yield f"Over seeds: paired t test and interval, n = {seeds}."
  drawn = [METRICS[name].title for name, found in metrics.items() if found["test"] != "McNemar"]
  also = f"; so is p of {', '.join(drawn)}, two-sided" if drawn else ""
  yield f"Intervals (95 %): paired bootstrap over {items}, {result['samples']:,} samples{also}."
  for name, found in metrics.items():
    if alone := found.get("mcnemar"):
      yield (
        f"{METRICS[name].title.capitalize()}: p is that of McNemar's exact test; {items} right "
        f"with {a} alone: {alone['a_alone']:,}, with {b} alone: {alone['b_alone']:,}."
      )


def _sentences(result: Result, names: list[str]) -> Iterator[str]:
  yield f"where they differ most, by chrF of a sentence{_seed(result)}"
  labels = ("source", "reference", *names)
  width = max(map(len, labels)) + 2
  for row in result["shown"]:
    ahead = names[0] if row["chrf"] > 0 else names[1]
    yield ""
    yield f"example {row['index']}, {abs(row['chrf']):.1f} chrF for {ahead}"
    for label, key in zip(labels, ("source", "reference", "a", "b"), strict=True):
      yield from wrapped(_shown(row[key]), " " * (width + 2), f"  {label:<{width}}")


def _answers(result: Result, names: list[str]) -> Iterator[str]:
  yield (
    f"right with one alone, those whose loss differs most{_seed(result)}; right answers have a *"
  )
  rows = []
  for row in result["shown"]:
    answers = (_shown(row[s]) + (" *" if row[s] == row["reference"] else "") for s in "ab")
    cells = (_shown(row["reference"]), *answers)
    rows.append([str(row["index"]), *(short(cell, NAME + 2) for cell in cells)])
  yield from aligned(
    (["example", "label", *(short(name, NAME + 2) for name in names)], rows), "left"
  )


def _seed(result: Result) -> str:
  """Whose examples are shown, where there are several seeds."""
  return f", seed {result['seeds'][0][0]}" if len(result["seeds"]) > 1 else ""


def _shown(text: str) -> str:
  return one_line(text) or "(nothing)"


def _interval(found: Mapping[str, float | None], sign: str = "") -> str:
  value = f"{found['value']:{sign}z.2f}"
  return value if found["low"] is None else f"{value} ({_range(found, 1, sign)})"


def _range(interval: Mapping[str, float], factor: int, sign: str = "") -> str:
  low, high = sorted((factor * interval["low"], factor * interval["high"]))
  return f"{low:{sign}z.2f} to {high:{sign}z.2f}"
