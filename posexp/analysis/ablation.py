"""A trained model measured with terms of its relations switched off, in single layers and heads."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib.figure import Figure
from tabulate import tabulate

from posexp.analysis import plotting
from posexp.encodings.span import TermScale
from posexp.errors import UserError
from posexp.runs import Run
from posexp.runs.identity import settings
from posexp.runs.metrics import COST, METRICS, score
from posexp.tasks.results import Outputs
from posexp.training.restore import TrainedModel, terms_of

CHANGES = ("examples", "change", "error", "other")  # what a row says of its difference


class Off(NamedTuple):
  """The terms that are switched off, and the layers and heads in which they are."""

  terms: tuple[str, ...]
  layers: tuple[int, ...]  # those of an encoder count first
  heads: tuple[int, ...]


class Switches:
  """The terms that a run's model has, by layer and head."""

  def __init__(self, trained: TrainedModel):
    self.by_layer = terms_of(trained.spec)
    terms = tuple(dict.fromkeys(itertools.chain.from_iterable(self.by_layer)))
    heads = tuple(range(getattr(trained.spec.size, "num_heads", 0)))
    self.known = Off(terms, tuple(range(len(self.by_layer))), heads)

  def off(self, *choices: Sequence[Any] | None) -> Off:
    """Return a choice of terms, of layers and of heads, in this order; None is all.

    Raises:
      UserError: there is no such term, layer or head.
    """
    chosen = self.known._asdict()
    for name, given in zip(Off._fields, choices, strict=False):
      for each in given or ():
        if each not in chosen[name]:
          option = "without" if name == "terms" else name
          known = ", ".join(map(str, chosen[name]))
          raise UserError(f"--{option} {each}: the model's {name} are {known}")
      if given is not None:
        chosen[name] = tuple(given)
    return Off(**chosen)

  def scale(self, off: Off | None = None) -> TermScale:
    """Return 0 where a term is off and 1 elsewhere, by term: float32 [layers,H]."""
    shape = len(self.known.layers), len(self.known.heads)
    scale = {term: np.ones(shape, np.float32) for term in self.known.terms}
    for term in off.terms if off else ():
      scale[term][np.ix_(off.layers, off.heads)] = 0
    return scale

  def grid(self, within: Off) -> Iterator[Off]:
    """Yield for each term every head of every layer, every layer, and all of these at once."""
    for term in within.terms:
      layers = tuple(layer for layer in within.layers if term in self.by_layer[layer])
      for layer, head in itertools.product(layers, within.heads):
        yield Off((term,), (layer,), (head,))
      yield from (Off((term,), (layer,), within.heads) for layer in layers)
      if layers:
        yield Off((term,), layers, within.heads)


def parts(found: Outputs) -> tuple[np.ndarray, np.ndarray]:
  """Return the numerator and the denominator of each example, [N], for the metric whose changes are
  shown.

  This is the task's `compare_by`: bits per byte for language models, else the share of tokens that
  are right.
  """
  if "bytes" in found:
    return found["loss"] / np.log(2), found["bytes"]
  return found["right"].astype(float), found["tokens"]


def ratio(values: np.ndarray, counts: np.ndarray) -> tuple[float, np.ndarray]:
  """Return Σ values / Σ counts of arrays [N], and each example's first-order influence, [N]."""
  quotient = values.sum() / counts.sum()
  return quotient, (values - quotient * counts) / counts.mean()


def measure(trained: TrainedModel, split: str, scales: Sequence[TermScale]) -> list[dict[str, Any]]:
  """Return the metrics of a split for each choice of switches, and their difference from the first.

  The switches are traced: however many choices there are, the program is compiled once for each
  length of the batches.
  """
  task, data = trained.setup.task, trained.data
  predictions = [task.predict(data, trained.snapshot, split, scale) for scale in scales]
  level, before = ratio(*parts(predictions[0]))
  scale, metrics = 1.0, []
  if "bytes" in predictions[0]:  # of tokens, which may leave out a part of the text
    scale = predictions[0]["bytes"].sum() / data.streams[split].source.bytes
  for prediction in predictions:
    value, deviations = ratio(*parts(prediction))
    difference = {
      "examples": len(deviations),
      "change": float(scale * (value - level)),
      # Of pairs, not of two samples.
      "error": float(scale * (deviations - before).std() / len(deviations) ** 0.5),
      "other": int((prediction["answer"] != predictions[0]["answer"]).sum()),  # answers that differ
    }
    metrics.append(task.scores_of(data, split, prediction) | difference)
  return metrics


