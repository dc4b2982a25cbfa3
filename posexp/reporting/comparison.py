"""Comparisons of two runs, or of two groups of runs, on the same examples."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from posexp.config import show
from posexp.errors import printable
from posexp.reporting import significance
from posexp.reporting.grouping import names_of
from posexp.reporting.paired_predictions import Columns, by_example, paired, read_alike
from posexp.reporting.significance import LEVEL, Measure
from posexp.reporting.text import MISSING, p_number, p_value, short, tabulated, wrapped
from posexp.runs import Run, bleu, scores
from posexp.runs.identity import PARTIAL
from posexp.runs.metrics import METRICS, score

FACTS = ("parameters", "flops_per_token", "devices", "processor", "versions")
NAME = 24  # letters that the name of a run may have
SAMPLES = 1000  # of the bootstrap
TEXT = 2_000  # letters that are shown of a text
SHOWN = ("source", "reference", "a", "b")  # of an example: these texts

Measures = dict[str, Measure]  # by metric
Result = Mapping[str, Any]  # as `compare` returns it


def compare(a: Path, b: Path, split: str, examples: int) -> dict[str, Any]:
  """Compare two runs, or the seeds that two groups share; all values are plain.

  Raises:
    UserError: a run is missing, not finished, or not comparable to the other.
  """
  pairs, notes = paired(a, b)
  runs = [run for pair in pairs for run in pair]
  columns, sides = read_alike(runs, split)
  names = names_of(pairs[0], NAME)
  language = runs[0].settings.get("task.target") or ""
  measures = [_measures(rows, columns, language) for rows in sides]
  headline = scores.headline(runs)
  metrics = [*measures[0]]
  known = [
    run.settings | {key: run.summary[key] for key in FACTS if key in run.summary}
    for run in pairs[0]
  ]
  return {
    "a": {"name": names[0], "run": str(a)},
    "b": {"name": names[1], "run": str(b)},
    "items": columns.items,
    "split": split,
    "examples": len(sides[0]),
    "seeds": [[run.seed for run in pair] for pair in pairs],
    "notes": [*notes, *_unspelled(runs, measures, split)],
    "differs": {
      key: [each.get(key) for each in known]
      for key in known[0] | known[1]
      if known[0].get(key) != known[1].get(key)
      if key not in PARTIAL or all(key in each for each in known)
    },
    "metric": headline.metric.name if headline and headline.metric.name in metrics else metrics[0],
    "metrics": {name: _compared(name, [side[name] for side in measures]) for name in metrics},
    "shown": _most_different(sides[:2], measures[:2])[:examples],
  }


def _unspelled(runs: Sequence[Run], measures: Sequence[Measures], split: str) -> Iterator[str]:
  """Yield a note on each language model whose vocabulary lacks words of the text.

  The score of such a run counts the letters of these words, and its predictions leave them out.
  """
  for run, side in zip(runs, measures, strict=True):
    whole, shown = run.score(f"{split}/bits_per_byte"), side.get("bits_per_byte")
    if shown and whole is not None and whole > 1.001 * shown.score(shown.statistics.sum(0)):
      yield (
        f"{run.path}: {whole:.4f} bits per byte with the words that its vocabulary lacks, which "
        "do not count here"
      )


def _measures(rows: pd.DataFrame, columns: Columns, language: str) -> Measures:
  """Return the metrics of a run's predictions, shares in percent."""
  answers, references = rows["answer"].tolist(), rows["reference"].tolist()
  single, measures = by_example(rows, columns), {}
  for name in columns.metrics:
    if name == "bleu":
      tokenize = bleu.tokenizer(references, language)
      if bleu.applies(references, tokenize):
        measures[name] = significance.corpus_measure(bleu.bleu(tokenize), answers, references)
    elif name == "chrf":
      import sacrebleu

      measures[name] = significance.corpus_measure(sacrebleu.CHRF(), answers, references)
    else:
      one = single[name]
      factor = 100 if METRICS[name].percent else 1
      measures[name] = significance.ratio_measure(factor * one.amounts, one.sizes)
      if (one.sizes == 1).all() and METRICS[name].percent:
        measures[name] = measures[name]._replace(right=one.amounts.astype(bool))
  return measures


def _compared(name: str, measures: Sequence[Measure]) -> dict[str, Any]:
  """Compare a metric of pairs of runs over examples, over seeds, and over both."""
  drawn = significance.resample(measures, SAMPLES)
  a, b = drawn[::2].mean(0), drawn[1::2].mean(0)
  sides = {"a": a, "b": b, "difference": a - b}
  compared = {name: significance.interval(side) for name, side in sides.items()}
  compared["p"] = significance.bootstrap_p(a - b)
  if len(measures) > 2:
    most = score(name).most
    most = 100 * most if most and METRICS[name].percent else most
    over = significance.contrast(*(dict(enumerate(drawn[at::2, 0])) for at in (0, 1)), most)
    one, other = (dict(enumerate(drawn[at::2, 1:])) for at in (0, 1))
    moved = significance.over_examples(one, other, over.paired)
    both = over.over_examples(moved, len(measures[0].statistics))
    for key, each in {"over_seeds": over, "over_both": both}.items():
      low, high, p = significance.widest(over, each)
      compared[key] = {"value": each.mean, "low": low, "high": high, "p": p}
    compared["paired"] = over.paired
  elif measures[0].right is not None:
    compared["mcnemar"] = significance.mcnemar(*(measure.right for measure in measures))
    compared["p"] = compared["mcnemar"]["p"]
  return compared


