"""A trained model measured with terms of its relations switched off, in single layers and heads."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib.figure import Figure
from tabulate import tabulate

from posexp import plotting
from posexp.errors import UserError
from posexp.runs.metrics import METRICS
from posexp.training.restore import TrainedModel, terms_of

TermScale = dict[str, np.ndarray]  # by term, float32 [layers,H]: 1 where it is on, 0 where off


class Off(NamedTuple):
  """What is switched off: these terms in these layers and heads."""

  terms: tuple[str, ...]
  layers: tuple[int, ...]  # those of an encoder count first
  heads: tuple[int, ...]


class Switches:
  """The terms that a run's model has, by layer and head."""

  def __init__(self, trained: TrainedModel):
    self.by_layer = terms_of(trained.spec)
    terms = tuple(dict.fromkeys(itertools.chain.from_iterable(self.by_layer)))
    heads = tuple(range(trained.spec.size.num_heads))
    self.known = Off(terms, tuple(range(len(self.by_layer))), heads)

  def off(
    self,
    terms: Sequence[str] | None = None,
    layers: Sequence[int] | None = None,
    heads: Sequence[int] | None = None,
  ) -> Off:
    """A choice of switches; None is all.

    Raises:
      UserError: there is no such term, layer or head.
    """
    chosen = self.known._asdict()
    for name, given in (("terms", terms), ("layers", layers), ("heads", heads)):
      for each in given or ():
        if each not in chosen[name]:
          option = "without" if name == "terms" else name
          known = ", ".join(map(str, chosen[name]))
          raise UserError(f"--{option} {each}: the model's {name} are {known}")
      if given is not None:
        chosen[name] = tuple(given)
    return Off(**chosen)

  def scale(self, off: Off | None = None) -> TermScale:
    """All terms on but for what is off."""
    shape = len(self.known.layers), len(self.known.heads)
    scale = {term: np.ones(shape, np.float32) for term in self.known.terms}
    for term in off.terms if off else ():
      scale[term][np.ix_(off.layers, off.heads)] = 0
    return scale

  def grid(self, within: Off) -> Iterator[Off]:
    """For each term: every head of every layer, every layer, and all of these at once."""
    for term in within.terms:
      layers = tuple(layer for layer in within.layers if term in self.by_layer[layer])
      for layer, head in itertools.product(layers, within.heads):
        yield Off((term,), (layer,), (head,))
      yield from (Off((term,), (layer,), within.heads) for layer in layers)
      if layers:
        yield Off((term,), layers, within.heads)


def measure(trained: TrainedModel, split: str, scales: Sequence[TermScale]) -> list[dict[str, Any]]:
  """The metrics of a split for each choice of switches, and their difference from the first.

  The switches are traced: however many choices there are, the program is compiled once for each
  length of the batches.
  """
  task, data = trained.setup.task, trained.data
  found = [task.predict(data, trained.snapshot, split, scale) for scale in scales]
  tokens, metrics = found[0]["tokens"], []
  for each in found:
    change = each["right"].astype(float) - found[0]["right"]
    mean = change.sum() / tokens.sum()
    # The error of a ratio of means: of pairs, not of two samples.
    spread = (change - mean * tokens).std() / tokens.mean()
    difference = {
      "examples": len(change),
      "change": float(mean),
      "error": float(spread / len(change) ** 0.5),
      "other": int((each["answer"] != found[0]["answer"]).sum()),  # answers that differ
    }
    metrics.append(task.scores(each) | difference)
  return metrics


def table(result: dict[str, Any], known: Off) -> str:
  """The metrics with everything on, and a row for each choice of switches.

  Changes of accuracy are in points. The accuracy of a translation is that of its tokens; changed
  are examples with another answer, or with more or fewer tokens right.
  """
  on = result["on"]
  third = next(name for name in METRICS if name in on and name not in ("accuracy", "loss"))
  rows = [["everything on", on["accuracy"], None, None, on["loss"], on[third], None]]
  for row in result["off"]:
    where = [
      f"{field.removesuffix('s')} {','.join(map(str, row[field]))}"
      for field in ("layers", "heads")
      if row[field] != getattr(known, field)
    ]
    name = ": ".join([f"without {', '.join(row['terms'])}", *filter(None, [", ".join(where)])])
    points, error = 100 * row["change"], 100 * row["error"]
    rows.append([name, row["accuracy"], points, error, row["loss"], row[third], row["other"]])
  heads = ("", "accuracy", "points", "± s.e.", "loss", METRICS[third].title, "changed")
  formats = ("", ".4f", "+.2f", ".2f", ".4f", ".4f", ",")
  title = f"{result['encoding']}, step {result['step']:,}, {on['examples']:,} {result['split']}"
  return f"{title} examples\n{tabulate(rows, heads, 'plain', floatfmt=formats, intfmt=formats)}"


def heat_map(result: dict[str, Any]) -> Figure:
  """What every term in every layer and head is worth: the changes of a grid, a panel per term."""
  off, on = result["off"], result["on"]
  terms = {row["terms"]: [each for each in off if each["terms"] == row["terms"]] for row in off}
  layers, heads = (max((row[key] for row in off), key=len) for key in ("layers", "heads"))
  error = 100 * np.median([row["error"] for row in off])
  figure, axes = plotting.panels(
    1,
    len(terms),
    width=1.9 + 0.62 * len(heads),
    height=0.9 + 0.45 * len(layers),
    title=f"{result['encoding']}: points of {result['split']} accuracy gained or lost without a "
    f"term\neverything on: {100 * on['accuracy']:.2f} %, {on['examples']:,} examples; standard "
    f"error of a change about {error:.2f}",
  )
  limit = max(*(100 * abs(row["change"]) for row in off), 2 * error) or 1.0  # noise stays pale
  for each, (term, found) in zip(axes[0], terms.items(), strict=True):
    *points, _ = (100 * row["change"] for row in found)  # as `grid` orders them
    layers, count = found[-1]["layers"], len(found[-1]["layers"]) * len(heads)
    of_heads = np.reshape(points[:count], (len(layers), len(heads)))
    values = np.column_stack([of_heads, points[count:]])
    image = plotting.heat(each, values, limits=(-limit, limit))
    for (row, column), value in np.ndenumerate(values):
      color = "w" if abs(value) > 0.6 * limit else "k"
      each.text(column, row, f"{value:+.1f}", ha="center", va="center", color=color, fontsize=8)
    each.axvline(len(heads) - 0.5, color="k", linewidth=1)
    each.set_xticks(range(len(heads) + 1), [*map(str, heads), "all"])
    each.set_yticks(range(len(layers)), map(str, layers))
    each.set(title=term[0], xlabel="head", ylabel="layer")
  figure.colorbar(image, ax=list(axes[0]), label="points of accuracy")
  return figure
