"""What a comparison of two runs says on the terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from posexp.config import show
from posexp.errors import printable
from posexp.reporting.significance import LEVEL
from posexp.reporting.text import MISSING, p_number, p_value, short, tabulated, wrapped
from posexp.runs.metrics import METRICS

Result = Mapping[str, Any]  # as `comparison.compare` returns it
TEXT = 2_000  # letters that are shown of a text


def verdict(result: Result) -> str:
  """Which of two runs is the better one, by how much, and how sure that is."""
  metric, found = METRICS[result["metric"]], result["metrics"][result["metric"]]
  better, worse = result["a"]["name"], result["b"]["name"]
  sign = -1 if found["difference"]["value"] < 0 else 1
  if (sign < 0) == metric.higher_is_better:
    better, worse = worse, better
  unit = f"points of {metric.title}" if metric.percent else metric.title
  digits = metric.decimals
  by = f"{abs(found['difference']['value']):.{digits}f} {unit}"
  tests = [(f"{result['examples']:,} {result['items']}", found["difference"], found["p"])]
  if over := found.get("over_seeds"):
    tests.append((f"{len(result['seeds'])} seeds", over, over["p"]))
  sure = "; ".join(
    f"over {what}, no test: the difference is the same with each"
    if p is None
    else f"over {what}, 95 % {_range(interval, digits, factor=sign)}, {p_value(p)}"
    for what, interval, p in tests
  )
  # A difference is more than chance by its interval and by its p alike.
  if all(
    p is None or (p < LEVEL and not interval["low"] <= 0 <= interval["high"])
    for _, interval, p in tests
  ):
    return f"{better} is better than {worse} by {by} ({sure})."
  return f"{better} and {worse} cannot be told apart: {by} for {better} ({sure})."


def report(result: Result) -> Iterator[str]:
  """The parts of a comparison, in lines of at most 100 columns but for paths and options."""
  names = [result[side]["name"] for side in "ab"]
  for side in "ab":
    yield printable(f"{side.upper()}  {result[side]['name']}  {result[side]['run']}")
  seeds = ", ".join(dict.fromkeys(str(seed) for pair in result["seeds"] for seed in pair))
  yield f"{result['examples']:,} {result['split']} {result['items']}; seeds {seeds}"
  yield from map(printable, result["notes"])
  if result["differs"]:
    rows = [
      [key, *(MISSING if value is None else show(value) for value in values)]
      for key, values in result["differs"].items()
    ]
    yield "\n" + tabulated((["differs", "A", "B"], rows), "plain", "left")
  heads = ["", *names, "difference", "p"]
  heads += ["over seeds", "p"] if len(result["seeds"]) > 1 else []
  rows = [_row(name, found) for name, found in result["metrics"].items()]
  yield "\n" + tabulated((heads, rows), "plain", "left")
  yield "\n" + wrapped(result["verdict"])
  yield wrapped(method(result))
  if result["shown"]:
    yield f"\nwhere they differ most, seed {result['seeds'][0][0]}"
  labels = ("source", "reference", *names)
  width = max(map(len, labels))
  for row in result["shown"]:
    yield f"\nexample {row['index']}"
    for title, key in zip(labels, ("source", "reference", "a", "b"), strict=True):
      if key not in row:
        continue
      yield wrapped(short(row[key], TEXT) or "(nothing)", f"  {title:<{width}}  ")


def _row(name: str, found: Mapping[str, Any]) -> list[str]:
  metric = METRICS[name]
  digits = metric.decimals
  cells = [metric.title, _interval(found["a"], digits), _interval(found["b"], digits)]
  cells += [_interval(found["difference"], digits, "+"), p_number(found["p"])]
  if over := found.get("over_seeds"):
    cells += [_interval(over, digits, "+"), p_number(over["p"])]
  return cells


def method(result: Result) -> str:
  """How the numbers come about, and what they do not say."""
  items = result["items"]
  text = f"Intervals of 95 % and p: paired bootstrap over {items}"
  for name, found in result["metrics"].items():
    if alone := found.get("mcnemar"):
      text += (
        f"; p of {METRICS[name].title}: McNemar's exact test, {items} right with A alone "
        f"{alone['a_alone']:,}, with B alone {alone['b_alone']:,}"
      )
  if len(result["seeds"]) > 1:
    return f"{text}; over seeds: paired t test."
  return f"{text}. One seed each: what another seed would give is not in this test."


def _interval(found: Mapping[str, float | None], digits: int, sign: str = "") -> str:
  value = f"{found['value']:{sign}z.{digits}f}"
  return value if found["low"] is None else f"{value} ({_range(found, digits, sign)})"


def _range(interval: Mapping[str, float], digits: int, sign: str = "", factor: int = 1) -> str:
  low, high = sorted((factor * interval["low"], factor * interval["high"]))
  return f"{low:{sign}z.{digits}f} to {high:{sign}z.{digits}f}"