def _most_different(
  sides: Sequence[pd.DataFrame], measures: Sequence[Measures]
) -> list[dict[str, Any]]:
  """Return the examples that tell two runs apart the most: by chrF, by being right, bits or F1."""
  name = next(each for each in measures[0] if each != "bleu")  # which says little of a sentence
  of = [side[name] for side in measures]
  one, other = (np.array([measure.score(row) for row in measure.statistics]) for measure in of)
  difference = np.abs(one - other)
  clearest = [i for i in np.argsort(-difference, kind="stable") if difference[i]]
  a, b = sides
  examples = a.drop(columns="answer").assign(a=a["answer"], b=b["answer"])
  return examples.filter(SHOWN).iloc[clearest].reset_index().to_dict("records")


def verdict(result: Result) -> str:
  """Return which of two runs is the better one, by how much, and how sure that is."""
  metric, numbers = METRICS[result["metric"]], result["metrics"][result["metric"]]
  better, worse = result["a"]["name"], result["b"]["name"]
  sign = -1 if numbers["difference"]["value"] < 0 else 1
  if (sign < 0) == metric.higher_is_better:
    better, worse = worse, better
  unit = f"points of {metric.title}" if metric.percent else metric.title
  digits = metric.decimals
  by = f"{abs(numbers['difference']['value']):.{digits}f} {unit}"
  tests = [(f"{result['examples']:,} {result['items']}", numbers["difference"], numbers["p"])]
  if over := numbers.get("over_seeds"):
    tests.append((f"{len(result['seeds'])} seeds", over, over["p"]))
  if both := numbers.get("over_both"):
    tests.append(("both", both, both["p"]))
  sure = "; ".join(
    f"over {what}, the same difference with each, {p_value(p)}"
    if interval["low"] is None
    else f"over {what}, 95 % {_range(interval, digits, factor=sign)}, {p_value(p)}"
    for what, interval, p in tests
  )
  # A difference is more than chance by its interval and by its p alike.
  if all(
    p < LEVEL and (interval["low"] is None or not interval["low"] <= 0 <= interval["high"])
    for _, interval, p in tests
  ):
    return f"{better} is better than {worse} by {by} ({sure})."
  return f"{better} and {worse} cannot be told apart: {by} for {better} ({sure})."


def report(result: Result) -> Iterator[str]:
  """Yield the parts of a comparison, in lines of at most 100 columns but for paths and options."""
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
  rows = []
  for name, numbers in result["metrics"].items():
    metric = METRICS[name]
    digits, over = metric.decimals, numbers.get("over_seeds")
    cells = [metric.title, _interval(numbers["a"], digits), _interval(numbers["b"], digits)]
    cells += [_interval(numbers["difference"], digits, "+"), p_number(numbers["p"])]
    cells += [_interval(over, digits, "+"), p_number(over["p"])] if over else []
    rows.append(cells)
  yield "\n" + tabulated((heads, rows), "plain", "left")
  yield "\n" + wrapped(result["verdict"])
  yield wrapped(method(result))
  if result["shown"]:
    yield f"\nwhere they differ most, seed {result['seeds'][0][0]}"
  labels = ("source", "reference", *names)
  width = max(map(len, labels))
  for row in result["shown"]:
    yield f"\nexample {row['index']}"
    for title, key in zip(labels, SHOWN, strict=True):
      if key not in row:
        continue
      yield wrapped(short(row[key], TEXT) or "(nothing)", f"  {title:<{width}}  ")


def method(result: Result) -> str:
  """Return how the numbers come about, and what does not follow from them."""
  items = result["items"]
  text = f"Intervals of 95 % and p: paired bootstrap over {items}"
  for name, numbers in result["metrics"].items():
    if alone := numbers.get("mcnemar"):
      text += (
        f"; p of {METRICS[name].title}: McNemar's exact test, {items} right with A alone "
        f"{alone['a_alone']:,}, with B alone {alone['b_alone']:,}"
      )
  if len(result["seeds"]) > 1:
    test = "paired t test" if result["metrics"][result["metric"]]["paired"] else "Welch's t test"
    return f"{text}; over seeds: {test}; over both: the variance of seeds and that of {items}."
  return f"{text}. One seed each: what another seed would give is not in this test."


def _interval(found: Mapping[str, float | None], digits: int, sign: str = "") -> str:
  value = f"{found['value']:{sign}z.{digits}f}"
  return value if found["low"] is None else f"{value} ({_range(found, digits, sign)})"


def _range(interval: Mapping[str, float], digits: int, sign: str = "", factor: int = 1) -> str:
  low, high = sorted((factor * interval["low"], factor * interval["high"]))
  return f"{low:{sign}z.{digits}f} to {high:{sign}z.{digits}f}"
