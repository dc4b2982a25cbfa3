"""A trained model measured with terms of its relations switched off, in single layers and heads."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib.figure import Figure

from posexp import plotting
from posexp.errors import UserError
from posexp.runs.metrics import METRICS
from posexp.training.restore import TrainedModel, terms_of

TermScale = dict[str, np.ndarray]  # by term, float32 [layers,H]: 1 where it is on, 0 where off


class Off(NamedTuple):
  """What is switched off: these terms in these layers and heads."""

  terms: tuple[str, ...]
  layers: tuple[int, ...]
  heads: tuple[int, ...]


class Switches:
  """The terms that a run's model has, by layer and head; layers of an encoder count first."""

  def __init__(self, trained: TrainedModel):
    self.by_layer = terms_of(trained.spec)
    self.terms = tuple(dict.fromkeys(itertools.chain.from_iterable(self.by_layer)))
    self.layers = tuple(range(len(self.by_layer)))
    self.heads = tuple(range(trained.spec.size.num_heads))
    self.encoding = trained.run.config["encoding"]

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
    for term in terms or ():
      if term not in self.terms:
        raise UserError(
          f"--without {term}: no such term, {self.encoding} has {', '.join(self.terms)} here"
        )
    for option, chosen, known in (("layers", layers, self.layers), ("heads", heads, self.heads)):
      for number in chosen or ():
        if number not in known:
          raise UserError(f"--{option} {number}: the model's {option} are 0 to {known[-1]}")
    return Off(
      *(
        known if chosen is None else tuple(chosen)
        for chosen, known in ((terms, self.terms), (layers, self.layers), (heads, self.heads))
      )
    )

  def scale(self, off: Off | None = None) -> TermScale:
    """All terms on but for what is off."""
    scale = {term: np.ones((len(self.layers), len(self.heads)), np.float32) for term in self.terms}
    for term in off.terms if off else ():
      scale[term][np.ix_(off.layers, off.heads)] = 0
    return scale

  def grid(self, within: Off) -> Iterator[Off]:
    """For each term: every head of every layer, every layer, and all of these at once."""
    for term in within.terms:
      layers = tuple(layer for layer in within.layers if term in self.by_layer[layer])
      for layer, head in itertools.product(layers, within.heads):
        yield Off((term,), (layer,), (head,))
      for layer in layers:
        yield Off((term,), (layer,), within.heads)
      yield Off((term,), layers, within.heads)


def measure(trained: TrainedModel, split: str, scales: Sequence[TermScale]) -> list[dict[str, Any]]:
  """The metrics of a split for each choice of switches, and their difference from the first.

  The switches are traced: however many choices there are, the program is compiled once for each
  length of the batches.
  """
  task, data = trained.setup.task, trained.data
  found = [task.predict(data, trained.snapshot, split, scale) for scale in scales]
  return [task.scores(each) | _difference(found[0], each) for each in found]


def _difference(first: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> dict[str, Any]:
  """How predictions differ from the first, example by example."""
  tokens = first["tokens"]
  change = other["right"].astype(float) - first["right"]
  mean = change.sum() / tokens.sum()
  # The error of a ratio of means: of pairs, not of two samples.
  spread = (change - mean * tokens).std() / tokens.mean()
  return {
    "examples": len(change),
    "change": float(mean),
    "error": float(spread / len(change) ** 0.5),
    "other": int((first["answer"] != other["answer"]).sum()),  # answers that differ
  }


def table(result: dict[str, Any], switches: Switches) -> Iterator[str]:
  """The lines of a table; changes of accuracy are in points.

  The accuracy of a translation is that of its tokens; changed are examples with another answer, or
  with more or fewer tokens right.
  """
  on = result["on"]
  third = next(name for name in METRICS if name in on and name not in ("accuracy", "loss"))
  title = f"{result['encoding']}, step {result['step']:,}, {on['examples']:,} {result['split']}"
  yield f"{title} examples"
  columns = f"{'accuracy':>9}{'points':>9}{'± s.e.':>8}{'loss':>9}{METRICS[third].title:>12}"
  yield f"{'':<34}{columns}{'changed':>10}"
  yield f"{'everything on':<34}{on['accuracy']:>9.4f}{'':>17}{on['loss']:>9.4f}{on[third]:>12.4f}"
  for row in result["off"]:
    where = [
      f"{kind}{'s' * (len(row[f'{kind}s']) > 1)} {','.join(map(str, row[f'{kind}s']))}"
      for kind, known in (("layer", switches.layers), ("head", switches.heads))
      if len(row[f"{kind}s"]) < len(known) or len(known) == 1
    ]
    name = ": ".join([f"without {', '.join(row['terms'])}", *filter(None, [", ".join(where)])])
    yield (
      f"{name:<34}{row['accuracy']:>9.4f}{100 * row['change']:>+9.2f}{100 * row['error']:>8.2f}"
      f"{row['loss']:>9.4f}{row[third]:>12.4f}{row['other']:>10,}"
    )


def heat_map(result: dict[str, Any]) -> Figure:
  """What every term in every layer and head is worth: the changes of a grid, a panel per term."""
  off, on = result["off"], result["on"]
  terms = list(dict.fromkeys(row["terms"] for row in off))
  layers = sorted({layer for row in off for layer in row["layers"]})
  heads = sorted({head for row in off for head in row["heads"]})
  points = {(row["terms"], row["layers"], row["heads"]): 100 * row["change"] for row in off}
  columns = [*((head,) for head in heads), tuple(heads)]
  found = np.full((len(terms), len(layers), len(columns)), np.nan)
  for term, layer, column in np.ndindex(found.shape):
    key = terms[term], (layers[layer],), columns[column]
    found[term, layer, column] = points.get(key, np.nan)
  error = 100 * np.median([row["error"] for row in off])
  figure, axes = plotting.panels(
    1,
    len(terms),
    width=1.3 + 0.62 * len(columns),
    height=0.9 + 0.45 * len(layers),
    title=f"{result['encoding']}: points of {result['split']} accuracy gained or lost without a "
    f"term\neverything on: {100 * on['accuracy']:.2f} %, {on['examples']:,} examples; standard "
    f"error of a change about {error:.2f}",
  )
  limit = max(float(np.nanmax(np.abs(found), initial=0)), 2 * error) or 1.0  # noise stays pale
  for each, term, values in zip(axes[0], terms, found, strict=True):
    image = plotting.heat(each, values, limits=(-limit, limit), numbers="+.1f")
    each.axvline(len(heads) - 0.5, color="k", linewidth=1)
    each.set_xticks(range(len(columns)), [*map(str, heads), "all"])
    each.set_yticks(range(len(layers)), map(str, layers))
    everywhere = [100 * row["change"] for row in off if row["terms"] == term][-1]
    each.set(title=f"{term[0]}\n(everywhere: {everywhere:+.1f})", xlabel="head")
  axes[0][0].set_ylabel("layer")
  figure.colorbar(image, ax=list(axes[0]), label="points of accuracy")
  return figure