def table(result: dict[str, Any], known: Off) -> str:
  """Return the metrics with everything on, and a row for each choice of switches.

  Changes of accuracy are in points. The accuracy of a translation is that of its tokens; changed
  are examples with another answer, or with more or fewer tokens right.
  """
  on = result["on"]
  main = score(result["metric"])
  names = [main.key, "loss"]
  names.append(next(name for name in METRICS if name in on and name not in names))
  rows = {"everything on": [on[main.key], None, None, *(on[name] for name in names[1:]), None]}
  for row in result["off"]:  # of a single layer, all of it and all layers are the same row
    change, error = (main.factor * row[key] for key in ("change", "error"))
    values = (row[name] for name in names[1:])
    rows[f"without {name(row, known)}"] = [row[main.key], change, error, *values, row["other"]]
  title, *others = (METRICS[name].title for name in names)
  heads = ("", title, "points" if main.metric.percent else "change", "± s.e.", *others, "changed")
  decimals = 2 if main.metric.percent else 4
  formats = ("", ".4f", f"+.{decimals}f", f".{decimals}f", ".4f", ".4f", ",")
  title = f"{result['encoding']}, step {result['step']:,}, {on['examples']:,} {result['split']}"
  title += " examples" + "".join(f", {option}" for option in result["options"])
  lines = [[label, *cells] for label, cells in rows.items()]
  return f"{title}\n{tabulate(lines, heads, 'plain', floatfmt=formats, intfmt=formats)}"


def name(row: dict[str, Any], known: Off) -> str:
  """Return a row's label: its terms, and layers and heads unless it has all: "content: layer 0"."""
  where = [
    f"{field.removesuffix('s')} {','.join(map(str, row[field]))}"
    for field in ("layers", "heads")
    if row[field] != getattr(known, field)
  ]
  return ": ".join([", ".join(row["terms"]), *filter(None, [", ".join(where)])])


def as_runs(trained: TrainedModel, result: dict[str, Any], known: Off) -> list[Run]:
  """Return the measurements as runs: one with everything on, and one for each choice of switches.

  Their option `without` names what was off, so that a report tells them apart. Their summaries have
  the costs of training and the metrics that were measured, under the name of the split.
  """
  run, trained_to = trained.run, trained.run.summary or {}
  cost = {key: trained_to[key] for key in trained_to if key.startswith(COST) or "/" not in key}
  runs_by_name = {}  # of a single layer, all of it and all layers are the same
  for row in [result["on"], *result["off"]]:
    config = trained.setup.config | {"without": name(row, known) if "terms" in row else "nothing"}
    metrics = {
      f"{result['split']}/{key}": value
      for key, value in row.items()
      if key not in (*Off._fields, *CHANGES)
    }
    runs_by_name[config["without"]] = Run(run.path, config, settings(config), cost | metrics)
  return [*runs_by_name.values()]


def heat_map(result: dict[str, Any]) -> Figure:
  """Draw how the metric changes without a term, by layer and head: a panel for each term."""
  off, on = result["off"], result["on"]
  terms = {row["terms"]: [each for each in off if each["terms"] == row["terms"]] for row in off}
  layers, heads = (max((row[key] for row in off), key=len) for key in ("layers", "heads"))
  main = score(result["metric"])
  unit = f"points of {main.title}" if main.metric.percent else main.title
  level = f"{100 * on[main.key]:.2f} %" if main.metric.percent else f"{on[main.key]:.4f}"
  decimals = "+.1f" if main.metric.percent else "+.2f"
  error = main.factor * np.median([row["error"] for row in off])
  figure, axes = plotting.panels(
    1,
    len(terms),
    width=1.9 + 0.62 * len(heads),
    height=0.9 + 0.45 * len(layers),
    title=f"{result['encoding']}: {unit} of the {result['split']} split gained or lost without a "
    f"term\neverything on: {level}, {on['examples']:,} examples; standard error of a change about "
    f"{error:.2g}",
  )
  largest = max(main.factor * abs(row["change"]) for row in off)
  limit = max(largest, 2 * error) or 1.0  # noise stays pale
  for each, (term, rows) in zip(axes[0], terms.items(), strict=True):
    *changes, _ = (main.factor * row["change"] for row in rows)  # as `grid` orders them
    layers, count = rows[-1]["layers"], len(rows[-1]["layers"]) * len(heads)
    of_heads = np.reshape(changes[:count], (len(layers), len(heads)))
    values = np.column_stack([of_heads, changes[count:]])
    cmap = "RdBu_r" if main.metric.higher_is_better else "RdBu"  # blue is worse
    image = plotting.heat(each, values, limits=(-limit, limit), cmap=cmap)
    plotting.numbers(each, values, decimals, abs(values) > 0.6 * limit)
    each.axvline(len(heads) - 0.5, color="k", linewidth=1)
    each.set_xticks(range(len(heads) + 1), [*map(str, heads), "all"])
    each.set_yticks(range(len(layers)), map(str, layers))
    each.set(title=term[0], xlabel="head", ylabel="layer")
  figure.colorbar(image, ax=list(axes[0]), label=unit)
  return figure
